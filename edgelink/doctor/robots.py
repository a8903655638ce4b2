"""The robots of this machine: whether they are there, and whether somebody has stopped them."""

from __future__ import annotations

import shlex
from contextlib import suppress

from edgelink.doctor.check import Finding, Surroundings, failed, limited, listed, ok, skipped
from edgelink.training.trainer.robot.latch import SUFFIX, read_latch

_ARP_COMPLETE = 0x2


def robot_answers(surroundings: Surroundings) -> Finding:
    """Do the robots that are configured here answer?

    Those of `ray.robot_ip`: by ping, or, where their firmware answers none, by ARP on this LAN.
    """
    robots = [str(address) for address in surroundings.config.ray.robot_ip]
    if not robots or not surroundings.has_ray:
        return skipped("no robot is configured (ray.robot_ip)")
    if not surroundings.probes.may_ping:
        return skipped("this user may not ping; run it with sudo")
    there = surroundings.probes.pings(robots) | _neighbours(surroundings)
    silent = [address for address in robots if address not in there]
    if silent:
        return failed(
            f"no answer from {listed(silent)}",
            "is it on, and on this network (`ip route get ADDRESS`)? Or correct ray.robot_ip",
        )
    return ok(f"{listed(robots)} answer")


def robot_stopped(surroundings: Surroundings) -> Finding:
    """Has a person stopped a robot of this machine?

    Such a stop outlives training and machine, until a person lifts it.
    """
    stopped = {}
    for directory in surroundings.probes.robot_directories():
        with suppress(OSError):
            for latch in sorted(directory.glob(f"*{SUFFIX}")):
                if (found := read_latch(latch)) is not None:
                    stopped[latch.name.removesuffix(SUFFIX)] = found
    if stopped:
        told = [f"{name} ({stop['cause']}, {stop['time']})" for name, stop in stopped.items()]
        resume = shlex.join(["edgelink", "robot", "resume", next(iter(stopped))])
        return limited(f"stopped: {listed(told)}", f"once it is safe: `{resume}`")
    return ok("none is")


def _neighbours(surroundings: Surroundings) -> set[str]:
    """The addresses whose devices have answered ARP."""
    rows = [line.split() for line in surroundings.text("proc/net/arp").splitlines()[1:]]
    return {row[0] for row in rows if len(row) > 3 and int(row[2], 16) & _ARP_COMPLETE}

"""The robots of this machine: whether they are there, and whether somebody has stopped them."""

from __future__ import annotations

import shlex
from contextlib import suppress

from edgelink.doctor.check import Finding, Surroundings, failed, limited, listed, ok, skipped
from edgelink.training.trainer.robot.latch import SUFFIX, read_latch

_ARP_COMPLETE = 0x2


def robot_answers(surroundings: Surroundings) -> Finding:
    """Do the robots that are configured here answer?

    Those of `ray.robot_ip`: by ping, or, where their firmware answers none, by an ARP request on this LAN, which root
    may send. What the kernel remembers of a robot is no answer: it stays for hours after the robot was switched off.
    """
    robots = [str(address) for address in surroundings.config.ray.robot_ip]
    if not robots or not surroundings.is_node:
        return skipped("no robot is configured (ray.robot_ip)")
    if not surroundings.probes.may_ping:
        return skipped("this user may not ping; run it with sudo")
    there = surroundings.probes.pings(robots)
    known = _neighbours(surroundings)  # once the kernel has asked for them, to send the pings
    doubtful = {address: known[address] for address in robots if address in known and address not in there}
    answering = surroundings.probes.arp(doubtful)
    there |= set(doubtful) if answering is None else answering
    silent = [address for address in robots if address not in there]
    if silent:
        return failed(
            f"no answer from {listed(silent)}",
            "is it on, and on this network (`ip route get ADDRESS`)? Or correct ray.robot_ip",
        )
    if answering is None:
        return skipped(f"no ping is answered by {listed([*doubtful])}, and only root can ask by ARP; run it with sudo")
    return ok(f"robots answer: {listed(robots)}")


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
    return ok("no robot is stopped")


def _neighbours(surroundings: Surroundings) -> dict[str, str]:
    """The addresses that the kernel knows a device's for, each with the network device that leads there."""
    rows = [line.split() for line in surroundings.text("proc/net/arp").splitlines()[1:]]
    return {row[0]: row[5] for row in rows if len(row) > 5 and int(row[2], 16) & _ARP_COMPLETE}

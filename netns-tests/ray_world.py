"""Machines for the Ray tests: network and mount namespaces with a veth as the overlay, and a LAN beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from faults import by_command

from edgelink.protocol.keys import NodeKey
from edgelink.testing.payloads import lease

CIDR = IPv4Network("10.99.0.0/24")
DEVICE = "ov0"
_DAEMON = Path(__file__).with_name("ray_daemon.py")


@dataclass
class Machine:
    """One node: its holder keeps the namespaces alive, ``daemon`` is our stand-in of EdgeLink's."""

    name: str
    directory: Path
    holder: subprocess.Popen[bytes]
    overlay_ip: IPv4Address
    lan_ip: IPv4Address
    key: NodeKey
    environment: dict[str, str] = field(default_factory=dict)
    daemon: subprocess.Popen[str] | None = None

    @property
    def output(self) -> Path:
        return self.directory / "daemon.out"

    def command(self, *argv: str | Path) -> list[str]:
        return ["nsenter", f"--target={self.holder.pid}", "--net", "--mount", "--", *map(str, argv)]

    def run(self, *argv: str | Path, input_text: str | None = None, timeout_s: float = 30) -> str:
        answer = subprocess.run(
            self.command(*argv), capture_output=True, text=True, check=False, timeout=timeout_s, input=input_text
        )
        assert answer.returncode == 0, f"{argv}: {answer.stdout}{answer.stderr}"
        return answer.stdout

    def pids(self) -> set[int]:
        namespace = Path(f"/proc/{self.holder.pid}/ns/net").readlink()
        found = set()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and (entry / "ns/net").readlink() == namespace:
                    found.add(int(entry.name))
        return found - {self.holder.pid}

    def names(self) -> dict[str, int]:
        """The processes in these namespaces, by command name."""
        return by_command(self.pids())

    def condition(self) -> dict[str, Any]:
        """What RayJoined last was."""
        lines = [line for line in self.output.read_text().splitlines() if line.startswith('{"type"')]
        return dict(json.loads(lines[-1])) if lines else {"status": "Unknown", "reason": "", "message": ""}

    def record(self) -> dict[str, Any]:
        return dict(json.loads((self.directory / "state/processes/ray.json").read_text()))

    def record_if_any(self) -> dict[str, Any]:
        """Empty between the end of one Ray and the start of the next."""
        try:
            return self.record()
        except FileNotFoundError:
            return {}

    def kill_daemon(self) -> None:
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait()

    def stop_daemon(self, timeout_s: float = 40) -> None:
        assert self.daemon is not None
        self.daemon.terminate()
        self.daemon.wait(timeout_s)


class World:
    """Machines on one overlay (a bridge), each also on a LAN with one neighbour."""

    def __init__(self, directory: Path, python: Path, environment: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.python = python
        self.machines: list[Machine] = []
        self._holders: list[subprocess.Popen[bytes]] = []
        self.spec_file = directory / "cluster_spec.json"
        self._environment = dict(environment or {})
        self._hub = self._hold("hub")
        self._in(self._hub, "ip link set lo up; ip link add overlay type bridge; ip link set overlay up")
        self._in(self._hub, "ip link add lan type bridge; ip link set lan up; ip addr add 192.168.77.1/24 dev lan")

    def add(self, name: str) -> Machine:
        number = len(self.machines) + 1
        holder = self._hold(name)
        addresses = {(DEVICE, "overlay"): f"10.99.0.{number}", ("lan0", "lan"): f"192.168.77.{number + 1}"}
        for (device, bridge), address in addresses.items():
            # Not by way of the machine's own network: other labs look at it meanwhile.
            far = f"{bridge[0]}{number}"
            self._in(self._hub, f"ip link add {far} type veth peer name {device} netns {holder.pid}")
            self._in(holder, f"ip link set lo up; ip addr add {address}/24 dev {device}; ip link set {device} up")
            self._in(self._hub, f"ip link set {far} master {bridge}; ip link set {far} up")
        directory = self.directory / name
        (directory / "state").mkdir(parents=True)
        machine = Machine(
            name=name,
            directory=directory,
            holder=holder,
            overlay_ip=CIDR[number],
            lan_ip=IPv4Address(f"192.168.77.{number + 1}"),
            key=NodeKey.load_or_create(directory / "state/node.key"),
        )
        self.machines.append(machine)
        self._write_leases()
        return machine

    def start_daemon(self, machine: Machine, **settings: str) -> None:
        """Start the machine's daemon; ``settings`` are EDGELINK_… variables without the prefix."""
        rank = self.machines.index(machine)
        values = {
            "OVERLAY__DEVICE": DEVICE,
            "RAY__PYTHON": str(self.python),
            "RAY__ALLOW_ROOT": "true",
            "RAY__TEMP_DIR": "/tmp/ray/own",
            "RAY__NUM_CPUS": "2",
            "RAY__NUM_GPUS": "0",
            "RAY__OBJECT_STORE_MEMORY": "100000000",
            "RAY__ENVIRONMENT": f"{{ROS_DOMAIN_ID: '{rank}'}}",
            **self._environment,
            **settings,
        }
        argv = machine.command(
            *(sys.executable, _DAEMON, "head" if rank == 0 else "edge", machine.directory / "state"),
            *(machine.directory / "run", self.directory / "leases.json", str(rank), self.spec_file),
        )
        env = {"PATH": os.environ["PATH"], "RLINF_NODE_RANK": "77", "RAY_ADDRESS": "192.0.2.1:1"}  # leftovers
        env |= {f"EDGELINK_{name}": value for name, value in values.items()}
        with machine.output.open("w") as output, (machine.directory / "daemon.log").open("a") as log:
            machine.daemon = subprocess.Popen(argv, env=env, stdout=output, stderr=log, text=True)

    def from_lan(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command at the neighbour on the LAN."""
        enter = ["nsenter", f"--target={self._hub.pid}", "--net", "--mount", "--"]
        return subprocess.run([*enter, *argv], capture_output=True, text=True, check=False, timeout=60)

    def close(self) -> None:
        for machine in self.machines:
            if machine.daemon is not None and machine.daemon.poll() is None:
                machine.kill_daemon()
            for pid in machine.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for holder in self._holders:  # also one whose machine was not finished
            holder.kill()
            holder.wait()

    def _hold(self, name: str) -> subprocess.Popen[bytes]:
        """A process that keeps a network and a mount namespace with its own /tmp/ray and /dev/shm."""
        directory = self.directory / f"tmp-{name}"
        directory.mkdir(parents=True)
        script = (
            'mkdir -p /tmp/ray; mount --bind "$0" /tmp/ray; mount -t tmpfs -o size=512m tmpfs /dev/shm; '
            "sysctl -qw net.ipv6.conf.all.disable_ipv6=1; echo ready; exec sleep infinity"
        )
        holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation=private", "sh", "-c", script, str(directory)],
            stdout=subprocess.PIPE,
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        holder.stdout.close()
        return holder

    def _in(self, holder: subprocess.Popen[bytes], script: str) -> None:
        subprocess.run(["nsenter", f"--target={holder.pid}", "--net", "sh", "-ec", script], check=True)

    def _write_leases(self) -> None:
        leases = [
            lease(
                machine.name,
                machine.overlay_ip,
                rank,
                node_id=machine.key.node_id,
                verify_key=machine.key.verify_key_b64,
                cidr=CIDR,
            ).model_dump(mode="json")
            for rank, machine in enumerate(self.machines)
        ]
        (self.directory / "leases.json").write_text(json.dumps(leases))

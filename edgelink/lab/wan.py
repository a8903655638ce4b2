"""Links that are long, lossy or narrow, as WANs are: set when a lab is built and while it is used, by machine.

Both directions of a machine's way to the internet get half of the round trip, the loss and the rate each. With netem
where the kernel has it. Elsewhere by other real means: loss by nftables, the rate by TBF, and the length of the
link by a process on the router that holds packets back (:mod:`edgelink.lab.delayer`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from edgelink.errors import LabError, MissingDependencyError
from edgelink.files import write_atomic
from edgelink.lab.delayer import QUEUE
from edgelink.lab.processes import PinnedProcess
from edgelink.lab.state import LabState
from edgelink.lab.topology import INTERNET, Link, Topology
from edgelink.lab.wan_conditions import WanConditions

_DELAYER = Path(__file__).with_name("delayer.py")
_QUEUE_MS = 100.0  # what a narrow link keeps waiting before it drops, about what routers of the Internet do
_LOST_OF = 1_000_000_000  # so many: a share is as exact as netem's, which has 32 bits
_NETEM_PACKETS = 100_000  # netem's own limit counts those on their way, too


class Nodes(Protocol):
    """The lab, as far as links are made in it."""

    @property
    def topology(self) -> Topology:
        """The machines and their links."""

    @property
    def directory(self) -> Path:
        """Where the lab's files lie."""

    def node_directory(self, node: str) -> Path:
        """Where a node's files lie."""

    def exec(
        self, node: str, argv: list[str], *, capture: bool, cwd: Path, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node."""

    def popen(self, node: str, argv: list[str], log: Path, *, stdout: int) -> subprocess.Popen[bytes]:
        """Start a command on a node."""


def apply(lab: Nodes, state: LabState) -> None:
    """Make the links as ``state.wan`` says, whatever they were; the caller holds the lock and saves the state.

    Raises:
        LabError: the kernel refuses.
        MissingDependencyError: a program that it takes is missing.
    """
    if not state.wan:
        return
    _check_programs()
    # Also those that were given something once, and are to add nothing any more.
    links = {link: conditions for node, conditions in state.wan.items() for link in _ways_out(lab.topology, node)}
    is_netem = _has_netem(lab)
    for link, conditions in links.items():
        for port in (link.near, link.far):
            _shape(lab, port.node, port.device, netem(conditions) if is_netem else [], tbf(conditions))
    if not is_netem:
        _run(lab, INTERNET, ["nft", "-f", "-"], losses(links))
        _delay(lab, state, links)


def _ways_out(topology: Topology, machine: str) -> list[Link]:
    """The links to the internet: the machine's own, or those of its routers."""
    found = [link for link in topology.links if link.far.node == INTERNET and link.near.node == machine]
    routers = {link.far.node for link in topology.uplinks(machine)} - {INTERNET}
    return found + [link for link in topology.links if link.far.node == INTERNET and link.near.node in routers]


def netem(conditions: WanConditions) -> list[str]:
    """The arguments of ``tc`` for length and loss of one direction, by netem; empty for a link without. Pure.

    The rate is TBF's here, too: netem's own has the packets that wait for the link in the queue of those on their way,
    whose limit is no time.
    """
    words = ["netem", "limit", str(_NETEM_PACKETS)] if conditions.rtt_ms or conditions.loss_percent else []
    if conditions.rtt_ms:
        words += ["delay", f"{conditions.rtt_ms / 2:g}ms"]
    if conditions.jitter_ms:  # with a rate, none is sent before the one ahead of it (netem_enqueue)
        words += [f"{conditions.jitter_ms / 2:g}ms", "rate", "100gbit"]
    if conditions.loss_percent:
        words += ["loss", f"{conditions.loss_percent:g}%"]
    return words


def tbf(conditions: WanConditions) -> list[str]:
    """The arguments of ``tc`` for one direction, by TBF; empty for a link that is as fast as the machine. Pure."""
    if conditions.rate_mbit is None:
        return []
    # A burst of 4 ms, and at least two full packets: less would not reach the rate with a timer of 250 Hz.
    burst_bytes = max(int(conditions.rate_mbit * 125_000 * 0.004), 3200)
    return [
        "tbf",
        "rate",
        f"{conditions.rate_mbit * 1000:.0f}kbit",
        "burst",
        str(burst_bytes),
        "latency",
        f"{_QUEUE_MS:g}ms",
    ]


def losses(links: Mapping[Link, WanConditions]) -> str:
    """The router's nftables table that loses packets, for ``nft -f -``. Pure."""
    rules = "".join(
        f'    {way} "{link.far.device}" {_lost(conditions.loss_percent)}drop\n'
        for link, conditions in links.items()
        for way in ("iifname", "oifname")
        if conditions.loss_percent
    )
    chain = f"  chain lose {{\n    type filter hook forward priority filter + 10; policy accept;\n{rules}  }}\n"
    return f"table inet wan\ndelete table inet wan\ntable inet wan {{\n{chain}}}\n"


def _lost(percent: float) -> str:
    lost = round(percent / 100 * _LOST_OF)
    # nft refuses a comparison that is always true.
    return "" if lost >= _LOST_OF else f"numgen random mod {_LOST_OF} < {lost} "


def _delay(lab: Nodes, state: LabState, links: Mapping[Link, WanConditions]) -> None:
    long = {link.far.device: conditions for link, conditions in links.items() if conditions.rtt_ms}
    delays = {device: [found.rtt_ms / 2, found.jitter_ms / 2] for device, found in long.items()}
    write_atomic(lab.directory / "delays.json", json.dumps(delays))  # the delayer may be reading it
    is_running = state.delayer is not None and state.delayer.is_alive
    if is_running:
        assert state.delayer is not None
        os.kill(state.delayer.pid, signal.SIGHUP)
    elif delays:
        state.delayer = _start_delayer(lab)
    # The table is the lab's own: on this router nothing else is in it.
    rules = "".join(f"-A FORWARD -{way} {device} -j NFQUEUE --queue-num {QUEUE}\n" for device in long for way in "io")
    _run(lab, INTERNET, ["iptables-restore", "--table", "mangle"], f"*mangle\n:FORWARD ACCEPT\n{rules}COMMIT\n")


def _start_delayer(lab: Nodes) -> PinnedProcess:
    argv = [sys.executable, "-I", "-S", str(_DELAYER), str(lab.directory / "delays.json")]
    log = lab.node_directory(INTERNET) / "delayer.log"
    child = lab.popen(INTERNET, argv, log, stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout as told:  # ends when it is ready, or has died
        if b"ready" not in told.read():
            child.wait()
            words = log.read_text().splitlines() or ["it says nothing"]
            raise LabError(
                f"packets cannot be held back here: {words[-1]}",
                hint="without netem the lab needs NFQUEUE in the kernel for --rtt and --jitter",
            )
    return PinnedProcess.of(child.pid)


def _check_programs() -> None:
    packages = {"tc": "iproute2", "iptables-restore": "iptables"}
    if missing := [program for program in packages if shutil.which(program) is None]:
        raise MissingDependencyError(
            f"links of a lab that are like a WAN's need {', '.join(missing)}, not found on PATH",
            hint=f"apt-get install {' '.join(packages[program] for program in missing)}",
        )


def _has_netem(lab: Nodes) -> bool:
    tried = lab.exec(INTERNET, ["tc", "qdisc", "replace", "dev", "lo", "root", "netem"], capture=True, cwd=Path("/"))
    lab.exec(INTERNET, ["tc", "qdisc", "del", "dev", "lo", "root"], capture=True, cwd=Path("/"))
    return tried.returncode == 0


def _shape(lab: Nodes, node: str, device: str, length: list[str], rate: list[str]) -> None:
    """Both, in place where they are already: what is on its way stays on it. The narrow part is behind the long one."""
    # A handle is of one kind and place for ever: the kernel refuses another kind by the same.
    outer, inner = (("1:", length), ("2:", rate)) if length else (("3:", rate), ("", []))
    for place, (handle, words) in ((["root"], outer), (["parent", "1:1"], inner)):
        where = ["dev", device, *place]
        if words:
            _run(lab, node, ["tc", "qdisc", "replace", *where, "handle", handle, *words])
        else:  # there may be none
            lab.exec(node, ["tc", "qdisc", "del", *where], capture=True, cwd=Path("/"))


def _run(lab: Nodes, node: str, argv: list[str], script: str | None = None) -> None:
    told: subprocess.CompletedProcess[str] = lab.exec(node, argv, capture=True, stdin=script, cwd=Path("/"))
    if told.returncode != 0:
        raise LabError(f"lab node {node}: {' '.join(argv)}: {told.stderr.strip()}", hint="does the kernel have it?")

"""What networks and machines do to a lab: links cut silently, the relay gone.

Each fault is made at once and returns a :class:`Fault`: ``mend()`` ends it, and so does leaving a ``with`` block.
Making a fault that is there, or mending one that is not, does nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from edgelink.lab import RELAY, Lab, namespaces
from edgelink.lab.processes import PinnedProcess, wait_gone
from edgelink.lab.topology import INTERNET, Link
from edgelink.process import procfs

CHILDREN = ("easytier-core", "mosquitto", "raylet", "gcs_server")
_KILL_S = 30.0
_FORK_S = 5.0


class Fault:
    """One fault that is there until it is mended."""

    def __init__(self, mend: Callable[[], None]) -> None:
        self.mend = mend

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *_: object) -> None:
        self.mend()


def cut(lab: Lab, node: str) -> Fault:
    """Have the router next to ``node`` drop all that it forwards for it, both ways; nobody is told (no ICMP, no RST).

    The node's own device, addresses and routes stay as they are, as when a provider's network goes dark. Of two
    uplinks, the one in use is cut.
    """
    device = namespaces.default_device(namespaces.netns_path(lab.name, node))
    (link,) = (link for link in lab.topology.uplinks(node) if link.near.device == device)
    router, table, rule = _cut_of(link)
    script = f"""
        table inet {table}
        delete table inet {table}
        table inet {table} {{ chain forward {{ type filter hook forward priority -300; {rule}; }}; }}
    """
    lab.exec(router, ["nft", "-f", "-"], stdin=script, capture=True, check=True)
    return Fault(lambda: mend(lab, node))


def mend(lab: Lab, node: str) -> None:
    """End :func:`cut`."""
    for link in lab.topology.uplinks(node):
        router, table, _ = _cut_of(link)
        script = f"table inet {table}\ndelete table inet {table}\n"
        lab.exec(router, ["nft", "-f", "-"], stdin=script, capture=True, check=True)


def drop_sent(lab: Lab, node: str, *matches: str) -> Fault:
    """Have ``node`` drop what it sends over its overlay's device and one of nft's ``matches`` is true of."""
    table, rules = "table inet drop_sent", "; ".join(f'oifname "et0" {match} drop' for match in matches)
    script = f"""
        {table}
        delete {table}
        {table} {{ chain output {{ type filter hook output priority 0; {rules}; }}; }}
    """
    lab.exec(node, ["nft", "-f", "-"], stdin=script, capture=True, check=True)

    def mend() -> None:
        lab.exec(node, ["nft", "-f", "-"], stdin=f"{table}\ndelete {table}\n", capture=True, check=True)

    return Fault(mend)


def narrow_uplink(lab: Lab, edge: str, mtu: int = 1280) -> Fault:
    """Have the way between the edge's NAT and the internet carry ``mtu`` bytes, and nobody tell: no ICMP, as on some
    LTE, PPPoE and VPN links. The edge's own device keeps its 1500."""
    ends = ((f"{edge}-nat", "wan"), (INTERNET, edge))
    table = "table ip narrow"
    drop = (
        f"{table} {{ chain output {{ type filter hook output priority 0; icmp type destination-unreachable drop; }}; }}"
    )

    def mend() -> None:
        for router, device in ends:
            lab.exec(router, ["ip", "link", "set", device, "mtu", "1500"], check=True)
            lab.exec(router, ["nft", "-f", "-"], stdin=f"{table}\ndelete {table}\n", capture=True, check=True)

    for router, device in ends:
        lab.exec(router, ["ip", "link", "set", device, "mtu", str(mtu)], check=True)
        lab.exec(router, ["nft", "-f", "-"], stdin=f"{table}\ndelete {table}\n{drop}\n", capture=True, check=True)
    return Fault(mend)


def kill_relay(lab: Lab, *, keeps_broker: bool = True) -> Fault:
    """SIGKILL to the relay's daemon and its EasyTier; ``mend`` starts the daemon, which brings EasyTier back.

    The broker stays, as it does when only those two die, and the next daemon adopts it; else it is killed too.
    """
    lab.kill(RELAY)
    kill(lab, RELAY, "easytier-core")
    if not keeps_broker:
        kill(lab, RELAY, "mosquitto")
    return Fault(lambda: start_relay(lab))


def start_relay(lab: Lab) -> None:
    """Start the relay's daemon unless it runs; returns before it is ready."""
    if lab.daemon(RELAY) is None:
        lab.start(RELAY)


def command(pid: int) -> str:
    """The command name of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def pids_of(lab: Lab, node: str, *commands: str) -> set[int]:
    """The node's processes with one of these command names."""
    return {pid for pid in lab.pids(node) if command(pid) in commands}


def processes(lab: Lab, node: str) -> dict[str, int]:
    """The node's processes by command name, as :func:`by_command` has them."""
    return by_command(lab.pids(node))


def by_command(pids: Iterable[int]) -> dict[str, int]:
    """Processes by command name; of several with one name, that which began first.

    What a raylet has just forked bears its name until it is another program.
    """
    began: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            began[pid] = procfs.read_stat(pid).start_ticks
    youngest_first = sorted(began, key=lambda pid: (began[pid], pid), reverse=True)
    return {name: pid for pid in youngest_first if (name := command(pid))}


def _settled(lab: Lab, node: str, name: str) -> set[int]:
    """Those of this name, without what one of them has only just forked."""
    deadline_s = time.monotonic() + _FORK_S
    while len(found := pids_of(lab, node, name)) > 1 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return found


def children(lab: Lab, node: str) -> dict[str, int]:
    """What the node's daemon runs, by command name, each of it once."""
    found = {name: sorted(_settled(lab, node, name)) for name in CHILDREN}
    twice = {name: pids for name, pids in found.items() if len(pids) > 1}
    assert not twice, f"{node} runs more than one of these: {twice}"
    return {name: pids[0] for name, pids in found.items() if pids}


def kill(lab: Lab, node: str, name: str) -> int:
    """SIGKILL to the node's only process with this command name; its pid, once it is gone."""
    found = _settled(lab, node, name)
    assert len(found) == 1, f"{node}: {len(found)} processes are called {name}: {sorted(found)}"
    (pid,) = found
    process = PinnedProcess.of(pid)
    os.kill(pid, signal.SIGKILL)
    assert wait_gone(process, _KILL_S), f"{node}: {name} (pid {pid}) is there {_KILL_S:g} s after SIGKILL"
    return pid


def _cut_of(link: Link) -> tuple[str, str, str]:
    """The router at the far end of an uplink, the table to use there, and its rule."""
    router, device = link.far.node, link.far.device
    if router != INTERNET:
        return router, "cut", "drop"
    return router, f"cut_{device.replace('-', '_')}", f'iifname "{device}" drop; oifname "{device}" drop'

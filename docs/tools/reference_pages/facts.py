"""Make ``docs/reference/facts.md`` from the code.

Each kind of daemon is put together as if it were started, in a directory of its own, and its board is asked.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from edgelink.clock import SystemClock
from edgelink.config import Config, Paths
from edgelink.daemon.additional_relay import AdditionalRelay
from edgelink.daemon.edge import Edge
from edgelink.daemon.head import Head
from edgelink.daemon.relay import Relay
from edgelink.daemon.this_machine import ThisMachine
from edgelink.facts.board import Board
from edgelink.facts.facts import Facts
from edgelink.member.lease_follower import NoOccupants
from edgelink.overlay.link import LinkState
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.life import Life
from edgelink.protocol.membership import put_membership
from edgelink.protocol.payloads import RelayAddresses
from edgelink.relay.authority import Authority
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.founding import NetworkRequest
from edgelink.relay.store import RegistryStore

_HEAD = """# Facts

What a daemon knows is on one board: each fact has one writer, and the parts that read it are woken when it has another
value ([why](../decisions/0039-one-board-of-facts.md)). `edgelink debug board` shows a running daemon's values.

This page is generated (`make reference`).
"""


def boards() -> dict[str, Board[Facts]]:
    """The board of each kind of daemon, with everybody on it who writes or reads."""
    with tempfile.TemporaryDirectory() as directory:
        root, clock, machine = Path(directory), SystemClock(), ThisMachine()
        config = Config.model_validate({"relay": {"advertise": ("relay.example",)}})
        relay = Relay(config, _paths(root / "relay"), clock, machine, None)
        relay.settle(LinkState())
        members: dict[str, Head | Edge | AdditionalRelay] = {
            "head": Head(config, _paths(root / "head"), clock, machine, None),
            "edge": Edge(config, _paths(root / "edge"), clock, machine, None),
            "additional relay": AdditionalRelay(
                config,
                _paths(root / "additional"),
                clock,
                machine,
                RelayAddresses(broker_addresses=(), overlay_peers=()),
                None,
            ),
        }
        registry = _paths(root / "registry")
        store = RegistryStore(registry.registry_database, clock)
        keys = AuthorityKeys.load_or_create(registry.authority_keys, clock)
        authority = Authority(store, keys, clock, addresses=("127.0.0.1:8883",), overlay_peers=())
        authority.create_network(NetworkRequest("reference", config.relay.cidr))
        own = authority.relay_membership(NodeKey.generate(), "relay")
        for daemon in members.values():
            membership = put_membership(daemon.base.paths, own)
            daemon.member.store.reload()
            daemon.member.build(membership, Life(), NoOccupants())
        store.close()
        relay.own.store.close()
        return {"relay": relay.base.board, **{name: daemon.base.board for name, daemon in members.items()}}


def _paths(root: Path) -> Paths:
    paths = Paths(state=root / "state", runtime=root / "run")
    paths.state.mkdir(parents=True)
    return paths


def meanings() -> dict[str, str]:
    """What each fact is, as its class says."""
    told = re.sub(r"\n {12,}", " ", Facts.__doc__ or "")
    return dict(re.findall(r"^ +(\w+): (.+)$", told, re.MULTILINE))


def render() -> str:
    lines = [_HEAD, "| fact | what it is |", "|---|---|"]
    lines += [f"| `{fact}` | {what} |" for fact, what in meanings().items()]
    for role, board in boards().items():
        lines += ["", f"## On the {role}", "", "| fact | writer | readers |", "|---|---|---|"]
        for row in board.rows():
            durable = ", on disk first" if row.is_durable else ""
            lines.append(f"| `{row.fact}` | {row.writer}{durable} | {', '.join(row.readers) or 'status and others'} |")
    return "\n".join(lines) + "\n"

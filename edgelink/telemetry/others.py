"""The other nodes as this one knows them: who they are, on what way each is reached, and whether it answers now.

Every local user may ask. A question costs one or two processes of easytier-cli a second at most, and one ping each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from typing import Any, Protocol

from edgelink.api.find_node import find
from edgelink.api.server import Caller, Route, route
from edgelink.errors import OverlayError, UsageError
from edgelink.facts.board import Board
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.echo import HEADERS_BYTES
from edgelink.protocol.payloads import ClusterSpec, Directory

LONGEST_PATIENCE_S = 10.0
_PAYLOAD_BYTES = 56
_WAY = ("path", "via", "protocol", "latency_ms", "loss", "loses_full_packets")


@dataclass(frozen=True)
class KnownNode:
    """A node of the network. ``node_rank``: the one it has in Ray's cluster, else the one of its lease."""

    hostname: str
    overlay_ip: str
    node_rank: int | None = None
    role: str | None = None


class Overlay(Protocol):
    """What is asked of this node's overlay."""

    @property
    def full_payload_bytes(self) -> int:
        """Of a ping as large as the device carries."""

    async def ways(self) -> list[dict[str, Any]]:
        """On what way each other node is reached."""

    async def ping(self, target: IPv4Address, timeout_s: float, *, payload_bytes: int) -> float | None:
        """Round-trip time in milliseconds; None without an answer."""


@dataclass(frozen=True)
class Inputs:
    """Who is in the network, which of the nodes is this one, and who of those that it asks answers it."""

    directory: Directory | None
    cluster_spec: ClusterSpec | None
    overlay_spec: OverlaySpec | None
    answering: Mapping[str, float]
    silent: Mapping[str, float]


class Others:
    """Routes of one daemon: ``GET /peers``, ``POST /ping``."""

    def __init__(self, board: Board[Any], overlay: Overlay) -> None:
        self._board = board
        board.read(Inputs, "others", None)
        self._overlay = overlay

    def routes(self) -> Iterator[Route]:
        yield route("GET", "/peers", self.peers)
        yield route("POST", "/ping", self.ping)

    async def peers(self, _caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        """Every other node, with the way to it as far as that is known, and whether it answers this one's echoes."""
        own_ip = self._own_ip
        nodes = await self._nodes()
        asked = self._board.select(Inputs)
        answers = dict.fromkeys(asked.answering, True) | dict.fromkeys(asked.silent, False)
        others = (node for node in nodes if node["overlay_ip"] != str(own_ip))
        return {"peers": [{**node, "answers": answers.get(node["hostname"])} for node in others]}

    async def ping(self, _caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``{"node": NAME|RANK|ADDRESS, "timeout_s": …, "full": …}``: one ping, and the way to that node.

        Raises:
            UsageError: nobody of that name is known; or no time that can be waited for.
            OverlayError: this node has no overlay address yet.
        """
        wanted, timeout_s = str(body.get("node", "")), _patience_s(body.get("timeout_s", 2.0))
        nodes = await self._nodes()
        node = find(wanted, nodes)
        own_ip = self._own_ip
        if own_ip is None:
            raise OverlayError("this node has no overlay address yet", hint="`edgelink status` says what it waits for")
        payload_bytes = self._overlay.full_payload_bytes if body.get("full") is True else _PAYLOAD_BYTES
        address = IPv4Address(node["overlay_ip"])
        rtt_ms = await self._overlay.ping(address, timeout_s, payload_bytes=payload_bytes)
        own = {"path": "self"} if address == own_ip else {}
        return {**node, **own, "rtt_ms": rtt_ms, "bytes": payload_bytes + HEADERS_BYTES}

    @property
    def _own_ip(self) -> IPv4Address | None:
        spec = self._board.select(Inputs).overlay_spec
        return None if spec is None else spec.overlay_ip.ip

    async def _nodes(self) -> list[dict[str, Any]]:
        ways, told = await self._overlay.ways(), self._board.select(Inputs)
        return together(members_of(told.directory, told.cluster_spec), ways)


def together(known: Iterable[KnownNode], ways: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Who is known, each with the way to it; whom only EasyTier tells of (a large network) comes last; pure."""
    by_ip = {way["overlay_ip"]: way for way in ways}
    found = [asdict(node) | _way(by_ip.pop(node.overlay_ip, None)) for node in known]
    rest = (asdict(KnownNode(way["hostname"], way["overlay_ip"])) | _way(way) for way in by_ip.values())
    return [*found, *rest]


def members_of(directory: Directory | None, spec: ClusterSpec | None) -> list[KnownNode]:
    """Whom the registry names, with the rank that the head gave them; pure."""
    ranks = {member.node_id: member.node_rank for member in spec.members} if spec else {}
    return [
        KnownNode(
            entry.hostname, str(entry.overlay_ip), ranks.get(entry.node_id, entry.preferred_rank), entry.role.value
        )
        for entry in (directory.entries if directory else ())
    ]


def _way(way: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: None if way is None else way.get(key) for key in _WAY}


def _patience_s(asked: Any) -> float:
    if not isinstance(asked, int | float) or not 0 < asked <= LONGEST_PATIENCE_S:
        raise UsageError(f"{asked!r} is no time to wait for an answer", hint=f"give up to {LONGEST_PATIENCE_S:g} s")
    return float(asked)

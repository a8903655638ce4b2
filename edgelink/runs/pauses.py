"""Which members of the cluster are paused: alive in Ray, because it rides through, and not answering.

Three lost echoes in a row are enough. Where no echo can be asked, it takes two facts: the broker's word that the node
is gone, that this machine's overlay is not up, and that the kernel has no way into it for that node. Each alone has
other causes. An answer ends a silence. Nothing follows from a pause but that it is told: Ray's word and
``ride_through`` decide what becomes of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any, ClassVar, Final

from edgelink.clock import Clock
from edgelink.condition_table.informing import NODES_READY
from edgelink.duration import brief
from edgelink.facts.board import Board, Fact
from edgelink.facts.part import LOOK_S, Action, Decision, Part
from edgelink.log import get_logger
from edgelink.overlay.peers_known import METERED
from edgelink.overlay.ways import Ways
from edgelink.protocol.payloads import Directory, DirectoryEntry
from edgelink.ray_cluster.held_run import HeldRun
from edgelink.ray_cluster.pause import Pause
from edgelink.ray_cluster.ray_members import RayMember, alive_with_rank

PAUSED: Final[Fact[Mapping[str, Pause]]] = Fact("paused")

_PAUSED_AFTER_S = 8.0  # since the last answer: everybody is told within 10 s
_METERED_PAUSED_AFTER_S = 3 * METERED.needed_s
_ASKED_FOR_S = 2.0  # in vain, at least: three echoes are lost within a second, by a machine that is busy as well

log = get_logger("runs")


@dataclass(frozen=True)
class Pausing:
    """Who is alive in Ray, and who of them does not answer."""

    ray_members: tuple[RayMember, ...]
    paused: Mapping[str, Pause]


@dataclass(frozen=True)
class Seen:
    """What the part itself has seen.

    Attributes:
        silences: of each member that does not answer, by node id.
        paused: those of them that were told.
    """

    silences: Mapping[str, Pause] = field(default_factory=dict)
    paused: Mapping[str, Pause] = field(default_factory=dict)


@dataclass(frozen=True)
class Inputs:
    """What decides who is paused."""

    directory: Directory | None
    ray_members: tuple[RayMember, ...]
    overlay_is_up: bool
    ways: Ways
    answering: Mapping[str, float]
    unheard: Mapping[str, float | None]
    silent: Mapping[str, float]
    lost: frozenset[str]
    impostors: frozenset[IPv4Address]
    stopped: frozenset[str]
    is_metered: bool
    metered: frozenset[str]
    run: HeldRun | None
    own: Seen


@dataclass(frozen=True)
class Tell(Action):
    """Tell who is paused, who is no more, and remember who is silent."""

    seen: Seen


class Pauses(Part[Inputs, Tell]):
    """Writes the fact ``paused``, and logs when a pause begins and ends."""

    name: ClassVar[str] = "pauses"
    condition: ClassVar[str] = NODES_READY.name
    inputs = Inputs

    def __init__(self, *, board: Board[Any], node_id: str, clock: Clock) -> None:
        super().__init__(board, own=Seen())
        self.own: Seen
        self._put_paused = board.claim(PAUSED, self.name)
        self._board = board
        self._node_id = node_id
        self._clock = clock

    def plan(self, now: Inputs, at_s: float) -> Decision[Tell]:
        silences = silent_members(now, self._node_id, at_s)
        due_s = {node_id: _told_from_s(pause) for node_id, pause in silences.items()}
        told = now.own.paused
        paused = {
            node_id: pause
            for node_id, pause in silences.items()
            if due_s[node_id] <= at_s or (node_id in told and pause.since_s <= told[node_id].since_s)
        }
        seen = Seen(silences, paused)
        if seen != now.own:
            return Decision(does=Tell(seen))
        return Decision(again_s=min([LOOK_S, *(due - at_s for due in due_s.values() if due > at_s)]))

    async def act(self, action: Tell) -> None:
        before, self.own = self.own, action.seen
        self._put_paused(self.own.paused)
        now_s, now = self._clock.monotonic_s(), self._board.select(Inputs)
        entries = {entry.node_id: entry for entry in now.directory.entries} if now.directory is not None else {}

        def told(node_id: str, pause: Pause) -> dict[str, Any]:
            entry, silent_s = entries.get(node_id), now_s - pause.since_s
            return {"node": entry.hostname if entry else node_id, "silent_s": round(silent_s, 1)}

        for node_id in self.own.paused.keys() - before.paused.keys():
            pause = self.own.paused[node_id]
            log.warning("runs.node_paused", **told(node_id, pause), told_by=pause.told_by)
        for node_id in before.paused.keys() - self.own.paused.keys():
            pause, ending = before.paused[node_id], _ending(entries.get(node_id), now)
            after, run_waited = brief(now_s - pause.since_s), now.run is not None and node_id in now.run.node_ids
            log.info(f"runs.node_{ending}", **told(node_id, pause), after=after, run_waited=run_waited)


def _ending(entry: DirectoryEntry | None, now: Inputs) -> str:
    """What has ended a pause."""
    if entry is None:
        return "left"
    if entry.node_id in now.stopped:
        return "stopped"
    is_back = entry.hostname in now.answering or str(entry.overlay_ip) in alive_with_rank(now.ray_members)
    return "answers_again" if is_back else "given_up"


def silent_members(now: Inputs, own_id: str, at_s: float) -> dict[str, Pause]:
    """Return the silence of each member that is alive in Ray and does not answer, by node id; pure.

    The silence of a node that never answered begins with the first question, or now where it was not asked. While Ray
    does not list the head itself, nobody can say who is a member: who was silent is until it answers.
    """
    found, entries = dict[str, Pause](), now.directory.entries if now.directory is not None else ()
    alive = alive_with_rank(now.ray_members)
    is_ray_known = any(entry.node_id == own_id and str(entry.overlay_ip) in alive for entry in entries)
    for entry in entries:
        node_id, known = entry.node_id, now.own.silences.get(entry.node_id)
        is_member = str(entry.overlay_ip) in alive if is_ray_known else known is not None
        if node_id == own_id or node_id in now.stopped or not is_member:
            continue
        says = {
            "echo": entry.hostname in now.unheard or entry.overlay_ip in now.impostors,
            "registry": node_id in now.lost,
            "overlay": not now.overlay_is_up,
            "route": entry.overlay_ip in now.ways.unreached,
        }
        told = [name for name, is_so in says.items() if is_so]
        is_certain = says["echo"] or len(told) > 1
        if entry.hostname in now.answering or not (is_certain or known):
            continue
        told_by = known.told_by if known and not is_certain else " and ".join(told)
        asked_s, heard_s = now.silent.get(entry.hostname), now.unheard.get(entry.hostname)
        began_s = known.since_s if known is not None else asked_s if asked_s is not None else at_s
        since_s = began_s if heard_s is None else heard_s
        is_metered = now.is_metered or node_id in now.metered
        found[node_id] = Pause(since_s, told_by, is_metered, since_s if asked_s is None else asked_s)
    return found


def _told_from_s(pause: Pause) -> float:
    """When a silence becomes a pause, on the monotonic clock."""
    after_s = _METERED_PAUSED_AFTER_S if pause.is_metered else _PAUSED_AFTER_S
    return max(pause.since_s + after_s, pause.asked_since_s + _ASKED_FOR_S)

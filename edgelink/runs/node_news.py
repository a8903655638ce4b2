"""What a head learns from the words of its nodes, and looks at when one of them has said something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from edgelink.clock import Clock
from edgelink.errors import UntrustedError
from edgelink.facts.board import Board, Fact, Table
from edgelink.log import get_logger
from edgelink.protocol.keys import Kind
from edgelink.protocol.payloads import Directory, NodeStatus, RayDeath
from edgelink.protocol.words import word_of
from edgelink.ray_cluster.held_run import Ranks
from edgelink.ray_cluster.pause import Pause
from edgelink.ray_cluster.ray_members import RayMember
from edgelink.reconcile import Wakeup
from edgelink.runs.standing import Standing

REPORTED_DEAD: Final[Fact[frozenset[tuple[str, str]]]] = Fact("reported_dead")
_REST_S = 0.25

log = get_logger("node")


@dataclass(frozen=True)
class News:
    """What the nodes say of themselves, and what is seen of them."""

    directory: Directory | None
    statuses: Table[str, NodeStatus]
    stopped: frozenset[str]
    ray_members: tuple[RayMember, ...]
    paused: Mapping[str, Pause]
    ranks: Ranks


class NodeNews:
    """Has the head look at its nodes when one of them has said something, four times a second at most.

    A thousand nodes say something several times a second each, and each look is at all of them.
    """

    name = "node news"

    def __init__(self, board: Board[Any], standing: Standing, clock: Clock) -> None:
        self._board = board
        self._standing = standing
        self._clock = clock
        self._put_dead = board.claim(REPORTED_DEAD, self.name)
        self._disbelieved: set[str] = set()  # node ids: told once
        self._news = Wakeup()
        board.read(News, self.name, self._news)

    async def run(self) -> NoReturn:
        """Ends by cancellation only."""
        while True:
            self._standing.show_nodes_ready()
            now = self._board.select(News)
            dead, disbelieved = reported_dead(now.directory, now.statuses.rows)
            self._put_dead(dead)
            for node_id in disbelieved.keys() - self._disbelieved:
                log.warning("node.ray_death_ignored", node_id=node_id, error=disbelieved[node_id])
            self._disbelieved |= disbelieved.keys()
            await self._clock.sleep(_REST_S)
            await self._news.wait(None)


def reported_dead(
    directory: Directory | None, statuses: Mapping[str, NodeStatus]
) -> tuple[frozenset[tuple[str, str]], dict[str, str]]:
    """Return overlay address and Ray's id of every Ray whose end its node states, signed with the key of its lease.

    Pure. The second value has the node ids of those whose word is not signed so, and why it does not count.
    """
    dead, disbelieved = set(), {}
    if directory is None:
        return frozenset(), {}
    for entry in directory.entries:
        status = statuses.get(entry.node_id)
        if status is None or status.ray_death is None:
            continue
        try:
            death = word_of(entry, status.ray_death, Kind.RAY_DEATH, RayDeath, directory)
        except UntrustedError as error:
            disbelieved[entry.node_id] = str(error)
        else:
            dead.add((str(entry.overlay_ip), death.ray_node_id))
    return frozenset(dead), disbelieved

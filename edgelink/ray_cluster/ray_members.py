"""Who is a member of Ray: what the helper reports, and the head's long-running watch of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from edgelink.clock import Clock
from edgelink.errors import EdgelinkError
from edgelink.facts.board import Fact
from edgelink.log import get_logger
from edgelink.process.answer import end
from edgelink.wording import printable

_RESTART_S = 1.0
_log = get_logger("ray")


@dataclass(frozen=True)
class RayMember:
    """One node as Ray lists it; ``node_id`` is Ray's own, in hex, and never comes back after a death."""

    node_id: str
    ip: str
    rank: int | None
    alive: bool
    hostname: str
    accelerator: str = "NO_ACCEL"
    accelerator_count: int = 0
    cpus: float = 0.0

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RayMember:
        """From the helper's JSON; raises KeyError or TypeError when it is none."""
        return cls(
            node_id=str(values["node_id"]),
            ip=str(values["ip"]),
            rank=values["rank"],
            alive=bool(values["alive"]),
            hostname=printable(str(values["hostname"])),
            accelerator=str(values["accelerator"]),
            accelerator_count=int(values["accelerator_count"]),
            cpus=float(values["cpus"]),
        )


RAY_MEMBERS: Final[Fact[tuple[RayMember, ...]]] = Fact("ray_members")


def parse_members(line: str | bytes) -> tuple[RayMember, ...]:
    """One line of the watch; raises ValueError when it is none."""
    try:
        return tuple(RayMember.from_dict(values) for values in json.loads(line))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a list of Ray nodes: {error}") from error


def alive_with_rank(members: Iterable[RayMember]) -> frozenset[str]:
    """Return the overlay addresses of those that are alive with a rank; pure."""
    return frozenset(member.ip for member in members if member.alive and member.rank is not None)


def known_dead(members: Sequence[RayMember], reported: Collection[tuple[str, str]]) -> set[str]:
    """Ray's ids of those that it lists as alive although their end is known; pure.

    ``reported``: overlay address and Ray's id, by the daemon that holds this address: a node speaks only for itself.
    Of two with one address and rank only the newer lives: its raylet has the ports of the other. The newest come first.
    """
    alive = [member for member in members if member.alive]
    newest = {(member.ip, member.rank): member.node_id for member in reversed(alive) if member.rank is not None}
    return {
        member.node_id
        for member in alive
        if (member.ip, member.node_id) in reported
        or (member.rank is not None and newest[member.ip, member.rank] != member.node_id)
    }


def departed(members: Sequence[RayMember], ranks: Collection[tuple[str, int]]) -> set[str]:
    """Ray's ids of those that are alive with a rank of ours, under an address that does not hold it; pure."""
    return {
        member.node_id
        for member in members
        if member.alive and member.rank is not None and (member.ip, member.rank) not in ranks
    }


def strangers(
    members: Sequence[RayMember], participants: Mapping[str, str], others: Mapping[str, str]
) -> list[tuple[RayMember, str]]:
    """Who is alive in Ray without taking part, and what is to be said of each; pure.

    Args:
        participants: hostname by overlay address, of those who take part.
        others: of all other nodes of the network.
    """
    found = []
    for member in members:
        if not member.alive or (member.ip in participants and member.rank is not None):
            continue
        if member.ip in participants:
            why = f"a second Ray on {participants[member.ip]}, which EdgeLink did not start: end it there"
        elif member.ip in others:
            why = f"{others[member.ip]} takes no part, and its Ray has not ended yet"
        else:
            why = "no node of this network has this address: somebody ran `ray start` by hand, end it there"
        found.append((member, why))
    return found


class MembershipWatch:
    """Keeps the fact of Ray's members in step with Ray through one ``helper.py watch``.

    ``start`` starts that helper; it answers None while there is no Ray to ask. ``put`` writes the fact. ``keeps``:
    whether the last list holds although nobody can be asked.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[asyncio.subprocess.Process | None]],
        put: Callable[[tuple[RayMember, ...]], None],
        clock: Clock,
        keeps: Callable[[], bool],
    ) -> None:
        self._start = start
        self._put = put
        self._clock = clock
        self._keeps = keeps

    async def run(self) -> None:
        """Watch for ever; ends by cancellation only, and takes the helper along."""
        while True:
            try:
                process = await self._start()
            except (EdgelinkError, OSError) as error:  # OSError: the interpreter is being replaced, or memory is short
                _log.debug("ray.watch_failed", error=str(error))
                process = None
            if process is not None:
                await self._follow(process)
            if not self._keeps():
                self._put(())  # nobody can say who is there: better to say so than to show the past
            await self._clock.sleep(_RESTART_S)

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                if line.lstrip().startswith(b"["):  # the user's interpreter may print things of its own
                    self._put(parse_members(line))
        except ValueError as error:  # not the helper's words, or too many of them
            _log.warning("ray.watch_not_understood", error=str(error))
        finally:
            await end(process)

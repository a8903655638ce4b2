"""Whom the head takes out of Ray, because it knows of a death or a departure before Ray does (ADR 0013)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from edgelink.clock import Clock
from edgelink.ray_cluster.held_run import Ranks
from edgelink.ray_cluster.ray_members import RayMember, departed, known_dead

DEPARTURE_S = 10.0  # who is left out of the cluster says goodbye by itself, if it still can
_AGAIN_S = 60.0  # the helper that was not answered took its seconds of a machine that has none


class Burials:
    """Remembers since when somebody is gone, and when Ray was last told in vain."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._departed_s: dict[str, float] = {}  # by Ray's id
        self._in_vain_s: dict[str, float] = {}  # by Ray's id

    def due(
        self,
        members: Sequence[RayMember],
        ranks: Ranks,
        put_out: Collection[str],
        reported: Collection[tuple[str, str]],
    ) -> set[str]:
        """Return Ray's ids of those that are to be buried now.

        Args:
            members: whom Ray lists.
            ranks: who takes part. Nobody: the directory has not come yet, and nobody is known to have left.
            put_out: node ids of those whom the operator has put out. They are given no time to say goodbye.
            reported: see :func:`known_dead`.
        """
        taking_part = [(str(entry.overlay_ip), rank) for entry, rank in ranks if entry.node_id not in put_out]
        if not taking_part:
            return set()
        now_s = self._clock.monotonic_s()
        self._departed_s = {one: self._departed_s.get(one, now_s) for one in departed(members, taking_part)}
        self._in_vain_s = {one: at_s for one, at_s in self._in_vain_s.items() if now_s - at_s < _AGAIN_S}
        overdue = {one for one, since_s in self._departed_s.items() if now_s - since_s >= DEPARTURE_S}
        addresses = {str(entry.overlay_ip) for entry, _ in ranks if entry.node_id in put_out}
        overdue |= {member.node_id for member in members if member.alive and member.ip in addresses}
        return (known_dead(members, reported) | overdue) - self._in_vain_s.keys()

    def note_failure(self, whom: Collection[str]) -> None:
        """Ray did not take them out. It is not told at every look: its own health checks find most in some minutes."""
        self._in_vain_s |= dict.fromkeys(whom, self._clock.monotonic_s())

"""Who has to be there before a run begins: waited for, named, and who is in the way (ADR 0008)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from edgelink.errors import DeadlineError
from edgelink.log import get_logger
from edgelink.protocol.payloads import Directory
from edgelink.ray_cluster.reconcilers import RayInputs
from edgelink.runs.per_run import still_closed
from edgelink.runs.progress import Late, Rows, all_ready, follow, nodes_missing
from edgelink.runs.runs import Runs
from edgelink.runs.selection import Selection, require_ray_nodes

log = get_logger("runs")

_EDGES_OPEN_S = 30.0  # at least, however long the nodes took to be there
_WONDERS_AFTER_S = 2.0  # as a rule edges have opened by then


class Gang:
    """The nodes of one head's runs."""

    def __init__(self, inputs: RayInputs, runs: Runs) -> None:
        self._board, self._clock, self._access = inputs.board, inputs.clock, inputs.config.access
        self._runs, self._roster, self._standing = runs, runs.roster, runs.standing

    @property
    def _directory(self) -> Directory | None:
        found: Directory | None = self._board.facts.directory
        return found

    def wait(
        self,
        count: int,
        timeout_s: float,
        is_done: Callable[[Rows], bool] = all_ready,
        late: Late = nodes_missing,
        notes: Callable[[], list[str]] = list,
    ) -> AsyncIterator[dict[str, Any]]:
        """``waiting`` items on the nodes of the first ``count`` ranks (0: all) until they are done.

        Raises:
            DeadlineError: they are not in time; by default it names those that are not ready, and why.
        """
        return follow(
            lambda: self._standing.nodes(count),
            is_done,
            clock=self._clock,
            timeout_s=timeout_s,
            late=late,
            next_change=self._standing.next_change,
            notes=lambda: [*self._told_strangers(), *notes()],
        )

    def _told_strangers(self) -> list[str]:
        return [
            f"Ray at {member.ip} ({member.hostname}): {why}"
            for member, why in self._roster.strangers()
            if member.rank is None or self._runs.lock.holder is None  # else they are waited for, and told of there
        ]

    async def wait_for_run(self, selectors: tuple[str, ...], count: int, timeout_s: float) -> AsyncIterator[Any]:
        """The same for a run that holds the lock and asks for the nodes that ``selectors`` name (none: all).

        Nobody's Ray is touched before it is certain who takes part. Then the others leave Ray, and who has another
        rank starts anew: from now on to the end of the run.

        Raises:
            UsageError, ConfigError: there are no such nodes, or fewer than ``count``.
            DeadlineError: as above.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        if not selectors:
            require_ray_nodes(count, self._roster.candidates(), self._roster.without_ray())
        selection = Selection.of(selectors)
        if selection is not None and not self._runs.lock.nodes:  # else an earlier attempt of the run has done it
            async for report in self._select(selection, count, timeout_s):
                yield report
        left_s = max(0.0, deadline_s - self._clock.monotonic_s())
        late = _with_notes(self._leaving, timeout_s)
        async for report in self.wait(
            count, left_s, lambda rows: not self._leaving() and all_ready(rows), late, self._leaving
        ):
            yield report
        if self._access == "per-run":
            async for report in self._wait_for_edges(count, max(_EDGES_OPEN_S, deadline_s - self._clock.monotonic_s())):
                yield report

    async def _wait_for_edges(self, count: int, timeout_s: float) -> AsyncIterator[Any]:
        """The same until the edges of the run answer each other: the check in front of it asks them to."""
        self._runs.open_edges()
        begun_s = self._clock.monotonic_s()

        def closed() -> list[str]:
            entries = [entry for entry, rank in self._roster.ranks() if not count or rank < count]
            facts = self._board.facts
            return still_closed(entries, facts.cluster_spec, facts.statuses.rows)

        def told() -> list[str]:
            return closed() if self._clock.monotonic_s() - begun_s >= _WONDERS_AFTER_S else []

        def late(_rows: Rows, waited_s: float) -> DeadlineError:
            return DeadlineError(
                f"after {waited_s:.0f} s edges of the run do not answer each other yet: {'; '.join(closed())}",
                hint="mend what is named and run again; `access: members` on the head closes no edge to the others",
                reason="EdgesClosed",
            )

        async for report in self.wait(count, timeout_s, lambda _rows: not closed(), late, told):
            yield report
        log.info("runs.edges_open", after_s=round(self._clock.monotonic_s() - begun_s, 2))

    async def _select(self, selection: Selection, count: int, timeout_s: float) -> AsyncIterator[Any]:
        def undecided() -> list[str]:
            if self._directory is None:
                return ["the relay has not told yet who is in the network"]
            entries, known = self._roster.candidates(), self._roster.known_labels()
            selection.check(entries, known, count, self._roster.without_ray())
            if count and len(selection.among(entries, known)) >= count:
                return []
            labels = " or ".join(f"{key}={value}" for key, value in sorted(selection.labels))
            names = selection.undecided(entries, known)
            return [f"{name} was not seen, so whether it has {labels} is not known" for name in names]

        if undecided():
            late = _with_notes(undecided, timeout_s)
            async for report in self.wait(0, timeout_s, lambda _rows: not undecided(), late, undecided):
                yield report
        taken = selection.among(self._roster.candidates(), self._roster.known_labels())
        self._runs.lock.select(tuple(entry.node_id for entry in taken))
        log.info("runs.nodes_selected", nodes=[entry.hostname for entry in taken], holder=self._runs.lock.holder)

    def _leaving(self) -> list[str]:
        """Who has a Ray with a rank that is not theirs, or not any more: it is ended, and RLinf must not meet it."""
        directory = self._directory
        known = {str(entry.overlay_ip) for entry in directory.entries} if directory else set()
        holders = {rank: f", which is {entry.hostname}'s" for entry, rank in self._roster.ranks()}
        told = []
        for member, why in self._roster.strangers():
            if member.rank is None:
                continue
            whose = f"has node rank {member.rank}{holders.get(member.rank, '')}"
            told.append(why if member.ip in known else f"Ray at {member.ip} ({member.hostname}) {whose}: {why}")
        return told


def _with_notes(notes: Callable[[], list[str]], timeout_s: float) -> Late:
    """``timeout_s`` is what was asked for: a part of it may be over before this wait began."""

    def with_notes(rows: Rows, _left_s: float) -> DeadlineError:
        error, more = nodes_missing(rows, timeout_s), "; ".join(notes())
        message = f"{error.message}; {more}" if more else error.message
        return DeadlineError(message, hint=error.hint, reason=error.condition_reason)

    return with_notes

"""Tell a caller, live, how far the nodes have come with what it asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any

from edgelink.clock import Clock
from edgelink.errors import DeadlineError
from edgelink.runs.readiness import NodeReadiness, unclaimed_in_words
from edgelink.wording import few

_SAY_AGAIN_S = 5.0  # how much time is left
LOOK_S = 0.25  # where nobody tells of changes

Rows = Sequence[NodeReadiness]
Late = Callable[[Rows, float], DeadlineError]  # and how many seconds that took


async def follow(
    rows: Callable[[], Rows],
    is_done: Callable[[Rows], bool],
    *,
    clock: Clock,
    timeout_s: float,
    late: Late,
    next_change: Callable[[], Awaitable[None]],
    notes: Callable[[], list[str]] = list,
) -> AsyncIterator[dict[str, Any]]:
    """A ``waiting`` item whenever ``rows`` change, and every 5 s, until they are done.

    ``next_change`` returns when they may have changed, and soon in any case.
    ``notes``: what else the caller has to know.

    Raises:
        DeadlineError: they are not within ``timeout_s``: what ``late`` makes of them.
    """
    deadline_s = clock.monotonic_s() + timeout_s
    last: tuple[list[NodeReadiness], list[str]] | None = None
    said_s = 0.0
    while True:
        now = list(rows())
        done = is_done(now)  # before the caller gets it, who may take his time
        now_s = clock.monotonic_s()
        left_s = max(0.0, deadline_s - now_s)
        seen = (now, notes())
        if seen != last or now_s - said_s >= _SAY_AGAIN_S:
            last, said_s = seen, now_s
            nodes = [asdict(node) for node in now]
            yield {"event": "waiting", "nodes": nodes, "left_s": round(left_s, 1), "notes": seen[1]}
        if done:
            return
        if left_s <= 0:
            raise late(now, timeout_s)
        await next_change()


def follow_by_clock(
    rows: Callable[[], Rows], is_done: Callable[[Rows], bool], *, clock: Clock, timeout_s: float, hint: str
) -> AsyncIterator[dict[str, Any]]:
    """Follow ``rows`` as :func:`follow` does, four times a second. ``hint``: what to do when they are not done in time.

    Raises:
        DeadlineError: they are not; names those that are not ready, and why.
    """

    async def next_look() -> None:
        await clock.sleep(LOOK_S)

    return follow(rows, is_done, clock=clock, timeout_s=timeout_s, late=_not_done(hint), next_change=next_look)


def _not_done(hint: str) -> Late:

    def late(rows: Rows, timeout_s: float) -> DeadlineError:
        return DeadlineError(f"not done after {timeout_s:g} s: {missing_in_words(rows)}", hint=hint)

    return late


def all_ready(rows: Rows) -> bool:
    """Whether there is nothing left to wait for."""
    return all(node.ready for node in rows)


def nodes_missing(rows: Rows, timeout_s: float) -> DeadlineError:
    """What names all that are not ready, each with the step it stands at and what to do."""
    ready = sum(node.ready for node in rows)
    return DeadlineError(
        f"{ready} of {len(rows)} nodes were ready after {timeout_s:g} s; missing: {missing_in_words(rows)}",
        hint="mend what is named and run again, or give more time with --timeout",
        reason="NodesMissing",
    )


def missing_in_words(rows: Rows) -> str:
    """Each that is not ready, the step it stands at, and what to do. Ranks that nobody has are told together."""
    ranks = [node.node_rank for node in rows if node.state == "missing"]
    told = [
        f"{node.hostname or f'rank {node.node_rank}'} at {node.step} ({node.message})"
        for node in rows
        if not node.ready and (node.state != "missing" or len(ranks) == 1)
    ]
    if len(ranks) > 1:
        told.append(f"ranks {few(ranks)} at Enrolled ({unclaimed_in_words(ranks)})")
    return "; ".join(told)

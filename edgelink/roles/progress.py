"""Tell a caller, live, how far the nodes have come with what it asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any

from edgelink.clock import Clock
from edgelink.errors import DeadlineError
from edgelink.roles.readiness import NodeReadiness

_LOOK_S = 0.25
_SAY_AGAIN_S = 5.0  # how much time is left

Rows = Sequence[NodeReadiness]


async def follow(
    rows: Callable[[], Rows],
    is_done: Callable[[Rows], bool],
    *,
    clock: Clock,
    timeout_s: float,
    late: Callable[[Rows, float], DeadlineError],
    next_change: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[dict[str, Any]]:
    """A ``waiting`` item whenever ``rows`` change, and every 5 s, until they are done.

    ``next_change`` returns when they may have changed, and soon in any case; by default, four times a second.

    Raises:
        DeadlineError: they are not within ``timeout_s``: what ``late`` makes of them.
    """
    deadline_s = clock.monotonic_s() + timeout_s
    last: list[NodeReadiness] | None = None
    said_s = 0.0
    while True:
        now = list(rows())
        done = is_done(now)  # before the caller gets it, who may take his time
        now_s = clock.monotonic_s()
        left_s = max(0.0, deadline_s - now_s)
        if now != last or now_s - said_s >= _SAY_AGAIN_S:
            last, said_s = now, now_s
            yield {"event": "waiting", "nodes": [asdict(node) for node in now], "left_s": round(left_s, 1)}
        if done:
            return
        if left_s <= 0:
            raise late(now, timeout_s)
        await (next_change() if next_change else clock.sleep(_LOOK_S))


def not_done(hint: str) -> Callable[[Rows, float], DeadlineError]:
    """What names those that are not ready, and why."""

    def late(rows: Rows, timeout_s: float) -> DeadlineError:
        names = "; ".join(f"{node.hostname} at {node.step} ({node.message})" for node in rows if not node.ready)
        return DeadlineError(f"not done after {timeout_s:g} s: {names}", hint=hint)

    return late


def all_ready(rows: Rows) -> bool:
    """Whether there is nothing left to wait for."""
    return all(node.ready for node in rows)

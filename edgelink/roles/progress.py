"""Tell a caller, live, how far the nodes have come with what it asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from typing import Any

from edgelink.clock import Clock
from edgelink.errors import DeadlineError
from edgelink.roles.runs import NodeReadiness

_LOOK_S = 0.25


async def follow(
    rows: Callable[[], Sequence[NodeReadiness]],
    is_done: Callable[[Sequence[NodeReadiness]], bool],
    *,
    clock: Clock,
    timeout_s: float,
    hint: str,
) -> AsyncIterator[dict[str, Any]]:
    """A ``waiting`` item whenever ``rows`` change, until they are done.

    Raises:
        DeadlineError: they are not within ``timeout_s``; names those that are not ready, and why.
    """
    deadline_s = clock.monotonic_s() + timeout_s
    last: list[NodeReadiness] | None = None
    while True:
        now = list(rows())
        done = is_done(now)  # before the caller gets it, who may take his time
        left_s = max(0.0, deadline_s - clock.monotonic_s())
        if now != last:
            last = now
            yield {"event": "waiting", "nodes": [asdict(node) for node in now], "left_s": round(left_s, 1)}
        if done:
            return
        if left_s <= 0:
            late = "; ".join(f"{node.hostname} at {node.step} ({node.message})" for node in now if not node.ready)
            raise DeadlineError(f"not done after {timeout_s:g} s: {late}", hint=hint)
        await clock.sleep(_LOOK_S)


def all_ready(rows: Sequence[NodeReadiness]) -> bool:
    """Whether there is nothing left to wait for."""
    return all(node.ready for node in rows)

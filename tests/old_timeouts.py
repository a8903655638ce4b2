"""asyncio.timeout as it is before Python 3.11.3, and the mark that it takes for a cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest


class _OldTimeout(asyncio.Timeout):  # type: ignore[misc]
    """It counts the marks that were there before the block as well."""

    async def __aenter__(self) -> Any:
        entered = await super().__aenter__()
        self._cancelling = 0  # what later Pythons compare the marks with at the end
        return entered


def _timeout(delay_s: float | None) -> asyncio.Timeout:
    return _OldTimeout(None if delay_s is None else asyncio.get_running_loop().time() + delay_s)


@pytest.fixture
def old_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "timeout", _timeout)


async def mark_this_task() -> None:
    """Leave the task marked, as one is that cleans up, and as many a task group leaves it before Python 3.13."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        assert task.cancelling() > 0

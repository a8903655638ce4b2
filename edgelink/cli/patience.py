"""Say what a command waits for, once it takes longer than a person expects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from edgelink.api import client
from edgelink.cli.layout import say

EXPECTED_S = 2.0
DAEMON = "waiting for this machine's daemon to answer"

T = TypeVar("T")


@contextmanager
def waiting_for(what: str, *, expected_s: float = EXPECTED_S) -> Iterator[None]:
    """Print ``what`` on stderr if the block takes longer than ``expected_s``."""
    notice = threading.Timer(expected_s, say, [f"{what} …"])
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()


def call(
    socket_path: Path, method: str, path: str, body: dict[str, Any] | None = None, *, what: str = DAEMON, **how: float
) -> Any:
    """Ask a daemon as :func:`edgelink.api.client.call` does, and say ``what`` if it takes long."""
    with waiting_for(what):
        return client.call(socket_path, method, path, body, **how)


def call_here(method: str, path: str, body: dict[str, Any] | None = None, *, what: str = DAEMON, **how: float) -> Any:
    """Ask a daemon as :func:`edgelink.api.client.call_here` does, and say ``what`` if it takes long."""
    with waiting_for(what):
        return client.call_here(method, path, body, **how)


def saying(what: str, ask: Callable[[], Iterator[T]]) -> Iterator[T]:
    """Yield what ``ask`` returns, and say ``what`` if it takes long to the first item."""
    with waiting_for(what):
        items = ask()
        first = next(items, None)
    if first is not None:
        yield first
        for item in items:  # noqa: UP028 - `yield from` would close them, and whoever made them may go on with them
            yield item

"""The newest snapshot, and who follows it: each follower gets a snapshot, then what changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from edgelink.api.web.model import Snapshot, changes
from edgelink.timeouts import timeout

_MOST_WAITING = 64  # changes that a slow follower may be behind: then it is told all anew


class Feed:
    """``watched`` tells whether anybody follows."""

    def __init__(self) -> None:
        self.newest: Snapshot | None = None
        self.woken = asyncio.Event()  # somebody began to follow
        self._followers: set[asyncio.Queue[str | None]] = set()

    @property
    def watched(self) -> int:
        return len(self._followers)

    def publish(self, snapshot: Snapshot) -> None:
        """Tell the followers what has changed."""
        before, self.newest = self.newest, snapshot
        if not self._followers:
            return
        if before is None:
            message = _message("snapshot", snapshot)
        elif found := changes(before, snapshot):
            message = _message("changes", found)
        else:
            return
        for queue in self._followers:
            _put(queue, message)

    async def follow(self, silence_s: float = 15.0) -> AsyncIterator[str]:
        """Server-sent events: all of it, then each change; a comment after so long a silence. Never ends by itself."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(maxsize=_MOST_WAITING)
        self._followers.add(queue)
        self.woken.set()
        try:
            if self.newest is not None:
                yield _message("snapshot", self.newest)
            while True:
                try:
                    async with timeout(silence_s):
                        message = await queue.get()
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                if message is None and self.newest is not None:
                    _empty(queue)  # what came since is in it
                    message = _message("snapshot", self.newest)
                if message:
                    yield message
        finally:
            self._followers.discard(queue)


def _put(queue: asyncio.Queue[str | None], message: str) -> None:
    if queue.full():
        _empty(queue)
        queue.put_nowait(None)
    else:
        queue.put_nowait(message)


def _empty(queue: asyncio.Queue[str | None]) -> None:
    while not queue.empty():
        queue.get_nowait()


def _message(kind: str, content: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(content, separators=(',', ':'))}\n\n"

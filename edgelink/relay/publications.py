"""What the registry publishes for others to keep: directory, roster, leases, and what each node may answer.

Everything is retained on the broker; only what changed is sent. In a burst of changes (a fleet enrols) it is published
once a second in a large network, more often in a smaller one: each directory goes to every node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NoReturn

from edgelink.clock import Clock
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Session
from edgelink.reconcile import Wakeup
from edgelink.relay.authority import Authority

_INTERVAL_S = 1.0  # at most, and from so many nodes on:
_LARGE = 256
_AT_ONCE = 50  # messages under way to the broker


class Publications:
    """Of one registry, for all its sessions."""

    def __init__(self, authority: Authority, topics: Topics, clock: Clock) -> None:
        self._authority = authority
        self._topics = topics
        self._clock = clock
        self._published: dict[str, bytes] = {}
        self._published_s: float | None = None  # when
        self._stale = Wakeup()
        self._one = asyncio.Lock()

    def begin_session(self) -> None:
        """The broker may have lost what it was sent."""
        self._published.clear()
        self._published_s = None

    async def publish(self, session: Session, reported: Iterable[str] = ()) -> None:
        """Now. ``reported``: the nodes whose status is there; a released one's is cleared with its secrets."""
        async with self._one:
            wanted = {**self._directory(), **self._leases(), **self._access()}
            for topic in self._published.keys() - wanted.keys():
                wanted[topic] = b""  # clears what is retained
            for node_id in reported:
                if not wanted.get(self._topics.lease(node_id)):
                    wanted |= {self._topics.status(node_id): b"", self._topics.secrets(node_id): b""}
            changes = [(topic, data) for topic, data in wanted.items() if self._published.get(topic) != data]
            if changes:
                self._published_s = self._clock.monotonic_s()
            changed = iter(changes)
            while batch := list(islice(changed, _AT_ONCE)):
                await asyncio.gather(*(session.publish(topic, data, retain=True) for topic, data in batch))
            self._published = {topic: data for topic, data in wanted.items() if data}

    async def publish_soon(self, session: Session) -> None:
        """Now, or when the last time is an interval ago."""
        since_s = self._published_s
        if since_s is None or self._clock.monotonic_s() - since_s >= self._interval_s:
            await self.publish(session)
        else:
            self._stale.set()

    async def run(self, session: Session) -> NoReturn:
        """Publish what :meth:`publish_soon` left."""
        while True:
            await self._stale.wait(None)
            await self._clock.sleep(self._interval_s)
            await self.publish(session)

    @property
    def _interval_s(self) -> float:
        return _INTERVAL_S * min(1.0, len(self._published) / _LARGE)

    def _directory(self) -> Mapping[str, bytes]:
        directory, pages = self._authority.directory_and_roster()
        documents = {self._topics.roster(page): text.model_dump_json().encode() for page, text in pages.items()}
        return documents | {self._topics.directory: directory.model_dump_json().encode()}

    def _access(self) -> Mapping[str, bytes]:
        documents = self._authority.access.documents()
        return {
            self._topics.access(node_id): envelope.model_dump_json().encode()
            for node_id, (_, envelope) in documents.items()
        }

    def _leases(self) -> Mapping[str, bytes]:
        leases = self._authority.lease_envelopes()
        return {self._topics.lease(node_id): lease.model_dump_json().encode() for node_id, lease in leases.items()}

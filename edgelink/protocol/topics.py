"""The names of all MQTT topics of a network, made of the table; nothing else in the project writes one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from edgelink.protocol import topic_table as table
from edgelink.protocol.topic_table import Topic

ANY = "+"  # MQTT's wildcard for one level
_LEVEL = re.compile(r"[A-Za-z0-9_.-]+|\+")


@dataclass(frozen=True)
class Topics:
    """The topics of one network. Every id may be :data:`ANY` where a filter is wanted."""

    network_id: str

    def __post_init__(self) -> None:
        _check(self.network_id)

    @property
    def _root(self) -> str:
        return f"edgelink/1/{self.network_id}"

    def name(self, topic: Topic, *ids: str) -> str:
        """``topic`` with its levels in angle brackets filled in; those for which ``ids`` has none by :data:`ANY`."""
        left = iter(ids)
        levels = [_check(next(left, ANY)) if level is None else level for level in _levels(topic)]
        return "/".join([self._root, *levels])

    def ids(self, topic: Topic, name: str) -> tuple[str, ...] | None:
        """What stands for the levels in angle brackets in the name of such a topic; None for any other name."""
        root, levels = f"{self._root}/", _levels(topic)
        found = name[len(root) :].split("/") if name.startswith(root) else []
        if len(found) != len(levels):
            return None
        pairs = list(zip(levels, found, strict=True))
        is_same = all(level in (None, there) for level, there in pairs)
        return tuple(there for level, there in pairs if level is None) if is_same else None

    @property
    def directory(self) -> str:
        return self.name(table.DIRECTORY)

    @property
    def network(self) -> str:
        return self.name(table.NETWORK)

    def roster(self, page: int | str) -> str:
        """``page`` is a number, or :data:`ANY`."""
        return self.name(table.ROSTER, str(page))

    def is_roster(self, topic: str) -> bool:
        return self.ids(table.ROSTER, topic) is not None

    @property
    def cluster(self) -> str:
        return self.name(table.CLUSTER)

    def enrol_request(self, token_id: str, node_id: str) -> str:
        return self.name(table.ENROL_REQUEST, token_id, node_id)

    def enrol_reply(self, token_id: str, node_id: str) -> str:
        return self.name(table.ENROL_REPLY, token_id, node_id)

    def status(self, node_id: str) -> str:
        return self.name(table.STATUS, node_id)

    def lease(self, node_id: str) -> str:
        return self.name(table.LEASE, node_id)

    def access(self, node_id: str) -> str:
        return self.name(table.ACCESS, node_id)

    def secrets(self, node_id: str) -> str:
        return self.name(table.SECRETS, node_id)

    def node_request(self, node_id: str) -> str:
        return self.name(table.NODE_REQUEST, node_id)

    def node_reply(self, node_id: str) -> str:
        return self.name(table.NODE_REPLY, node_id)

    def easytier(self, node_id: str) -> str:
        return self.name(table.EASYTIER, node_id)

    def silence(self, node_id: str) -> str:
        return self.name(table.SILENCE, node_id)

    @property
    def report_request(self) -> str:
        return self.name(table.REPORT_REQUEST)

    def report(self, node_id: str) -> str:
        return self.name(table.REPORT, node_id)

    def _node_of(self, topic: Topic, name: str) -> str | None:
        ids = self.ids(topic, name)
        return ids[0] if ids else None

    def parse_report(self, topic: str) -> str | None:
        """The node id of a report's topic; None for any other topic."""
        return self._node_of(table.REPORT, topic)

    def parse_node_request(self, topic: str) -> str | None:
        """The node id of the topic on which a node asks the registry; None for any other topic."""
        return self._node_of(table.NODE_REQUEST, topic)

    def parse_easytier(self, topic: str) -> str | None:
        """The node id of the topic on which a node tells of its EasyTier; None for any other topic."""
        return self._node_of(table.EASYTIER, topic)

    def parse_silence(self, topic: str) -> str | None:
        """The node id of the topic on which a node says whom it misses; None for any other topic."""
        return self._node_of(table.SILENCE, topic)

    def parse_enrol_request(self, topic: str) -> tuple[str, str] | None:
        """(token id, node id) of an enrolment request's topic; None for any other topic."""
        ids = self.ids(table.ENROL_REQUEST, topic)
        return (ids[0], ids[1]) if ids else None

    def parse_status(self, topic: str) -> str | None:
        """The node id of a status topic; None for any other topic."""
        return self._node_of(table.STATUS, topic)


def topic_of(name: str) -> Topic | None:
    """Which topic of the table this is the name of, in whatever network; None: another one, such as the broker's."""
    match name.split("/", 3):
        case ["edgelink", "1", network_id, _]:
            topics = Topics(network_id)
            return next((topic for topic in table.TOPICS if topics.ids(topic, name) is not None), None)
    return None


@cache
def _levels(topic: Topic) -> tuple[str | None, ...]:
    """None for those in angle brackets."""
    return tuple(None if level.startswith("<") else level for level in topic.path.split("/"))


def _check(level: str) -> str:
    """Refuse an id that would reach into another level of the topic tree."""
    if not _LEVEL.fullmatch(level):
        raise ValueError(f"{level!r} cannot be a level of an MQTT topic")
    return level

"""The names of all MQTT topics; nothing else in the project writes one.

edgelink/1/<network id>/enrol/<token id>/<node id>/request   a token's holder asks
                                                  …/reply    the registry answers
                        node/<node id>/status                the node reports (retained, Last Will)
                        node/<node id>/lease                 the registry's signed lease (retained)
                        node/<node id>/secrets               the network's secrets, sealed to the node (retained)
                        node/<node id>/answer                how far the node has followed them, signed (retained)
                        node/<node id>/request               the node asks the registry, signed
                                        …/reply              the registry answers, signed
                        network                              signed state of the network's secret (retained)
                        node/<node id>/easytier              its EasyTier has ended, signed
                        directory                            signed list of all leases (retained)
                        roster/<page>                        signed part of a list that is too long for one (retained)
                        cluster                              the head's signed cluster spec (retained)
                        report/request                       the head asks every node for its report, signed
                        node/<node id>/report                the node's answer, signed, sealed to the head
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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

    @property
    def directory(self) -> str:
        return f"{self._root}/directory"

    @property
    def network(self) -> str:
        return f"{self._root}/network"

    def roster(self, page: int | str) -> str:
        """``page`` is a number, or :data:`ANY`."""
        return f"{self._root}/roster/{_check(str(page))}"

    def is_roster(self, topic: str) -> bool:
        return topic.startswith(f"{self._root}/roster/")

    @property
    def cluster(self) -> str:
        return f"{self._root}/cluster"

    def enrol_request(self, token_id: str, node_id: str) -> str:
        return f"{self._root}/enrol/{_check(token_id)}/{_check(node_id)}/request"

    def enrol_reply(self, token_id: str, node_id: str) -> str:
        return f"{self._root}/enrol/{_check(token_id)}/{_check(node_id)}/reply"

    def status(self, node_id: str) -> str:
        return f"{self._root}/node/{_check(node_id)}/status"

    def lease(self, node_id: str) -> str:
        return f"{self._root}/node/{_check(node_id)}/lease"

    def secrets(self, node_id: str) -> str:
        return f"{self._root}/node/{_check(node_id)}/secrets"

    def answer(self, node_id: str) -> str:
        return f"{self._root}/node/{_check(node_id)}/answer"

    def node_request(self, node_id: str) -> str:
        return f"{self._root}/node/{_check(node_id)}/request"

    def node_reply(self, node_id: str) -> str:
        return f"{self._root}/node/{_check(node_id)}/reply"

    def easytier(self, node_id: str) -> str:
        return f"{self._root}/node/{_check(node_id)}/easytier"

    @property
    def report_request(self) -> str:
        return f"{self._root}/report/request"

    def report(self, node_id: str) -> str:
        return f"{self._root}/node/{_check(node_id)}/report"

    def _node_of(self, topic: str, leaf: str) -> str | None:
        match topic.removeprefix(f"{self._root}/").split("/"):
            case ["node", node_id, last] if last == leaf:
                return node_id
        return None

    def parse_report(self, topic: str) -> str | None:
        """The node id of a report's topic; None for any other topic."""
        return self._node_of(topic, "report")

    def parse_answer(self, topic: str) -> str | None:
        """The node id of an answer's topic; None for any other topic."""
        return self._node_of(topic, "answer")

    def parse_node_request(self, topic: str) -> str | None:
        """The node id of the topic on which a node asks the registry; None for any other topic."""
        return self._node_of(topic, "request")

    def parse_easytier(self, topic: str) -> str | None:
        """The node id of the topic on which a node tells of its EasyTier; None for any other topic."""
        return self._node_of(topic, "easytier")

    def parse_enrol_request(self, topic: str) -> tuple[str, str] | None:
        """(token id, node id) of an enrolment request's topic; None for any other topic."""
        match topic.removeprefix(f"{self._root}/").split("/"):
            case ["enrol", token_id, node_id, "request"]:
                return token_id, node_id
        return None

    def parse_status(self, topic: str) -> str | None:
        """The node id of a status topic; None for any other topic."""
        return self._node_of(topic, "status")


def _check(level: str) -> str:
    """Refuse an id that would reach into another level of the topic tree."""
    if not _LEVEL.fullmatch(level):
        raise ValueError(f"{level!r} cannot be a level of an MQTT topic")
    return level

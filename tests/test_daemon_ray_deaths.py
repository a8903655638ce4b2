"""An edge tells the head which Ray of its own has ended; the head believes the edge, not the broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from registry_world import World

from edgelink.config import Config, Paths
from edgelink.daemon.edge import Edge
from edgelink.daemon.head import Head
from edgelink.daemon.this_machine import ThisMachine
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Directory, Envelope, NodeStatus, RayDeath, Role
from edgelink.runs.node_news import reported_dead
from edgelink.testing import FakeClock
from edgelink.testing.facts import give

RAY_ID = "f00d" * 14


class Network:
    """A head, and an edge whose last Ray has ended."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory / "relay")
        self.head = Head(*self._machine(directory / "head"))
        self.edge = Edge(*self._machine(directory / "edge"))
        for node, role, hostname in ((self.head, Role.HEAD, "cloud"), (self.edge, Role.EDGE, "edge-1")):
            give(node.base.board, membership=self._membership(node.member.key, role, hostname))
        self.network_id = self.world.keys.network_id
        self.listed = open_envelope(
            self.world.authority.directory(), Kind.DIRECTORY, Directory, self.world.keys.verify_key_b64
        )

    def _machine(self, directory: Path) -> tuple[Config, Paths, FakeClock, ThisMachine, None]:
        paths = Paths(state=directory / "state", runtime=directory / "run")
        return Config(), paths, FakeClock(), ThisMachine(), None

    def _membership(self, key: NodeKey, role: Role, hostname: str) -> Membership:
        token = self.world.token(role)
        return self.world.membership(key, token, self.world.enrol(key, token, hostname, role=role))

    def stated(self, dead_ray: str | None) -> Envelope | None:
        """What the edge states once its Ray of this id has ended."""
        give(self.edge.base.board, dead_ray=dead_ray)
        status = self.edge.base.board.facts.node_status
        assert status is not None
        return status.ray_death

    def hear(self, death: Envelope | None, **fields: object) -> frozenset[tuple[str, str]]:
        """What the head makes of a status on the edge's topic, as it comes over the wire."""
        sent = NodeStatus(node_id=self.edge.member.key.node_id, online=True, ray_death=death).model_dump(mode="json")
        status = NodeStatus.model_validate(sent | fields)
        dead, disbelieved = reported_dead(self.listed, {self.edge.member.key.node_id: status})
        assert bool(disbelieved) == (status.ray_death is not None and not dead)
        return dead


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


def test_the_head_believes_what_the_node_itself_signed(network: Network) -> None:
    assert network.edge.base.board.facts.running is not None
    assert network.hear(network.stated(RAY_ID)) == {
        (str(network.edge.base.board.facts.running.lease.overlay_ip), RAY_ID)
    }


def test_no_death_is_stated_while_none_is_known(network: Network) -> None:
    assert network.stated(None) is None
    assert network.hear(None) == set()


def test_what_anybody_else_says_of_a_nodes_ray_is_ignored(network: Network) -> None:
    """Unsigned, as the broker could write it; signed by others, under whatever name; and altered on its way."""
    death = RayDeath(network_id=network.network_id, ray_node_id=RAY_ID)
    genuine = network.edge.member.key.sign(Kind.RAY_DEATH, death)
    by_the_head = network.head.member.key.sign(Kind.RAY_DEATH, death)
    assert network.hear(None, dead_ray_node_id=RAY_ID) == set()
    assert network.hear(by_the_head) == set()
    assert network.hear(by_the_head.model_copy(update={"signer": network.edge.member.key.node_id})) == set()
    assert network.hear(by_the_head.model_copy(update={"signer": "registry"})) == set()
    assert network.hear(genuine.model_copy(update={"body": genuine.body.replace(RAY_ID, "beef" * 14)})) == set()
    assert network.hear(network.edge.member.key.sign(Kind.REPORT, death)) == set(), "signed for another purpose"
    elsewhere = death.model_copy(update={"network_id": "elsewhere"})
    assert network.hear(network.edge.member.key.sign(Kind.RAY_DEATH, elsewhere)) == set()
    assert network.hear(genuine) != set()

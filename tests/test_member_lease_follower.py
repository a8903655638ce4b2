"""A running node takes up the lease that it was given: which one counts, and in which order things follow."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path

import pytest
from registry_world import ADDRESSES, World

from edgelink.conditions import ConditionSet, Status
from edgelink.config import Paths
from edgelink.errors import NotRecordedError, UntrustedError
from edgelink.files import Files
from edgelink.member.lease_follower import LeaseFollower
from edgelink.member.membership_store import MembershipStore
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.life import Admission
from edgelink.protocol.membership import Membership, put_membership
from edgelink.protocol.payloads import ConditionReport, Envelope, Lease, NodeStatus, Role
from edgelink.protocol.statuses import WAITS, waiting_for_lease
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Message
from edgelink.relay.lease_changes import LeaseChange
from edgelink.runs.ranks import keeping_addresses, keeping_ranks
from edgelink.testing import FakeClock, MemoryBroker, MemoryTransport
from edgelink.testing.facts import board_with, settle
from edgelink.testing.payloads import cluster_spec, entry
from edgelink.testing.registry_client import LoneClient


class Node:
    """One node of a registry without its service; `told` is what its broker says."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory / "relay")
        self.key, token = NodeKey.generate(), self.world.token()
        joined = self.world.membership(self.key, token, self.world.enrol(self.key, token))
        self.paths, self.files, self.clock = Paths(directory / "node", directory / "run"), Files(), FakeClock()
        put_membership(self.paths, joined)
        self.board = board_with()
        self.store = MembershipStore(self.board, self.paths, self.files)
        self.store.reload()
        self.topic = Topics(joined.network_id).lease(self.key.node_id)
        transport = MemoryTransport({ADDRESSES[0]: MemoryBroker()})
        self.client = LoneClient(joined, self.key, self.clock, board=self.board, transport=transport)
        self.conditions = ConditionSet(self.clock, ["Leased"])
        self.users: list[str] = []
        self.has_ended = True
        self.follower = LeaseFollower(
            board=self.board,
            store=self.store,
            occupants=self,
            clock=self.clock,
        )
        self.follower.begin()

    @property
    def membership(self) -> Membership:
        """The one that the node runs with."""
        found = self.board.facts.running
        assert found is not None
        return found

    async def settle(self) -> float:
        return await settle(self.follower, self.board, self.conditions, self.clock)

    def in_use(self) -> list[str]:
        return self.users

    def change(self, **change: object) -> Envelope:
        """By the operator; what the registry then says."""
        self.world.authority.change_lease(self.key.node_id, LeaseChange(**change))  # type: ignore[arg-type]
        return self.world.store.lease_envelopes()[self.key.node_id]

    def told(self, envelope: Envelope) -> None:
        self.client._take(Message(self.topic, envelope.model_dump_json().encode()))

    @property
    def on_disk(self) -> Lease:
        found = Membership.load(self.paths)
        assert found is not None
        return found.lease

    @property
    def leased(self) -> tuple[Status, str]:
        condition = self.conditions.get("Leased")
        return condition.status, condition.reason


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


NEW_IP = IPv4Address("10.10.0.50")


async def test_a_changed_lease_is_on_disk_and_then_used(node: Node) -> None:
    """Hostname, address and labels, with everything else of the membership as it was."""
    before = node.membership
    node.told(node.change(overlay_ip=NEW_IP, hostname="franka", labels={"arm": "left"}))
    await node.settle()
    lease = node.membership.lease
    assert (lease.overlay_ip, lease.hostname, lease.labels, lease.lease_epoch) == (NEW_IP, "franka", {"arm": "left"}, 1)
    assert node.on_disk == lease
    assert node.membership.secrets == before.secrets
    assert node.leased == (Status.TRUE, "Leased")
    assert "franka holds 10.10.0.50" in node.conditions.get("Leased").message


async def test_ray_ends_before_its_address_goes(node: Node) -> None:
    """It says goodbye over the address that it has; one that does not end is not waited for without end."""
    former = node.membership.lease
    node.has_ended = False
    node.told(node.change(overlay_ip=NEW_IP))
    assert await node.settle() < 1
    assert node.board.facts.coming_lease == node.on_disk, "Ray is told, and the next daemon goes on with it"
    assert node.membership.lease == former
    node.has_ended = True
    await node.clock.advance(0.2)
    await node.settle()
    assert node.membership.lease.overlay_ip == NEW_IP
    assert node.board.facts.coming_lease is None
    node.has_ended = False
    node.told(node.change(overlay_ip=former.overlay_ip))
    await node.settle()
    await node.clock.advance(31)
    await node.settle()
    assert node.membership.lease.overlay_ip == former.overlay_ip


async def test_workers_are_waited_for(node: Node) -> None:
    """With an address that goes nobody who works there could go on; the node stays ready, and says so."""
    former = node.membership.lease
    node.users = ["ray::RolloutWorker"]
    node.told(node.change(overlay_ip=NEW_IP))
    await node.settle()
    assert node.leased == (Status.TRUE, WAITS)
    assert "ray::RolloutWorker" in node.conditions.get("Leased").message
    assert node.membership.lease == node.on_disk == former
    node.users, node.has_ended = [], False
    await node.clock.advance(5)
    await node.settle()
    assert node.on_disk != former
    assert node.leased == (Status.TRUE, WAITS), "the head knows it by its former address until it has another one"
    node.has_ended = True
    await node.clock.advance(0.2)
    await node.settle()
    assert node.membership.lease.overlay_ip == NEW_IP
    assert node.leased == (Status.TRUE, "Leased")


async def test_labels_and_ranks_wait_for_nobody(node: Node) -> None:
    """Nothing is started anew for them here: ranks are the head's to give."""
    node.users, node.has_ended = ["ray::RolloutWorker"], False
    node.told(node.change(labels={"arm": "left"}, rank=7))
    await node.settle()
    assert (node.membership.lease.labels, node.membership.lease.preferred_rank) == ({"arm": "left"}, 7)


async def test_a_machine_that_may_be_a_copy_changes_nothing(node: Node) -> None:
    """As long as the registry has not said that it is the node."""
    node.board.given(admission=Admission(is_doubted=True))
    node.told(node.change(overlay_ip=NEW_IP))
    await node.settle()
    assert node.on_disk.lease_epoch == 0


async def test_a_full_disk_changes_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not on disk is not used; Ray goes on meanwhile."""

    def full(_path: Path, _content: bytes | str) -> None:
        raise NotRecordedError("no room")

    former = node.membership.lease
    node.told(node.change(overlay_ip=NEW_IP))
    with monkeypatch.context() as patch:
        patch.setattr(node.files, "require", full)
        await node.settle()
        assert node.membership.lease == former
        assert node.board.facts.coming_lease is None
    await node.settle()
    assert node.on_disk.overlay_ip == NEW_IP


async def test_an_older_lease_does_not_count(node: Node) -> None:
    """Signed once and played again: in this daemon's life, after its restart, and after the node joined anew."""
    first = node.membership.lease_envelope
    second = node.change(overlay_ip=NEW_IP)
    third = node.change(overlay_ip=IPv4Address("10.10.0.60"))
    node.told(third)
    for older in (first, second):
        with pytest.raises(UntrustedError) as caught:
            node.told(older)
        assert caught.value.condition_reason == "Outdated"
    await node.settle()
    restarted = LoneClient(node.membership, node.key, node.clock, transport=MemoryTransport({}))
    with pytest.raises(UntrustedError):
        restarted._take(Message(node.topic, second.model_dump_json().encode()))
    node.told(third)  # the very same again is no replay
    await node.world.clock.advance(60)
    node.world.authority.release(node.key.node_id)
    token = node.world.token()
    again = node.world.membership(node.key, token, node.world.enrol(node.key, token, "edge-1"))
    assert again.lease.lease_epoch == 0
    put_membership(node.paths, again)
    node.store.reload()
    with pytest.raises(UntrustedError):
        node.told(third)
    node.told(again.lease_envelope)


async def test_two_leases_of_one_number_are_not_both_believed(node: Node) -> None:
    """A registry that was restored from a backup may number another change alike."""
    lease = node.membership.lease
    twin = lease.model_copy(update={"overlay_ip": NEW_IP})
    with pytest.raises(UntrustedError):
        node.told(node.world.keys.sign(Kind.LEASE, twin))


async def test_a_lease_for_another_role_waits_for_the_next_start(node: Node) -> None:
    """A daemon cannot become another one."""
    lease = node.membership.lease
    head = lease.model_copy(update={"role": Role.HEAD, "lease_epoch": 1, "overlay_ip": NEW_IP})
    node.told(node.world.keys.sign(Kind.LEASE, head))
    await node.settle()
    assert node.membership.lease == node.on_disk == lease


def test_a_run_keeps_the_addresses_that_it_uses() -> None:
    """As it keeps ranks: who is known under another address would be taken for gone, and buried."""
    in_use = [(entry("a", "10.10.0.2", 0), 0), (entry("b", "10.10.0.3", 1), 1)]
    moved = [in_use[0], (entry("b", "10.10.0.50", 1), 1)]
    more = [*in_use, (entry("c", "10.10.0.4", 2), 2)]
    assert keeping_ranks(moved, in_use) == in_use
    assert keeping_ranks(more, in_use) == more


def test_a_node_that_waits_is_known_under_its_former_address() -> None:
    """As long as it says so; others, and addresses that were never known, are as the directory says."""
    before = cluster_spec(entry("a", "10.10.0.2", 0), entry("b", "10.10.0.3", 1))
    wanted = ((entry("b", "10.10.0.50", 1), 0), (entry("c", "10.10.0.4", 2), 1))
    b, c = (e.node_id for e, _ in wanted)
    assert keeping_addresses(wanted, before, {b, c}) == ((entry("b", "10.10.0.3", 1), 0), wanted[1])
    assert keeping_addresses(wanted, None, {b, c}) == wanted
    assert keeping_addresses(wanted, before, set()) == wanted


def test_who_waits_is_known_by_its_condition() -> None:
    """Of those that are online."""

    def status(name: str, reason: str, *, online: bool = True) -> NodeStatus:
        leased = ConditionReport(type="Leased", status=Status.TRUE, reason=reason, message="")
        return NodeStatus(node_id=(name * 26)[:26], online=online, conditions=(leased,))

    said = [status("a", WAITS), status("b", "Leased"), status("c", WAITS, online=False)]
    assert waiting_for_lease(said) == {"a" * 26}

"""A change of the network's secret: each step of the plan, and what is told to whom."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from fleet_world import Fleet, fleet  # noqa: F401
from telling import refuses

from edgelink.errors import NotCommittedError, RegistryError, UsageError
from edgelink.protocol.held_secret import HeldSecret
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.payloads import MAX_PAYLOAD_BYTES, MAX_REVOKED, NetworkState
from edgelink.relay.lease_changes import LeaseChange
from edgelink.relay.rotation import SWITCH_S, RotationRecord, epoch_after, generation_after

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def record() -> RotationRecord:
    return RotationRecord(2, "next", "a test", NOW, NOW + timedelta(seconds=SWITCH_S))


def test_no_number_is_given_to_two_secrets() -> None:
    """Not after a change that was given up, and not by a registry that was restored from before it."""
    assert epoch_after(1, 0, None) == 2
    assert epoch_after(1, 0, record()) == 3
    assert epoch_after(1, 1, None) == epoch_after(999, 1, None) == 1001
    assert epoch_after(1001, 1, None) == 1002


def test_a_change_from_its_beginning_to_its_end(fleet: Fleet) -> None:
    """Told with its hour, changed, seen; a second node that was away catches up in one step."""
    near, away = fleet.join("edge-1"), fleet.join("edge-2")
    fleet.rotations.rotate()
    assert not fleet.rotations.advance(is_held=False)
    fleet.hear(near)
    first, told = fleet.held[near], fleet.state().rotation
    assert (first.epoch, first.next_epoch) == (1, 2)
    assert told is not None
    assert (told.to_epoch, SWITCH_S <= told.switch_in_s < SWITCH_S + 1) == (2, True)
    fleet.change()
    fleet.hear(near)
    assert fleet.held[near] == HeldSecret(2, first.next_secret or "")
    assert fleet.world.authority.network.secret == first.next_secret
    assert fleet.rotations.record is None
    fleet.say(near)
    assert {lease.hostname for lease in fleet.rotations.stragglers()} == {"relay", "edge-2"}
    fleet.hear(away)
    assert fleet.held[away] == fleet.held[near]
    fleet.say(away)
    assert [lease.hostname for lease in fleet.rotations.stragglers()] == ["relay"]


def test_who_comes_later_is_told_the_remainder(fleet: Fleet) -> None:
    """Also by the next daemon, whatever the wall clock says then; and the same word is not signed again and again."""
    fleet.join("edge-1")
    fleet.rotations.rotate(60.0)

    def left_s() -> float:
        rotation = fleet.state().rotation
        assert rotation is not None
        return rotation.switch_in_s

    said = fleet.rotations.state()
    fleet.world.clock.block(4)
    assert fleet.rotations.state() == said
    fleet.world.clock.block(2)
    assert left_s() == 54
    fleet.world.clock.step_wall_clock(-3600)
    fleet.world.clock.block(6)
    assert left_s() == 48
    fleet.world.reopen()
    assert left_s() == 60, "a clock that was set back holds it up once more, and no longer than it was to take"
    fleet.world.clock.step_wall_clock(7200)
    fleet.world.reopen()
    assert left_s() == 0
    assert fleet.rotations.advance(is_held=True)


def test_robots_hold_a_change_up_no_longer_than_they_need(fleet: Fleet) -> None:
    """As long as one of them may, and until the operator's patience ends; then within the time in which all hear it."""
    fleet.join("edge-1")
    fleet.rotations.rotate(60.0)
    fleet.world.clock.block(30)
    assert not fleet.rotations.advance(is_held=True)
    before = fleet.state()
    assert fleet.rotations.advance(is_held=False)
    told = fleet.state()
    assert told.number > before.number
    assert told.rotation is not None
    assert SWITCH_S <= told.rotation.switch_in_s < SWITCH_S + 1
    assert not fleet.rotations.advance(is_held=False), "once"
    fleet.world.clock.block(SWITCH_S + 1)
    assert fleet.rotations.advance(is_held=True), "what was said is done"
    fleet.rotations.rotate(60.0)
    fleet.world.clock.block(60)
    assert fleet.rotations.advance(is_held=True)


def test_a_change_to_which_nodes_may_be_changing_is_made_before_another_one(fleet: Fleet) -> None:
    """Whoever has it and hears nothing else goes where the relay goes. One that is far off is replaced."""
    staying = fleet.join("edge-1")
    for number in range(2, 5):
        fleet.join(f"edge-{number}")
    fleet.revoke("edge-2")
    fleet.hear(staying)
    first = fleet.held[staying].next_secret
    fleet.revoke("edge-3")
    assert (fleet.rotations.secret_epoch, fleet.world.authority.network.secret) == (2, first)
    fleet.hear(staying)
    assert (fleet.held[staying].epoch, fleet.held[staying].next_epoch) == (2, 3)
    fleet.change()
    fleet.hear(staying)
    assert fleet.held[staying] == HeldSecret(3, fleet.world.authority.network.secret)
    fleet.rotations.rotate(60.0)
    fleet.hear(staying)
    kept = fleet.held[staying]
    fleet.revoke("edge-4")
    assert fleet.rotations.secret_epoch == 3
    fleet.change()
    assert fleet.rotations.secret_epoch == 5
    assert kept.told(fleet.state()) != HeldSecret(5, kept.next_secret or ""), "it is not taken for the new one"
    fleet.hear(staying)
    assert fleet.held[staying].secret == fleet.world.authority.network.secret != kept.next_secret


def test_revoking_takes_everything_in_one_transaction(fleet: Fleet) -> None:
    """Lease, password, tokens it used or that are for its place, and its key; other tokens stay."""
    token = fleet.world.token(uses=3)
    key = NodeKey.generate()
    assert fleet.world.enrol(key, token, "franka-1").reply.lease
    fleet.keys[key.node_id] = key
    lease = fleet.world.store.lease(key.node_id)
    assert lease is not None
    other = fleet.world.token()
    fleet.revoke("franka-1")
    assert fleet.world.store.lease(key.node_id) is None
    assert fleet.world.store.node_password(key.node_id) is None
    assert {t.token_id: t.revoked_at is not None for t in fleet.world.store.tokens.all()} == {
        token.token_id: True,
        other.token_id: False,
    }
    assert fleet.rotations.sealed_secrets().keys() == {fleet.relay.node_id}
    assert fleet.state().revoked == (key.node_id,)
    for presented in (token, other, fleet.world.token(uses=9)):
        reply = fleet.world.enrol(key, presented, "franka-1").reply
        assert reply.error_reason in ("NodeRevoked", "TokenRevoked")
        assert reply.lease is None
    assert fleet.world.enrol(NodeKey.generate(), token, "franka-9").reply.error_reason == "TokenRevoked"
    fleet.rotations.note({key.node_id: 1})
    assert key.node_id not in fleet.rotations.seen_epochs()
    with refuses(RegistryError, "franka-1", reason="NodeRevoked"):
        fleet.revoke("franka-1")
    with refuses(UsageError, reason="OwnLease"):
        fleet.revoke("relay")


def test_what_a_revoked_node_held_is_told_until_somebody_is_given_it(fleet: Fleet) -> None:
    """Its address, not those of released nodes; each change is another number, so that an older word does not count."""
    out, gone = fleet.join("edge-1"), fleet.join("edge-2")
    first, second = (lease.overlay_ip for lease in map(fleet.world.store.lease, (out, gone)) if lease)
    fleet.world.authority.release("edge-2")
    assert fleet.state().revoked_ips == ()
    fleet.revoke("edge-1")
    told = fleet.state()
    assert told.revoked_ips == (first,)
    fleet.world.authority.release("edge-2", at_once=True)
    assert fleet.state() == told, "what only rested is nobody's news"
    fleet.world.authority.release("edge-1", at_once=True)
    freed = fleet.state()
    assert freed.revoked_ips == ()
    assert freed.revoked == (out,)
    assert freed.number > told.number
    again = fleet.world.enrol(NodeKey.generate(), fleet.world.token(ip=first), "edge-9")
    assert fleet.world.lease(again).overlay_ip == first
    assert fleet.state().revoked_ips == ()
    assert second not in fleet.state().revoked_ips


def test_the_successor_of_a_revoked_node_may_have_its_address(fleet: Fleet) -> None:
    """By a token that takes its place: nothing is freed before, and nothing of it is dropped afterwards."""
    out = fleet.join("edge-1")
    lease = fleet.world.store.lease(out)
    assert lease is not None
    fleet.revoke("edge-1")
    told = fleet.state()
    result = fleet.world.enrol(NodeKey.generate(), fleet.world.token(replaces="edge-1"), "whatever")
    assert fleet.world.lease(result).overlay_ip == lease.overlay_ip
    assert fleet.state().revoked_ips == ()
    assert fleet.state().number > told.number


def test_a_token_for_its_place_is_revoked_with_a_node(fleet: Fleet) -> None:
    """Also one that fixes nothing of what the node held at last, because its lease was changed since: whoever has it
    gets nothing, and the address stays out."""
    fleet.join("edge-1")
    token = fleet.world.token(replaces="edge-1")
    lease = fleet.world.authority.change_lease("edge-1", LeaseChange("arm", IPv4Address("10.10.0.50"), 5))
    fleet.revoke("arm")
    assert fleet.world.enrol(NodeKey.generate(), token, "thief").reply.error_reason == "TokenRevoked"
    assert fleet.state().revoked_ips == (lease.overlay_ip,)


def test_what_is_told_of_revoked_nodes_fits_into_a_message(fleet: Fleet) -> None:
    """With as many as are told at all; an earlier build, which knows of no addresses, says the same without them."""
    told = fleet.state().model_copy(
        update={
            "revoked": ("a" * 26,) * MAX_REVOKED,
            "revoked_ips": tuple(IPv4Address("100.127.200.0") + offset for offset in range(MAX_REVOKED)),
        }
    )
    assert len(fleet.world.keys.sign(Kind.NETWORK, told).model_dump_json()) < MAX_PAYLOAD_BYTES
    earlier = told.model_dump(mode="json", exclude={"revoked_ips"})
    assert NetworkState.model_validate(earlier).revoked_ips == ()


def test_all_tokens_can_be_revoked_with_a_node(fleet: Fleet) -> None:
    """For an operator who does not know what else was in that machine."""
    fleet.join("edge-1")
    fleet.world.token()
    fleet.rotations.revoke("edge-1", own_node_id=fleet.relay.node_id, all_tokens=True)
    assert all(token.revoked_at is not None for token in fleet.world.store.tokens.all())


def test_what_nodes_say_of_themselves_is_only_shown(fleet: Fleet) -> None:
    """It only grows, no further than the network's own secret, and never changes when that changes."""
    one = fleet.join("edge-1")
    fleet.rotations.rotate()
    fleet.change()
    assert fleet.rotations.note({one: 2, "a" * 26: 2})
    for said in (1, 0, 2, 3, 99):
        assert not fleet.rotations.note({one: said})
    assert fleet.rotations.seen_epochs() == {one: 2, fleet.relay.node_id: 0}
    fleet.world.reopen()
    assert fleet.rotations.seen_epochs()[one] == 2
    fleet.rotations.rotate(60.0)
    fleet.rotations.note({one: 3})
    assert not fleet.rotations.advance(is_held=True)


def test_a_registry_from_before_a_revocation_is_told_so(fleet: Fleet, tmp_path: Path) -> None:
    """The signed word of the lost registry, which a node kept, puts the revoked one out again, under a secret that
    nobody has ever seen."""
    staying, stolen = fleet.join("edge-1"), fleet.join("edge-2")
    world, old_secret = fleet.world, fleet.held[staying].secret
    world.store.close()
    old = {name: (tmp_path / name).read_bytes() for name in ("registry.sqlite3",)}
    fleet.world.open()
    fleet.revoke("edge-2")
    fleet.change()
    fleet.hear(staying)
    known, held = fleet.rotations.state(), fleet.held[staying]
    fleet.world.store.close()
    for name in old:
        for file in tmp_path.glob(f"{name}*"):
            file.unlink()
        (tmp_path / name).write_bytes(old[name])
    fleet.world.open()
    fleet.world.store.note_restoration(fleet.relay.node_id, keep_addresses=True)
    assert fleet.world.store.lease(stolen) is not None, "the backup knows nothing of it"
    fleet.hear(staying)
    assert fleet.held[staying] == held, "no node goes back to the secret of the backup"
    assert fleet.rotations.recall(known)
    assert fleet.world.store.lease(stolen) is None
    assert stolen not in fleet.rotations.sealed_secrets()
    fleet.hear(staying)
    fresh = fleet.held[staying]
    assert fresh.secret == fleet.world.authority.network.secret
    assert fresh.secret not in (old_secret, held.secret)
    assert fresh.epoch > held.epoch
    number = fleet.state().number
    assert not fleet.rotations.recall(known)
    assert fleet.state().number == number, "told again, it does nothing"


def test_two_registries_of_one_backup_share_no_number(tmp_path: Path) -> None:
    """Restored twice from the same backup, a minute apart, each gives its secrets numbers of its own."""
    fleet = Fleet(tmp_path)
    fleet.join("edge-1")
    fleet.world.store.close()
    file = tmp_path / "registry.sqlite3"
    backup, epochs = file.read_bytes(), []
    for _ in range(2):
        for old in tmp_path.glob("registry.sqlite3*"):
            old.unlink()
        file.write_bytes(backup)
        fleet.world.open()
        fleet.world.store.note_restoration(fleet.relay.node_id, keep_addresses=True)
        fleet.rotations.rotate()
        fleet.change()
        epochs.append(fleet.rotations.secret_epoch)
        fleet.world.store.close()
        fleet.world.clock.step_wall_clock(60)
    assert epochs[0] < epochs[1]


def test_a_generation_grows_by_any_clock() -> None:
    """Set back to before the backup, it still counts on; what comes of it fits the database and any JSON reader."""
    assert generation_after(0, NOW) < generation_after(0, NOW + timedelta(minutes=1))
    assert generation_after(10**9, NOW) == 10**9 + 1
    assert generation_after(3, datetime(1970, 1, 1, tzinfo=UTC)) == 4
    assert epoch_after(1, generation_after(0, datetime(2199, 1, 1, tzinfo=UTC)), None) < 2**53


def test_what_is_known_is_not_written_again(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said once more, a node's word needs no room on the disk."""
    node_id = fleet.join("edge-1")
    fleet.rotations.rotate()
    fleet.change()
    fleet.hear(node_id)
    assert fleet.say(node_id)

    def full() -> None:
        raise NotCommittedError("the disk is full")

    monkeypatch.setattr(fleet.world.store.rotations._database, "transaction", full)
    assert not fleet.say(node_id)


def test_only_the_registrys_own_word_changes_the_secret(fleet: Fleet) -> None:
    """A member cannot make the network change its secret by claiming to have heard of a newer one."""
    liar = fleet.join("edge-1")
    lie = NetworkState(
        network_id=fleet.world.keys.network_id, generation=0, number=9, secret_epoch=9, revoked=(fleet.relay.node_id,)
    )
    with pytest.raises(RegistryError):
        fleet.rotations.recall(fleet.keys[liar].sign(Kind.NETWORK, lie))
    assert fleet.rotations.secret_epoch == 1

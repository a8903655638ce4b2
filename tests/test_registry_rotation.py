"""A change of the network's secret: each step of the plan, and what is told to whom."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from fleet_world import REVOKED, ROTATED, Fleet, fleet  # noqa: F401
from telling import refuses

from edgelink.errors import NotCommittedError, RegistryError, UsageError
from edgelink.protocol.held_secret import HeldSecret
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.payloads import MAX_PAYLOAD_BYTES, MAX_REVOKED, NetworkState
from edgelink.relay.lease_changes import LeaseChange
from edgelink.relay.rotation import Progress, RotationRecord, Step, epoch_after, generation_after, next_look, next_step

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def record(phase: str = "prepare", *, force: bool = True) -> RotationRecord:
    return RotationRecord(
        rotation_id="0" * 32,
        from_epoch=1,
        to_epoch=2,
        next_secret="next",
        why="a test",
        phase=phase,  # type: ignore[arg-type]
        started_at=NOW,
        phase_until=NOW + timedelta(seconds=20),
        hold_until=NOW + timedelta(seconds=60),
        force=force,
    )


def node(name: str, *, prepared: int = 0, running: int = 0, hold_s: float | None = None) -> Progress:
    hold_until = None if hold_s is None else NOW + timedelta(seconds=hold_s)
    return Progress(name, is_expected=True, prepared_epoch=prepared, running_epoch=running, hold_until=hold_until)


@pytest.mark.parametrize(
    ("progress", "after_s", "force", "wanted"),
    [
        ([], 0, True, Step.COMMIT),
        ([node("a", prepared=2), node("b")], 1, True, Step.WAIT),
        ([node("a", prepared=2), node("b", prepared=2)], 1, True, Step.COMMIT),
        ([node("a", prepared=2), node("b")], 20, True, Step.COMMIT),
        ([node("a", prepared=2), node("b")], 20, False, Step.ABORT),
        ([node("a", prepared=2, hold_s=40)], 30, True, Step.WAIT),
        ([node("a", prepared=2, hold_s=40)], 40, True, Step.COMMIT),
        ([node("a", prepared=2, hold_s=4000)], 59, False, Step.WAIT),
        ([node("a", prepared=2, hold_s=4000)], 60, False, Step.COMMIT),  # no longer than the operator said
        ([Progress("a", is_expected=False)], 0, True, Step.COMMIT),  # offline: it follows
        # The clock was set back by an hour: who was put out is not in for an hour more.
        ([node("a", prepared=2), node("b")], -3600, True, Step.COMMIT),
        ([node("a", prepared=2), node("b")], -3600, False, Step.ABORT),
        ([node("a", prepared=2, hold_s=40)], -3600, True, Step.COMMIT),
        ([node("a", prepared=2), node("b")], -1, True, Step.WAIT),  # what NTP does at any time
        ([node("a", prepared=2, hold_s=40)], -1, True, Step.WAIT),
    ],
)
def test_when_a_change_is_committed(progress: list[Progress], after_s: float, force: bool, wanted: Step) -> None:
    """All that are online have it and none holds, or the deadline decides."""
    assert next_step(record(force=force), progress, NOW + timedelta(seconds=after_s)) is wanted


def test_when_a_change_is_over() -> None:
    """All that were expected run on it, or their time is over; who comes later follows without it."""
    there, late = node("a", running=2), node("b", prepared=2, running=1)
    assert next_step(record("committed"), [there], NOW) is Step.FINISH
    assert next_step(record("committed"), [there, late], NOW) is Step.WAIT
    assert next_step(record("committed"), [there, late], NOW + timedelta(seconds=20)) is Step.FINISH


def test_deadlines_are_looked_at_when_they_come() -> None:
    """The nearest of them, and never a moment that has passed."""
    holding = [node("a", prepared=2, hold_s=5)]
    assert next_look(record(), holding, NOW) == timedelta(seconds=5)
    assert next_look(record(), holding, NOW + timedelta(seconds=5)) == timedelta(seconds=15)
    assert next_look(record(), holding, NOW + timedelta(seconds=61)) > timedelta(0)


def test_no_number_is_given_to_two_secrets() -> None:
    """Not after a change that was given up, and not by a registry that was restored from before it."""
    assert epoch_after(1, 0, None) == 2
    assert epoch_after(1, 0, record()) == 3
    assert epoch_after(1, 1, None) == epoch_after(999, 1, None) == 1001
    assert epoch_after(1001, 1, None) == 1002


def test_a_change_from_its_beginning_to_its_end(fleet: Fleet) -> None:
    """Told, prepared, committed, run, over; a second node that was away catches up in one step."""
    near, away = fleet.join("edge-1"), fleet.join("edge-2")
    fleet.rotations.rotate(fleet.expecting(ROTATED, near))
    assert fleet.rotations.advance() is Step.WAIT
    fleet.hear(near)
    first = fleet.held[near]
    assert (first.epoch, first.next_epoch) == (1, 2)
    assert fleet.rotations.receive(near, fleet.answer(near))
    assert fleet.rotations.advance() is Step.COMMIT
    fleet.hear(near)
    assert fleet.held[near] == HeldSecret(2, first.next_secret or "")
    assert fleet.world.authority.network.secret == first.next_secret
    fleet.rotations.receive(near, fleet.answer(near))
    assert fleet.rotations.advance() is Step.FINISH
    assert {lease.hostname for lease in fleet.rotations.stragglers()} == {"relay", "edge-2"}
    fleet.hear(away)
    assert fleet.held[away] == fleet.held[near]
    fleet.rotations.receive(away, fleet.answer(away))
    assert [lease.hostname for lease in fleet.rotations.stragglers()] == ["relay"]


def test_a_change_that_is_given_up_leaves_nothing(fleet: Fleet) -> None:
    """The present secret stays under another number; what a node kept of the other fits nothing that comes later."""
    here, silent = fleet.join("edge-1"), fleet.join("edge-2")
    before = fleet.held[here].secret
    fleet.rotations.rotate(fleet.expecting(ROTATED, here, silent))
    fleet.hear(here)
    kept = fleet.held[here]  # and hears nothing more
    fleet.world.clock.step_wall_clock(61)
    assert fleet.rotations.advance() is Step.ABORT
    fleet.rotations.rotate(ROTATED)
    assert fleet.rotations.advance() is Step.COMMIT
    assert kept.told(fleet.state()).secret == before, "the secret that was given up is not taken for the new one"
    fleet.hear(here)
    assert fleet.held[here].secret == fleet.world.authority.network.secret != kept.next_secret


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
    assert not fleet.rotations.receive(key.node_id, b"anything")
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
    fleet.rotations.revoke("edge-1", REVOKED, own_node_id=fleet.relay.node_id, all_tokens=True)
    assert all(token.revoked_at is not None for token in fleet.world.store.tokens.all())


def test_forged_answers_count_for_nothing(fleet: Fleet) -> None:
    """Signed by another key, of another network, for another change, or from a future that is not."""
    one, other = fleet.join("edge-1"), fleet.join("edge-2")
    fleet.rotations.rotate(fleet.expecting(ROTATED, one))
    fleet.hear(one)
    fleet.hear(other)
    honest = fleet.answer(one)
    for forged in (b"junk", fleet.answer(other), fleet.answer(one, network_id="another")):
        with pytest.raises(RegistryError):
            fleet.rotations.receive(one, forged)
    assert not fleet.rotations.receive(one, fleet.answer(one, running_epoch=99))
    assert not fleet.rotations.receive(one, fleet.answer(one, generation=7))
    assert fleet.rotations.advance() is Step.WAIT
    assert fleet.rotations.receive(one, honest)
    assert fleet.rotations.advance() is Step.COMMIT


def test_a_registry_from_before_a_revocation_is_told_so(fleet: Fleet, tmp_path: Path) -> None:
    """The signed word of the lost registry, which a node kept, puts the revoked one out again, under a secret that
    nobody has ever seen."""
    staying, stolen = fleet.join("edge-1"), fleet.join("edge-2")
    world, old_secret = fleet.world, fleet.held[staying].secret
    world.store.close()
    old = {name: (tmp_path / name).read_bytes() for name in ("registry.sqlite3",)}
    fleet.world.open()
    fleet.revoke("edge-2")
    assert fleet.rotations.advance() is Step.COMMIT
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
    fleet.rotations.receive(staying, fleet.answer(staying, known=known))
    assert fleet.world.store.lease(stolen) is None
    assert stolen not in fleet.rotations.sealed_secrets()
    fleet.hear(staying)
    fresh = fleet.held[staying]
    assert fresh.secret == fleet.world.authority.network.secret
    assert fresh.secret not in (old_secret, held.secret)
    assert fresh.epoch > held.epoch
    number = fleet.state().number
    fleet.rotations.receive(staying, fleet.answer(staying, known=known))
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
        fleet.rotations.rotate(ROTATED)
        assert fleet.rotations.advance() is Step.COMMIT
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
    fleet.rotations.rotate(fleet.expecting(ROTATED, node_id))
    fleet.hear(node_id)
    answer = fleet.answer(node_id)
    assert fleet.rotations.receive(node_id, answer)

    def full() -> None:
        raise NotCommittedError("the disk is full")

    monkeypatch.setattr(fleet.world.store.rotations._database, "transaction", full)
    assert not fleet.rotations.receive(node_id, answer)


def test_only_the_registrys_own_word_changes_the_secret(fleet: Fleet, tmp_path: Path) -> None:
    """A member cannot make the network change its secret by claiming to have heard of a newer one."""
    liar = fleet.join("edge-1")
    lie = NetworkState(
        network_id=fleet.world.keys.network_id, generation=0, number=9, secret_epoch=9, revoked=(fleet.relay.node_id,)
    )
    with pytest.raises(RegistryError):
        fleet.rotations.receive(liar, fleet.answer(liar, known=fleet.keys[liar].sign(Kind.NETWORK, lie)))
    assert fleet.rotations.secret_epoch == 1

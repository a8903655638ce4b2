"""What a node keeps: accepted only when it is ours, kept whole, read only when unaltered."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from registry_world import ADDRESSES, World
from telling import refuses

from edgelink.config import Paths
from edgelink.errors import (
    AddressPoolExhaustedError,
    LeaseConflictError,
    RegistryError,
    TokenError,
    UntrustedError,
)
from edgelink.log import redact
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import Membership, refusal
from edgelink.protocol.payloads import EnrolReply
from edgelink.relay.authority import EnrolResult
from edgelink.testing import FakeClock


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "relay")


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(state=tmp_path / "node", runtime=tmp_path / "run")


def joined(world: World) -> tuple[Membership, NodeKey]:
    key, token = NodeKey.generate(), world.token()
    return world.membership(key, token, world.enrol(key, token, f"edge-{key.node_id[:8]}")), key


def test_it_survives_a_restart(world: World, paths: Paths) -> None:
    """What was saved is loaded, and only root reads it."""
    membership, key = joined(world)
    assert Membership.load(paths) is None
    membership.save(paths)
    assert Membership.load(paths) == membership
    assert membership.belonging_to(key).lease.node_id == key.node_id
    assert paths.membership.stat().st_mode & 0o777 == 0o600
    assert membership.addresses == ADDRESSES


def test_it_says_which_of_the_networks_secrets_it_holds(world: World) -> None:
    """So that a node can tell whether the network has gone on to another one since."""
    first, _ = joined(world)
    assert (first.secrets.generation, first.secrets.secret_epoch) == (0, 1)
    world.store._database.execute("UPDATE network SET secret = 'another', secret_epoch = 2, generation = 1")
    second, _ = joined(world)
    assert (second.secrets.generation, second.secrets.secret_epoch) == (1, 2)
    assert second.secrets.network_secret == "another"


def test_an_altered_lease_is_refused(world: World, paths: Paths) -> None:
    """Whoever edits the file cannot give this node another address, nor another registry's key."""
    membership, _ = joined(world)
    membership.save(paths)
    good = json.loads(paths.membership.read_text())
    body = good["lease_envelope"]["body"].replace("10.10.0.2", "10.10.0.9")
    for change in (
        {"lease_envelope": {**good["lease_envelope"], "body": body}},
        {"registry_verify_key": NodeKey.generate().verify_key_b64},
        {"network_id": "another"},
    ):
        paths.membership.write_text(json.dumps({**good, **change}))
        with pytest.raises(UntrustedError, match=r"membership\.json") as caught:
            Membership.load(paths)
        assert "edgelink join" in caught.value.hint


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', "\udcff"])
def test_a_damaged_file_is_named(paths: Paths, text: str) -> None:
    """No traceback: the path, what is wrong, and that joining again gives the same lease."""
    paths.state.mkdir()
    paths.membership.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(RegistryError, match=r"membership\.json"):
        Membership.load(paths)


def test_a_damaged_file_does_not_show_its_secrets(world: World, paths: Paths) -> None:
    """An error about one field of the file does not print the others."""
    membership, _ = joined(world)
    membership.save(paths)
    paths.membership.write_text(paths.membership.read_text().replace('"version": 1', '"version": -7'))
    with pytest.raises(RegistryError, match=r"is damaged \(.*version") as caught:
        Membership.load(paths)
    assert membership.secrets.network_secret not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_file_of_a_newer_edgelink_is_left_alone(world: World, paths: Paths) -> None:
    """After a downgrade nobody is told to enrol again: the newer version goes on with what is there."""
    membership, _ = joined(world)
    membership.save(paths)
    written = paths.membership.read_text().replace('"version": 1', '"version": 2')
    paths.membership.write_text(written)
    with refuses(RegistryError, "format 2", paths.membership, reason="MembershipNewer") as caught:
        Membership.load(paths)
    assert caught.value.hint
    assert membership.secrets.network_secret not in str(caught.value)
    assert paths.membership.read_text() == written


def test_secrets_are_hidden_from_then_on(world: World, paths: Paths) -> None:
    """Once a node knows its secrets, no log line shows them."""
    membership, _ = joined(world)
    for secret in (membership.secrets.network_secret, membership.secrets.broker_password):
        assert secret not in redact(f"oops {secret}")
        assert secret not in repr(membership)


def test_a_reply_for_another_node_is_refused(world: World) -> None:
    """Neither another node's lease nor another's secrets are taken for our own."""
    token = world.token(uses=2)
    ours, theirs = NodeKey.generate(), NodeKey.generate()
    our_result, their_result = world.enrol(ours, token, "edge-1"), world.enrol(theirs, token, "edge-2")
    mixed = our_result.reply.model_copy(update={"lease": their_result.reply.lease})
    with pytest.raises(UntrustedError, match="not ours"):
        world.membership(ours, token, EnrolResult(mixed))
    with refuses(UntrustedError, ours.node_id):
        world.membership(ours, token, their_result)


def test_a_reply_of_another_network_is_refused(world: World, tmp_path: Path) -> None:
    """A relay that is not the token's cannot enrol us."""
    other = World(tmp_path / "other")
    key, token = NodeKey.generate(), world.token()
    with pytest.raises(UntrustedError):
        world.membership(key, token, other.enrol(key, other.token()))


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("LeaseConflict", LeaseConflictError),
        ("AddressPoolExhausted", AddressPoolExhaustedError),
        ("Untrusted", UntrustedError),
        ("TokenExpired", TokenError),
        ("TokenUsedUp", TokenError),
        ("ConfigInvalid", RegistryError),
        (None, RegistryError),
    ],
)
def test_a_refusal_is_the_error_it_was(reason: str | None, kind: type[RegistryError]) -> None:
    """Reason and hint of the registry reach the person at the node."""
    fields: dict[str, Any] = {"error": "no", "error_reason": reason, "error_hint": "ask"}
    error = refusal(EnrolReply(request_id="r", sent_at=FakeClock().now(), **fields))
    assert type(error) is kind
    assert error.condition_reason == (reason or "RegistryFailed")
    assert (error.message, error.hint) == ("the registry refused: no", "ask")


def test_an_empty_reply_is_an_error(world: World) -> None:
    """A reply with neither lease nor refusal is not taken for success."""
    with pytest.raises(RegistryError, match="neither"):
        world.membership(
            NodeKey.generate(), world.token(), EnrolResult(EnrolReply(request_id="r", sent_at=world.clock.now()))
        )


def test_who_may_not_read_it_is_told_to_use_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is root's, and not damaged."""

    def refuse(_path: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with refuses(RegistryError, "sudo", reason="NotPrivileged"):
        Membership.load(Paths(tmp_path / "state", tmp_path / "run"))

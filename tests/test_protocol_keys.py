"""Node keys, envelopes and sealing."""

from __future__ import annotations

import base64
import threading
from pathlib import Path

import pytest
from telling import refuses

from edgelink.errors import ConfigError, UntrustedError
from edgelink.protocol.keys import Kind, NodeKey, node_id_of, open_envelope, request_id_of, seal
from edgelink.protocol.payloads import Directory, Envelope, NodeSecrets

DIRECTORY = Directory(network_id="abc", epoch=3, entries=())
KEY = NodeKey.generate()


def flipped(base64_text: str) -> str:
    data = bytearray(base64.b64decode(base64_text))
    data[0] ^= 1
    return base64.b64encode(bytes(data)).decode()


def test_a_key_stays_the_same_and_private(tmp_path: Path) -> None:
    """The key made on first start is the key ever after, and only its owner can read it."""
    path = tmp_path / "state" / "node.key"
    first = NodeKey.load_or_create(path)
    assert NodeKey.load_or_create(path).node_id == first.node_id == NodeKey.load(path).node_id
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["node.key"]


def test_two_creators_at_once_get_one_key(tmp_path: Path) -> None:
    """`join` and a daemon that start together end up with the same node id."""
    barrier = threading.Barrier(8)
    found: list[str] = []

    def create() -> None:
        barrier.wait()
        found.append(NodeKey.load_or_create(tmp_path / "node.key").node_id)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """A private key with open permissions is an error with the command that mends it."""
    path = tmp_path / "node.key"
    NodeKey.load_or_create(path)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="mode 644") as caught:
        NodeKey.load(path)
    assert f"chmod 600 {path}" in caught.value.hint


@pytest.mark.parametrize("content", ["", "not base64 at all!", "c2hvcnQ="])
def test_a_damaged_key_file_is_named(tmp_path: Path, content: str) -> None:
    """What is not a key is said to be none; it is not replaced silently."""
    path = tmp_path / "node.key"
    path.write_text(content)
    path.chmod(0o600)
    with refuses(ConfigError, path):
        NodeKey.load_or_create(path)
    assert path.read_text() == content


def test_what_was_signed_comes_back() -> None:
    """A signed payload is read again by whoever knows the signer's public key."""
    envelope = Envelope.model_validate_json(KEY.sign(Kind.DIRECTORY, DIRECTORY).model_dump_json())
    assert open_envelope(envelope, Kind.DIRECTORY, Directory, KEY.verify_key_b64) == DIRECTORY
    assert envelope.signer == KEY.node_id == node_id_of(KEY.verify_key_b64)


@pytest.mark.parametrize(
    "change",
    [
        {"body": DIRECTORY.model_copy(update={"epoch": 4}).model_dump_json()},
        {"kind": "lease"},
        {"signature": flipped(KEY.sign(Kind.DIRECTORY, DIRECTORY).signature)},
        {"signature": ""},
        {"signature": "===="},
        {"signer": NodeKey.generate().node_id},
    ],
    ids=["body", "kind", "signature", "no signature", "not base64", "signer"],
)
def test_any_change_is_noticed(change: dict[str, str]) -> None:
    """Nothing of an envelope can be altered: body, kind, signature or signer."""
    envelope = KEY.sign(Kind.DIRECTORY, DIRECTORY).model_copy(update=change)
    with pytest.raises(UntrustedError):
        open_envelope(envelope, Kind.DIRECTORY, Directory, KEY.verify_key_b64)


def test_a_kind_cannot_be_passed_off_as_another() -> None:
    """The signature covers the kind: relabelling a document does not make it another one."""
    envelope = KEY.sign(Kind.DIRECTORY, DIRECTORY).model_copy(update={"kind": "lease"})
    with refuses(UntrustedError):
        open_envelope(envelope, Kind.LEASE, Directory, KEY.verify_key_b64)


def test_another_key_does_not_verify() -> None:
    """A document of another registry is not believed, also when it claims to be "registry"'s."""
    envelope = KEY.sign(Kind.DIRECTORY, DIRECTORY).model_copy(update={"signer": "registry"})
    with refuses(UntrustedError, "registry"):
        open_envelope(envelope, Kind.DIRECTORY, Directory, NodeKey.generate().verify_key_b64)
    with refuses(UntrustedError, 3, 32):
        open_envelope(envelope, Kind.DIRECTORY, Directory, "AAAA")


def test_only_the_addressee_opens_a_seal() -> None:
    """What is sealed to a node is readable to that node alone."""
    sealed = seal(KEY.verify_key_b64, b"network secret")
    assert KEY.unseal(sealed) == b"network secret"
    for other, text in ((NodeKey.generate(), sealed), (KEY, flipped(sealed)), (KEY, "AAAA"), (KEY, "%")):
        with pytest.raises(UntrustedError):
            other.unseal(text)


def test_a_repeated_request_has_the_same_id() -> None:
    """The reply to a request that arrived twice is recognised; another request has another id."""
    first = KEY.sign(Kind.DIRECTORY, DIRECTORY)
    assert request_id_of(first) == request_id_of(KEY.sign(Kind.DIRECTORY, DIRECTORY))
    assert request_id_of(first) != request_id_of(KEY.sign(Kind.LEASE, DIRECTORY))


def test_secrets_do_not_show_in_a_repr() -> None:
    """An object in a traceback or log line does not give its secret away."""
    secrets = NodeSecrets(network_name="n", network_secret="s3cret-1", broker_username="u", broker_password="s3cret-2")
    assert "s3cret" not in repr(secrets)
    assert repr(KEY) == f"NodeKey(node_id={KEY.node_id!r})"

"""Rolling upgrades: what earlier versions said is understood, and what is said now is understood by them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import wire_vectors
from pydantic import ValidationError
from telling import refuses
from wire_vectors import NODE, PLAIN, REGISTRY_VERIFY_KEY, SIGNED

from edgelink.errors import UntrustedError
from edgelink.registry.keys import _signed_bytes, node_id_of, open_envelope
from edgelink.registry.membership import Membership, open_secrets
from edgelink.registry.payloads import EnrolReply, Envelope, Payload

# Optional ones that nobody writes any more: an older version reads null for them.
_GONE = {f"{name}.credential" for name in ("secrets", "network-secrets", "membership.secrets")} | {
    "enrol-request.easytier_version"
}
_RECORDINGS = sorted((Path(__file__).parent / "wire").glob("*.json"))


@pytest.fixture(params=_RECORDINGS, ids=lambda path: path.stem)
def recorded(request: pytest.FixtureRequest) -> dict[str, str]:
    said: dict[str, str] = json.loads(request.param.read_text())
    return said


def body_of(name: str, text: str) -> Any:
    return json.loads(json.loads(text)["body"] if name in SIGNED else text)


def missing(older: Any, newer: Any, where: str) -> list[str]:
    """What ``older`` holds and ``newer`` lacks or says otherwise."""
    if where in _GONE and older is None:
        return []
    if isinstance(older, dict) and isinstance(newer, dict):
        return [
            lack for name, value in older.items() for lack in missing(value, newer.get(name, "-"), f"{where}.{name}")
        ]
    if isinstance(older, list) and isinstance(newer, list) and len(older) == len(newer):
        return [
            lack for i, pair in enumerate(zip(older, newer, strict=True)) for lack in missing(*pair, f"{where}[{i}]")
        ]
    return [] if older == newer else [f"{where}: {older!r} is now {newer!r}"]


def without_signed_texts(value: Any) -> Any:
    """Signed texts inside of others differ as soon as a field is added; they are compared by themselves."""
    if isinstance(value, dict):
        drop = {"signature", "body", "sealed_secrets", "request_id"}
        return {name: without_signed_texts(item) for name, item in value.items() if name not in drop}
    return [without_signed_texts(item) for item in value] if isinstance(value, list) else value


def test_there_are_recordings() -> None:
    assert _RECORDINGS


def test_what_was_said_is_understood(recorded: dict[str, str]) -> None:
    """Each recorded message passes its signature check and says what it said; new fields have a harmless value."""
    expected = wire_vectors.payloads()
    for name, (kind, model, verify_key) in SIGNED.items():
        if name in recorded:
            envelope = Envelope.model_validate_json(recorded[name])
            assert open_envelope(envelope, kind, model, verify_key) == expected[name], name
    for name, plain in PLAIN.items():
        if name in recorded:
            read: Payload = plain.model_validate_json(recorded[name])
            now = without_signed_texts(read.model_dump(mode="json"))
            assert now == without_signed_texts(expected[name].model_dump(mode="json")), name


@pytest.mark.parametrize("name", [*SIGNED, *PLAIN])
def test_a_protocol_to_come_is_refused_by_name(name: str) -> None:
    """Well signed, and of a version that nobody here knows: refused as that, whatever else it says."""
    body = wire_vectors.payloads()[name].model_dump_json()
    later = json.dumps(json.loads(body) | {"version": 2})
    if name in PLAIN:
        with pytest.raises(ValidationError, match="version"):
            PLAIN[name].model_validate_json(later)
        return
    kind, model, verify_key = SIGNED[name]
    signing_keys = {key.verify_key_b64: key._signing_key for key in (NODE, wire_vectors.HEAD)}
    signing_keys[REGISTRY_VERIFY_KEY] = wire_vectors.REGISTRY
    signer = "registry" if verify_key == REGISTRY_VERIFY_KEY else node_id_of(verify_key)

    def signed(text: str) -> Envelope:
        signature = signing_keys[verify_key].sign(_signed_bytes(kind, text)).signature
        return Envelope(kind=kind, body=text, signature=base64.b64encode(signature).decode(), signer=signer)

    assert open_envelope(signed(body), kind, model, verify_key)
    with refuses(UntrustedError, kind, "edgelink version"):
        open_envelope(signed(later), kind, model, verify_key)


def test_the_secrets_of_an_enrolment_are_understood(recorded: dict[str, str]) -> None:
    """Sealed by the older registry, opened by the node now."""
    reply = EnrolReply.model_validate_json(recorded["enrol-reply"])
    assert reply.sealed_secrets is not None
    assert open_secrets(reply.sealed_secrets, NODE, REGISTRY_VERIFY_KEY) == wire_vectors.payloads()["secrets"]


def test_a_membership_on_disk_is_understood(recorded: dict[str, str]) -> None:
    """An upgraded daemon goes on with the file that the older one left."""
    membership = Membership.model_validate_json(recorded["membership"]).belonging_to(NODE)
    assert membership.lease == wire_vectors.payloads()["lease"]
    assert membership.secrets == wire_vectors.payloads()["secrets"]


def test_what_is_said_now_is_understood_by_those_before(recorded: dict[str, str]) -> None:
    """Every field that an older version reads is still there, or was never used, and means the same."""
    said = wire_vectors.messages()
    assert recorded.keys() <= said.keys()
    for name, text in recorded.items():
        older, newer = (without_signed_texts(body_of(name, message)) for message in (text, said[name]))
        assert missing(older, newer, name) == []

"""On the wire all nodes are of one version: a message of another one is refused by name."""

from __future__ import annotations

import base64
import json

import pytest
import wire_vectors
from pydantic import ValidationError
from telling import refuses
from wire_vectors import NODE, PLAIN, REGISTRY_VERIFY_KEY, SIGNED

from edgelink.errors import UntrustedError
from edgelink.protocol.keys import _signed_bytes, node_id_of, open_envelope
from edgelink.protocol.payloads import Envelope


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

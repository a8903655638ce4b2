"""A registry, and nodes that are nothing but what they have on disk and heard."""

from __future__ import annotations

from pathlib import Path

import pytest
from registry_world import World

from edgelink.protocol.held_secret import HeldSecret
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.payloads import Envelope, NetworkAnswer, NetworkSecrets, NetworkState
from edgelink.relay.rotations import RotationRequest

REVOKED, ROTATED = RotationRequest(frozenset(), 20.0), RotationRequest(frozenset(), 60.0, force=False)


class Fleet:
    """A registry, and nodes that are nothing but what they have on disk and heard."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory)
        self.keys: dict[str, NodeKey] = {}
        self.held: dict[str, HeldSecret] = {}
        self.relay = NodeKey.generate()
        self.world.authority.ensure_relay_lease(self.relay, "relay")

    @property
    def rotations(self):  # type: ignore[no-untyped-def]
        return self.world.authority.rotations

    def join(self, name: str) -> str:
        key, token = NodeKey.generate(), self.world.token()
        secrets = self.world.membership(key, token, self.world.enrol(key, token, name)).held
        self.keys[key.node_id], self.held[key.node_id] = key, secrets
        return key.node_id

    def state(self) -> NetworkState:
        return open_envelope(self.rotations.state(), Kind.NETWORK, NetworkState, self.world.keys.verify_key_b64)

    def secrets(self, node_id: str) -> NetworkSecrets | None:
        sealed = self.rotations.sealed_secrets().get(node_id)
        if sealed is None:
            return None
        signed = Envelope.model_validate_json(self.keys[node_id].unseal(sealed.decode()))
        return open_envelope(signed, Kind.NETWORK_SECRETS, NetworkSecrets, self.world.keys.verify_key_b64)

    def answer(self, node_id: str, **fields: object) -> bytes:
        held, state = self.held[node_id], self.state()
        values = {
            "network_id": self.world.keys.network_id,
            "node_id": node_id,
            "generation": state.generation,
            "number": 0,
            "rotation_id": state.rotation.rotation_id if state.rotation else None,
            "prepared_epoch": held.next_epoch or held.epoch,
            "running_epoch": held.epoch,
        }
        answer = NetworkAnswer.model_validate(values | fields)
        return self.keys[node_id].sign(Kind.NETWORK_ANSWER, answer).model_dump_json().encode()

    def hear(self, node_id: str) -> None:
        """All that the registry says now."""
        secrets = self.secrets(node_id)
        if secrets is not None:
            self.held[node_id] = self.held[node_id].given(HeldSecret.of(secrets))
        self.held[node_id] = self.held[node_id].told(self.state())

    def expecting(self, request: RotationRequest, *node_ids: str) -> RotationRequest:
        return RotationRequest(frozenset(node_ids), request.prepare_s, request.hold_s, request.force)

    def revoke(self, node_id: str, *expected: str) -> None:
        request = self.expecting(REVOKED, *expected)
        self.rotations.revoke(node_id, request, own_node_id=self.relay.node_id)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def go_on(fleet: Fleet, node_id: str) -> None:
    """What daemon and node do until there is nothing left to do."""
    for _ in range(4):
        fleet.hear(node_id)
        fleet.rotations.receive(node_id, fleet.answer(node_id))
        fleet.rotations.advance()

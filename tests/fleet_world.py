"""A registry, and nodes that are nothing but what they have on disk and heard."""

from __future__ import annotations

from pathlib import Path

import pytest
from registry_world import World

from edgelink.protocol.held_secret import HeldSecret
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.payloads import Envelope, NetworkSecrets, NetworkState
from edgelink.relay.rotation import RotationRecord


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

    def hear(self, node_id: str) -> None:
        """All that the registry says now."""
        secrets = self.secrets(node_id)
        if secrets is not None:
            self.held[node_id] = self.held[node_id].given(HeldSecret.of(secrets))
        self.held[node_id] = self.held[node_id].told(self.state())

    def say(self, *node_ids: str) -> bool:
        """These nodes say on which secret they run. Return whether it is news to the registry."""
        return bool(self.rotations.note({node_id: self.held[node_id].epoch for node_id in node_ids}))

    def revoke(self, node_id: str, hold_s: float = 0.0) -> RotationRecord:
        revoked = self.rotations.revoke(node_id, hold_s=hold_s, own_node_id=self.relay.node_id)
        return revoked.record

    def change(self) -> None:
        """The hour comes, and the network changes."""
        left_s = self.rotations.left_s()
        assert left_s is not None
        self.world.clock.block(max(0.0, left_s))
        assert self.rotations.advance(is_held=False)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def go_on(fleet: Fleet, node_id: str) -> None:
    """What daemon and node do until there is nothing left to do."""
    for _ in range(4):
        fleet.hear(node_id)
        fleet.say(node_id)
        fleet.rotations.advance(is_held=False)
        fleet.world.clock.block(fleet.rotations.left_s() or 0.0)

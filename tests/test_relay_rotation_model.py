"""A change of the network's secret against a model: what holds whatever is lost, doubled, late or killed."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

import pytest
from fleet_world import Fleet
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from in_memory import IN_MEMORY

from edgelink.protocol.held_secret import HeldSecret
from edgelink.protocol.payloads import NetworkSecrets, NetworkState


class Rotation(RuleBasedStateMachine):
    """Nodes hear in any order, doubled, late or not at all; the registry dies at any moment; the operator goes on."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.fleet = Fleet(Path(self._directory.name))
        self.revoked: set[str] = set()
        self.names = (f"edge-{number}" for number in itertools.count())
        self.committed = {1: self.fleet.world.authority.network.secret}  # every secret that ever counted, by number
        self.heard: list[tuple[str, NetworkSecrets | NetworkState]] = []  # what was sent to whom, to be played again
        self.given: dict[str, set[str]] = {}  # every secret that a node could open

    def teardown(self) -> None:
        self.fleet.world.store.close()
        self._directory.cleanup()

    def member(self, number: int) -> str:
        staying = sorted(self.fleet.keys.keys() - self.revoked)
        return staying[number % len(staying)]

    @initialize()
    def begin(self) -> None:
        for _ in range(3):
            self.join()

    @precondition(lambda self: len(self.fleet.keys) < 7)
    @rule()
    def join(self) -> None:
        node_id = self.fleet.join(next(self.names))
        self.given.setdefault(node_id, set()).add(self.fleet.held[node_id].secret)

    @rule(hold_s=st.sampled_from([0.0, 60.0]))
    def rotate(self, hold_s: float) -> None:
        self.fleet.rotations.rotate(hold_s)
        self.note_secret()

    @precondition(lambda self: len(self.fleet.keys) - len(self.revoked) > 1)
    @rule(number=st.integers(0, 6), hold_s=st.sampled_from([0.0, 60.0]))
    def revoke(self, number: int, hold_s: float) -> None:
        node_id = self.member(number)
        self.fleet.revoke(node_id, hold_s)
        self.revoked.add(node_id)
        self.note_secret()

    def note_secret(self) -> None:
        network = self.fleet.world.authority.network
        self.committed.setdefault(network.secret_epoch, network.secret)

    @rule(number=st.integers(0, 6), of_state=st.booleans())
    def hear(self, number: int, of_state: bool) -> None:
        """One of the two documents."""
        node_id = self.member(number)
        said = self.fleet.state() if of_state else self.fleet.secrets(node_id)
        if said is not None:
            self.heard.append((node_id, said))
            self.take(node_id, said)

    @precondition(lambda self: self.heard)
    @rule(number=st.integers(0, 999))
    def play_again(self, number: int) -> None:
        """A broker in wrong hands says once more what was true once."""
        node_id, said = self.heard[number % len(self.heard)]
        self.take(node_id, said)

    def take(self, node_id: str, said: NetworkSecrets | NetworkState) -> None:
        before = self.fleet.held[node_id]
        after = before.told(said) if isinstance(said, NetworkState) else before.given(HeldSecret.of(said))
        assert after.epoch >= before.epoch, "no node goes back"
        self.fleet.held[node_id] = after
        if isinstance(said, NetworkSecrets):
            self.given[node_id] |= {said.network_secret, said.next_secret or said.network_secret}

    @rule(number=st.integers(0, 6))
    def say(self, number: int) -> None:
        self.fleet.say(self.member(number))

    @rule(seconds=st.sampled_from([1, 21, 61]))
    def time_passes(self, seconds: float) -> None:
        self.fleet.world.clock.block(seconds)

    @rule(seconds=st.sampled_from([-3600, 3600]))
    def somebody_sets_the_clock(self, seconds: float) -> None:
        self.fleet.world.clock.step_wall_clock(seconds)

    @rule(is_held=st.booleans())
    def advance(self, is_held: bool) -> None:
        self.fleet.rotations.advance(is_held=is_held)
        self.note_secret()

    @rule()
    def die(self) -> None:
        """The registry is killed, and starts again."""
        self.fleet.world.reopen()

    @invariant()
    def a_number_stands_for_one_secret(self) -> None:
        network = self.fleet.world.authority.network
        assert self.committed.get(network.secret_epoch, network.secret) == network.secret

    @invariant()
    def no_node_runs_what_was_never_committed(self) -> None:
        for held in self.fleet.held.values():
            assert self.committed[held.epoch] == held.secret

    @invariant()
    def nothing_is_sealed_to_who_was_revoked(self) -> None:
        present = self.fleet.world.authority.network.secret
        assert not self.revoked & self.fleet.rotations.sealed_secrets().keys()
        record = self.fleet.rotations.record
        for node_id in self.revoked:
            assert record is None or record.next_secret not in self.given[node_id]
        if record is None:
            assert not any(present in self.given[node_id] for node_id in self.revoked)

    @rule()
    def all_is_well_again(self) -> None:
        """Everybody is online, and nothing is lost for a while: all are on one secret, and nobody is waited for."""
        for _ in range(4):
            for node_id in self.fleet.keys.keys() - self.revoked:
                self.fleet.hear(node_id)
                secrets = self.fleet.secrets(node_id)
                assert secrets is not None
                self.given[node_id] |= {secrets.network_secret, secrets.next_secret or secrets.network_secret}
                self.fleet.say(node_id)
            self.time_passes(3)
            self.advance(is_held=False)
        assert self.fleet.rotations.record is None
        staying = [self.fleet.held[node_id] for node_id in self.fleet.keys.keys() - self.revoked]
        network = self.fleet.world.authority.network
        assert {(held.epoch, held.secret) for held in staying} == {(network.secret_epoch, network.secret)}
        assert [lease.hostname for lease in self.fleet.rotations.stragglers()] in ([], ["relay"])


TestRotation = pytest.mark.timeout(240)(Rotation.TestCase)
TestRotation.settings = settings(
    max_examples=15 if os.environ.get("EDGELINK_SOAK") else 6,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

"""Allocator and store against a model: whatever is asked for in whatever order, the rules hold after each step.

2,000 steps a run, with EDGELINK_SOAK=1 10,500: enrolments, releases, changes, replacements, tokens, restarts, another
process, a clock that goes both ways.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from in_memory import IN_MEMORY
from registry_world import World

from edgelink.errors import EdgelinkError
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import Lease, Role
from edgelink.protocol.token import Token
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.lease_changes import LeaseChange
from edgelink.relay.records import AccessRule
from edgelink.relay.store import RegistryStore
from edgelink.testing import FakeClock

EXAMPLES, STEPS = 210 if os.environ.get("EDGELINK_SOAK") else 40, 50
CIDR = IPv4Network("10.10.0.0/28")
QUARANTINE = timedelta(days=1)
KEYS = [NodeKey.generate() for _ in range(12)]
RELAY = NodeKey.generate()

nodes = st.integers(0, len(KEYS) - 1)
hostnames = st.sampled_from([f"h{number}" for number in range(10)])
addresses = st.none() | st.integers(1, 14).map(lambda last: CIDR[last])
ranks = st.none() | st.integers(0, 6)
selectors = st.sampled_from(["all", "relay", "head", "edge"]) | nodes.map(lambda number: KEYS[number].node_id)
roles = st.sampled_from([Role.EDGE, Role.EDGE, Role.EDGE, Role.HEAD])


def held(lease: Lease) -> set[tuple[str, str]]:
    rank = set() if lease.preferred_rank is None else {("rank", str(lease.preferred_rank))}
    return {("hostname", lease.hostname), ("overlay_ip", str(lease.overlay_ip))} | rank


class RegistryMachine(RuleBasedStateMachine):
    """What the registry should know, in plain dictionaries."""

    template: Path  # a directory with the keys of a network: making them is most of the work

    @initialize()
    def found(self) -> None:
        self.directory = Path(tempfile.mkdtemp(dir=self.template.parent))
        shutil.copytree(self.template, self.directory / "authority")
        self.world = World(self.directory, FakeClock(), CIDR)
        self.world.authority.ensure_relay_lease(RELAY, "relay")
        self.leases: dict[str, Lease] = {lease.node_id: lease for lease in self.world.store.leases()}
        self.rests: dict[tuple[str, str], tuple[str, datetime]] = {}
        self.out: set[str] = set()
        self.tokens: list[Token] = []
        self.ended: set[str] = set()  # tokens that no new node may use
        self.rules: set[AccessRule] = set()
        self.said: dict[tuple[str, int, int], object] = {}  # what a node was told under a number

    def teardown(self) -> None:
        self.world.store.close()
        shutil.rmtree(self.directory)

    @property
    def now(self) -> datetime:
        return self.world.clock.now()

    def resting(self) -> dict[tuple[str, str], str]:
        return {what: node_id for what, (node_id, until) in self.rests.items() if until > self.now}

    def took(self, lease: Lease) -> None:
        """A node holds this now: nothing of it was another's, nor at rest for another."""
        for other in self.leases.values():
            assert other.node_id == lease.node_id or not held(other) & held(lease)
        for what, former in self.resting().items():
            assert former == lease.node_id or what not in held(lease)
        assert lease.overlay_ip in set(CIDR.hosts()) - {CIDR[1]}
        assert (lease.preferred_rank == 0) == (lease.role is Role.HEAD)
        self.leases[lease.node_id] = lease
        self.rests = {what: rest for what, rest in self.rests.items() if what not in held(lease)}

    def gave_up(self, lease: Lease) -> None:
        for what in held(lease) - {("rank", "0")}:
            self.rests[what] = (lease.node_id, self.now + QUARANTINE)

    @rule(role=roles, uses=st.integers(1, 3), hostname=st.none() | hostnames, ip=addresses, rank=ranks)
    def make_token(self, role: Role, uses: int, hostname: str | None, ip: IPv4Address | None, rank: int | None) -> None:
        fixed = {} if uses > 1 else {"hostname": hostname, "ip": ip, "rank": rank}
        try:
            self.tokens.append(self.world.token(role, uses=uses, **fixed))
        except EdgelinkError as error:
            assert error.hint, error

    @precondition(lambda self: self.tokens)
    @rule(node=nodes, hostname=hostnames, data=st.data())
    def enrol(self, node: int, hostname: str, data: st.DataObject) -> None:
        token, key = data.draw(st.sampled_from(self.tokens)), KEYS[node]
        before = self.leases.get(key.node_id)
        record = self.world.store.tokens.get(token.token_id)
        assert record is not None
        result = self.world.enrol(key, token, hostname, role=None)
        if result.reply.lease is None:
            assert result.reply.error_hint, result.reply.error
            return
        lease = self.world.lease(result)
        assert key.node_id not in self.out
        assert token.token_id not in self.ended or key.node_id in record.used_by
        if before is not None:
            assert lease == before
            return
        if record.replaces in self.leases:
            self.out.add(record.replaces)
            assert held(lease) == held(self.leases.pop(record.replaces))
        if record.replaces is not None:
            self.hand_over_rules(record.replaces, key.node_id)
        if record.replaces is not None:
            self.rests = {what: rest for what, rest in self.rests.items() if rest[0] != record.replaces}
        for fixed, got in ((record.hostname, lease.hostname), (record.overlay_ip, lease.overlay_ip)):
            assert record.replaces or fixed in (None, got)
        self.took(lease)

    @rule(node=nodes, at_once=st.booleans())
    def release(self, node: int, at_once: bool) -> None:
        lease = self.leases.get(KEYS[node].node_id)
        try:
            self.world.authority.release(KEYS[node].node_id, at_once=at_once)
        except EdgelinkError:
            assert lease is None
            return
        self.leases.pop(KEYS[node].node_id, None)
        if lease is not None and not at_once:
            self.gave_up(lease)
        elif lease is None:
            self.rests = {what: rest for what, rest in self.rests.items() if rest[0] != KEYS[node].node_id}

    @rule(node=nodes, hostname=st.none() | hostnames, ip=addresses, rank=ranks)
    def change(self, node: int, hostname: str | None, ip: IPv4Address | None, rank: int | None) -> None:
        before = self.leases.get(KEYS[node].node_id)
        try:
            lease = self.world.authority.change_lease(KEYS[node].node_id, LeaseChange(hostname, ip, rank))
        except EdgelinkError as error:
            assert error.hint, error
            return
        assert before is not None
        assert (lease.hostname, lease.overlay_ip) == (hostname or before.hostname, ip or before.overlay_ip)
        assert lease.preferred_rank == (before.preferred_rank if rank is None else rank)
        assert (lease == before) == (lease.lease_epoch == before.lease_epoch)
        if lease != before:
            self.gave_up(before)
        self.took(lease)

    @rule(node=nodes)
    def prepare_replacement(self, node: int) -> None:
        try:
            self.tokens.append(self.world.token(replaces=KEYS[node].node_id))
        except EdgelinkError as error:
            assert error.hint, error

    @precondition(lambda self: len(self.leases) > 1)
    @rule(node=nodes, successor=nodes)
    def replace(self, node: int, successor: int) -> None:
        """Token and enrolment at once, so that it happens often; the old key then comes back with a good token."""
        old, new = KEYS[node].node_id, KEYS[successor].node_id
        lease = self.leases.get(old)
        if lease is None or new in self.leases or new in self.out:
            return
        try:
            result = self.world.enrol(KEYS[successor], self.world.token(replaces=old), "fresh", role=None)
        except EdgelinkError as error:
            assert error.hint, error
            return
        assert result.reply.lease is not None, result.reply.error
        self.out.add(old)
        del self.leases[old]
        self.rests = {what: rest for what, rest in self.rests.items() if rest[0] != old}  # the successor stands for it
        assert held(self.world.lease(result)) == held(lease)
        self.hand_over_rules(old, new)
        self.took(self.world.lease(result))

    def hand_over_rules(self, old: str, new: str) -> None:
        """A machine in another one's place takes its rules over."""
        names = {old: new}
        self.rules = {
            replace(rule, target=names.get(rule.target, rule.target), source=names.get(rule.source, rule.source))
            for rule in self.rules
        }

    @rule(opens=selectors, source=selectors, port=st.integers(1, 3), takes_away=st.booleans())
    def access(self, opens: str, source: str, port: int, takes_away: bool) -> None:
        asked = AccessRule(opens, "tcp", port, port, source)
        access = self.world.authority.access
        if not takes_away:
            assert access.allow([asked]) == ([] if asked in self.rules else [asked])
            self.rules.add(asked)
            return
        try:
            access.deny([asked])
        except EdgelinkError as error:
            assert error.hint, error
            assert asked not in self.rules
        self.rules.discard(asked)

    @precondition(lambda self: self.out)
    @rule(hostname=hostnames, data=st.data())
    def come_back(self, hostname: str, data: st.DataObject) -> None:
        node_id = data.draw(st.sampled_from(sorted(self.out)))
        key = next(key for key in KEYS if key.node_id == node_id)
        token = self.world.token(uses=2)
        assert self.world.enrol(key, token, hostname).reply.error_reason == "NodeRevoked"
        self.world.authority.revoke_token(token.token_id)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def revoke_token(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.tokens))
        self.world.authority.revoke_token(token.token_id)
        self.ended.add(token.token_id)
        self.tokens.remove(token)

    @rule(hours=st.sampled_from([-30, -1, 0.2, 2, 25]))
    def clock(self, hours: float) -> None:
        now = self.now
        self.world.store.broker_users()  # the daemon looks every half minute
        self.world.clock.step_wall_clock(hours * 3600)
        if self.now > now:
            self.world.store.broker_users()
            self.ended |= {
                record.token_id for record in self.world.store.tokens.all() if record.state(self.now) == "expired"
            }

    @rule()
    def restart(self) -> None:
        self.world.reopen()

    @rule(node=nodes)
    def release_by_another_process(self, node: int) -> None:
        store = RegistryStore(self.world.store.path, self.world.clock)
        if self.leases.pop(KEYS[node].node_id, None) is not None:
            store.release(KEYS[node].node_id)
        store.close()

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        if not hasattr(self, "leases"):
            return
        store = self.world.store
        assert {lease.node_id: lease for lease in store.leases()} == self.leases
        assert {(r.kind, r.value): r.node_id for r in store.quarantine.resting()} == self.resting()
        assert {revocation.node_id for revocation in store.revocations.all()} == self.out
        subjects = {user.subject for user in store.broker_users() if user.kind == "node"}
        assert subjects == self.leases.keys() - {RELAY.node_id}
        self.documents_say_what_the_rules_say()
        everything = [what for lease in self.leases.values() for what in held(lease)]
        assert len(set(everything)) == len(everything)

    def documents_say_what_the_rules_say(self) -> None:
        """Address by address and port by port; one number never stands for two contents."""
        documents = self.world.authority.access.documents()
        assert documents.keys() == self.leases.keys() or not (documents or self.rules)
        for node_id, (document, _) in documents.items():
            told = {
                (opening.first, address)
                for opening in document.openings
                for address in CIDR
                if opening.sources is None or any(first <= address <= last for first, last in opening.sources)
            }
            meant = {
                (rule.first, address)
                for rule in self.rules
                if self.means(rule.target, self.leases[node_id])
                for address in CIDR
                if rule.source == "all"
                or any(lease.overlay_ip == address and self.means(rule.source, lease) for lease in self.leases.values())
            }
            assert told == meant
            number = (node_id, document.generation, document.epoch)
            assert self.said.setdefault(number, document.openings) == document.openings

    @staticmethod
    def means(selector: str, lease: Lease) -> bool:
        return selector in ("all", lease.role.value, lease.node_id)


@pytest.mark.timeout(600)
def test_the_registry_keeps_its_rules() -> None:
    """As many as EXAMPLES and STEPS say."""
    machine = RegistryMachine.TestCase
    machine.settings = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        RegistryMachine.template = Path(directory) / "authority"
        AuthorityKeys.load_or_create(RegistryMachine.template, FakeClock())
        machine().runTest()

"""A network without a secret for all: each node is given a credential, and a revoked one loses it at once.

The registry, its nodes and the relay's EasyTier, played by the stand-in of 2.6.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from rotation_world import Member, Network
from structlog.testing import capture_logs
from test_overlay_credentials import StartAdmin, serves, start  # noqa: F401
from test_roles_relay_secrets import Relay, known

from edgelink.conditions import ConditionSet
from edgelink.config import Config
from edgelink.errors import ConfigError, DeadlineError, NotCommittedError, UsageError
from edgelink.overlay import credentials
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.registry.authority_keys import AuthorityKeys
from edgelink.registry.founding import NetworkRequest, settle_network
from edgelink.registry.keys import NodeKey
from edgelink.registry.membership import Membership, open_secrets
from edgelink.registry.payloads import EASYTIER_CREDENTIALS, NetworkSecrets, NodeStatus, RelayAddresses, Role
from edgelink.registry.rotation import FOLLOWS_SECRETS, HeldSecret
from edgelink.registry.store import RegistryStore
from edgelink.roles import bootstrap
from edgelink.roles.easytier_here import easytier_features, easytier_version_of
from edgelink.roles.node_credentials import (
    NodeCredentials,
    lacking,
    refuse_unable,
    require_credentials,
    surplus,
    wanted_of,
)
from edgelink.roles.overlay_parts import overlay_spec
from edgelink.testing import FakeClock, eventually


class Admin(Relay):
    """A relay whose own EasyTier is the stand-in."""

    def __init__(self, network: Network, binary: EasyTierBinary, rpc_port: int) -> None:
        super().__init__(network)
        self._own = membership_of_relay(network)
        self.binary = binary
        self.config = Config.model_validate({"overlay": {"rpc_port": rpc_port}})
        self.conditions = ConditionSet(self.clock, ["OverlayUp"], ["SecretCurrent"])
        self.conditions.set_true("OverlayUp", "Up", "it is")
        self.parts = SimpleNamespace(overlay=SimpleNamespace(runs_as_wanted=True), binary=lambda: self.binary)

    @property
    def membership(self) -> Membership:
        self._own = self.authority.relay_membership(self.key, "relay", previous=self._own)
        return self._own

    async def in_step(self) -> dict[str, str]:
        """What EasyTier knows, by node, once the relay has looked."""
        await self.secrets.credentials.reconcile()
        ids = await credentials.expiries(self.binary, self.config.overlay.rpc_port)
        return {one.partition("-")[0]: one for one in ids}


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path / "network", node_credentials=True)


@pytest.fixture
async def admin(network: Network, start: StartAdmin, tmp_path: Path) -> AsyncIterator[Admin]:
    spec = overlay_spec(membership_of_relay(network), Config(), tmp_path)
    binary, port = start(spec)
    await serves(tmp_path)
    yield Admin(network, binary, port)


def membership_of_relay(network: Network) -> Membership:
    membership = network.world.authority.relay_membership(network.relay, "relay")
    secrets = membership.secrets
    network.service._passwords[secrets.broker_username] = secrets.broker_password  # the broker is to know it
    return membership


def credential(member: Member) -> str | None:
    return member.on_disk.credential


async def test_each_node_is_given_its_own_and_no_secret(admin: Admin, network: Network, tmp_path: Path) -> None:
    """Sealed to it, over the broker, before its EasyTier starts; the relay alone has the secret."""
    one, two = network.join("edge-1"), network.join("edge-2")
    assert one.membership.secrets.network_secret == ""
    assert overlay_spec(one.membership, Config(), tmp_path).credential == "", "it waits for it"
    async with network.serving(), network.running(one, two):
        assert (await admin.in_step()).keys() == {one.key.node_id, two.key.node_id}
        await eventually(lambda: bool(credential(one)) and bool(credential(two)))
        assert credential(one) != credential(two)
        for member in (one, two):
            spec = overlay_spec(member.membership, Config(), tmp_path)
            assert (spec.credential, spec.network_secret, spec.credential_file) == (credential(member), "", None)
            assert spec.p2p is False
            assert network.secret.secret not in member.paths.membership.read_text()
        await known(admin, one, two)
    own = overlay_spec(membership_of_relay(network), Config(), tmp_path)
    assert (own.network_secret, own.credential) == (network.secret.secret, None)
    assert own.credential_file == tmp_path / "easytier-credentials" / "easytier-credentials-1.json"


async def test_a_revoked_node_is_cut_off_and_nobody_else_notices(admin: Admin, network: Network) -> None:
    """No change of the secret: its credential is gone from EasyTier before the command says that it is out."""
    one, stolen = network.join("edge-1"), network.join("edge-2")
    async with network.serving(), network.running(one):
        before = await admin.in_step()
        await eventually(lambda: bool(credential(one)))
        await known(admin, one)
        held = one.on_disk
        answer = await admin.ask("revoke", node="edge-2")
        assert [item["event"] for item in answer.items] == ["revoked", "done"]
        assert answer.done["behind"] == []
        ids = await credentials.expiries(admin.binary, admin.config.overlay.rpc_port)
        assert ids.keys() == {before[one.key.node_id]}
        assert one.on_disk == held
        assert network.secret.epoch == 1
        await eventually(lambda: one.client.network.revoked_ips == (stolen.membership.lease.overlay_ip,))
        rotated = await admin.ask("rotate")
        assert isinstance(rotated.error, UsageError)
        assert rotated.error.condition_reason == "SecretNotShared"


async def test_a_revocation_while_easytier_is_away_is_made_good_for(admin: Admin, network: Network) -> None:
    """It is told (75), and taken as soon as EasyTier answers; what somebody made by hand is left alone."""
    network.join("edge-1")
    port = admin.config.overlay.rpc_port
    async with network.serving():
        await admin.in_step()
        await network.world.clock.advance(31)
        await credentials.generate(admin.binary, port, "by-hand")
        admin.parts.overlay.runs_as_wanted = False
        answer = await admin.ask("revoke", node="edge-1")
        assert isinstance(answer.error, DeadlineError)
        assert answer.error.condition_reason == "CredentialNotRevoked"
        admin.parts.overlay.runs_as_wanted = True
        await admin.secrets.credentials.reconcile()
        assert (await credentials.expiries(admin.binary, port)).keys() == {"by-hand"}


async def test_the_same_daemon_later_gives_out_the_same(admin: Admin, network: Network) -> None:
    """A restart of the relay's daemon, with nothing in memory, changes nobody's credential."""
    one = network.join("edge-1")
    await admin.in_step()
    before = dict(network.world.authority.rotations.credentials)
    assert before.keys() == {one.key.node_id}
    network.world.authority.rotations.credentials = {}
    again = NodeCredentials(admin, lambda: None)  # type: ignore[arg-type]
    await again.bring_in_step()
    assert network.world.authority.rotations.credentials == before


async def test_a_released_node_loses_it_and_gets_another(admin: Admin, network: Network) -> None:
    """What EasyTier makes of an id that was revoked is not known: each lease has an id of its own."""
    key, token = NodeKey.generate(), network.world.token(uses=2)
    network.world.enrol(key, token, "edge-1")
    (first,) = (await admin.in_step()).values()
    network.world.authority.release("edge-1", at_once=True)
    assert await admin.in_step() == {}
    network.world.clock.step_wall_clock(1)
    network.world.enrol(key, network.world.token(), "edge-1")
    (second,) = (await admin.in_step()).values()
    assert first != second


async def test_a_node_that_says_something_costs_no_question(admin: Admin, network: Network) -> None:
    """A thousand nodes' statuses wake the relay all the time; EasyTier is asked when somebody came or went."""
    network.join("edge-1")
    admin.clock = FakeClock()
    await admin.in_step()
    admin.binary = replace(admin.binary, cli=None)
    assert await admin.secrets.credentials.reconcile() > 5
    assert admin.secrets.credentials.problem == ""
    network.join("edge-2")
    await admin.secrets.credentials.reconcile()
    assert "no easytier-cli" in admin.secrets.credentials.problem


async def test_an_easytier_that_fails_is_named(admin: Admin, network: Network) -> None:
    """Whoever has none waits; the relay says why, and looks again soon."""
    network.join("edge-1")
    admin.binary = replace(admin.binary, cli=None)
    assert await admin.secrets.credentials.reconcile() < 5
    assert admin.reason == "CredentialsBehind"
    assert "no easytier-cli" in admin.conditions.get("SecretCurrent").message


async def test_a_credential_that_ends_soon_is_named(admin: Admin, network: Network) -> None:
    """Also one of an EasyTier that does not give it for as long as it was asked."""
    network.join("edge-1")
    admin.clock = FakeClock()
    await admin.in_step()
    assert admin.secrets.credentials.problem == ""
    admin.clock.step_wall_clock(11 * 365 * 86400)
    await admin.clock.advance(31)
    await admin.in_step()
    assert "edge-1" in admin.secrets.credentials.problem
    assert "registry release" in admin.secrets.credentials.problem


async def test_a_network_changes_to_credentials_on_one_day(
    network: Network, start: StartAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that cannot, or is away, is named with what it has, and nothing is changed; then all at once, and the
    secret that everybody knew is none any more."""
    plain = Network(tmp_path / "plain")
    first = membership_of_relay(plain)
    binary, port = start(overlay_spec(membership_of_relay(network), Config(), tmp_path))
    await serves(tmp_path)
    monkeypatch.setenv("EDGELINK_EASYTIER", str(binary.core))
    admin = Admin(plain, binary, port)
    one, two = plain.join("edge-1"), plain.join("edge-2")
    status = NodeStatus(
        node_id=one.key.node_id, online=True, features=(FOLLOWS_SECRETS, EASYTIER_CREDENTIALS), easytier_version="2.6.4"
    )
    one.client.publish_status(status)
    task = asyncio.create_task(admin.secrets.credentials.run())
    async with plain.serving(), plain.running(one, two):
        await known(admin, one, two)
        await eventually(lambda: EASYTIER_CREDENTIALS in admin.registry.statuses[one.key.node_id].features)
        refused = await admin.ask("rotate", credentials=True)
        assert isinstance(refused.error, DeadlineError)
        assert "edge-2 (does not say)" in refused.error.message
        assert "edge-1" not in refused.error.message
        assert (plain.secret.epoch, plain.world.authority.network.node_credentials) == (1, False)

        two.client.publish_status(status.model_copy(update={"node_id": two.key.node_id, "easytier_version": "2.6.0"}))
        await eventually(lambda: EASYTIER_CREDENTIALS in admin.registry.statuses[two.key.node_id].features)
        asking = asyncio.create_task(admin.ask("rotate", credentials=True))
        await eventually(lambda: plain.world.authority.network.node_credentials)
        admin.secrets.credentials.wakeup.set()
        answer = await asking
        assert answer.done["behind"] == []
        assert credential(one) and credential(two) and credential(one) != credential(two)
        for member in (one, two):
            assert (member.on_disk.epoch, member.on_disk.secret) == (2, "")
        assert plain.secret.secret != first.secrets.network_secret
        own = overlay_spec(admin.membership, Config(), tmp_path)
        assert own.credential_file == tmp_path / "easytier-credentials" / "easytier-credentials-2.json"
        again = await admin.ask("rotate", credentials=True)
        assert isinstance(again.error, UsageError)
    task.cancel()


async def test_a_registry_that_cannot_be_read_for_now_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dying card: EasyTier and broker go on, the network has its meeting point."""
    plain = Network(tmp_path / "plain")
    admin = Admin(plain, EasyTierBinary(tmp_path / "core", None, "2.0.3"), 1)

    def unreadable() -> NoReturn:
        raise NotCommittedError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(plain.world.store, "network", unreadable)
        await admin.secrets.credentials.reconcile()
        assert "disk I/O error" in admin.secrets.credentials.problem
    await admin.secrets.credentials.reconcile()
    assert admin.secrets.credentials.problem == ""


async def test_a_network_without_credentials_asks_easytier_for_none(tmp_path: Path) -> None:
    """Whatever version it is of."""
    plain = Network(tmp_path / "plain")
    plain.join("edge-1")
    admin = Admin(plain, EasyTierBinary(tmp_path / "core", None, "2.0.3"), 1)
    assert await admin.secrets.credentials.reconcile() > 5
    await admin.secrets.credentials.bring_in_step()
    assert (admin.secrets.credentials.problem, plain.world.authority.rotations.credentials) == ("", {})


@pytest.mark.parametrize(
    ("wanted", "has", "is_told"),
    [(True, False, True), (False, True, False), (True, True, False), (False, False, False)],
)
def test_a_configuration_that_comes_too_late_is_told(network: Network, wanted: bool, has: bool, is_told: bool) -> None:
    """Credentials of a network that was founded without; one that was given them later needs no other file."""
    config = Config.model_validate({"relay": {"credentials": wanted, "network_name": "lab"}})
    with capture_logs() as logs:
        bootstrap.warn_of_ignored_settings(config, replace(network.world.authority.network, node_credentials=has))
    assert [line["setting"] for line in logs] == ["relay.credentials"] * is_told


def test_who_stands_in_the_way_of_credentials_is_named(network: Network) -> None:
    """With what it has; whose loss is accepted does not count. Another relay is in the way whatever it has."""
    fresh = Network(network.directory / "plain")
    world = fresh.world
    near, away = (world.join(name) for name in ("edge-1", "edge-2"))
    leases = world.store.leases()

    def refuse(*accepted: str) -> None:
        statuses = {
            near.node_id: NodeStatus(node_id=near.node_id, online=True, features=(), easytier_version="2.0.3"),
            away.node_id: NodeStatus(node_id=away.node_id, online=False),
        }
        refuse_unable(leases, statuses, own_node_id=fresh.relay.node_id, accepted=accepted)

    with pytest.raises(DeadlineError, match=r"edge-1 \(EasyTier 2\.0\.3\), edge-2 \(offline\)"):
        refuse()
    with pytest.raises(DeadlineError, match=r"known to be on edge-2 \(offline\)\. install"):
        refuse("edge-1")
    refuse("edge-1", away.node_id)
    addresses = RelayAddresses(overlay_peers=(), broker_addresses=())
    token = world.token(Role.RELAY)
    relay = world.lease(world.enrol(NodeKey.generate(), token, "relay-2", role=Role.RELAY, relay=addresses))
    with pytest.raises(UsageError, match="relay-2 is a relay, too"):
        refuse_unable([*leases, relay], {}, own_node_id=fresh.relay.node_id, accepted=("edge-1", "edge-2"))


async def test_credentials_do_not_come_in_the_middle_of_another_change(tmp_path: Path) -> None:
    """Nothing is changed."""
    plain = Network(tmp_path / "plain")
    one = plain.join("edge-1")
    plain.rotate(one)
    with pytest.raises(DeadlineError, match="under way"):
        plain.world.authority.rotations.give_credentials()
    assert not plain.world.authority.network.node_credentials


@pytest.mark.parametrize(
    ("role", "fields", "words"),
    [
        (Role.EDGE, {"features": ()}, "an EdgeLink that does not say"),
        (Role.EDGE, {"features": (), "easytier_version": "2.0.3"}, "robot has EasyTier 2.0.3"),
        (Role.RELAY, {"features": (EASYTIER_CREDENTIALS,)}, "has one relay"),
    ],
)
def test_who_cannot_is_refused_by_name(network: Network, role: Role, fields: dict[str, Any], words: str) -> None:
    """Nothing is granted; the message says what that machine has."""
    token = network.world.token(role)
    reply = network.world.enrol(NodeKey.generate(), token, "robot", role=role, **fields).reply
    assert reply.lease is None
    assert words in (reply.error or "")
    assert {lease.hostname for lease in network.world.store.leases()} == {"relay"}


def test_the_relays_machine_as_head_too_shares_its_easytier(network: Network) -> None:
    """Both daemons have to want the same EasyTier: with the secret, and the file of the others' credentials."""
    result = network.world.enrol(network.relay, network.world.token(Role.HEAD), "relay", role=Role.HEAD)
    assert result.reply.sealed_secrets is not None
    key = network.world.keys.verify_key_b64
    secrets = open_secrets(result.reply.sealed_secrets, network.relay, key)
    assert (secrets.network_secret, secrets.credential) == (network.secret.secret, "")
    relay = membership_of_relay(network)
    head = relay.model_copy(update={"secrets": secrets})
    assert overlay_spec(head, Config(), Path("/s")).config_hash == overlay_spec(relay, Config(), Path("/s")).config_hash
    assert wanted_of(network.world.store.leases()) == {}


def test_what_is_to_be_done_follows_from_leases_and_list() -> None:
    """Pure."""
    ours, other = "a" * 26 + "-1", "b" * 26 + "-2"
    assert surplus([ours, other, "by-hand"], [ours]) == [other]
    assert lacking([ours], {ours: "x"}, [ours, other]) == [other]
    assert lacking([], {ours: "x"}, [ours]) == [ours], "EasyTier lost its file"
    assert lacking([ours], {}, [ours]) == [ours], "this daemon has just started"


def test_a_network_has_them_from_its_first_start_or_not_at_all(tmp_path: Path, network: Network) -> None:
    """Settled with the network; not with a secret that others know already, not without EasyTier 2.6."""
    authority = network.world.authority
    assert authority.create_network(NetworkRequest("lab", network.world.cidr)).node_credentials
    fresh = Network(tmp_path / "plain")
    assert not fresh.world.authority.create_network(
        NetworkRequest("lab", fresh.world.cidr, node_credentials=True)
    ).node_credentials
    keys = AuthorityKeys.load_or_create(tmp_path / "keys", FakeClock())
    store = RegistryStore(tmp_path / "registry.sqlite3", FakeClock())
    imported = NetworkRequest("lab", network.world.cidr, secret="a-secret-that-is-known", node_credentials=True)
    with pytest.raises(ConfigError, match="cannot be an imported one"):
        settle_network(store, keys, FakeClock(), imported)
    require_credentials(Config(), "2.6.4")
    with pytest.raises(ConfigError, match=r"this machine has 2\.5\.0"):
        require_credentials(Config(), "2.5.0")
    with pytest.raises(ConfigError, match="this machine has none"):
        require_credentials(Config(), None)
    existing = Config.model_validate({"overlay": {"kind": "existing", "device": "eth0"}})
    assert easytier_version_of(existing) is None
    with pytest.raises(ConfigError, match="there is no EasyTier"):
        require_credentials(existing, None)


def test_a_credential_follows_the_secret_that_it_was_made_with(tmp_path: Path) -> None:
    """A newer one of the same secret counts, none takes its place, and a registry that was restored from before there
    were any brings the secret back."""
    held = HeldSecret(3, "", credential="first")

    def given(epoch: int, secret: str, credential: str | None) -> HeldSecret:
        return held.given(
            NetworkSecrets(
                network_id="n",
                node_id="a" * 26,
                generation=0,
                number=0,
                secret_epoch=epoch,
                network_secret=secret,
                credential=credential,
            )
        )

    assert given(3, "", "second").credential == "second"
    assert given(3, "", None) == given(3, "", "") == given(2, "", "older") == held
    assert given(4, "", "fourth") == HeldSecret(4, "", credential="fourth")
    assert given(4, "for all", None) == HeldSecret(4, "for all")

    membership = Network(tmp_path, node_credentials=True).join("edge-1").membership
    with_it = membership.holding(given(4, "", "fourth"))
    assert (with_it.secrets.credential, with_it.held) == ("fourth", given(4, "", "fourth"))
    assert with_it.holding(given(5, "for all", None)).secrets.credential is None
    assert "fourth" not in repr(with_it.held)
    assert "fourth" not in repr(with_it.secrets)


def test_what_a_node_says_that_it_can_follows_from_its_easytier() -> None:
    assert easytier_features("2.6.4-8428a89d") == (EASYTIER_CREDENTIALS,)
    assert easytier_features("2.5.0") == easytier_features("1.0.0") == easytier_features(None) == ()

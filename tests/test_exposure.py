"""Tables that stay in place, and the condition Shielded."""

from __future__ import annotations

import struct
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
import registry_world
from overlay_world import SPEC
from telling import Words
from test_inside import spec

from edgelink.conditions import Condition, ConditionSet, Status
from edgelink.config import Config
from edgelink.errors import MissingDependencyError
from edgelink.facts.part import Action
from edgelink.files import AT_ONCE
from edgelink.overlay.nft import Applied, FirewallError, Table
from edgelink.overlay.nft_watch import NftWatch, tables_in
from edgelink.overlay.openings import Opening
from edgelink.overlay.overlay_rules import NO_RULES, OverlayRules
from edgelink.overlay.table_keeper import TableKeeper
from edgelink.process.ports import Accepted
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import EdgesOpenTo, Role
from edgelink.shield.exposure import Exposure, Inputs, Keep, LookAtPorts, Seen, SetRules
from edgelink.shield.inside import LeftOpenPorts, SeenPorts, allowed_openings
from edgelink.testing import FakeClock
from edgelink.testing.facts import board_with, settle

RAY, RPC = "edgelink", "edgelink_easytier"
NOWHERE = Path("/nonexistent/edgelink")
PEER = IPv4Address("10.10.0.4")
JUPYTERS, RAYS = Accepted(8888, "jupyter-lab", PEER), Accepted(20001, "raylet", PEER)


class Kernel:
    """What nft would say."""

    def __init__(self) -> None:
        self.tables: set[str] = set()
        self.refusal: FirewallError | MissingDependencyError | None = None
        self.looks = 0
        self.listing = ""


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()

    async def apply(table: Table) -> Applied:
        kernel.looks += 1
        if kernel.refusal:
            raise kernel.refusal
        is_made = table.name not in kernel.tables
        kernel.tables.add(table.name)
        return Applied(kernel.listing, is_made)

    async def remove(table: Table) -> None:
        if kernel.refusal:
            raise kernel.refusal
        kernel.tables.discard(table.name)

    monkeypatch.setattr(Table, "apply", apply)
    monkeypatch.setattr(Table, "remove", remove)
    return kernel


class World:
    """A node with both tables."""

    def __init__(self, config: Config, directory: Path = NOWHERE, *, has_ray: bool = True) -> None:
        self.seen, self.in_use = SeenPorts(frozenset({22}), ((32768, 60999),)), [JUPYTERS, RAYS]
        self.clock = FakeClock()
        self.watch = NftWatch()
        self.conditions = ConditionSet(self.clock, [], [Exposure.condition])
        self.board = board_with(openings=allowed_openings(config, None))
        left_open = LeftOpenPorts(directory / "left-open.json", AT_ONCE, self.clock)
        self.rpc = TableKeeper(Table(RPC, ""), self.clock, open_without="RPC is open")
        self.ray = self.guard = TableKeeper(Table(RAY, ""), self.clock, open_without="Ray is open")
        self.token_auth: bool | None = True
        self.run_ports = ""
        self.exposure = Exposure(
            self.board,
            config,
            self.set_rules,
            self.watch,
            self,
            left_open,
            self.clock,
            easytier=self.rpc,
            ray=self if has_ray else None,
        )

    @property
    def condition(self) -> Condition:
        return self.conditions.get("Shielded")

    async def start(self) -> None:
        await self.rpc.apply()
        await self.ray.apply()
        await self.look()

    def ports(self) -> SeenPorts:
        return self.seen

    def accepted(self, local: IPv4Address) -> list[Accepted]:
        assert local in IPv4Network("10.10.0.0/24")
        return self.in_use

    async def close_run_ports(self) -> None:
        if self.run_ports:
            self.ray.want(Table(RAY, self.run_ports))

    def set_rules(self, rules: OverlayRules) -> None:
        self.rules = rules

    async def look(self) -> None:
        """Somebody has changed a table."""
        self.exposure.look_again()
        await settle(self.exposure, self.board, self.conditions, self.clock)
        self.exposure.wakeup.clear()


REVOKED = frozenset({IPv4Address("10.10.0.9")})
USABLE = frozenset({IPv4Address("10.10.0.1"), IPv4Address("10.10.0.2")})

REVOKED_DROPPED = OverlayRules(revoked=REVOKED)
IN_PLACE = Inputs(
    revoked_ips=frozenset(),
    usable_ips=None,
    impostors=frozenset(),
    running=None,
    directory=None,
    cluster_spec=None,
    openings=frozenset(),
    overlay_spec=None,
    own=Seen(rules=NO_RULES, looked_for=0, at_s=999.0, ports_at_s=999.0, is_wanted=True),
)


@pytest.mark.parametrize(
    ("now", "does"),
    [
        (IN_PLACE, None),
        (replace(IN_PLACE, own=Seen()), SetRules(NO_RULES)),
        (replace(IN_PLACE, own=Seen(rules=NO_RULES)), LookAtPorts()),
        (replace(IN_PLACE, own=Seen(rules=NO_RULES, ports_at_s=999.0)), Keep(0)),
        (replace(IN_PLACE, own=replace(IN_PLACE.own, changes=1)), Keep(1)),
        (replace(IN_PLACE, own=replace(IN_PLACE.own, at_s=998.0)), Keep(0)),
        (replace(IN_PLACE, revoked_ips=REVOKED), SetRules(REVOKED_DROPPED)),
        (replace(IN_PLACE, own=replace(IN_PLACE.own, rules=REVOKED_DROPPED)), SetRules(NO_RULES)),
        (replace(IN_PLACE, revoked_ips=REVOKED, own=replace(IN_PLACE.own, rules=REVOKED_DROPPED)), None),
        (replace(IN_PLACE, usable_ips=USABLE), SetRules(OverlayRules(usable=USABLE))),
        (replace(IN_PLACE, overlay_spec=SPEC), SetRules(OverlayRules(SPEC.overlay_ip))),
        (
            replace(IN_PLACE, revoked_ips=REVOKED | {SPEC.overlay_ip.ip}, overlay_spec=SPEC),
            SetRules(OverlayRules(SPEC.overlay_ip, REVOKED)),
        ),
        (replace(IN_PLACE, impostors=REVOKED), SetRules(OverlayRules(impostors=REVOKED))),
        (replace(IN_PLACE, own=replace(IN_PLACE.own, rules=OverlayRules(impostors=REVOKED))), SetRules(NO_RULES)),
    ],
    ids=[
        "all is in place",
        "a new daemon",
        "its rules are what they have to be",
        "it has seen where the machine listens",
        "somebody has changed a table",
        "two seconds later",
        "a node is revoked",
        "nobody is revoked any more",
        "a revoked node's address is dropped",
        "it is told which addresses nodes may use",
        "it has an address",
        "our own address is revoked",
        "somebody answers as another node",
        "the node itself answers",
    ],
)
def test_what_is_done_when(now: Inputs, does: Action | None) -> None:
    assert World(Config()).exposure.plan(now, 1000.0).does == does


async def test_a_table_that_somebody_flushed_is_back_at_once(kernel: Kernel) -> None:
    """The kernel tells of it; nft is asked for nothing else meanwhile."""
    world = World(Config())
    await world.start()
    looks = kernel.looks
    await world.clock.advance(5)
    await world.look()
    assert kernel.looks == looks
    kernel.tables.clear()
    world.watch.changed([RAY])
    assert world.exposure.wakeup.is_set
    await world.look()
    assert kernel.tables == {RAY}
    world.watch.changed([RPC])
    await world.look()
    assert kernel.tables == {RAY, RPC}


async def test_a_lost_announcement_costs_half_a_minute(kernel: Kernel) -> None:
    """It is looked from time to time all the same."""
    world = World(Config())
    await world.start()
    kernel.tables.clear()
    await world.clock.advance(31)
    await world.look()
    assert kernel.tables == {RAY, RPC}


async def test_a_table_that_somebody_undoes_each_time_is_made_ever_less_often(kernel: Kernel) -> None:
    """Two who fight without pause take half a core; it is told, and forgotten after a quiet minute."""
    world = World(Config())
    await world.start()
    pauses_s = []
    for _ in range(8):
        kernel.tables.discard(RAY)
        world.watch.changed([RAY])
        before_s = world.clock.monotonic_s()
        await world.look()
        while RAY not in kernel.tables:
            await world.clock.advance(0.5)
            await world.look()
        pauses_s.append(world.clock.monotonic_s() - before_s)
    assert pauses_s == [0, 1, 2, 4, 8, 16, 30, 30]
    assert (world.condition.status, world.condition.reason) == (Status.FALSE, "TableFoughtOver")
    assert "inet edgelink " in world.condition.message
    for _ in range(3):
        await world.clock.advance(31)
        await world.look()
    assert world.condition.status is Status.TRUE
    kernel.tables.discard(RAY)
    world.watch.changed([RAY])
    await world.look()
    assert RAY in kernel.tables


async def test_two_changes_in_a_row_are_no_fight(kernel: Kernel) -> None:
    """A reload of nftables.service; another table that we want ourselves does not count, nor wait."""
    world = World(Config())
    await world.start()
    for text in ("a", "b", "c", "d"):
        kernel.tables.discard(RAY)
        world.ray.want(Table(RAY, text))
        await world.look()
        assert RAY in kernel.tables
    for _ in range(2):
        kernel.tables.discard(RAY)
        world.watch.changed([RAY])
        await world.clock.advance(1)
        await world.look()
        assert RAY in kernel.tables
    assert world.condition.reason == "RulesInPlace"


async def test_before_a_start_nobody_rests(kernel: Kernel) -> None:
    """What is protected must not start without."""
    world = World(Config())
    await world.start()
    for _ in range(5):
        kernel.tables.discard(RAY)
        world.watch.changed([RAY])
        assert world.ray.is_in_doubt
        await world.ray.apply()
        assert RAY in kernel.tables
        assert not world.ray.is_in_doubt


async def test_what_nobody_wants_is_not_put_in_place(kernel: Kernel) -> None:
    """Not before what it protects starts, and not again once it has ended."""
    world = World(Config())
    await world.look()
    assert kernel.tables == set()
    assert world.condition.status is Status.UNKNOWN
    await world.start()
    await world.ray.remove()
    world.watch.changed([RAY])
    await world.look()
    assert kernel.tables == {RPC}


async def test_switched_off_takes_a_predecessors_table_away(kernel: Kernel) -> None:
    """Once: what somebody else makes of that name afterwards is theirs."""
    kernel.tables.add(RAY)
    keeper = TableKeeper(Table(RAY, ""), FakeClock(), open_without="", enabled=False)
    await keeper.keep()
    assert kernel.tables == set()
    kernel.tables.add(RAY)
    await keeper.keep()
    assert kernel.tables == {RAY}
    assert kernel.looks == 0


async def test_another_table_is_put_in_place_at_once(kernel: Kernel) -> None:
    """The head's cluster spec told of another GCS port; the same one again costs nothing."""
    keeper = TableKeeper(Table(RAY, "old"), FakeClock(), open_without="")
    await keeper.apply()
    keeper.want(Table(RAY, "old"))
    await keeper.keep()
    assert kernel.looks == 1
    keeper.want(Table(RAY, "new"))
    await keeper.keep()
    assert kernel.looks == 2


async def test_what_a_run_listens_on_is_closed_two_seconds_later(kernel: Kernel) -> None:
    """The part looks again by itself, and asks nft for nothing while nothing is new."""
    world = World(Config())
    await world.start()
    looks = kernel.looks
    world.run_ports = "tcp dport 8080 drop"
    now = world.board.select(Inputs, world.exposure.own)
    again_s = world.exposure.plan(now, world.clock.monotonic_s()).again_s
    assert again_s is not None
    assert again_s <= 2
    for _ in range(3):
        await world.clock.advance(2)
        await settle(world.exposure, world.board, world.conditions, world.clock)
    assert kernel.looks == looks + 1
    assert world.ray.table == Table(RAY, "tcp dport 8080 drop")


async def test_a_failure_is_named_and_its_end_too(kernel: Kernel) -> None:
    """What is open, why, and the reason of the error; it is tried again within seconds."""
    world = World(Config())
    await world.start()
    assert (world.condition.status, world.condition.reason) == (Status.TRUE, "RulesInPlace")
    kernel.refusal = FirewallError("nft: refused")
    world.watch.changed([RAY])
    await world.look()
    assert (world.condition.status, world.condition.reason) == (Status.FALSE, "FirewallFailed")
    assert world.condition.message == "Ray is open: nft: refused"
    kernel.refusal = None
    await world.clock.advance(6)
    await world.look()
    assert world.condition.status is Status.TRUE


@pytest.mark.parametrize(
    ("values", "token_auth", "reason", "ray_auth"),
    [
        ({}, True, "RulesInPlace", "token"),
        ({}, None, "RulesInPlace", None),
        ({}, False, "TokenlessRay", "firewall only"),
        ({"firewall": {"rendezvous_ports": []}}, True, "RendezvousOpen", "token"),
        ({"firewall": False}, True, "SwitchedOff", "token"),
        ({"firewall": False}, False, "SwitchedOff", "none"),
    ],
)
async def test_what_holds_is_said(
    kernel: Kernel, values: dict[str, object], token_auth: bool | None, reason: str, ray_auth: str | None
) -> None:
    """Less than everything is False, with its own reason."""
    world = World(Config.model_validate(values))
    world.token_auth = token_auth
    await world.start()
    assert world.condition.reason == reason
    assert (world.condition.status is Status.TRUE) == (reason == "RulesInPlace")
    assert world.exposure.ray_auth == ray_auth


async def test_whether_addresses_of_revoked_nodes_are_dropped_is_said(kernel: Kernel, words: Words) -> None:
    """While there are any; with the firewall off they are not."""
    world = World(Config())
    await world.start()
    words(world.condition.message)
    world.board.given(revoked_ips=frozenset({IPv4Address("10.10.0.9")}))
    await world.look()
    words(world.condition.message)
    world = World(Config.model_validate({"firewall": False}))
    await world.start()
    words(world.condition.message)


async def test_dropped_packets_are_told_and_cost_nothing(kernel: Kernel) -> None:
    """From where and by which device; a node to which somebody sends such packets is shielded all the same."""
    world = World(Config())
    await world.start()
    kernel.listing = 'set noted_unleased {\n\telements = { "et0" . 10.10.0.77 . 10.10.0.2 expires 9s }\n\t}'
    world.rpc.doubts.set()
    await world.look()
    assert (world.condition.status, world.condition.reason) == (Status.TRUE, "PacketsDropped")
    for named in ("10.10.0.77", "et0"):
        assert named in world.condition.message
    world.token_auth = False
    await world.look()
    assert (world.condition.status, world.condition.reason) == (Status.FALSE, "TokenlessRay")
    assert "10.10.0.77" in world.condition.message
    kernel.listing, world.token_auth = "", True
    world.rpc.doubts.set()
    await world.look()
    assert world.condition.reason == "RulesInPlace"


async def test_ports_of_a_training_that_stay_open_are_named(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, words: Words
) -> None:
    """A kernel that deals more ports than are closed by default; what else is lacking is not hidden by it."""
    world = World(Config())
    monkeypatch.setattr("edgelink.shield.exposure.open_ranges", lambda _config: ((1024, 29399),))
    await world.start()
    assert (world.condition.status, world.condition.reason) == (Status.FALSE, "RendezvousOpen")
    assert "1024-29399" in world.condition.message
    assert "firewall.rendezvous_ports" in world.condition.message
    world.token_auth = False
    await world.look()
    assert world.condition.reason == "RendezvousOpen"
    words(world.condition.message)


async def test_a_relay_speaks_of_no_ray(kernel: Kernel) -> None:
    """It has none."""
    world = World(Config(), has_ray=False)
    await world.rpc.apply()
    await world.look()
    assert world.condition.status is Status.TRUE
    assert "Ray" not in world.condition.message


def message(kind: int, table: bytes) -> bytes:
    attribute = struct.pack("=HH", 4 + len(table) + 1, 1) + table + b"\0"
    body = b"\x01\0\0\0" + attribute + b"\0" * (-len(attribute) % 4)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def test_announcements_name_the_table() -> None:
    """Of tables, chains and rules; a new generation names none, and half a message is none."""
    deleted_table, deleted_rule, generation, others = 0x0A02, 0x0A08, 0x0A0F, 0x0100
    data = message(deleted_rule, b"edgelink") + message(generation, b"x") + message(others, b"y")
    assert list(tables_in(data + message(deleted_table, b"edgelink_easytier"))) == ["edgelink", "edgelink_easytier"]
    assert list(tables_in(message(deleted_table, b"edgelink")[:12])) == []
    assert list(tables_in(b"\0" * 64)) == []


@pytest.fixture
def head(tmp_path: Path) -> Membership:
    """A head's membership."""
    world, key = registry_world.World(tmp_path), NodeKey.generate()
    token = world.token(role=Role.HEAD)
    return world.membership(key, token, world.enrol(key, token, "cloud", role=Role.HEAD))


@pytest.fixture
def edge(tmp_path: Path) -> Membership:
    """An edge's membership."""
    world, key = registry_world.World(tmp_path), NodeKey.generate()
    token = world.token(role=Role.EDGE)
    return world.membership(key, token, world.enrol(key, token, "edge-1", role=Role.EDGE))


async def began(world: World, member: Membership) -> World:
    """A daemon of that node has started."""
    world.board.given(membership=member)
    world.exposure.begin()
    await world.start()
    return world


async def test_what_members_use_when_ports_are_first_closed_stays_open(
    kernel: Kernel, head: Membership, tmp_path: Path
) -> None:
    """It is named with its program and who uses it, until the operator answers."""
    world = await began(World(Config(), tmp_path), head)
    assert Opening("tcp", 8888, 8888) in (world.rules.openings or ())
    assert (world.condition.status, world.condition.reason) == (Status.FALSE, "LeftOpen")
    assert "tcp 8888 (jupyter-lab, used by 10.10.0.4)" in world.condition.message
    assert "days left: 7" in world.condition.message
    assert "20001" not in world.condition.message
    for _ in range(8):
        await world.clock.advance(86400)
        await world.look()
    assert world.condition.reason == "RulesInPlace"
    assert Opening("tcp", 8888, 8888) not in (world.rules.openings or ())


@pytest.mark.parametrize(("allowed", "is_open"), [([], False), ([8888], True)])
async def test_the_operator_answers(
    kernel: Kernel, head: Membership, tmp_path: Path, allowed: list[object], is_open: bool
) -> None:
    """Before the upgrade or after it; what is in use afterwards is not asked about again."""
    answer = Config.model_validate({"firewall": {"overlay_allow": allowed}})
    for first in (Config(), answer):
        for config in (first, answer):
            world = await began(World(config, tmp_path), head)
        assert world.condition.reason == "RulesInPlace"
        assert (Opening("tcp", 8888, 8888) in (world.rules.openings or ())) == is_open
        world = await began(World(Config(), tmp_path), head)
        assert world.condition.reason == "RulesInPlace"
        assert Opening("tcp", 8888, 8888) not in (world.rules.openings or ())
        (tmp_path / "left-open.json").unlink()


async def test_what_access_rules_open_is_open_and_said(kernel: Kernel, head: Membership, tmp_path: Path) -> None:
    """It is an answer, too."""
    world = await began(World(Config(), tmp_path), head)
    world.board.given(openings=frozenset({Opening("tcp", 8888, 8888, frozenset({PEER}))}))
    await world.look()
    assert world.condition.reason == "RulesInPlace"
    assert "tcp/8888 from 10.10.0.4" in world.condition.message


@pytest.mark.parametrize(
    "values", [{"overlay": {"kind": "existing"}}, {"firewall": False}], ids=["not our overlay", "switched off"]
)
async def test_where_nothing_is_closed_nothing_is_asked(
    kernel: Kernel, head: Membership, tmp_path: Path, values: dict[str, object]
) -> None:
    """What is not closed need not stay open."""
    await began(World(Config.model_validate(values), tmp_path), head)
    assert not (tmp_path / "left-open.json").exists()


async def test_a_training_that_may_listen_anywhere_is_named(kernel: Kernel, head: Membership, tmp_path: Path) -> None:
    """Ports that a tuned kernel deals are open on the overlay, whatever is closed elsewhere."""
    config = Config.model_validate({"firewall": {"rendezvous_ports": ["1024-65535"]}})
    world = World(config, tmp_path)
    world.seen = SeenPorts(frozenset(), ((1024, 65535),))
    await began(world, head)
    assert world.condition.reason == "RendezvousOpen"
    assert "1024-29399" in world.condition.message


async def test_an_edge_says_what_it_follows_once_its_rules_are_in_place(
    kernel: Kernel, edge: Membership, tmp_path: Path
) -> None:
    """The head grants a run by that word, so that a table that cannot be changed brings none."""
    world = await began(World(Config.model_validate({"firewall": {"overlay_allow": []}}), tmp_path), edge)
    steps: list[tuple[int, EdgesOpenTo, FirewallError | None, int | None]] = [
        (1, "all", None, None),
        (2, "head", None, 2),
        (3, "members", FirewallError("no"), 2),
        (3, "members", None, 3),
        (4, "members", None, 4),
        (5, "all", None, None),
    ]
    for epoch, word, refusal, said in steps:
        kernel.refusal = refusal
        world.board.given(cluster_spec=spec(word).model_copy(update={"epoch": epoch}))
        await world.clock.advance(31.0)
        await world.look()
        assert world.board.facts.follows_spec == said, epoch
        assert ("access: per-run" in world.condition.message) == (said is not None and refusal is None)


@pytest.mark.parametrize(("role", "said"), [(Role.EDGE, 1), (Role.HEAD, None)])
async def test_an_edge_that_closes_nothing_follows_at_once(
    kernel: Kernel, head: Membership, edge: Membership, tmp_path: Path, role: Role, said: int | None
) -> None:
    """With `firewall: off` it is open to the run. The head, which every edge reaches, has nothing to say."""
    world = await began(World(Config.model_validate({"firewall": False}), tmp_path), {"edge": edge, "head": head}[role])
    world.board.given(cluster_spec=spec("head"))
    await world.look()
    assert world.board.facts.follows_spec == said

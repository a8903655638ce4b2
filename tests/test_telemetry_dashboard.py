"""What a head shows on its page, who gets a link, and where it listens."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from head_world import ANOTHER, EDGE_1, EDGE_2, ROOT, Head, first, member
from telling import refuses

from edgelink.api.server import Caller
from edgelink.api.web.history import RECORDED, History
from edgelink.conditions import Phase, Status
from edgelink.config import Config
from edgelink.errors import EdgelinkError, UsageError
from edgelink.facts.board import Table
from edgelink.protocol.payloads import ConditionReport, NodeStatus, Role
from edgelink.ray_cluster.pause import Pause
from edgelink.telemetry.dashboard import Dashboard, device_counters
from edgelink.telemetry.dashboard_view import health, placed_by_rank
from edgelink.telemetry.recorder import noted
from edgelink.testing import FakeClock
from edgelink.testing.facts import give, pretend
from edgelink.testing.payloads import entry

RELAY = entry("relay", "10.10.0.1", role=Role.RELAY)
LEASE = SimpleNamespace(overlay_ip=IPv4Address("10.10.0.2"), hostname="cloud", network_id="n", labels={})
RAY_USER = Caller(os.getpid(), 1000, 1000)
ONE, TWO = {"number": 1, "started_at": "2026-01-01T00:00:00Z"}, {"number": 2, "started_at": "2026-01-01T00:00:09Z"}
FAILED = {"ended_at": "2026-01-01T00:00:09Z", "exit_status": 1}


def record(*attempts: dict[str, Any], run_id: str = "r", command: str = "train.py") -> dict[str, Any]:
    return {"run_id": run_id, "command": command, "attempts": list(attempts)}


class World(Head):
    """A head, a relay, one edge in Ray, one never seen."""

    def __init__(self, directory: Path, config: Config | None = None) -> None:
        super().__init__(directory, config=config)
        self.dashboard = self.node.page
        self.members = [member("10.10.0.2", 0), replace(member("10.10.0.3", 1), cpus=4.0)]
        self.enrol(RELAY, self.own, EDGE_1, EDGE_2)
        self.lists(self.members)
        self.tell(EDGE_1.node_id)
        pretend(self.node.base.board, phase=Phase.READY)
        self.dashboard.look()

    def tell(self, node_id: str, *conditions: ConditionReport, online: bool = True) -> None:
        self.statuses[node_id] = NodeStatus(node_id=node_id, online=online, conditions=conditions)

    @property
    def newest(self) -> Any:
        assert self.dashboard.feed.newest is not None
        return self.dashboard.feed.newest

    @property
    def rows(self) -> dict[str, Any]:
        return {row["hostname"]: row for row in self.newest["nodes"].values()}

    @property
    def events(self) -> list[str]:
        self.dashboard.look()
        return [event["text"] for event in self.newest["events"]]

    @property
    def of_runs(self) -> list[str]:
        self.dashboard.look()
        return [event["text"] for event in self.dashboard.history.events if event["what"] == "run"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_every_node_is_shown_with_how_it_is(world: World) -> None:
    """Also the relay, which takes no part in Ray, and who was never seen."""
    rows = world.rows
    assert {name: row["health"] for name, row in rows.items()} == {
        "relay": "ok",
        "cloud": "ok",
        "edge-1": "ok",
        "edge-2": "away",
    }
    assert (rows["relay"]["is_relay"], rows["relay"]["node_rank"]) == (True, None)
    assert "`edgelink edge`" in rows["edge-2"]["wrong"][0]
    newest = world.newest
    assert (newest["head"]["nodes"], newest["head"]["alive"], newest["head"]["cpus"]) == (3, 2, 4.0)
    assert set(newest["measures"][EDGE_1.node_id].values()) == {None}, "nothing was measured yet"


def test_a_head_that_starts_tells_nothing_of_who_has_not_been_heard_yet(world: World) -> None:
    """It knows the directory before it knows who is online and in Ray. Once it is ready it knows."""
    pretend(world.node.base.board, phase=Phase.STARTING)
    node = world.node
    exposure, recorder = node.node.host.exposure, node.base.recorder
    starting = Dashboard(node.inputs, node.overlay, exposure, recorder, ray=node.ray, runs=node.runs, nodes=node.nodes)

    def healths() -> list[str]:
        starting.look()
        assert starting.feed.newest is not None
        return [row["health"] for row in starting.feed.newest["nodes"].values() if row["hostname"].startswith("edge")]

    world.statuses.clear()
    give(world.node.base.board, ray_members=())
    assert healths() == ["coming", "coming"]
    give(world.node.base.board, ray_members=tuple(world.members))
    assert healths() == ["ok", "coming"]
    pretend(world.node.base.board, phase=Phase.READY)
    assert healths() == ["ok", "away"]
    assert [event["text"] for event in starting.history.events] == ["edge-2 is away"]


def test_what_happens_is_told(world: World) -> None:
    """A node that leaves Ray, a condition that changes."""
    world.lists(world.members[:1])
    world.tell(EDGE_1.node_id, online=False)
    assert world.events[-1] == "edge-1 is away"
    for status in (Status.TRUE, Status.FALSE):
        told = ConditionReport(type="OverlayUp", status=status, reason="R", message="m")
        world.tell(EDGE_1.node_id, told)
        world.dashboard.look()
    assert "edge-1: OverlayUp is False" in world.events
    found = world.dashboard.of_node(EDGE_1.node_id)
    assert found is not None
    assert [change["status"] for change in found["changes"]] == ["True", "False"]
    assert world.dashboard.of_node("stranger") is None


async def test_a_lost_ping_is_no_relay_that_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the Internet one in a hundred gets lost, two in a row now and then; nor does its dot on the map jump."""
    answers: list[float | None] = []

    async def ping(*_: object, payload_bytes: int) -> float | None:
        return answers.pop(0)

    async def measured(*found: float | None) -> float | None:
        answers[:] = found
        for _ in found:
            await world.dashboard._ping(asyncio.Semaphore(1), RELAY.node_id, RELAY.overlay_ip)
            world.dashboard.look()
        return world.newest["measures"][RELAY.node_id]["rtt_ms"]

    monkeypatch.setattr(world.node.overlay, "ping", ping)
    assert await measured(9.0, None, 9.0, None, None) == 9.0
    assert (world.events, world.rows["relay"]["health"]) == ([], "ok")
    assert await measured(None) is None
    assert (world.events, world.rows["relay"]["health"]) == (["relay is away"], "away")
    assert await measured(None, 8.0) == 8.0
    assert world.events == ["relay is away", "relay works"]


async def test_loss_is_told_from_three_lost_pings_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the node has something to look at, until hardly any is lost; the pings of an outage count for nothing."""
    answers: list[float | None] = []

    async def ping(*_: object, payload_bytes: int) -> float | None:
        return answers.pop(0)

    async def health_after(found: str) -> tuple[str, float]:
        answers[:] = [9.0 if each == "." else None for each in found]
        for _ in found:
            await world.dashboard._ping(asyncio.Semaphore(1), EDGE_1.node_id, EDGE_1.overlay_ip)
        world.dashboard.look()
        return world.rows["edge-1"]["health"], world.newest["measures"][EDGE_1.node_id]["loss"] or 0.0

    monkeypatch.setattr(world.node.overlay, "ping", ping)
    assert await health_after(".x.x.") == ("ok", 0.0)
    assert await health_after("x.....") == ("warning", 0.273)
    assert "pings" in world.rows["edge-1"]["wrong"][-1]
    assert await health_after("." * 36) == ("ok", 0.0)
    assert await health_after("xxxxx.") == ("ok", 0.0)


def test_a_paused_node_counts_down_on_the_page(world: World) -> None:
    """From one moment to another, so that its row is not another one at each look; and all is well once it answers."""
    now, now_s = world.clock.now(), world.clock.monotonic_s()
    give(world.node.base.board, paused={EDGE_1.node_id: Pause(now_s - 130.0, "echo")})
    world.dashboard.look()
    row = world.rows["edge-1"]
    assert row["health"] == "paused"
    assert datetime.fromisoformat(row["silent_since"]) == (now - timedelta(seconds=130)).replace(microsecond=0)
    assert datetime.fromisoformat(row["given_up_at"]) > now
    world.dashboard.look()
    assert world.rows["edge-1"] == row
    newest = world.newest
    assert newest["head"]["alive"] == 1
    assert [(each["hostname"], each["until"]) for each in newest["outages"].values()] == [("edge-1", None)]
    give(world.node.base.board, paused={})
    assert world.events == ["edge-1 is paused", "edge-1 is back after 2m10s"]
    assert world.rows["edge-1"]["health"] == "ok"
    assert all(each["until"] for each in world.dashboard.history.timeline.outages.values())


def test_what_happens_is_recorded_for_the_next_daemon(world: World, tmp_path: Path) -> None:
    """How everybody is, and each change; its page knows of it."""
    world.lists(world.members[:1])
    world.tell(EDGE_1.node_id, online=False)
    world.dashboard.look()
    successor = History()
    successor.restore(noted(world.node.base.recorder.directory, world.clock.now() - timedelta(days=1), RECORDED))
    assert [event["text"] for event in successor.events] == ["edge-1 is away"]
    assert {name: bar["marks"] for name, bar in successor.timeline.bars.items()} == {
        "relay": "o",
        "cloud": "o",
        "edge-1": "a",
        "edge-2": "a",
    }


async def test_while_the_heads_own_overlay_is_down_a_relay_that_was_away_does_not_work(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is asked then, so nothing new is known: the last word stands, and no figure is told."""

    async def no_answer(*_: object, payload_bytes: int) -> None:
        return None

    monkeypatch.setattr(world.node.overlay, "ping", no_answer)
    for _ in range(3):
        await world.dashboard._ping(asyncio.Semaphore(1), RELAY.node_id, RELAY.overlay_ip)
    assert world.events == ["relay is away"]
    world.node.overlay.ways = _no_ways  # type: ignore[method-assign]
    pretend(world.node.base.board, running=SimpleNamespace(lease=LEASE))
    world.node.base.conditions._on_change = None
    world.node.base.conditions.set_true("OverlayUp", "DeviceConfirmed", "m")
    world.dashboard.look()
    world.node.base.conditions.set_false("OverlayUp", "CrashLoop", "m")
    measuring = asyncio.create_task(world.dashboard._measure())
    await cast(FakeClock, world.node.base.clock).advance(10)
    measuring.cancel()
    assert world.events == ["relay is away", "cloud: OverlayUp is False"]
    assert world.rows["relay"]["health"] == "away"
    assert world.newest["measures"][RELAY.node_id]["loss"] is None


async def test_placement_and_figures_of_a_run_are_shown(world: World) -> None:
    """Which components are where, while it runs; what its driver says of its steps; both by the holder's word only."""
    world.tell(EDGE_2.node_id)
    world.lists([*world.members, member("10.10.0.4", 2)])
    cluster = {"num_nodes": 3, "component_placement": {"env": "1-2"}}
    events = world.run(cluster=cluster, record=record(ONE))
    await first(events, "granted")
    world.dashboard.look()
    points = [{"step": 1, "values": {"return": 20.0}}, {"step": 2, "values": {"return": 25.0}}]
    await world.requests.note_metrics(ROOT, {"run_id": "r", "points": points})
    with pytest.raises(EdgelinkError):
        await world.requests.note_metrics(ANOTHER, {"run_id": "r", "points": points})
    with pytest.raises(UsageError, match="cannot be read"):
        await world.requests.note_metrics(ROOT, {"run_id": "r", "points": [{"step": 1, "values": {"return": "NaN"}}]})
    world.dashboard.look()
    newest = world.newest
    assert newest["run"] is not None
    assert (newest["run"]["in_progress"], newest["run"]["metric_names"]) == (True, ["return"])
    assert [(point["step"], point["values"]) for point in newest["points"]] == [
        (1.0, {"return": 20.0}),
        (2.0, {"return": 25.0}),
    ]
    assert world.rows["edge-2"]["placed"] == [{"component": "env", "processes": 1, "accelerators": []}]
    await cast(AsyncIterator[Any], events).aclose()  # type: ignore[attr-defined]
    world.dashboard.look()
    assert world.rows["edge-2"]["placed"] == []


async def test_the_time_left_is_known_of_a_step_file_alone(world: World) -> None:
    """Of a driver that says how far it is, of how many, and nothing else."""
    events = world.run(record=record(), running=True)
    await first(events, "granted")
    for seconds in (0, 20, 40):
        await world.requests.note(ROOT, {"record": record(ONE | {"step": f"{100 + seconds // 2}/400"})})
        world.dashboard.look()
        world.clock.block(20)
    run = world.newest["run"]
    assert run is not None
    assert (run["step"], run["total_steps"], run["steps_per_s"]) == (120, 400, 0.5)
    await cast(AsyncIterator[Any], events).aclose()  # type: ignore[attr-defined]


async def test_every_start_and_every_end_of_a_run_is_told(world: World) -> None:
    """Also those of which several come between two looks; each once."""
    events = world.run(record=record(), running=True)
    await first(events, "granted")
    await world.requests.note(ROOT, {"record": record(ONE)})
    assert world.of_runs == ["train.py was started, attempt 1"], "the first that this head has seen"
    await world.requests.note(ROOT, {"record": record(ONE | FAILED | {"what_followed": "edge-1 was lost"}, TWO)})
    started_again = ["train.py ended with status 1", "train.py was started, attempt 2"]
    assert world.of_runs[1:] == started_again
    assert "edge-1 was lost" in [event["detail"] for event in world.dashboard.history.events]
    quick = {"number": 3, "started_at": "2026-01-01T00:00:10Z"} | FAILED
    await world.requests.note(ROOT, {"record": record(ONE | FAILED, TWO | FAILED, quick)})
    ended = ["train.py ended with status 1", "train.py was started, attempt 3", "train.py ended with status 1"]
    assert world.of_runs[3:] == ended
    await cast(AsyncIterator[Any], events).aclose()  # type: ignore[attr-defined]
    assert len(world.of_runs) == 6


async def test_the_end_of_a_run_is_told_also_when_the_next_one_comes_at_once(world: World) -> None:
    """As in a script with one `edgelink run` after the other; the page has not looked in between."""
    events = world.run(record=record(ONE), running=True)
    await first(events, "granted")
    await cast(AsyncIterator[Any], events).aclose()  # type: ignore[attr-defined]
    events = world.run(record=record(ONE, run_id="s", command="eval.py"), running=True)
    await first(events, "granted")
    told = ["train.py was started, attempt 1", "train.py ended", "eval.py was started, attempt 1"]
    assert world.of_runs == told
    await cast(AsyncIterator[Any], events).aclose()  # type: ignore[attr-defined]


async def test_a_new_daemon_does_not_tell_of_a_former_run_again(world: World, tmp_path: Path) -> None:
    """What happened since is told, also of the same run."""
    events = world.run(record=record(ONE | FAILED, TWO), running=True)
    await first(events, "granted")
    successor = World(tmp_path)
    assert successor.of_runs == []
    events_again = successor.run(record=record(ONE | FAILED, TWO), running=True)
    await first(events_again, "granted")
    await successor.requests.note(ROOT, {"record": record(ONE | FAILED, TWO | FAILED | {"exit_status": 0})})
    assert successor.of_runs == ["train.py ended with status 0"]
    for each in (events, events_again):
        await cast(AsyncIterator[Any], each).aclose()  # type: ignore[attr-defined]


async def test_a_link_is_for_root_and_rays_user(world: World) -> None:
    """Who could command Ray anyway; and nobody gets one to a page that nobody serves."""
    told = await world.dashboard.link(ROOT, {})
    assert (told["port"], told["overlay_ip"]) == (8270, None)
    session = world.dashboard.logins.redeem(told["link"])
    assert session is not None
    assert await world.dashboard.link(RAY_USER, {})
    with refuses(UsageError, reason="PermissionDenied"):
        await world.dashboard.link(Caller(1, 4711, 4711), {})
    with refuses(UsageError, reason="PermissionDenied"):
        await world.dashboard.log_all_out(Caller(1, 4711, 4711), {})
    await world.dashboard.log_all_out(RAY_USER, {})
    assert not world.dashboard.logins.is_valid(session)


async def test_a_page_that_is_switched_off_has_no_link(tmp_path: Path) -> None:
    """And no socket."""
    world = World(tmp_path, Config.model_validate({"web": {"listen": "off"}}))
    with pytest.raises(EdgelinkError, match="in the configuration"):
        await world.dashboard.link(ROOT, {})


async def test_it_is_served_and_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    """The daemon goes on without a page, says why there is none, and takes the port once it is free.

    A browser on another machine of the overlay asks by any name that this one has there.
    """
    names = [f"{name}:8270" for name in ("cloud.edgelink.internal", "cloud", "10.10.0.2")]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        world = World(tmp_path, Config.model_validate({"web": {"port": port}}))
        clock = cast(FakeClock, world.node.base.clock)
        world.node.overlay.ways = _no_ways  # type: ignore[method-assign]
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(world.dashboard.run())
            await clock.advance(0)
            with pytest.raises(EdgelinkError, match=f"cannot listen on 127.0.0.1:{port}"):
                await world.dashboard.link(ROOT, {})
            taken.close()
            await clock.advance(2)
            told = await world.dashboard.link(ROOT, {})
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as browser:
                assert (await browser.get("/")).status == 200
                assert (await browser.post("/api/login", json={"link": told["link"]})).status == 200
                assert (await browser.get("/", headers={"Host": "evil.example"})).status == 421
                assert (await browser.get("/", headers={"Host": names[0]})).status == 421, "not yet its name"
                pretend(world.node.base.board, running=SimpleNamespace(lease=LEASE))
                assert [(await browser.get("/", headers={"Host": name})).status for name in names] == [200] * 3
                other = {"Host": "edge-1.edgelink.internal"}
                assert (await browser.get("/", headers=other)).status == 421
            running.cancel()


async def test_a_metered_node_is_asked_only_while_somebody_watches(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that nobody looks at would cost it a megabyte a day."""
    asked: list[str] = []

    async def ping(target: IPv4Address, _timeout_s: float, *, payload_bytes: int) -> float | None:
        asked.append(str(target))
        return 1.0

    world = World(tmp_path, Config.model_validate({"web": {"port": port, "listen": "loopback"}}))
    monkeypatch.setattr(world.node.overlay, "ping", ping)
    clock = cast(FakeClock, world.node.base.clock)
    world.node.overlay.ways = _no_ways  # type: ignore[method-assign]
    pretend(world.node.base.board, running=SimpleNamespace(lease=LEASE), metered=frozenset({EDGE_1.node_id}))
    world.node.base.conditions._on_change = None
    world.node.base.conditions.set_true("OverlayUp", "DeviceConfirmed", "up")
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(world.dashboard.run())
        await clock.advance(4)
        assert str(EDGE_2.overlay_ip) in asked
        assert str(EDGE_1.overlay_ip) not in asked
        watching = world.dashboard.feed.follow()
        await anext(watching)
        await clock.advance(4)
        assert str(EDGE_1.overlay_ip) in asked
        await watching.aclose()  # type: ignore[attr-defined]
        running.cancel()


async def test_nodes_are_followed_and_measured(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node says is shown at once; pings tell round trip and loss, EasyTier the way and what it carried.

    Who does not answer is asked again soon, also while nobody looks at the page.
    """
    way = {
        "overlay_ip": "10.10.0.3",
        "path": "direct",
        "via": None,
        "protocol": "udp",
        "received": "1.00 MB",
        "sent": "",
    }

    async def ways() -> list[dict[str, Any]]:
        return [way | {"latency_ms": 9.0, "loses_full_packets": False}]

    async def ping(target: IPv4Address, _timeout_s: float, *, payload_bytes: int) -> float | None:
        return 12.34 if str(target) == "10.10.0.3" else None

    world = World(tmp_path, Config.model_validate({"web": {"port": port, "listen": "loopback"}}))
    monkeypatch.setattr(world.node.overlay, "ping", ping)
    clock = cast(FakeClock, world.node.base.clock)
    world.node.overlay.ways = ways  # type: ignore[method-assign]
    pretend(world.node.base.board, running=SimpleNamespace(lease=LEASE))
    world.node.base.conditions._on_change = None
    world.node.base.conditions.set_true("OverlayUp", "DeviceConfirmed", "up")
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(world.dashboard.run())
        await clock.advance(1)
        measures = world.newest["measures"]
        known = {"rtt_ms": 12.3, "loss": 0.0, "received": "1.00 MB", "sent": None}
        assert measures[EDGE_1.node_id] == known | {"received_now": None, "sent_now": None}
        assert measures[RELAY.node_id]["loss"] == 0.0, "so is one, of which nothing is told"
        assert world.rows["edge-1"]["path"] == "direct"
        assert world.rows["relay"]["health"] == "ok", "one ping is not much"
        way["received"] = "2.00 MB"
        await clock.advance(4)
        assert world.rows["relay"]["health"] == "away"
        measures = world.newest["measures"]
        assert measures[EDGE_1.node_id]["received_now"] == {"bytes_per_s": 250_000, "is_less": False}
        assert world.rows["edge-2"]["health"] == "away"
        world.tell(EDGE_2.node_id)
        give(world.node.base.board, statuses=Table(world.statuses, revision=2))
        await clock.advance(2)
        assert world.rows["edge-2"]["health"] == "trouble"
        running.cancel()
    found = world.dashboard.of_node(EDGE_1.node_id)
    assert found is not None
    assert found["rtts"][0][1] == 12.3


async def test_of_who_leaves_while_it_is_pinged_nothing_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer comes too late: nobody would ever forget it."""

    async def ping(_target: IPv4Address, _timeout_s: float, *, payload_bytes: int) -> float:
        world.enrol(RELAY, world.own, EDGE_1)
        world.dashboard.look()
        return 1.0

    monkeypatch.setattr(world.node.overlay, "ping", ping)
    address = EDGE_2.overlay_ip
    await world.dashboard._ping(asyncio.Semaphore(1), EDGE_2.node_id, address)
    assert EDGE_2.node_id not in world.dashboard.history.rtts


async def _no_ways() -> list[dict[str, Any]]:
    return []


@pytest.mark.parametrize(
    ("web", "overlay", "expected"),
    [
        ({}, {"device": "lo"}, True),
        ({"listen": "loopback"}, {"device": "lo"}, False),
        ({}, {"device": "lo", "kind": "existing"}, False),
        ({}, {"device": "no-such-device"}, False),
    ],
)
def test_where_it_listens(tmp_path: Path, web: dict[str, str], overlay: dict[str, str], expected: bool) -> None:
    """On the overlay only where that is EasyTier's, which encrypts, and only while its device is there."""
    world = World(tmp_path, Config.model_validate({"web": web, "overlay": overlay}))
    pretend(world.node.base.board, running=SimpleNamespace(lease=LEASE))
    assert world.dashboard._overlay_place() is None, "the overlay is not up"
    world.node.base.conditions._on_change = None
    world.node.base.conditions.set_true("OverlayUp", "DeviceConfirmed", "up")
    found = world.dashboard._overlay_place()
    assert (found is not None) is expected
    if found is not None:
        assert str(found.address) == "10.10.0.2"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"ready": True, "wrong": []}, "ok"),
        ({"ready": True, "wrong": ["torch differs"], "online": False}, "warning"),
        ({"ready": True, "wrong": [], "loses_full_packets": True}, "warning"),
        ({"ready": False, "wrong": ["…"], "online": True}, "trouble"),
        ({"ready": False, "wrong": ["…"], "online": False}, "away"),
        ({"ready": False, "wrong": ["…"], "online": None}, "away"),
        ({"ready": False, "wrong": ["…"], "phase": "Starting"}, "coming"),
        ({"ready": False, "wrong": ["…"], "phase": "Ready", "ray": "Ray joined"}, "coming"),
        ({"ready": False, "wrong": ["…"], "phase": "Starting", "ray": "Ray refused (ray 2.1)"}, "trouble"),
        ({"ready": True, "wrong": ["silent"], "state": "paused"}, "paused"),
        ({"ready": True, "wrong": [], "state": "ready"}, "ok"),
        ({"ready": False, "wrong": [], "online": False, "state": "off"}, "off"),
        ({"ready": False, "wrong": ["…"], "online": False, "state": "silent"}, "away"),
    ],
)
def test_health(row: dict[str, Any], expected: str) -> None:
    """Who is alive in Ray works, also while its daemon is being restarted, unless it does not answer."""
    known = {"loses_full_packets": False, "online": True, "phase": "Degraded", "ray": "no Ray"}
    assert health(known | row) == expected


def test_processes_are_counted_by_machine() -> None:
    """With the accelerators that they have there."""
    process = {"node_rank": 0, "accelerators": ["0", "1"]}
    placement = {"placements": {"actor": [process, process | {"accelerators": ["2"]}, process | {"node_rank": 1}]}}
    found = placed_by_rank(placement)
    assert found[0] == [{"component": "actor", "processes": 2, "accelerators": ["0", "1", "2"]}]
    assert found[1][0]["processes"] == 1
    assert placed_by_rank(None) == {}


def test_counters_of_a_device(tmp_path: Path) -> None:
    """As the kernel shows them; a device that is away has none."""
    statistics = tmp_path / "et0" / "statistics"
    statistics.mkdir(parents=True)
    (statistics / "rx_bytes").write_text("12\n")
    (statistics / "tx_bytes").write_text("34\n")
    assert device_counters("et0", tmp_path) == (12, 34)
    assert device_counters("et1", tmp_path) is None

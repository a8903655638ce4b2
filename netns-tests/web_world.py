"""A head's web page without a head: the real server, feed and history, fed with as many pretended nodes as wanted.

What it tells is one story, of a network that could be: test_web_page.py asks it for contradictions.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web

from edgelink import __version__
from edgelink.api.sites import LOOPBACK, Place, listening_socket
from edgelink.api.web.feed import Feed
from edgelink.api.web.history import History, metric_names
from edgelink.api.web.login import Logins
from edgelink.api.web.model import Head, Measure, NodeRow, Placed, Rate, RunView, Snapshot, TrafficSample
from edgelink.api.web.page_server import WebPage
from edgelink.clock import SystemClock
from edgelink.conditions import Status
from edgelink.protocol.payloads import ConditionReport
from edgelink.ray_cluster.versions import Versions, differences, refusal, warnings
from edgelink.telemetry.dashboard import READY_CONDITIONS

_LIFE = {
    "Leased": ("Leased", "{name} holds {ip}{rank}"),
    "RegistryConnected": ("Connected", "the relay's broker answers at relay.example.org:8883"),
    "OverlayUp": ("DeviceConfirmed", "et0 is up with {ip}/16"),
    "PeersReachable": ("Reachable", "answering over the overlay: {peers}"),
    "RayJoined": ("AliveInRay", "alive in Ray at 10.10.0.2:6379 as {ip}{with_rank}"),
    "RideThrough": ("Full", "outages of up to 5 min cost a pause, no node and no state"),
    "Shielded": ("RulesInPlace", "Ray, the training and EasyTier's RPC answer on loopback and the overlay only"),
    "OverlayCpuNormal": ("Normal", "easytier-core works only when there is work"),
}
_NOT_ON_RELAYS = ("RayJoined",)
_VERSIONS = {"edgelink": __version__, "easytier": "2.6.4"}
_RAY, _PYTHON, _TORCH, _OLD_RAY, _OLD_TORCH = "2.54.0", "3.11.9", "2.5.1", "2.52.1", "2.4.0"
_KINDS = ("franka", "ur5e", "sim", "agx")
_SITES = ("lab-a", "lab-b", "field")


class WebWorld:
    """The page's server on a port of loopback, in a thread of its own, until :meth:`close`."""

    def __init__(self, directory: Path, nodes: int, port: int = 0) -> None:
        self.clock = SystemClock()
        self.feed, self.history = Feed(), History()
        self.logins = Logins(directory / "web.key", self.clock)
        self.rows: dict[str, NodeRow] = {}  # by node id, as all of them
        self.measures: dict[str, Measure] = {}
        self.conditions: dict[str, tuple[ConditionReport, ...]] = {}
        self.run: RunView | None = None
        self.port = port
        self._random = random.Random(7)
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._loop = asyncio.new_event_loop()
        make_network(self, nodes)
        self.snapshot()

    def start(self) -> None:
        """Serve; again after a stop, on the same port."""
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        started.result(60)

    def stop(self) -> None:
        """As when the daemon ends: connections are closed, the port with them."""
        assert self._thread is not None and self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def close(self) -> None:
        if self._thread is not None:
            self.stop()
        self._loop.close()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Connections stay, and nothing comes by them, as when the way to the head is cut."""
        silent, again = threading.Event(), threading.Event()

        def hold() -> None:
            silent.set()
            again.wait(60)

        self._loop.call_soon_threadsafe(hold)
        silent.wait(60)
        try:
            yield
        finally:
            again.set()

    def do(self, action: Callable[[], None]) -> None:
        """Change the world in the server's thread, and tell who follows."""

        async def change() -> None:
            action()
            self.snapshot()

        asyncio.run_coroutine_threadsafe(change(), self._loop).result(60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def link(self) -> str:
        return f"{self.url}#link={self.logins.new_link()}"

    def _serve(self, started: Future[None]) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._run(started))

    async def _run(self, started: Future[None]) -> None:
        self._stop = asyncio.Event()
        self.page = WebPage(self.feed, self.logins, self._of_node, set, node_id=id_of("cloud"))
        async with self.page.running() as runner:
            listener = listening_socket(Place(LOOPBACK), self.port)
            self.port = listener.getsockname()[1]
            await web.SockSite(runner, listener).start()
            started.set_result(None)
            await self._stop.wait()

    def _of_node(self, node_id: str) -> dict[str, Any] | None:
        if node_id not in self.rows:
            return None
        told = [condition.model_dump(mode="json") for condition in self.conditions.get(node_id, ())]
        return {"node_id": node_id, "conditions": told, **self.history.of_node(node_id)}

    def snapshot(self) -> None:
        ranked = [row for row in self.rows.values() if row["node_rank"] is not None]
        alive = [row for row in ranked if row["health"] in ("ok", "warning")]
        bars = self.history.timeline.bars
        self.feed.publish(
            Snapshot(
                head=Head(
                    node_id=id_of("cloud"),
                    hostname="cloud",
                    overlay_ip="10.10.0.2",
                    network_id="n",
                    version=__version__,
                    phase="Ready",
                    is_connected=True,
                    ray_auth="token",
                    ray_dashboard_port=8265,
                    ride_through_s=300,
                    goes_on=[],
                    waits=[],
                    notes=[],
                    nodes=len(ranked),
                    alive=len(alive),
                    cpus=sum(row["cpus"] for row in alive),
                    gpus=sum(row["gpus"] for row in alive),
                ),
                nodes=dict(self.rows),
                measures=dict(self.measures),
                bars={row["node_id"]: bars[row["hostname"]] for row in self.rows.values() if row["hostname"] in bars},
                outages=dict(self.history.timeline.outages),
                run=None if self.run is None else {**self.run, "metric_names": metric_names(self.history.points)},
                events=list(self.history.events),
                points=list(self.history.points),
                traffic=list(self.history.traffic),
            )
        )

    def set_row(self, name: str, at: datetime | None = None, **changes: Any) -> None:
        """Change a node, and keep what that tells."""
        before, node_id, at = dict(self.rows), id_of(name), at or self.clock.now()
        row: NodeRow = {**self.rows[node_id], **changes}  # type: ignore[typeddict-item]
        if row["health"] != before[node_id]["health"]:
            row["since"] = at.isoformat(timespec="seconds")
        if row["health"] != "paused":
            row.update({"silent_since": None, "given_up_at": None})
        if row["health"] in ("trouble", "away"):  # Ray does not list it
            row["cpus"], row["gpus"] = 0.0, 0
        self.rows[node_id] = row
        self.history.compare(before, self.rows, at)

    def set_condition(
        self, name: str, kind: str, status: Status, reason: str, message: str, at: datetime | None = None
    ) -> None:
        """Of a node, from then on."""
        told = ConditionReport(type=kind, status=status, reason=reason, message=message, since=at or self.clock.now())
        known = self.conditions[id_of(name)]
        self.tell(name, [told if old.type == kind else old for old in known], at)

    def tell(self, name: str, conditions: Sequence[ConditionReport], at: datetime | None = None) -> None:
        """What a node states, and what that tells."""
        before = dict(self.conditions)
        self.conditions[id_of(name)] = tuple(conditions)
        names = {node_id: row["hostname"] for node_id, row in self.rows.items()}
        self.history.compare_conditions(before, self.conditions, names, READY_CONDITIONS, at or self.clock.now())

    def set_measure(self, name: str, **changes: Any) -> None:
        self.measures[id_of(name)] = {**self.measures[id_of(name)], **changes}  # type: ignore[typeddict-item]

    def lose(self, name: str, at: datetime | None = None) -> None:
        """The node's link goes: it is offline, and does not answer."""
        self.set_measure(name, rtt_ms=None, loss=1.0, received=None, sent=None, received_now=None, sent_now=None)
        why = f"offline: is {name} switched on, and `edgelink edge` running there?"
        way = {"path": None, "via": None, "protocol": None}
        self.set_row(name, at, health="away", phase=None, brief="offline", wrong=[why], **way)

    def pause(self, name: str, silent_s: float, given_up_in_s: float = 300.0, at: datetime | None = None) -> None:
        """The node does not answer, and Ray goes on with it."""
        now = at or self.clock.now()
        silent: dict[str, Any] = {
            "health": "paused",
            "wrong": ["no answer, says echo; Ray rides through: look at its power and its uplink"],
            "path": None,
            "silent_since": (now - timedelta(seconds=silent_s)).isoformat(timespec="seconds"),
            "given_up_at": (now + timedelta(seconds=given_up_in_s)).isoformat(timespec="seconds"),
        }
        self.set_measure(name, rtt_ms=None, loss=0.5, received=None, sent=None, received_now=None, sent_now=None)
        self.set_row(name, now, **silent)

    def mend(self, name: str, at: datetime | None = None) -> None:
        """It answers again."""
        self.set_measure(name, rtt_ms=23.0, loss=0.0)
        self.set_row(name, at, health="ok", wrong=[], path="relayed", via=relay_of(self))

    def begin_run(self, updates: int) -> None:
        """A training that learns."""
        now = self.clock.now()
        attempt = {
            "number": 1,
            "started_at": (now - timedelta(minutes=42)).isoformat(),
            "ended_at": None,
            "exit_status": None,
            "lost_nodes": [],
            "step": str(updates),
            "what_followed": "",
        }
        self.run = RunView(
            run_id="r1",
            command="/opt/train/train.py",
            in_progress=True,
            attempts=[attempt],
            metric_names=[],
            step=updates,
            total_steps=400,
            steps_per_s=updates / (42 * 60),
        )
        for step in range(updates):
            value = 195 / (1 + math.exp(-(step - updates * 0.4) / (updates * 0.11))) + self._random.gauss(0, 7)
            figures = {"env_steps_per_s": self._random.gauss(4100, 90)}
            if step % 3:  # in some updates no episode ends
                figures["return"] = round(value, 2)
            at = now - timedelta(minutes=42 * (1 - (step + 1) / updates))
            self.history.add_points("r1", [(float(step), figures)], at)
        for row in list(self.rows.values()):
            rank = row["node_rank"]
            if rank is None:
                continue
            if rank == 0:
                gpus = ["0", "1", "2", "3"]
                placed = [
                    Placed(component="actor", processes=4, accelerators=gpus),
                    Placed(component="rollout", processes=4, accelerators=gpus),
                ]
            else:
                placed = [Placed(component="env", processes=1 + rank % 2, accelerators=[])]
            self.rows[row["node_id"]] = {**row, "placed": placed}


def id_of(name: str) -> str:
    """As a node's key would have made it."""
    return base64.b32encode(hashlib.sha256(name.encode()).digest()).decode().lower()[:26]


def make_network(world: WebWorld, nodes: int) -> None:
    """A head, a relay or two, and edges at distances as on real links, all of which work."""
    relays = 1 if nodes < 50 else 2
    names = ["cloud", *(f"relay-{number + 1}" if relays > 1 else "relay" for number in range(relays))]
    names += [f"{_KINDS[number % 4]}-{number // 4 + 1}" for number in range(nodes - len(names))]
    first = [2, 1, *range(3, nodes + 1)]  # the relay has the first address, the head the second
    for number, name in enumerate(names[:nodes]):
        is_relay = 1 <= number <= relays
        rank = None if is_relay else max(0, number - relays)
        make_node(world, name, f"10.10.{first[number] // 250}.{first[number] % 250}", rank, names[1 : 1 + relays])
    make_traffic(world)


def make_node(world: WebWorld, name: str, ip: str, rank: int | None, relays: Sequence[str]) -> None:
    """Works since some time in the last ten hours."""
    pick, now, node_id = world._random, world.clock.now(), id_of(name)
    is_head, is_relay = rank == 0, rank is None
    is_direct = is_relay or pick.random() < 0.6
    rtt = round(pick.uniform(8, 14) if is_relay else math.exp(pick.gauss(3.3, 0.7)), 1)
    since = now - timedelta(minutes=pick.randrange(50, 600))
    world.rows[node_id] = NodeRow(
        node_id=node_id,
        hostname=name,
        role="head" if is_head else "relay" if is_relay else "edge",
        is_relay=is_relay,
        overlay_ip=ip,
        node_rank=rank,
        health="ok",
        phase="Ready",
        brief="relay" if is_relay else "alive",
        wrong=[],
        path="self" if is_head else "direct" if is_direct else "relayed",
        via=None if is_direct or is_head else relays[(rank or 0) % len(relays)],
        protocol=None if is_head or not is_direct else "tcp" if is_relay else "udp",
        loses_full_packets=False,
        cpus=0.0 if is_relay else 64.0 if is_head else 8.0,
        gpus=4 if is_head else 0,
        labels={} if is_head or rank is None else {"site": _SITES[(rank + 1) % 3]},
        open_ports=[f"tcp/8888 from {pick.randrange(2, 9)} nodes"] if is_head else [],
        versions=dict(_VERSIONS) if is_relay else {**_VERSIONS, "python": _PYTHON, "ray": _RAY, "torch": _TORCH},
        placed=[],
        since=since.isoformat(timespec="seconds"),
        silent_since=None,
        given_up_at=None,
    )
    for minutes in range(24 * 60, -1, -10):  # a step of its bar each
        world.history.timeline.note(name, "ok", now - timedelta(minutes=minutes))
    world.measures[node_id] = Measure(
        rtt_ms=None if is_head else rtt,
        loss=None if is_head else 0.0,
        received=None,
        sent=None,
        received_now=None,
        sent_now=None,
    )
    told = {kind: words for kind, words in _LIFE.items() if not (is_relay and kind in _NOT_ON_RELAYS)}
    words = {"name": name, "ip": ip, "rank": "" if is_relay else f" and preferred rank {rank}"}
    words["peers"] = ", ".join(each for each in ("cloud", *relays) if each != name)
    words["with_rank"] = "" if is_relay else f" with node rank {rank}"
    conditions = [
        ConditionReport(
            type=kind,
            status=Status.TRUE,
            reason=reason,
            message=message.format(**words),
            since=since - timedelta(seconds=len(told) - step),
        )
        for step, (kind, (reason, message)) in enumerate(told.items())
    ]
    world.tell(name, conditions, since)
    if not is_head:
        measured(world, name, [round(rtt * pick.uniform(0.95, 1.3), 1) for _ in range(60)])


def measured(world: WebWorld, name: str, rtts: Sequence[float | None]) -> None:
    """Its round trips, one every two seconds; the newest is the one that is shown."""
    now = world.clock.now()
    world.history.rtts.pop(id_of(name), None)
    for age, rtt in zip(range(2 * len(rtts) - 2, -1, -2), rtts, strict=True):
        world.history.rtt(id_of(name), now - timedelta(seconds=age), rtt)
    world.set_measure(name, rtt_ms=rtts[-1])


def make_traffic(world: WebWorld) -> None:
    """Five minutes of it; what crosses the device now is what the links carry, the relay's for those behind it."""
    pick, now = world._random, world.clock.now()
    received = sent = 0.0
    for row in list(world.rows.values()):
        if row["path"] != "direct":
            continue
        behind = [each for each in world.rows.values() if each["via"] == row["hostname"]]
        rates = [pick.uniform(60e3, 400e3) for _ in range(len(behind) if row["is_relay"] else 1)]
        here, there = float(f"{sum(rates):.3g}"), float(f"{0.22 * sum(rates):.3g}")
        hours_s = (now - datetime.fromisoformat(row["since"] or now.isoformat())).total_seconds()
        received, sent = received + here, sent + there
        world.set_measure(
            row["hostname"],
            received=in_words(here * hours_s * 0.7),
            sent=in_words(there * hours_s * 0.7),
            received_now=Rate(bytes_per_s=here, is_less=False),
            sent_now=Rate(bytes_per_s=there, is_less=False),
        )
    world.history.traffic.clear()
    for age in range(4 * 74, -1, -4):
        share = 1 + 0.25 * math.sin(age / 37) + 0.12 * math.sin(age / 9) + (pick.uniform(-0.08, 0.08) if age else 0)
        world.history.traffic.append(
            TrafficSample(
                n=world.history.next_n(),
                at=(now - timedelta(seconds=age)).isoformat(timespec="seconds"),
                received_bytes_per_s=round(received * share),
                sent_bytes_per_s=round(sent * share * pick.uniform(0.9, 1.1) if age else sent),
            )
        )


def in_words(carried: float) -> str:
    """As EasyTier says it."""
    power = 0
    while carried >= 1000:
        carried, power = carried / 1000, power + 1
    return f"{carried:.2f} {' kMGT'[power]}B" if power else f"{carried:.0f} B"


def tell_of_trouble(world: WebWorld) -> None:
    """Some of what goes wrong in a network: a node that is off, one that cannot join, one behind a bad link and with
    another torch than the head. In the order in which it happened."""
    edges = [row["hostname"] for row in world.rows.values() if row["role"] == "edge"]
    off, slow, late = edges[len(edges) // 4], edges[2 * len(edges) // 5], edges[-1]
    now = world.clock.now()

    def ago(minutes: float) -> datetime:
        return now - timedelta(minutes=minutes)

    other = next(
        row["hostname"]
        for row in world.rows.values()
        if row["role"] == "edge" and row["path"] == "direct" and row["hostname"] not in (off, slow, late)
    )
    world.history.event(ago(42), "info", "run", "train.py was started, attempt 1")
    world.set_row(other, ago(31.4), path="relayed", via=relay_of(world), protocol=None)
    world.set_row(other, ago(31), path="direct", via=None, protocol="udp")
    found = differences(
        Versions(ray=_RAY, python=_PYTHON, packages={"torch": _OLD_TORCH}),
        Versions(ray=_RAY, python=_PYTHON, packages={"torch": _TORCH}),
    )
    versions = world.rows[id_of(slow)]["versions"]
    world.set_row(
        slow, ago(26), health="warning", wrong=list(warnings(found)), versions={**versions, "torch": _OLD_TORCH}
    )
    cannot_join(world, late, ago(12))
    world.set_condition(
        "cloud",
        "OverlayCpuNormal",
        Status.FALSE,
        "EasyTierSpinning",
        "easytier-core uses 94% of a core while et0 moves only 0.21 MB/s",
        ago(6.3),
    )
    world.set_condition("cloud", "OverlayCpuNormal", Status.TRUE, *_LIFE["OverlayCpuNormal"], ago(5.1))
    way: dict[str, Any] = {"path": "relayed", "via": relay_of(world), "protocol": None}
    if world.rows[id_of(slow)]["path"] == "relayed":
        world.rows[id_of(slow)].update({"path": "direct", "via": None, "protocol": "udp"})
    world.set_row(slow, ago(3.2), **way)
    world.set_measure(slow, loss=0.075, received=None, sent=None, received_now=None, sent_now=None)
    measured(world, slow, [38.0] * 4 + [round(world._random.uniform(180, 250)) for _ in range(55)] + [212.0])
    before = world.history.rtts[id_of(off)]
    measured(world, off, [rtt for _, rtt in before][:-45] + [None] * 45)
    world.lose(off, ago(1.4))
    make_traffic(world)


def relay_of(world: WebWorld) -> str:
    return next(row["hostname"] for row in world.rows.values() if row["is_relay"])


def cannot_join(world: WebWorld, name: str, at: datetime) -> None:
    """Enrolled just before; its interpreter has another Ray than the head's. It takes no part in the run."""
    row, known = world.rows.pop(id_of(name)), world.conditions.pop(id_of(name))
    world.history.conditions.pop(id_of(name), None)
    found = differences(Versions(ray=_OLD_RAY, python=_PYTHON), Versions(ray=_RAY, python=_PYTHON))
    message = (
        f"/opt/train/bin/python has Ray {_OLD_RAY} on Python {_PYTHON}, the head has Ray {_RAY} on Python {_PYTHON}. "
        f"make an interpreter of Python 3.11 with ray=={_RAY} here and name it in ray.python"
    )
    told = [each.model_copy(update={"since": at + timedelta(seconds=step)}) for step, each in enumerate(known)]
    refused = {"status": Status.FALSE, "reason": "VersionMismatch", "message": message}
    told = [each.model_copy(update=refused) if each.type == "RayJoined" else each for each in told]
    before = dict(world.rows)
    world.rows[id_of(name)] = {
        **row,
        "health": "trouble",
        "phase": "Degraded",
        "brief": f"overlay up, Ray refused ({refusal(found)})",
        "wrong": [f"VersionMismatch: {message}"],
        "versions": {**row["versions"], "ray": _OLD_RAY},
        "cpus": 0.0,
        "placed": [],
        "since": (at + timedelta(seconds=len(told))).isoformat(timespec="seconds"),
    }
    world.history.compare(before, world.rows, at)
    world.tell(name, told, at + timedelta(seconds=len(told)))
    world.history.event(
        at + timedelta(seconds=len(told)),
        "trouble",
        "node",
        f"{name} does not work",
        node_id=id_of(name),
        detail=f"VersionMismatch: {message}",
    )


if __name__ == "__main__":  # to look at it
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as where:
        shown = WebWorld(Path(where), int(sys.argv[1]) if len(sys.argv) > 1 else 12, 8270)
        shown.begin_run(160)
        tell_of_trouble(shown)
        shown.snapshot()
        shown.start()
        print(shown.link(), flush=True)
        while True:
            time.sleep(1)

"""A head's web page without a head: the real server, feed and history, fed with as many pretended nodes as wanted."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web

from edgelink.api.sites import LOOPBACK, Place, listening_socket
from edgelink.api.web.feed import Feed
from edgelink.api.web.history import History, metric_names
from edgelink.api.web.login import Logins
from edgelink.api.web.model import Head, Measure, NodeRow, Placed, RunView, Severity, Snapshot, TrafficSample
from edgelink.api.web.server import WebPage
from edgelink.clock import SystemClock
from edgelink.conditions import Status
from edgelink.registry.payloads import ConditionReport

_LIFE = {
    "Leased": ("Leased", "{name} holds {ip} and preferred rank {rank}"),
    "RegistryConnected": ("Connected", "the relay's broker answers at relay.example.org:8883"),
    "OverlayUp": ("DeviceConfirmed", "et0 is up with {ip}/16"),
    "PeersReachable": ("Reachable", "answering over the overlay: cloud, relay"),
    "RayJoined": ("AliveInRay", "alive in Ray at 10.10.0.2:6379 as {ip} with node rank {rank}"),
    "RideThrough": ("Full", "outages of up to 5 min cost a pause, no node and no state"),
    "Shielded": ("RulesInPlace", "Ray, the training and EasyTier's RPC answer on loopback and the overlay only"),
}
_EARLIER: tuple[tuple[float, Severity, str, str, str], ...] = (
    (42.4, "info", "run", "train.py was started, attempt 1", ""),
    (31.0, "info", "path", "sim-1 is reached directly (udp), was through relay", ""),
    (17.2, "trouble", "node", "ur5e-2 is away", "offline: is ur5e-2 switched on, and `edgelink edge` running there?"),
    (15.9, "ok", "node", "ur5e-2 works", ""),
    (6.3, "warning", "condition", "cloud: OverlayCpuNormal is False", "Busy: EasyTier needs 1.4 processors"),
    (5.1, "ok", "condition", "cloud: OverlayCpuNormal is True", "Normal: EasyTier needs 0.3 processors"),
)
_KINDS = ("franka", "ur5e", "sim", "agx")
_SITES = ("lab-a", "lab-b", "field")


class WebWorld:
    """The page's server on a port of loopback, in a thread of its own, until :meth:`close`."""

    def __init__(self, directory: Path, nodes: int, port: int = 0) -> None:
        self.clock = SystemClock()
        self.feed, self.history = Feed(), History()
        self.logins = Logins(directory / "web.key", self.clock)
        self.rows: dict[str, NodeRow] = {}
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
        started.result(10)

    def stop(self) -> None:
        """As when the daemon ends: connections are closed, the port with them."""
        assert self._thread is not None and self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def close(self) -> None:
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
        silent.wait(10)
        try:
            yield
        finally:
            again.set()

    def do(self, action: Callable[[], None]) -> None:
        """Change the world in the server's thread, and tell who follows."""

        async def change() -> None:
            action()
            self.snapshot()

        asyncio.run_coroutine_threadsafe(change(), self._loop).result(10)

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
        page = WebPage(self.feed, self.logins, self._of_node, set)
        async with page.running() as runner:
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
        self.feed.publish(
            Snapshot(
                head=Head(
                    node_id="cloud",
                    hostname="cloud",
                    overlay_ip="10.10.0.2",
                    network_id="n",
                    version="0.1.0",
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
                run=None if self.run is None else {**self.run, "metric_names": metric_names(self.history.points)},
                events=list(self.history.events),
                points=list(self.history.points),
                traffic=list(self.history.traffic),
            )
        )

    def set_row(self, name: str, **changes: Any) -> None:
        """Change a node, and keep what that tells."""
        before = dict(self.rows)
        self.rows[name] = {**self.rows[name], **changes}  # type: ignore[typeddict-item]
        self.history.compare(before, self.rows, self.clock.now())

    def set_condition(self, name: str, kind: str, status: Status, reason: str, message: str) -> None:
        before, now = dict(self.conditions), self.clock.now()
        told = ConditionReport(type=kind, status=status, reason=reason, message=message, since=now)
        self.conditions[name] = tuple(told if old.type == kind else old for old in self.conditions[name])
        names = {node_id: row["hostname"] for node_id, row in self.rows.items()}
        self.history.compare_conditions(before, self.conditions, names, _LIFE, now)

    def lose(self, name: str) -> None:
        """The node's link goes: it is offline, and does not answer."""
        self.measures[name] = {**self.measures[name], "rtt_ms": None, "loss": 0.4}
        why = f"offline: is {name} switched on, and `edgelink edge` running there?"
        self.set_row(name, health="away", phase=None, brief="offline", wrong=[why], path=None)

    def begin_run(self, updates: int) -> None:
        """A training that learns."""
        now = datetime.now(UTC)
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
            run_id="r1", command="/opt/train/train.py", in_progress=True, attempts=[attempt], metric_names=[]
        )
        points = []
        for step in range(updates):
            value = 195 / (1 + math.exp(-(step - updates * 0.4) / (updates * 0.11))) + self._random.gauss(0, 7)
            figures = {"env_steps_per_s": self._random.gauss(4100, 90)}
            if step % 3:  # in some updates no episode ends
                figures["return"] = round(value, 2)
            points.append((float(step), figures))
        self.history.add_points("r1", points)
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


def make_network(world: WebWorld, nodes: int) -> None:
    """A head, a relay or two, and edges at distances as on real links; two of which need attention."""
    pick = world._random
    now = datetime.now(UTC)
    relays = 1 if nodes < 50 else 2
    names = ["cloud", *(f"relay-{number + 1}" if relays > 1 else "relay" for number in range(relays))]
    names += [f"{_KINDS[number % 4]}-{number // 4 + 1}" for number in range(nodes - len(names))]
    for number, name in enumerate(names[:nodes]):
        is_head, is_relay = number == 0, 1 <= number <= relays
        rank = None if is_relay else max(0, number - relays)
        ip = f"10.10.{(number + 1) // 250}.{(number + 1) % 250 + 1}"
        is_direct = is_relay or pick.random() < 0.6
        rtt = round(pick.uniform(8, 14) if is_relay else math.exp(pick.gauss(3.3, 0.7)), 1)
        carried = not is_head and is_direct
        world.rows[name] = NodeRow(
            node_id=name,
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
            via=None if is_direct or is_head else names[1 + number % relays],
            protocol="udp" if is_direct and not is_relay else "tcp" if is_relay else None,
            loses_full_packets=False,
            cpus=0.0 if is_relay else 64.0 if is_head else 8.0,
            gpus=4 if is_head else 0,
            labels={} if is_head or is_relay else {"site": _SITES[number % 3]},
            versions={"edgelink": "0.1.0", "easytier": "2.6.4", "python": "3.11.9", "ray": "2.54.0"},
            placed=[],
            since=(now - timedelta(minutes=pick.randrange(3, 600))).isoformat(),
        )
        world.measures[name] = Measure(
            rtt_ms=None if is_head else rtt,
            loss=None if is_head else 0.0,
            received=f"{pick.uniform(1, 900):.2f} MB" if carried else None,
            sent=f"{pick.uniform(1, 90):.2f} MB" if carried else None,
        )
        world.conditions[name] = tuple(
            ConditionReport(
                type=kind,
                status=Status.TRUE,
                reason=reason,
                message=message.format(name=name, ip=ip, rank=rank),
                since=now - timedelta(minutes=pick.randrange(3, 600)),
            )
            for kind, (reason, message) in _LIFE.items()
        )
        for second in range(120, 0, -2):
            world.history.rtt(
                name, now - timedelta(seconds=second), None if is_head else round(rtt * pick.uniform(0.95, 1.3), 1)
            )
    rate = 2.4e6
    for second in range(300, 0, -4):
        rate = min(max(rate * pick.uniform(0.85, 1.18), 6e5), 6e6)
        at = (now - timedelta(seconds=second)).isoformat()
        n = world.history.next_n()
        sample = TrafficSample(n=n, at=at, received_bytes_per_s=round(rate), sent_bytes_per_s=round(rate * 0.22))
        world.history.traffic.append(sample)


def tell_of_trouble(world: WebWorld) -> None:
    """Some of what goes wrong in a network: a node that is off, one that cannot join, versions that differ."""
    edges = [row["node_id"] for row in world.rows.values() if row["role"] == "edge"]
    for minutes, severity, what, text, detail in _EARLIER:
        at = world.clock.now() - timedelta(minutes=minutes)
        world.history.event(at, severity, what, text, detail=detail)
    world.lose(edges[3 % len(edges)])
    name = edges[1 % len(edges)]
    why = "RayVersionMismatch: Ray 2.52.1 here, the head has 2.54.0: install the head's version, ray==2.54.0"
    world.set_condition(name, "RayJoined", Status.FALSE, *why.split(": ", 1))
    world.set_row(name, health="trouble", phase="Degraded", brief="overlay up, Ray refused", wrong=[why])
    name = edges[4 % len(edges)]
    world.measures[name] = {**world.measures[name], "loss": 0.03, "rtt_ms": 212.0}
    world.set_row(
        name, health="warning", wrong=["torch 2.4.0, head has 2.5.1"], path="relayed", via="relay", protocol=None
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

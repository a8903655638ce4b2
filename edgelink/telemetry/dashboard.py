"""The web page of a head: what it shows is looked at here, its past kept, and its links made."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from ipaddress import IPv4Address
from itertools import takewhile
from operator import not_
from pathlib import Path
from typing import Any

from edgelink.api.server import Caller, Route, route
from edgelink.api.sites import LOOPBACK, Place, Sites
from edgelink.api.web.feed import Feed
from edgelink.api.web.history import RECORDED, Conditions, History, RunChange
from edgelink.api.web.login import LINK_LIVES_S, Logins
from edgelink.api.web.model import Measure, NodeRow, Snapshot, TrafficSample
from edgelink.api.web.pace import Pace, step_of
from edgelink.api.web.page_server import WebPage
from edgelink.api.web.rates import Rates
from edgelink.condition_table import Place as Daemon
from edgelink.condition_table import required_on
from edgelink.conditions import Phase
from edgelink.errors import EdgelinkError
from edgelink.facts.derive import Observed
from edgelink.log import get_logger
from edgelink.member.session_parts import RegistrysWord
from edgelink.process.hosts_file import DOMAIN
from edgelink.protocol.payloads import Lease
from edgelink.ray_cluster.reconcilers import RayHeadReconciler, RayInputs
from edgelink.reconcile import Wakeup
from edgelink.runs.node_list import Nodes
from edgelink.runs.pauses import Pausing
from edgelink.runs.ray_commands import require_ray_user
from edgelink.runs.runs import Runs
from edgelink.shield.exposure import Exposure
from edgelink.telemetry.dashboard_view import View
from edgelink.telemetry.others import Overlay
from edgelink.telemetry.recorder import Recorder, noted
from edgelink.timeouts import timeout

READY_CONDITIONS = required_on(Daemon.EDGE)  # and on the head

_LOOK_S = 2.0  # what nobody wakes us for
_UNWATCHED_LOOK_S = 10.0
_REST_S = 0.05  # between two looks, while somebody watches
_UNWATCHED_REST_S = 1.0
_MEASURE_S = 2.0  # 500 nodes: 5 s
_UNWATCHED_MEASURE_S = 30.0
_MOST_A_SECOND = 100  # pings
_PING_TIMEOUT_S = 1.0
_AT_ONCE = 32
_LOSS_OF = 40  # pings
_SILENT_AFTER = 3  # pings without an answer, one after the other: 7 s while somebody watches. A lost packet is none
_LOSSY_FROM, _LOSSY_UNTIL = 3, 1  # lost ones of those: from where on, and until which it is told
_LISTEN_S = 2.0
_COMING_S = 180.0  # who starts for longer does not work
_PAST = timedelta(days=1)
_NEAR_S = 5.0
_ALL_RECORDED_S = 3600.0  # how all nodes are; a change is recorded at once

log = get_logger("web")


class PageNotServedError(EdgelinkError):
    """The page cannot be asked for."""

    reason = "PageNotServed"


class Dashboard:
    """Everything behind the page; :meth:`run` for the daemon's life."""

    def __init__(
        self,
        inputs: RayInputs,
        overlay: Overlay,
        exposure: Exposure,
        recorder: Recorder,
        *,
        ray: RayHeadReconciler,
        runs: Runs,
        nodes: Nodes,
    ) -> None:
        self.feed = Feed()
        self.history = History()
        self.logins = Logins(inputs.paths.web_key, inputs.clock)
        self.page = WebPage(self.feed, self.logins, self.of_node, self._names, node_id=inputs.key.node_id)
        self.wakeup = Wakeup()
        self._config, self._board, self._conditions = inputs.config, inputs.board, inputs.conditions
        self._clock, self._node_id, self._token_copy = inputs.clock, inputs.key.node_id, inputs.paths.ray_token_copy
        self._overlay = overlay
        self._exposure = exposure
        self._recorder = recorder
        self._runs = runs
        self._ray = ray
        self._view = View(inputs, exposure, runs, nodes)
        self._rows: dict[str, NodeRow] = {}
        self._told: Conditions = {}
        self._run_seen = runs.record  # of what ended before this daemon nothing is told again
        self._ways: dict[str, dict[str, Any]] = {}
        self._rtts: dict[str, float | None] = {}  # by node id, of the newest answer; None: it is silent
        self._answered: dict[str, deque[bool]] = {}  # by node id, which of the newest pings were
        self._lossy: set[str] = set()  # node ids
        self._coming: dict[str, float] = {}  # node ids of those that start, and since when, on the monotonic clock
        self._pace = Pace()
        self._recorded_s: float | None = None  # when how all nodes are was, on that clock
        self._silent: set[str] = set()  # node ids; of nobody anything new is known while our own overlay is down
        self._counters: tuple[float, int, int] | None = None  # time, received, sent
        self._rates = Rates()
        self._failure: str | None = None  # why nobody can ask for the page
        for facts in (RegistrysWord, Observed, Pausing):
            inputs.board.read(facts, "web page", self.wakeup)
        runs.watch(self.wakeup)

    def routes(self) -> Iterator[Route]:
        yield route("POST", "/dashboard", self.link)
        yield route("POST", "/dashboard/logout", self.log_all_out)

    async def link(self, caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``POST /dashboard``: the secret of a new link, for root and the user that Ray runs as.

        Raises:
            PageNotServedError: the page is switched off, or its port is taken.
        """
        await require_ray_user(caller, self._ray)
        config = self._config
        if config.web.listen == "off":
            raise PageNotServedError("`web.listen: off` in the configuration", hint="take it out, restart the daemon")
        if self._failure is not None:
            raise PageNotServedError(self._failure, hint="set another web.port, or stop who has it")
        lease = self._lease
        has_overlay = self._overlay_place() is not None and lease is not None
        token = self._token_copy if self._exposure.ray_auth == "token" else None
        return {
            "link": self.logins.new_link(),
            "lives_s": LINK_LIVES_S,
            "port": config.web.port,
            "overlay_ip": str(lease.overlay_ip) if lease and has_overlay else None,
            "hostname": lease.hostname if lease else socket.gethostname(),
            "ray_dashboard_port": config.ray.dashboard_port,
            "ray_token_path": str(token) if token else None,
        }

    async def log_all_out(self, caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``POST /dashboard/logout``: no browser is logged in any more."""
        await require_ray_user(caller, self._ray)
        self.logins.end_all()
        return {}

    async def run(self) -> None:
        """Ends by cancellation only. What happens is recorded also where there is no page."""
        if self._config.web.listen == "off":
            await self._follow()
        self.history.restore(noted(self._recorder.directory, self._clock.now() - _PAST, RECORDED))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name="web-follow")
            tasks.create_task(self._measure(), name="web-measure")
            tasks.create_task(self._serve(), name="web-serve")

    def of_node(self, node_id: str) -> dict[str, Any] | None:
        """All that is known of one node."""
        if node_id not in self._rows:
            return None
        conditions = [condition.model_dump(mode="json") for condition in self._told.get(node_id, ())]
        return {"node_id": node_id, "conditions": conditions, **self.history.of_node(node_id)}

    def look(self) -> None:
        """See what has changed, keep it, tell who follows."""
        now = self._clock.now()
        rows = self._view.rows(self._ways, frozenset(self._silent))
        for node_id, row in rows.items():
            self._judge(node_id, row, self._rows.get(node_id), now)
        conditions = self._view.conditions()
        for change in self.history.compare(self._rows, rows, now, is_starting=self._is_starting):
            self._recorder.note("node", **change)
        self._record_all(rows)
        names = {node_id: row["hostname"] for node_id, row in rows.items()}
        self.history.compare_conditions(self._told, conditions, names, READY_CONDITIONS, now)
        self._rows, self._told = rows, conditions
        self._look_at_runs()
        timeline = self.history.timeline
        self.feed.publish(
            Snapshot(
                head=self._view.head(rows.values()),
                nodes=rows,
                measures={node_id: self._measured(node_id, row) for node_id, row in rows.items()},
                bars={node_id: timeline.bars[name] for node_id, name in names.items()},
                outages=dict(timeline.outages),
                run=self._view.run(self.history.points, self._pace.steps_per_s()),
                events=list(self.history.events),
                points=list(self.history.points),
                traffic=list(self.history.traffic),
            )
        )

    @property
    def _is_starting(self) -> bool:
        """The head is, and does not know yet how the others are."""
        return self._board.facts.phase is Phase.STARTING

    def _judge(self, node_id: str, row: NodeRow, before: NodeRow | None, now: datetime) -> None:
        """What only who has looked before can say of a node."""
        is_new = before is None or before["health"] == "coming"
        is_too_early = is_new and self._is_starting and row["health"] in ("away", "trouble")
        now_s = self._clock.monotonic_s()
        if not is_too_early and row["health"] != "coming":
            self._coming.pop(node_id, None)
        elif now_s - self._coming.setdefault(node_id, now_s) <= _COMING_S:
            row["health"] = "coming"
        elif row["health"] == "coming":
            row["health"] = "trouble"
        if node_id in self._lossy and row["health"] in ("ok", "warning"):
            row["health"] = "warning"
            row["wrong"] = [*row["wrong"], "many of the head's pings to it are lost: check its uplink"]
        if before is None or before["health"] != row["health"]:
            row["since"] = now.isoformat(timespec="seconds")
            return
        row["since"] = before["since"]
        row["silent_since"] = before["silent_since"]
        if _is_near(before["given_up_at"], row["given_up_at"]):
            row["given_up_at"] = before["given_up_at"]

    def _record_all(self, rows: dict[str, NodeRow]) -> None:
        """How all nodes are, for who reads what followed; see :meth:`History.restore`."""
        now_s = self._clock.monotonic_s()
        if not rows or (self._recorded_s is not None and now_s - self._recorded_s < _ALL_RECORDED_S):
            return
        self._recorded_s = now_s
        found: dict[str, list[str]] = {}
        for row in rows.values():
            found.setdefault(row["health"], []).append(row["hostname"])
        self._recorder.note("nodes", health=found)

    def _look_at_runs(self) -> None:
        """Tell of each start and each end since the last look, also of a run after which another one came."""
        for run_id, points in self._runs.take_points():
            now = self._clock.now()
            self.history.add_points(run_id, points, now)
            if points:
                self._pace.note(run_id, now, points[-1][0])
        for at, record in self._runs.take_records():
            before, self._run_seen = self._run_seen, record
            self._compare(before, record, at)
            step, _ = step_of(record["attempts"][-1]["step"]) if record["attempts"] else (None, None)
            has_points = bool(self.history.points) and self.history.points[-1]["run_id"] == record["run_id"]
            if step is not None and not has_points:  # the two are not told at the same time
                self._pace.note(record["run_id"], at, step)

    def _compare(self, before: dict[str, Any] | None, record: dict[str, Any], now: datetime) -> None:
        former = before["attempts"] if before is not None and before["run_id"] == record["run_id"] else []
        had_ended = {attempt["number"]: attempt["ended_at"] is not None for attempt in former}
        for attempt in record["attempts"]:
            number = attempt["number"]
            if number not in had_ended:
                self._tell_run(now, record, attempt, ended=False)
            if attempt["ended_at"] is not None and not had_ended.get(number, False):
                self._tell_run(now, record, attempt, ended=True)

    def _tell_run(self, at: datetime, record: dict[str, Any], attempt: dict[str, Any], *, ended: bool) -> None:
        change = RunChange(
            command=record["command"],
            attempt=attempt["number"],
            ended=ended,
            exit_status=attempt["exit_status"] if ended else None,
            why=attempt["what_followed"] if ended else "",
        )
        self.history.run_changed(at, change)
        self._recorder.note("run", **change)

    def _measured(self, node_id: str, row: NodeRow) -> Measure:
        answers = self._answered.get(node_id)
        lost = answers.count(False) if answers and node_id in self._lossy | self._silent else 0
        way = self._ways.get(row["overlay_ip"], {})
        return Measure(
            rtt_ms=self._rtts.get(node_id),
            loss=round(lost / len(answers), 3) if answers else None,
            received=way.get("received") or None,
            sent=way.get("sent") or None,
            received_now=self._rates.of(row["overlay_ip"], "received"),
            sent_now=self._rates.of(row["overlay_ip"], "sent"),
        )

    # the loops

    async def _follow(self) -> None:
        while True:
            self.look()
            await self._clock.sleep(_REST_S if self.feed.watched else _UNWATCHED_REST_S)
            await self.wakeup.wait(_LOOK_S if self.feed.watched else _UNWATCHED_LOOK_S)

    async def _measure(self) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)
        while True:
            self._ways = {way["overlay_ip"]: way for way in await self._overlay.ways()}
            self._rates.note(self._clock.monotonic_s(), self._ways.values())
            targets = {node_id: row["overlay_ip"] for node_id, row in self._rows.items()}
            targets.pop(self._node_id, None)
            if self._lease is not None and self._conditions.is_true("OverlayUp"):
                # Nobody pays by the byte for a page that nobody looks at.
                spared = frozenset() if self.feed.watched else self._board.facts.metered
                asked = {node_id: address for node_id, address in targets.items() if node_id not in spared}
                async with asyncio.TaskGroup() as tasks:
                    for node_id, address in asked.items():
                        tasks.create_task(self._ping(gate, node_id, IPv4Address(address)))
            else:
                self._rtts.clear()
                self._answered.clear()
                self._lossy.clear()
            for gone in self._answered.keys() - targets.keys():
                del self._answered[gone]
                self._rtts.pop(gone, None)
            self._silent &= targets.keys()
            self._lossy &= targets.keys()
            self._count_traffic()
            self.wakeup.set()
            rest_s = max(_MEASURE_S, len(targets) / _MOST_A_SECOND)
            self.feed.woken.clear()
            if self.feed.watched or not targets or self._doubts_a_relay():  # no targets: not known yet
                await self._clock.sleep(rest_s)
            else:
                with suppress(TimeoutError):
                    async with timeout(max(rest_s, _UNWATCHED_MEASURE_S)):
                        await self.feed.woken.wait()

    async def _ping(self, gate: asyncio.Semaphore, node_id: str, target: IPv4Address) -> None:
        async with gate:
            rtt_ms = await self._overlay.ping(target, _PING_TIMEOUT_S, payload_bytes=0)
        if node_id not in self._rows:  # it has left meanwhile
            return
        rounded = None if rtt_ms is None else round(rtt_ms, 1 if rtt_ms < 100 else None)
        answered = self._answered.setdefault(node_id, deque(maxlen=_LOSS_OF))
        if rounded is not None and node_id in self._silent:  # that was an outage, and is no loss
            while answered and not answered[-1]:
                answered.pop()
        answered.append(rounded is not None)
        if rounded is not None:
            self._silent.discard(node_id)
        elif self._unanswered(node_id) >= _SILENT_AFTER:
            self._silent.add(node_id)
        lost = answered.count(False) - self._unanswered(node_id)  # the newest may be the beginning of an outage
        if lost <= _LOSSY_UNTIL or node_id in self._silent:
            self._lossy.discard(node_id)
        elif lost >= _LOSSY_FROM:
            self._lossy.add(node_id)
        if rounded is not None or node_id in self._silent:
            self._rtts[node_id] = rounded
        self.history.rtt(node_id, self._clock.now(), rounded)

    def _unanswered(self, node_id: str) -> int:
        """Pings since the newest answer."""
        return sum(1 for _ in takewhile(not_, reversed(self._answered.get(node_id, ()))))

    def _doubts_a_relay(self) -> bool:
        """Whether one did not answer of late, and may only have lost a packet: of no other node it is an event."""
        found = (self._unanswered(node_id) for node_id, row in self._rows.items() if row["is_relay"])
        return any(0 < pings < _SILENT_AFTER for pings in found)

    def _count_traffic(self) -> None:
        """What crossed the overlay's device since the last look; a device that was made anew begins at 0."""
        counters, now_s = device_counters(self._config.overlay.device), self._clock.monotonic_s()
        before, self._counters = self._counters, None if counters is None else (now_s, *counters)
        if before is None or counters is None or counters[0] < before[1] or counters[1] < before[2]:
            return
        if (seconds := now_s - before[0]) > 0:
            self.history.traffic.append(
                TrafficSample(
                    n=self.history.next_n(),
                    at=self._clock.now().isoformat(timespec="seconds"),
                    received_bytes_per_s=round((counters[0] - before[1]) / seconds),
                    sent_bytes_per_s=round((counters[1] - before[2]) / seconds),
                )
            )

    async def _serve(self) -> None:
        """Listen on loopback, and on the overlay's address for as long as that is there."""
        async with self.page.running() as runner:
            sites = Sites(runner, self._config.web.port, self._clock, self._told_of, self.page.known)
            try:
                while True:
                    overlay = self._overlay_place()
                    await sites.follow([Place(LOOPBACK), *([] if overlay is None else [overlay])])
                    await self._clock.sleep(_LISTEN_S)
            finally:
                sites.close()

    def _told_of(self, place: Place, error: OSError | None) -> None:
        address, port = str(place.address), self._config.web.port
        if place.address == LOOPBACK:
            why = None if error is None else f"the page cannot listen on {address}:{port}: {error.strerror}"
            self._failure = why
        if error is not None:
            log.warning("web.not_listening", address=address, port=port, error=str(error))
        else:
            log.info("web.listening", address=address, port=port)

    def _overlay_place(self) -> Place | None:
        """Where the page is to listen beside loopback. A network that something else made may not be encrypted: the
        page does not go there."""
        config, lease = self._config, self._lease
        is_wanted = config.web.listen == "overlay" and config.overlay.kind == "easytier"
        if not is_wanted or lease is None or not self._conditions.is_true("OverlayUp"):
            return None
        device = config.overlay.device
        try:
            return Place(lease.overlay_ip, device, socket.if_nametoindex(device))
        except OSError:
            return None

    @property
    def _lease(self) -> Lease | None:
        running = self._board.facts.running
        return running.lease if running else None

    def _names(self) -> set[str]:
        """As the overlay's other machines know this one: their hosts file has the long name."""
        lease = self._lease
        return {str(lease.overlay_ip), lease.hostname, f"{lease.hostname}.{DOMAIN}"} if lease else set()


def _is_near(before: str | None, now: str | None) -> bool:
    """Whether two moments differ by no more than looks do."""
    if before is None or now is None:
        return False
    return abs((datetime.fromisoformat(now) - datetime.fromisoformat(before)).total_seconds()) < _NEAR_S


def device_counters(device: str, directory: Path = Path("/sys/class/net")) -> tuple[int, int] | None:
    """Bytes that a device has received and sent; None where there is none."""
    try:
        statistics = directory / device / "statistics"
        return int((statistics / "rx_bytes").read_text()), int((statistics / "tx_bytes").read_text())
    except (OSError, ValueError):
        return None

"""Ten minutes of outage are two lines of log: its beginning, and its end with its length."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import pytest
from registry_world import World
from structlog.testing import capture_logs

from edgelink.conditions import ConditionSet, Status
from edgelink.config import Config, Paths
from edgelink.daemon.edge import Edge
from edgelink.daemon.this_machine import ThisMachine
from edgelink.errors import RegistryUnavailableError
from edgelink.outage import Outage
from edgelink.protocol.keys import NodeKey
from edgelink.reconcile import Wakeup, run_reconciler
from edgelink.telemetry.dashboard import READY_CONDITIONS
from edgelink.testing import FakeClock, eventually
from edgelink.testing.registry_client import LoneClient


async def test_what_is_news_in_an_outage() -> None:
    """Each thing once; its length is from the first failure on; the next outage is another."""
    clock = FakeClock()
    outage = Outage(clock)
    assert outage.over() is None
    assert outage.is_news("refused")
    await clock.advance(20)
    assert not outage.is_news("refused")
    assert outage.is_news("timed out")
    await clock.advance(580)
    assert not outage.is_news("refused")
    assert outage.over() == 600.0
    assert outage.over() is None
    assert outage.is_news("refused")


class Failing:
    """Fails sixty times, saying it a little differently each time; then works. Ten seconds a try."""

    name: ClassVar[str] = "failing"
    condition: ClassVar[str] = "Done"

    def __init__(self, clock: FakeClock, error: type[Exception]) -> None:
        self.wakeup = Wakeup()
        self.tries = 0
        self._clock = clock
        self._error = error

    async def reconcile(self) -> float:
        self.tries += 1
        if self.tries > 60:
            return 1000.0
        await self._clock.advance(10)
        self.wakeup.set()
        raise self._error(f"no answer, try {self.tries}")


@pytest.mark.parametrize("error", [RegistryUnavailableError, ZeroDivisionError])
async def test_a_reconciler_tells_a_failure_once(error: type[Exception]) -> None:
    """Also one whose words differ at each try, and a defect of ours."""
    clock = FakeClock()
    failing = Failing(clock, error)
    with capture_logs() as logs:
        task = asyncio.ensure_future(run_reconciler(failing, ConditionSet(clock, ["Done"]), clock))
        await eventually(lambda: any(line["event"] == "failing.recovered" for line in logs))
        task.cancel()
    assert failing.tries == 61
    assert len(logs) == 2
    assert (logs[1]["event"], logs[1]["lasted_s"]) == ("failing.recovered", 590.0)


class Away:
    """A relay that does not answer for ten minutes, in the words that a dead machine has one after the other."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.tries = 0
        self._tries_at: Counter[str] = Counter()

    @asynccontextmanager
    async def connect(self, address: str, *_: Any, **__: Any) -> AsyncIterator[Any]:
        self.tries += 1
        if self._clock.monotonic_s() < 600:
            self._tries_at[address] += 1
            words = {1: "the connection is lost", 2: "Connection refused"}.get(self._tries_at[address], "timed out")
            raise RegistryUnavailableError(f"{address}: {words}")
        yield Silent()


class Silent:
    async def subscribe(self, *_: str) -> None: ...

    async def publish(self, *_: Any, **__: Any) -> None: ...

    async def messages(self) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield


async def test_the_registry_client_tells_an_outage_of_the_relay_once(tmp_path: Path) -> None:
    """Hundreds of tries, one line for the address where it was last, and one when it is back."""
    world = World(tmp_path)
    key, token = NodeKey.generate(), world.token()
    membership = world.membership(key, token, world.enrol(key, token))
    clock = FakeClock()
    relay = Away(clock)
    with capture_logs() as logs:
        client = LoneClient(membership, key, clock, transport=relay)
        task = asyncio.ensure_future(client.run())
        for _ in range(610):
            await clock.advance(1)
        await eventually(lambda: client.is_connected)
        task.cancel()
    assert relay.tries > 100
    told = [entry["event"] for entry in logs]
    assert told == ["registry.disconnected", "registry.connected"]
    assert 600 <= logs[-1]["away_s"] <= 610
    shown = [str(facts.session.error).rpartition(": ")[2] for facts in client.board.history]  # by the condition
    assert [words for words, _ in groupby(shown)] == [
        "None",
        "the connection is lost",
        "Connection refused",
        "timed out",
        "None",
    ]


def node(directory: Path, clock: FakeClock) -> Edge:
    paths = Paths(state=directory / "state", runtime=directory / "run")
    return Edge(Config(), paths, clock, ThisMachine(), None)


async def test_a_condition_that_wavers_is_logged_once_a_reason(tmp_path: Path) -> None:
    """Its message may change with every look, and its reason go back and forth."""
    clock = FakeClock()
    conditions = node(tmp_path, clock).base.conditions
    conditions.set_true("PeersReachable", "Reachable", "answering: relay")
    with capture_logs() as logs:
        for second in range(600):
            reason = "NobodyAnswers" if second % 2 else "PeerSilent"
            conditions.set_false("PeersReachable", reason, f"silent for {second} s")
            await clock.advance(1)
        conditions.set_true("PeersReachable", "Reachable", "answering: relay")
        conditions.set_true("PeersReachable", "Reachable", "answering: relay, head")
    assert [(entry["reason"], entry.get("lasted_s")) for entry in logs] == [
        ("PeerSilent", None),
        ("NobodyAnswers", None),
        ("Reachable", 600.0),
    ]


@pytest.mark.parametrize(
    ("down", "goes_on", "waits"),
    [
        (["RegistryConnected"], {"the overlay", "Ray"}, {"enrolment of new nodes, changes of members, status reports"}),
        (["RayJoined"], {"the overlay", "enrolment of new nodes, changes of members, status reports"}, {"Ray"}),
        (
            ["OverlayUp"],  # what PeersReachable said last is past
            {"enrolment of new nodes, changes of members, status reports"},
            {"the overlay", "Ray", "traffic with nodes that do not answer"},
        ),
    ],
)
async def test_a_degraded_node_says_what_goes_on_and_what_waits(
    tmp_path: Path, down: list[str], goes_on: set[str], waits: set[str]
) -> None:
    """A relay that is away does not stop training, and the status says so."""
    daemon = node(tmp_path, FakeClock())
    assert daemon.observation.status()["impact"] is None
    for kind in READY_CONDITIONS:
        daemon.base.conditions.set_true(kind, "Fine", "fine")
    assert daemon.observation.status()["impact"] is None
    for kind in down:
        daemon.base.conditions.set(kind, Status.FALSE, "Away", "away")
    told = daemon.observation.status()
    assert told["phase"] == "Degraded"
    assert goes_on <= set(told["impact"]["goes_on"])
    assert set(told["impact"]["waits"]) == waits

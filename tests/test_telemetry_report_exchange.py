"""`report --all`: who may ask, who can read, and what a broker in between can do."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from registry_world import World
from telling import refuses

from edgelink.api.server import Caller
from edgelink.errors import DeadlineError, UntrustedError, UsageError
from edgelink.protocol.keys import Kind, NodeKey, seal
from edgelink.protocol.payloads import Directory, Envelope, ReportReply, ReportRequest, Role
from edgelink.protocol.topics import Topics
from edgelink.telemetry import report_exchange
from edgelink.telemetry.report_exchange import Collect, ReportExchange, pack, unpack
from edgelink.testing import FakeClock, beside, eventually
from edgelink.testing.facts import board_with
from edgelink.timeouts import timeout

ROOT = Caller(1, 0, 0)


@dataclass
class Asked:
    """A request of the head's: what it signed, and what the nodes answer, one after the other."""

    request: bytes
    first: asyncio.Future[dict[str, Any]]
    rest: AsyncGenerator[dict[str, Any], None]


class Network:
    """The exchanges of a head and two edges; what one sends, the test hands on.

    A bench of the exchange alone: a broker that forges, repeats and keeps back is no machine of a :class:`sim.Sim`.
    """

    def __init__(self, directory: Path) -> None:
        world = World(directory)
        self.clock = FakeClock()
        self.error: Exception | None = None  # met by the next report that is made
        self.id = world.keys.network_id
        self.topics = Topics(self.id)
        self.sent: list[tuple[str, bytes]] = []
        self.keys = {}
        for name, role in (("cloud", Role.HEAD), ("edge-1", Role.EDGE), ("edge-2", Role.EDGE)):
            key, token = NodeKey.generate(), world.token(role)
            world.enrol(key, token, name, role=role)
            self.keys[name] = key
        self.directory = Directory.model_validate_json(world.authority.directory().body)
        self.nodes = {name: self._node(name) for name in self.keys}
        self.head, self.edge = self.nodes["cloud"], self.nodes["edge-1"]

    def collect(self, name: str) -> Collect:
        """What makes the report of this node."""

        def collect(since_s: float) -> Callable[[], dict[str, str]]:
            def files() -> dict[str, str]:
                error, self.error = self.error, None
                if error is not None:
                    raise error
                return {"about.json": f"{name}, {since_s:g} s"}

            return files

        return collect

    def _node(self, name: str) -> ReportExchange:
        return ReportExchange(
            key=self.keys[name],
            network_id=self.id,
            board=board_with(directory=self.directory),
            send=lambda topic, payload: self.sent.append((topic, payload)),
            clock=self.clock,
        )

    async def next_sent(self) -> tuple[str, bytes]:
        await eventually(lambda: self.sent)
        return self.sent.pop(0)

    async def asks(self, **body: Any) -> Asked:
        """The head asks for reports."""
        rest = cast("AsyncGenerator[dict[str, Any], None]", self.head.gather(ROOT, body))
        first = asyncio.ensure_future(anext(rest))
        topic, request = await self.next_sent()
        assert topic == self.topics.report_request
        return Asked(request, first, rest)

    async def reply(self, name: str, request: bytes) -> bytes:
        """A node gets a request; what it sends."""
        self.nodes[name].take_request(request)
        topic, reply = await self.next_sent()
        assert topic == self.topics.report(self.keys[name].node_id)
        return reply

    async def answers(self, name: str, request: bytes) -> None:
        """The same, and the head gets it."""
        self.head.take_reply(self.keys[name].node_id, await self.reply(name, request))

    def request(self, signer: str, **changes: Any) -> bytes:
        fields = {
            "network_id": self.id,
            "request_id": "a" * 32,
            "since_s": 60.0,
            "made_at": self.clock.now(),
            **changes,
        }
        return self.keys[signer].sign(Kind.REPORT_REQUEST, ReportRequest(**fields)).model_dump_json().encode()


def request_id_of(message: bytes) -> str:
    return str(json.loads(Envelope.model_validate_json(message).body)["request_id"])


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    network = Network(tmp_path)
    async with beside(*(node.run(network.collect(name)) for name, node in network.nodes.items())):
        yield network


async def test_the_head_gathers_what_every_node_answers(network: Network) -> None:
    """One that is silent is named at the end; the request tells how far back."""
    asked = await network.asks(since_s=600)
    for name in ("edge-1", "edge-2"):
        reply = await network.reply(name, asked.request)
        assert b"600 s" not in reply, "the broker cannot read it"
        network.head.take_reply(network.keys[name].node_id, reply)
    got = [await asked.first, await anext(asked.rest)]
    assert [(part["hostname"], part["files"]) for part in got] == [
        ("edge-1", {"about.json": "edge-1, 600 s"}),
        ("edge-2", {"about.json": "edge-2, 600 s"}),
    ]
    await asked.rest.aclose()
    with pytest.raises(UsageError):
        await anext(network.head.gather(Caller(1, 1000, 1000), {}))


async def test_one_node_alone_may_be_asked(network: Network) -> None:
    """A log of one is not worth the reports of five hundred."""
    asked = await network.asks(hostname="edge-2")
    network.edge.take_request(asked.request)
    await network.answers("edge-2", asked.request)
    assert (await asked.first)["hostname"] == "edge-2"
    assert await anext(asked.rest) == {"missing": []}
    assert network.sent == []


async def test_two_may_ask_at_once_for_what_each_wants(network: Network) -> None:
    """Each gets the answer to his own request; of one node two would get one answer, so the second is told."""
    begun = {name: await network.asks(hostname=name) for name in ("edge-1", "edge-2")}
    with refuses(DeadlineError, "0 s", "30 s", reason="AskedJustNow") as refused:
        await anext(network.head.gather(ROOT, {}))
    assert "30 s" in refused.value.hint
    for name in ("edge-2", "edge-1"):
        await network.answers(name, begun[name].request)
        assert (await begun[name].first)["hostname"] == name
        assert await anext(begun[name].rest) == {"missing": []}
    await network.clock.advance(31)
    (await network.asks()).first.cancel()


async def test_one_that_was_asked_just_now_keeps_nobody_elses_report(network: Network) -> None:
    """Somebody reads its log again and again."""
    following = await network.asks(hostname="edge-1")
    await network.clock.advance(10)
    asked = await network.asks()
    await network.answers("edge-2", asked.request)
    assert (await asked.first)["hostname"] == "edge-2"
    await asked.rest.aclose()
    following.first.cancel()
    # That it was asked in vain does not put off when it may be asked again.
    await network.clock.advance(21)
    (await network.asks(hostname="edge-1")).first.cancel()


async def test_whoever_takes_the_reports_may_take_his_time(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's patience is with the nodes; it does not interrupt the one to whom it hands their files."""
    waits: list[float | None] = []

    @asynccontextmanager
    async def observed(timeout_s: float | None) -> AsyncIterator[None]:
        waits.append(timeout_s)
        try:
            async with timeout(timeout_s):
                yield
        finally:
            waits.pop()

    monkeypatch.setattr(report_exchange, "timeout", observed)
    asked = await network.asks()
    assert waits, "it waits for the nodes, with a time-out"
    await network.answers("edge-1", asked.request)
    assert (await asked.first)["hostname"] == "edge-1"
    assert not waits
    await network.clock.advance(3600)
    assert await anext(asked.rest) == {"missing": ["edge-2"]}


async def test_nobody_but_the_head_is_answered(network: Network) -> None:
    """Neither another node, nor the head of another network; and an old request is answered once only."""
    edge = network.edge
    with pytest.raises(UntrustedError):
        edge.take_request(network.request("edge-2"))
    with pytest.raises(UntrustedError):
        edge.take_request(network.request("cloud", network_id="another"))
    for _ in range(20):  # a broker that plays it again
        edge.take_request(network.request("cloud"))
    await network.next_sent()
    assert network.sent == []
    await network.clock.advance(31)
    edge.take_request(network.request("cloud"))  # and again: it keeps nobody from asking
    edge.take_request(network.request("cloud", request_id="b" * 32))
    _, reply = await network.next_sent()
    assert request_id_of(reply) == "b" * 32
    assert network.sent == []


@pytest.mark.parametrize("age", [timedelta(minutes=11), timedelta(minutes=-11)])
async def test_a_request_of_another_time_is_not_answered(network: Network, age: timedelta) -> None:
    """It does not keep the node from answering a true one, either."""
    edge = network.edge
    with pytest.raises(UntrustedError):
        edge.take_request(network.request("cloud", made_at=network.clock.now() - age))
    edge.take_request(network.request("cloud", request_id="b" * 32))
    await network.next_sent()


async def test_a_board_whose_clock_was_never_set_answers_once(network: Network) -> None:
    """It cannot tell how old a request is; which it has answered, it can."""
    made_at = network.clock.now()
    network.clock.step_wall_clock(-timedelta(days=20_000).total_seconds())
    edge = network.edge
    edge.take_request(network.request("cloud", made_at=made_at))
    await network.next_sent()
    await network.clock.advance(31)
    edge.take_request(network.request("cloud", made_at=made_at))
    edge.take_request(network.request("cloud", made_at=made_at, request_id="b" * 32))
    _, reply = await network.next_sent()
    assert request_id_of(reply) == "b" * 32


async def test_a_report_that_cannot_be_made_ends_nothing(network: Network) -> None:
    """Whatever lies where a log is read: the daemon goes on, and answers the next request."""
    edge = network.edge
    network.error = NotADirectoryError("session_latest")
    edge.take_request(network.request("cloud"))
    await eventually(lambda: network.error is None)
    await network.clock.advance(31)
    edge.take_request(network.request("cloud", request_id="b" * 32))
    await network.next_sent()


async def test_an_answer_counts_only_as_its_nodes_own(network: Network) -> None:
    """Signed by another node, for another request, or on another's topic: it is not taken."""
    head, asked = network.head, await network.asks()
    true_reply = await network.reply("edge-1", asked.request)
    one, two = network.keys["edge-1"].node_id, network.keys["edge-2"].node_id
    with pytest.raises(UntrustedError):
        head.take_reply(two, true_reply)
    for request_id, node_id in (("b" * 32, two), (request_id_of(asked.request), one)):
        forged = ReportReply(request_id=request_id, node_id=node_id, sealed="")
        envelope = network.keys["edge-2"].sign(Kind.REPORT, forged).model_dump_json().encode()
        if node_id == one:
            with pytest.raises(UntrustedError):
                head.take_reply(one, envelope)
        else:
            head.take_reply(two, envelope)
    head.take_reply(one, true_reply)
    assert (await asked.first)["hostname"] == "edge-1"
    await asked.rest.aclose()


async def test_each_node_answers_once_and_a_bad_answer_is_refused(network: Network) -> None:
    """A node that was taken over: nested JSON for the parser, the same again and again; the others are heard."""
    head, key, asked = network.head, network.keys["edge-1"], await network.asks()

    def answer(packed: bytes) -> bytes:
        sealed = seal(network.keys["cloud"].verify_key_b64, packed)
        reply = ReportReply(request_id=request_id_of(asked.request), node_id=key.node_id, sealed=sealed)
        return key.sign(Kind.REPORT, reply).model_dump_json().encode()

    head.take_reply(key.node_id, answer(gzip.compress(b"[" * 1_000_000)))
    head.take_reply(key.node_id, answer(pack({"about.json": "once more"})))
    await network.answers("edge-2", asked.request)
    assert (await asked.first)["hostname"] == "edge-2"
    head.take_reply(key.node_id, answer(pack({"about.json": "once more"})))
    rest = asyncio.ensure_future(anext(asked.rest))
    await network.clock.advance(0)
    assert not rest.done(), "edge-1 is not heard a second time"
    rest.cancel()
    await asyncio.wait([rest])


def test_what_is_too_long_loses_its_beginnings() -> None:
    """The end of a log is what one wants to see; short texts stay whole."""
    noise = random.Random(1)
    log = "".join(noise.choice("0123456789abcdef") for _ in range(400_000))
    packed = pack({"big.log": log, "about.json": "short"}, 50_000)
    assert len(packed) <= 50_000
    files = unpack(packed)
    assert files["about.json"] == "short"
    assert log.endswith(files["big.log"].removeprefix("…"))
    assert len(files["big.log"]) > 40_000


def test_what_is_sent_can_be_read() -> None:
    """Text that compresses well is cut to what the head is ready to unpack."""
    files = unpack(pack({"flight.jsonl": "a" * 20_000_000 + "z"}))
    assert files["flight.jsonl"].endswith("aaaz")


@pytest.mark.parametrize(
    "packed",
    [
        b"no gzip",
        pack({"../../etc/cron.d/x": ""}),
        pack({"/etc/passwd": ""}),
        pack({"x" * 5000: ""}),
        pack({"a\nb": ""}),
        pack({"\ud800": ""}),
        pack({str(number): "" for number in range(5000)}),
        gzip.compress(b'{"a": {"b": "c"}}'),
        gzip.compress(b"[" * 1_000_000),
        gzip.compress(b'{"a": "' + b"x" * 20_000_000 + b'"}'),
    ],
    ids=["no gzip", "..", "/", "long", "line", "surrogate", "many", "nested", "deep", "big"],
)
def test_a_report_writes_nothing_outside_of_itself(packed: bytes) -> None:
    """A node that was taken over may send what it likes; nothing of it gets further, and the head goes on."""
    with pytest.raises(UntrustedError):
        unpack(packed)

"""The relay knocks at a node's public side: for members only, at the address that they are seen from, once a minute."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import closing
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from telling import refuses

from edgelink.clock import SystemClock
from edgelink.conditions import ConditionSet
from edgelink.config import Config
from edgelink.errors import UntrustedError, UsageError
from edgelink.overlay import knock
from edgelink.overlay.knock import Knock, KnockAnswer, KnockError, ask_relay
from edgelink.overlay.stun_server import StunServer
from edgelink.process.ports import Listener
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.payloads import Envelope
from edgelink.relay.knocker import MOST_AT_ONCE, PER_NODE_S, Knocker, Source, dial
from edgelink.shield.outside_view import asked_ports, one_a_host
from edgelink.testing import FakeClock, eventually

NETWORK, OVERLAY = "n" * 16, IPv4Network("10.10.0.0/24")
NODE, RELAY, STRANGER = NodeKey.generate(), NodeKey.generate(), NodeKey.generate()
HOME: Source = ("198.51.100.6", 40000)
KNOWN = {NODE.node_id: NODE.verify_key_b64}


class Bench:
    """A relay of which the test sees what it sends and where it dials."""

    def __init__(self, known: dict[str, str] | None = None) -> None:
        self.clock = FakeClock()
        self.dialled: list[tuple[str, int]] = []
        self.sent: list[bytes] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.knocker = Knocker(
            key=RELAY,
            network_id=NETWORK,
            overlay=OVERLAY,
            verify_key_of=(KNOWN if known is None else known).get,
            clock=self.clock,
            dial=self.dial,
        )

    async def dial(self, address: str, port: int) -> bool | None:
        self.dialled.append((address, port))
        await self.goes_on.wait()
        return {22: True, 80: None}.get(port, False)

    def receive(self, data: bytes, source: Source = HOME) -> None:
        self.knocker.received(data, source, self.sent.append)

    def cookie(self, source: Source = HOME) -> str:
        self.receive(knock.message(knock.HELLO, b"n" * 16), source)
        kind, body = knock.parsed(self.sent.pop()) or (b"", b"")
        assert (kind, body[:16]) == (knock.COOKIE, b"n" * 16)
        return body[16:].hex()

    def request(
        self,
        cookie: str,
        *,
        key: NodeKey = NODE,
        nonce: int = 1,
        ports: Sequence[int] = (22, 80, 6379),
        network: str = NETWORK,
    ) -> bytes:
        payload = Knock(
            network_id=network, node_id=key.node_id, cookie=cookie, nonce=f"{nonce:032x}", ports=tuple(ports)
        )
        return knock.message(knock.REQUEST, key.sign(Kind.KNOCK, payload).model_dump_json().encode())

    def answers(self) -> list[KnockAnswer]:
        found = [knock.parsed(data) for data in self.sent]
        envelopes = [Envelope.model_validate_json(body) for kind, body in filter(None, found) if kind == knock.ANSWER]
        return [open_envelope(e, Kind.KNOCK_ANSWER, KnockAnswer, RELAY.verify_key_b64) for e in envelopes]

    async def answer(self) -> KnockAnswer:
        await eventually(self.answers)
        return self.answers()[-1]


async def test_a_member_learns_what_answers_at_its_own_address() -> None:
    """Open, refused and silent are told apart; nobody else is dialled."""
    bench = Bench()
    bench.receive(bench.request(bench.cookie()))
    found = await bench.answer()
    assert (found.address, found.open, found.silent) == (IPv4Address(HOME[0]), (22,), (80,))
    assert sorted(bench.dialled) == [(HOME[0], 22), (HOME[0], 80), (HOME[0], 6379)]


async def test_nobody_is_dialled_for_who_may_not_ask() -> None:
    """No lease, another network, a forged signature, another's cookie, an old cookie, none: no packet at all."""
    bench = Bench()
    cookie = bench.cookie()
    bench.receive(bench.request(cookie, key=STRANGER))
    bench.receive(bench.request(cookie, network="m" * 16))
    bench.receive(bench.request(cookie).replace(b"6379", b"6380"))
    bench.receive(bench.request(cookie), ("203.0.113.77", 40000))
    bench.receive(bench.request(cookie), (HOME[0], 40001))
    bench.receive(bench.request("0" * 32))
    as_another = Knock(network_id=NETWORK, node_id=STRANGER.node_id, cookie=cookie, nonce="0" * 32, ports=(1,))
    bench.receive(knock.message(knock.REQUEST, NODE.sign(Kind.KNOCK, as_another).model_dump_json().encode()))
    await bench.clock.advance(61)
    bench.receive(bench.request(cookie))
    await asyncio.sleep(0)
    assert (bench.dialled, bench.sent) == ([], [])
    bench.receive(bench.request(bench.cookie()))
    await bench.answer()
    assert bench.dialled


async def test_a_lost_answer_is_sent_again_without_another_knock() -> None:
    """The same request, played again by anybody at that address, costs one packet."""
    bench = Bench()
    bench.goes_on.clear()
    request = bench.request(bench.cookie())
    bench.receive(request)
    await eventually(lambda: bench.dialled)
    bench.receive(request)
    assert bench.sent == []
    bench.goes_on.set()
    await bench.answer()
    bench.receive(request)
    assert len(bench.answers()) == 2
    assert len(bench.dialled) == 3


async def test_once_a_minute() -> None:
    """What comes sooner is told so."""
    bench = Bench()
    bench.receive(bench.request(bench.cookie()))
    await bench.answer()
    bench.receive(bench.request(bench.cookie(), nonce=2))
    assert (await bench.answer()).refused
    assert len(bench.dialled) == 3
    await bench.clock.advance(PER_NODE_S + 1)
    bench.receive(bench.request(bench.cookie(), nonce=3))
    await eventually(lambda: len(bench.dialled) == 6)


async def test_few_at_once() -> None:
    """A whole fleet that asks at the same moment does not make a scanner of the relay."""
    keys = [NodeKey.generate() for _ in range(MOST_AT_ONCE + 1)]
    bench = Bench({key.node_id: key.verify_key_b64 for key in keys})
    bench.goes_on.clear()
    for key in keys:
        bench.receive(bench.request(bench.cookie(), key=key))
    assert "others" in (await bench.answer()).refused
    bench.goes_on.set()
    await eventually(lambda: len(bench.answers()) == len(keys))
    bench.knocker.close()


async def test_a_request_over_the_overlay_shows_nothing_of_the_outside() -> None:
    """The relay would find all that the overlay may reach."""
    bench, inside = Bench(), ("10.10.0.3", 40000)
    bench.receive(bench.request(bench.cookie(inside)), inside)
    assert "overlay" in (await bench.answer()).refused
    assert bench.dialled == []


async def test_a_hello_gets_no_more_than_it_brings() -> None:
    """Whoever forges addresses gains nothing by it."""
    bench = Bench()
    hello = knock.message(knock.HELLO, b"n" * 16)
    bench.receive(hello[: knock.HELLO_BYTES - 1])
    assert bench.sent == []
    bench.receive(hello)
    assert len(bench.sent[0]) <= len(hello)
    biggest = bench.request("0" * 32, ports=range(65535 - knock.MAX_PORTS, 65535))
    assert len(biggest) < 1400, "fits into one packet"


@given(st.binary(max_size=300), st.sampled_from([b"", *(knock.MAGIC + kind for kind in (b"?", b"!", b"=", b"."))]))
def test_noise_is_ignored(noise: bytes, prefix: bytes) -> None:
    """Whatever comes by UDP ends nothing."""
    dialled: list[int] = []

    async def never(_address: str, port: int) -> bool:
        dialled.append(port)
        return True

    knocker = Knocker(
        key=RELAY, network_id=NETWORK, overlay=OVERLAY, verify_key_of=KNOWN.get, clock=FakeClock(), dial=never
    )
    knocker.received(prefix + noise, HOME, lambda _: None)
    assert dialled == []


async def test_over_udp_with_a_real_relay() -> None:
    """From the node's question to its answer, beside STUN on the same port; a lie about who signed is found."""
    clock = SystemClock()
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        knocker = Knocker(
            key=RELAY, network_id=NETWORK, overlay=OVERLAY, verify_key_of=KNOWN.get, clock=clock, dial=dial
        )
        conditions = ConditionSet(clock, [], [StunServer.condition])
        server = StunServer([port], conditions, clock, others=knocker.received, host="127.0.0.1")
        await server.reconcile()
        try:
            wanted = [listening.getsockname()[1], port]  # nobody listens on TCP there

            async def ask(relays: dict[str, str]) -> KnockAnswer:
                return await ask_relay(
                    f"127.0.0.1:{port}", wanted, key=NODE, network_id=NETWORK, relay_keys=relays.get, clock=clock
                )

            found = await ask({RELAY.node_id: RELAY.verify_key_b64})
            assert (str(found.address), found.open, found.silent) == ("127.0.0.1", (wanted[0],), ())
            with refuses(KnockError, f"127.0.0.1:{port}"):
                await ask({RELAY.node_id: RELAY.verify_key_b64})
            with refuses(UntrustedError, RELAY.node_id):
                await ask({STRANGER.node_id: STRANGER.verify_key_b64})
        finally:
            knocker.close()
            server.close()


async def test_a_relay_that_is_older_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers STUN, and drops what is none."""
    monkeypatch.setattr(knock, "_COOKIE_WITHIN_S", 0.2)
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as silent:
        silent.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        with refuses(KnockError, server):
            await ask_relay(server, [1], key=NODE, network_id=NETWORK, relay_keys=KNOWN.get, clock=SystemClock())


def listeners(*numbers: int) -> list[Listener]:
    return [Listener(port, None, "", 0) for port in numbers]


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
async def test_a_relay_at_what_can_be_no_name_keeps_nobody_from_the_next(host: str) -> None:
    """A relay says itself where it is dialled; who asks several goes on at this error."""
    with refuses(KnockError, f"{host}:3478"):
        await ask_relay(f"{host}:3478", [80], key=NODE, network_id=NETWORK, relay_keys=KNOWN.get, clock=SystemClock())


def test_what_is_asked_about() -> None:
    """What was wanted first, then EdgeLink's and Ray's and what often answers, then what listens here."""
    asked, not_asked = asked_ports(Config(), [7777], listeners(50000, 50001), [(50000, 50099)])
    assert asked[0] == 7777
    assert {11010, 15888, 6379, 8265, 20001, 22, 29500, 50000, 50001} <= set(asked)
    assert not_asked == []
    for wrong in ([0], [70000], list(range(1, knock.MAX_PORTS + 2))):
        with pytest.raises(UsageError):
            asked_ports(Config(), wrong, [], [])


def test_many_workers_of_ray_do_not_keep_out_the_trainings_listeners() -> None:
    """One knock has room for some of them, from all over their ports; what it has none for is told."""
    config = Config.model_validate({"ray": {"min_worker_port": 20100, "max_worker_port": 20999}})
    workers = range(20100, 20300)
    asked, not_asked = asked_ports(config, [], listeners(*workers, 29511, 40001, 2222), [(29400, 59999)])
    assert len(asked) == len(set(asked)) == knock.MAX_PORTS
    assert {29511, 40001, 2222} <= set(asked)
    tried = [port for port in asked if port in workers]
    assert (tried[0], tried[-1] > 20290) == (20100, True)
    assert sorted([*tried, *not_asked]) == list(workers)


def test_who_names_many_ports_is_told_what_they_push_out() -> None:
    """EdgeLink's own among them."""
    asked, not_asked = asked_ports(Config(), range(1000, 1064), listeners(20100), [])
    assert asked == list(range(1000, 1064))
    assert {15888, 6379, 20100} <= set(not_asked)


def test_one_server_a_relay() -> None:
    """Each answers on two ports."""
    assert one_a_host(["a:3478", "a:3479", "b:3478"]) == ["a:3478", "b:3478"]

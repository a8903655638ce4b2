"""The echo: its packets, the process that answers, and what an answer says of the way and of the clocks."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgelink.overlay.echo import Challenge, Echo, PeerClock, ask
from edgelink.overlay.echo_proof import Asker, Identity, Proof
from edgelink.overlay.echo_wire import PORT, Answer, Question, parse_answer, parse_question
from edgelink.protocol.keys import NodeKey

questions = st.builds(Question, st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1), st.binary(max_size=64))


@given(questions, st.integers(0, 1400), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_packets_say_what_was_put_into_them(question: Question, length: int, received: int, answered: int) -> None:
    packet = question.pack(length)
    assert parse_question(packet) == question
    assert parse_answer(packet) is None
    answer = Answer(question, received, answered).pack(len(packet))
    assert len(answer) == len(packet), "an answer is never longer than its question"
    assert parse_answer(answer) == Answer(question, received, answered)
    assert parse_question(answer) is None


@given(st.binary(max_size=200))
def test_any_other_packet_is_neither(packet: bytes) -> None:
    assert parse_question(packet) is None
    assert parse_answer(packet) is None


@given(questions)
def test_a_packet_that_was_cut_is_neither(question: Question) -> None:
    packet = question.pack()
    assert parse_question(packet[:-1]) is None


NAME = UUID(int=7)


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("state") / "node.key"
    NodeKey.load_or_create(path)
    return path


def _command(address: str, device: str, network: str, key_file: Path) -> list[str]:
    words = [address, device, network, str(key_file), str(NAME)]
    return [sys.executable, "-I", "-m", "edgelink.overlay.echo_responder", *words]


def _responder(address: str, device: str, network: str, key_file: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(_command(address, device, network, key_file), stderr=subprocess.PIPE)


@pytest.fixture(scope="module")
def served(key_file: Path) -> Iterator[IPv4Address]:
    """An address of this machine's own where echoes are answered, as on a device ``lo`` of the network 127.0.0.0/8."""
    address = IPv4Address(f"127.{random.randrange(2, 250)}.{random.randrange(250)}.{random.randrange(2, 250)}")
    with _responder(str(address), "lo", "127.0.0.0/8", key_file) as process:

        async def wait() -> None:
            while (echo := await ask(None, address, 1)) is None or echo.is_refusal:
                assert process.poll() is None, process.communicate()
                await asyncio.sleep(0.02)

        try:
            asyncio.run(wait())
            yield address
        finally:
            process.kill()


@pytest.mark.processes
async def test_an_echo_says_how_long_it_took_and_how_the_clocks_stand(served: IPv4Address) -> None:
    echo = await ask(IPv4Address("127.0.0.9"), served, 5, device="lo")
    assert echo is not None
    assert not echo.is_refusal
    assert echo.there_ms is not None
    assert echo.back_ms is not None
    assert 0 < echo.rtt_ms < 5000
    assert echo.there_ms + echo.back_ms <= echo.rtt_ms + 1, "the same clock on both sides: the two ways, and no more"
    assert abs(echo.offset_ms or 0) <= echo.rtt_ms


@pytest.mark.processes
@pytest.mark.parametrize("payload_bytes", [0, 1252, 9000])
async def test_full_packets_are_answered_by_full_packets(served: IPv4Address, payload_bytes: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.settimeout(5)
        packet = Question(7, 1).pack(payload_bytes)
        end.sendto(packet, (str(served), PORT))
        assert len(end.recv(65536)) == len(packet)


@pytest.mark.processes
async def test_the_node_proves_itself_with_its_first_answer(served: IPv4Address, key_file: Path) -> None:
    asker = Asker()
    identity = Identity(NodeKey.load(key_file).verify_key_b64, NAME)
    for _ in range(2):
        echo = await ask(IPv4Address("127.0.0.9"), served, 5, challenge=Challenge(asker, identity))
        assert echo is not None
        assert echo.proof is Proof.PROVEN
    another = Identity(NodeKey.generate().verify_key_b64, NAME)
    echo = await ask(IPv4Address("127.0.0.9"), served, 5, challenge=Challenge(asker, another))
    assert echo is not None
    assert echo.proof is Proof.WRONG


@pytest.mark.processes
async def test_one_started_anew_proves_itself_in_the_same_question(key_file: Path) -> None:
    address = IPv4Address(f"127.{random.randrange(2, 250)}.{random.randrange(250)}.{random.randrange(2, 250)}")
    challenge = Challenge(Asker(), Identity(NodeKey.load(key_file).verify_key_b64, NAME))
    for _ in range(2):
        with _responder(str(address), "lo", "127.0.0.0/8", key_file) as process:
            try:
                while (echo := await ask(None, address, 1, challenge=challenge)) is None or echo.is_refusal:
                    assert process.poll() is None, process.communicate()
                    await asyncio.sleep(0.02)
                assert echo.proof is Proof.PROVEN
            finally:
                process.kill()


@pytest.mark.processes
def test_a_responder_without_its_nodes_key_says_so(tmp_path: Path) -> None:
    command = _command("127.0.0.8", "lo", "127.0.0.0/8", tmp_path / "node.key")
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert f"{tmp_path}/node.key" in done.stderr


@pytest.mark.processes
async def test_what_is_no_question_is_not_answered(served: IPv4Address) -> None:
    """Nor does it end the process: the question behind it is answered, and only that one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.settimeout(5)
        for packet in (b"", b"x" * 100, Answer(Question(1, 1), 2, 3).pack(0)):
            end.sendto(packet, (str(served), PORT))
        end.sendto(Question(42, 1).pack(), (str(served), PORT))
        answer = parse_answer(end.recv(65536))
        assert answer is not None
        assert answer.question.nonce == 42


@pytest.mark.processes
def test_the_responder_names_a_taken_port(served: IPv4Address, key_file: Path) -> None:
    command = _command(str(served), "lo", "127.0.0.0/8", key_file)
    second = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 1
    assert f"udp port {PORT} of {served}: Address already in use" in second.stderr


@pytest.mark.processes
@pytest.mark.parametrize(("device", "network"), [("no-such-dev", "127.0.0.0/8"), ("lo", "10.77.0.0/24")])
async def test_only_the_overlays_device_and_network_are_answered(device: str, network: str, key_file: Path) -> None:
    """A packet that came another way is dropped without a word, so that a neighbour learns nothing."""
    address = f"127.{random.randrange(2, 250)}.{random.randrange(250)}.{random.randrange(2, 250)}"
    with _responder(address, device, network, key_file) as process:
        try:
            while (echo := await ask(None, IPv4Address(address), 0.2)) is not None:
                assert echo.is_refusal, "not bound yet"
            assert process.poll() is None
        finally:
            process.kill()


async def test_a_machine_without_the_process_refuses_which_is_an_answer() -> None:
    address = IPv4Address(f"127.{random.randrange(2, 250)}.250.250")
    echo = await ask(None, address, 5)
    assert echo is not None
    assert echo.is_refusal
    assert echo.offset_ms is None


async def test_an_answer_to_another_question_is_not_believed() -> None:
    """Who does not see the question cannot answer it, but for one chance in 2**64."""
    address = f"127.{random.randrange(2, 250)}.251.{random.randrange(2, 250)}"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as liar:
        liar.bind((address, PORT))

        async def lie() -> None:
            packet, asker = await asyncio.get_running_loop().sock_recvfrom(liar, 4096)
            question = parse_question(packet)
            assert question is not None
            liar.sendto(Answer(Question(question.nonce ^ 1, question.asked_ns), 1, 1).pack(0), asker)

        task = asyncio.ensure_future(lie())
        assert await ask(None, IPv4Address(address), 0.3) is None
        await task


async def test_from_an_address_that_is_not_ours_nothing_is_asked() -> None:
    assert await ask(IPv4Address("192.0.2.7"), IPv4Address("127.0.0.1"), 0.1) is None
    assert await ask(None, IPv4Address("127.0.0.1"), 0.1, device="no-such-dev") is None


def test_the_quickest_exchange_sets_the_clock() -> None:
    """5 s apart; a queue on the way back of most exchanges would move the middle by its half."""
    clock = PeerClock()
    assert clock.offset_ms is None
    assert clock.one_way_ms(Echo(40.0, 5020.0, -4980.0)) is None
    clock.note(Echo(240.0, 5020.0, -4780.0))
    clock.note(Echo(40.0, 5020.0, -4980.0))
    clock.note(Echo(440.0, 5020.0, -4580.0))
    clock.note(Echo(1.0))
    assert clock.offset_ms == 5000.0
    assert clock.one_way_ms(Echo(240.0, 5020.0, -4780.0)) == (20.0, 220.0)

"""A program that another node asks for: what is believed, and how it runs. Without root, network or a daemon."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from edgelink.config.models import ExecConfig
from edgelink.errors import UntrustedError
from edgelink.launch import remote_channel as channel
from edgelink.launch.remote_channel import Frames, Seal
from edgelink.launch.remote_program import ConnectionLostError, RemoteProgram, RemoteProgramError
from edgelink.launch.remote_request import ExecHello, ExecRequest, accepts, askers, open_hello, open_request
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.payloads import Directory, DirectoryEntry, Envelope, Role

NETWORK = "n" * 26
HEAD, EDGE, OTHER, NAMED_HEAD = (NodeKey.generate() for _ in range(4))
ASKER_KEY = b64encode(b"a" * 32).decode()


def entry(key: NodeKey, name: str, role: Role, number: int) -> DirectoryEntry:
    return DirectoryEntry(
        node_id=key.node_id,
        hostname=name,
        role=role,
        overlay_ip=IPv4Address(f"10.10.0.{number}"),
        preferred_rank=None,
        verify_key=key.verify_key_b64,
    )


ENTRIES = (
    entry(HEAD, "cloud", Role.HEAD, 2),
    entry(EDGE, "edge-1", Role.EDGE, 3),
    entry(OTHER, "edge-2", Role.EDGE, 4),
    entry(NAMED_HEAD, "head", Role.EDGE, 5),  # which is no head for that
)


def hello(key: NodeKey = EDGE, **changes: Any) -> ExecHello:
    values = {"network_id": NETWORK, "node_id": key.node_id, "challenge": secrets.token_hex(32), "key": ASKER_KEY}
    return ExecHello(**{**values, **changes})


def request(answers: ExecHello, signer: NodeKey = HEAD, **changes: Any) -> Envelope:
    values = {
        "network_id": answers.network_id,
        "node_id": answers.node_id,
        "challenge": answers.challenge,
        "node_key": answers.key,
        "asker_key": ASKER_KEY,
        "argv": ("true",),
    }
    return signer.sign(Kind.EXEC_REQUEST, ExecRequest(**{**values, **changes}))


def test_a_request_is_good_on_its_own_connection() -> None:
    told = hello()
    assert open_request(request(told), ENTRIES[0], told, ASKER_KEY).argv == ("true",)


@pytest.mark.parametrize(
    "changes",
    [
        {"challenge": "0" * 64},  # one that was recorded before
        {"node_id": OTHER.node_id},  # one for another node
        {"network_id": "m" * 26},
        {"node_key": b64encode(b"x" * 32).decode()},
        {"asker_key": b64encode(b"y" * 32).decode()},  # somebody between the two has put his own key in
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_request_for_anything_else_is_refused(changes: dict[str, str]) -> None:
    told = hello()
    with pytest.raises(UntrustedError):
        open_request(request(told, **changes), ENTRIES[0], told, ASKER_KEY)


@pytest.mark.parametrize("changes", [{"argv": ()}, {"connections": {"ports": [50051]}}], ids=["nothing", "both"])
def test_a_request_asks_for_one_thing(changes: dict[str, Any]) -> None:
    """A node that took one of two would do what the other end did not mean."""
    with pytest.raises(ValueError, match="one thing"):
        request(hello(), **changes)


def test_a_request_that_another_node_signed_is_refused() -> None:
    told = hello()
    with pytest.raises(UntrustedError):
        open_request(request(told, OTHER), ENTRIES[0], told, ASKER_KEY)


@pytest.mark.parametrize(
    "told",
    [
        OTHER.sign(Kind.EXEC_HELLO, hello(OTHER)),
        OTHER.sign(Kind.EXEC_HELLO, hello()),
        EDGE.sign(Kind.EXEC_HELLO, hello(network_id="m" * 26)),
        EDGE.sign(Kind.KNOCK, hello()),
    ],
    ids=["another node", "in its name", "another network", "another kind"],
)
def test_whoever_else_says_hello_gets_no_request(told: Envelope) -> None:
    """Else the one who answers at the node's address could have what was meant for the node."""
    with pytest.raises(UntrustedError):
        open_hello(told, ENTRIES[1], NETWORK)


@pytest.mark.parametrize(
    ("accept", "allowed"),
    [("from head", {"cloud"}), ("off", set()), ("from edge-2", {"edge-2"}), ("from head edge-2", {"cloud", "edge-2"})],
)
def test_each_node_says_whose_programs_it_runs(accept: str, allowed: set[str]) -> None:
    config = ExecConfig(accept=accept)
    assert {each.hostname for each in ENTRIES if accepts(config, each)} == allowed
    directory = Directory(network_id=NETWORK, epoch=1, entries=ENTRIES)
    addresses = {each.overlay_ip for each in ENTRIES if each.hostname in allowed and each.hostname != "edge-1"}
    assert askers(config, directory, EDGE.node_id) == addresses
    assert askers(config, None, EDGE.node_id) == frozenset()


@pytest.mark.parametrize("accept", ["", "head", "from", "from Head", "on", "from head,edge-1", "from 10.10.0.9/32"])
def test_what_cannot_be_understood_lets_nobody_in(accept: str) -> None:
    with pytest.raises(ValueError, match="accept"):
        ExecConfig(accept=accept)


def test_a_frame_opens_once_in_its_place_and_direction() -> None:
    key = secrets.token_bytes(32)
    asker, node = Seal(key, is_asker=True), Seal(key, is_asker=False)
    first, second = (next(Frames().feed(asker.seal(channel.INPUT, text))) for text in (b"1", b"2"))

    with pytest.raises(UntrustedError):
        node.open(second)
    assert node.open(first) == (channel.INPUT, b"1")
    for frame in (first, second[:-1] + bytes([second[-1] ^ 1])):
        with pytest.raises(UntrustedError):
            node.open(frame)
    assert node.open(second) == (channel.INPUT, b"2")
    with pytest.raises(UntrustedError):
        Seal(key, is_asker=True).open(first)  # sent back to who sent it


def test_frames_are_cut_wherever_the_stream_is() -> None:
    stream = b"".join(channel.framed(text) for text in (b"", b"a", b"bc" * 1000))
    frames = Frames()
    found = [frame for index in range(len(stream)) for frame in frames.feed(stream[index : index + 1])]
    assert found == [b"", b"a", b"bc" * 1000]
    with pytest.raises(UntrustedError):
        list(frames.feed(b"\xff\xff\xff\xff"))


class Run:
    """A program in its runner, with this test as who asks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._key = secrets.token_bytes(32)
        self._writer: asyncio.StreamWriter | None = None
        self.runner: subprocess.Popen[bytes] | None = None

    async def start(self, *argv: str, has_input: bool = False, env: dict[str, str] | None = None) -> RemoteProgram:
        """Start it and wait until it runs."""
        ours, theirs = _connected()
        meeting = self.directory / "runner.sock"
        order = {
            "key": self._key.hex(),
            "sent": 0,
            "opened": 0,
            "argv": argv,
            "env": {"PATH": os.environ["PATH"], **(env or {})},
            "cwd": str(self.directory),
            "has_input": has_input,
            "uid": os.getuid(),
            "gid": os.getgid(),
            "groups": os.getgroups(),
            "user": "me",
            "ride_through_s": 300,
        }
        with socket.socket(socket.AF_UNIX) as door, theirs:
            door.bind(str(meeting))
            door.listen(1)
            self.runner = _runner(meeting)
            taken, _ = await asyncio.to_thread(door.accept)
            with taken:
                socket.send_fds(taken, [json.dumps(order).encode()], [theirs.fileno()])
        reader, writer = await asyncio.open_connection(sock=ours)
        self._writer = writer
        running = RemoteProgram("edge-1", reader, writer, Seal(self._key, is_asker=True), Frames())
        await running.started()
        return running

    def leave(self) -> None:
        """Be gone."""
        assert self._writer is not None
        self._writer.close()

    async def ended(self) -> int:
        """Wait for the end of the runner, and return its exit status."""
        assert self.runner is not None
        return await asyncio.to_thread(self.runner.wait, 20)


def _runner(meeting: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-I", "-m", "edgelink.launch.remote_runner", str(meeting)])


def _connected() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return ours, theirs


@contextmanager
def _run(directory: Path) -> Iterator[Run]:
    run = Run(directory)
    try:
        yield run
    finally:
        if run.runner is not None and run.runner.poll() is None:
            run.runner.kill()
            run.runner.wait()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with _run(tmp_path) as made:
        yield made


async def told(running: RemoteProgram) -> tuple[bytes, bytes]:
    """All of its output and all of its errors."""
    found = {channel.OUTPUT: b"", channel.ERRORS: b""}
    async for kind, data in running.output():
        found[kind] += data
    return found[channel.OUTPUT], found[channel.ERRORS]


@pytest.mark.processes
async def test_output_errors_and_status_come_apart(run: Run) -> None:
    running = await run.start("sh", "-c", "echo out; echo $WORD >&2; pwd; exit 7", env={"WORD": "err"})
    output, errors = await told(running)
    assert output.splitlines() == [b"out", str(run.directory).encode()]
    assert (errors, running.status) == (b"err\n", 7)
    run.leave()
    assert await run.ended() == 0


@pytest.mark.processes
async def test_input_reaches_the_program_and_ends(run: Run) -> None:
    text = secrets.token_bytes(1_000_000)
    running = await run.start("cat", has_input=True)

    async def give() -> None:
        await running.send_input(text)
        await running.send_input(b"")

    _, (output, _) = await asyncio.gather(give(), told(running))
    assert output == text
    assert running.status == 0


@pytest.mark.processes
async def test_a_signal_reaches_what_the_program_has_started(run: Run) -> None:
    child = "(trap 'echo child; exit' INT; echo up; while :; do sleep 0.1; done)"
    running = await run.start("sh", "-c", f"trap 'echo caught' INT; {child}; exit 3")
    found = b""
    async for _, data in running.output():
        found += data
        if b"up" in data:
            running.send_signal(signal.SIGINT)
    assert (b"child" in found, b"caught" in found, running.status) == (True, True, 3)


@pytest.mark.processes
@pytest.mark.parametrize("word", ["trap 'echo bye >ended; exit' TERM", "trap '' TERM"], ids=["obeys", "ignores"])
async def test_the_program_ends_with_who_asked(run: Run, tmp_path: Path, word: str) -> None:
    """SIGTERM first, SIGKILL after five seconds."""
    running = await run.start("sh", "-c", f"{word}; echo $$; while :; do sleep 0.1; done")
    _, pid = await anext(running.output())
    run.leave()
    assert await run.ended() == 0
    assert not Path(f"/proc/{int(pid)}").exists()
    assert (tmp_path / "ended").exists() == ("bye" in word)


@pytest.mark.processes
async def test_output_that_nobody_takes_makes_the_program_wait(run: Run, tmp_path: Path) -> None:
    """Not the memory of the node grow."""
    running = await run.start("sh", "-c", "head -c 200000000 /dev/zero; touch all")
    assert run.runner is not None
    size = Path(f"/proc/{run.runner.pid}/statm")
    before = int(size.read_text().split()[1])
    _, first = await anext(running.output())
    assert first
    assert not (tmp_path / "all").exists()
    assert (int(size.read_text().split()[1]) - before) * os.sysconf("SC_PAGESIZE") < 20_000_000


@pytest.mark.processes
async def test_output_that_nobody_takes_costs_no_time_of_the_processor(run: Run) -> None:
    """Also once the program has ended, as in a cut that lasts for minutes."""
    running = await run.start("sh", "-c", "head -c 3000000 /dev/zero & sleep 0.2")
    assert run.runner is not None
    assert running.pid is not None
    ended = os.pidfd_open(running.pid)
    assert await asyncio.to_thread(select.select, [ended], [], [], 20) == ([ended], [], [])
    os.close(ended)
    stat = Path(f"/proc/{run.runner.pid}/stat")

    def ticks() -> int:
        return sum(map(int, stat.read_text().rpartition(") ")[2].split()[11:13]))

    before = ticks()
    await asyncio.sleep(2.5)  # the time over which it is measured
    assert ticks() - before < 25


@pytest.mark.processes
@pytest.mark.parametrize(
    ("argv", "env"), [(("echo", "a\0b"), {}), (("true",), {"A=B": "c"})], ids=["NUL", "equals sign"]
)
async def test_what_no_program_can_be_given_is_told(run: Run, argv: tuple[str, ...], env: dict[str, str]) -> None:
    with pytest.raises(RemoteProgramError, match="cannot be started"):
        await run.start(*argv, env=env)


@pytest.mark.processes
async def test_a_program_that_is_not_there_is_told(run: Run) -> None:
    with pytest.raises(RemoteProgramError, match="edge-1: nosuch: cannot be started: No such file"):
        await run.start("nosuch")


@pytest.mark.processes
async def test_a_runner_that_dies_is_no_end_of_the_program(run: Run) -> None:
    """Its status is not made up."""
    running = await run.start("sleep", "60")
    assert run.runner is not None
    run.runner.kill()
    with pytest.raises(ConnectionLostError):
        await told(running)
    assert running.status is None


@pytest.mark.processes
async def test_a_node_that_is_stopped_ends_its_programs(run: Run) -> None:
    running = await run.start("sleep", "60")
    assert run.runner is not None
    run.runner.terminate()
    with pytest.raises(RemoteProgramError, match="EdgeLink was stopped"):
        await told(running)
    run.leave()
    assert await run.ended() == 0

"""How experience and weights get from one worker of the built-in trainer to another. Without Ray."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgelink.training.trainer.experience.fragment import Fragment
from edgelink.training.trainer.experience.frames import Stack, stacked
from edgelink.training.trainer.experience.inbox import Inbox
from edgelink.training.trainer.experience.parcel import Payload, opened, packed
from edgelink.training.trainer.experience.pieces import FIRST, Pieces, brought, chunks, coming, in_pieces
from edgelink.training.trainer.experience.stepping import StepClient, StepServer
from edgelink.training.trainer.experience.weights_codec import Offer, Patterns, encode
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.voice import Voice, fitted

STEPS, WIDTH = 12, 3


def frame(generator: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return generator.integers(0, 255, (WIDTH, *shape), dtype=np.uint8)


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("shape", [(5,), (8, 8, 3)])
def test_what_the_learner_learns_from_is_what_the_policy_saw(depth: int, shape: tuple[int, ...]) -> None:
    """Stacks of frames, made anew from single ones: over the beginnings of episodes and of fragments."""
    generator = np.random.default_rng(depth)
    stack = Stack(depth, frame(generator, shape))
    observations = stack.seen[..., -shape[-1] :]
    for ticket in (1, 2):
        history, frames, seen, finals = stack.history, [], [], []
        ended = generator.random((2, STEPS, WIDTH)) < 0.2
        terminated, truncated = ended[0], ended[1] & ~ended[0]
        cut = []
        for step in range(STEPS):
            frames.append(observations)
            seen.append(stack.seen)
            final = frame(generator, shape)[truncated[step]]
            cut.append(final)
            finals.append(stack.final(final, truncated[step]))
            observations = frame(generator, shape)
            stack.push(observations, terminated[step] | truncated[step])
        fragment = Fragment(
            rank=1,
            ticket=ticket,
            weights_version=3,
            observations=np.stack(frames),
            actions=generator.integers(0, 4, (STEPS, WIDTH)),
            log_probs=generator.normal(size=(STEPS, WIDTH)).astype(np.float32),
            rewards=np.ones((STEPS, WIDTH), np.float32),
            terminated=terminated,
            truncated=truncated,
            cut_observations=np.concatenate(cut),
            last_observations=observations,
        )
        about, payload = packed(fragment, history)
        back = opened(payload)
        np.testing.assert_array_equal(back.observations, np.stack(seen))
        np.testing.assert_array_equal(back.cut_observations, np.concatenate(finals))
        np.testing.assert_array_equal(back.last_observations, stack.seen)
        for name in ("actions", "log_probs", "rewards", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(back, name), getattr(fragment, name))
        assert about.frames == (STEPS + depth) * WIDTH + truncated.sum(), "each once, and those at the seam"
        assert about.samples == STEPS * WIDTH
        assert about.raw_bytes["observations"] == about.frames * int(np.prod(shape))
    assert stacked(Spaces(shape, "uint8", 2), depth).observation_shape == (*shape[:-1], shape[-1] * depth)


class Store:
    """Where the learner puts pieces and a node fetches them; the link can be cut."""

    def __init__(self) -> None:
        self.pieces: dict[str, bytes] = {}
        self.fetched: list[str] = []
        self.link = threading.Event()
        self.link.set()

    def put(self, name: str, content: bytes, size: int = 64) -> tuple[str, ...]:
        names = []
        for number, piece in enumerate(chunks(content, size)):
            names.append(f"{name}.{number}")
            self.pieces[names[-1]] = piece
        return tuple(names)

    def fetch(self, names: Any) -> dict[str, bytes]:
        assert self.link.wait(20)
        found = {name: self.pieces[name] for name in names}
        self.fetched += names
        return found


def weights_of(version: int) -> dict[str, Any]:
    return {"w": np.full((16, 16), version, np.float32), "b": np.full(4, version + 0.1, np.float32)}


def offer_of(store: Store, version: int, base: int | None = None) -> Offer:
    new = Patterns.of(weights_of(version))
    difference = () if base is None else store.put(f"d{version}", encode(new, Patterns.of(weights_of(base))))
    return Offer(version, store.put(f"w{version}", encode(new)), base, difference)


def test_new_weights_come_beside_what_goes_on() -> None:
    """First whole, then by the difference; while the link is cut the old ones stay in force, and nobody is held up."""
    store = Store()
    inbox = Inbox(store.fetch)
    assert inbox.policy is None
    inbox.offer(offer_of(store, 0))
    version, weights = inbox.wait_for(0)
    assert (version, weights["w"][0, 0], weights["b"].tolist()) == (0, 0, [np.float32(0.1)] * 4)

    store.link.clear()
    inbox.offer(offer_of(store, 1, 0))
    inbox.offer(offer_of(store, 2, 1))
    assert inbox.policy is not None
    assert inbox.policy[0] == inbox.wait_for(None)[0] == 0
    store.link.set()
    version, weights = inbox.wait_for(2)
    assert (version, weights["w"][0, 0]) == (2, 2)
    assert {name.split(".")[0] for name in store.fetched} == {"w0", "d1", "d2"}
    assert inbox.fetched_bytes == sum(len(store.pieces[name]) for name in store.fetched)


def test_a_small_difference_comes_along_with_the_offer() -> None:
    """Nothing is fetched for it; without the version that it is to, the whole one is."""
    store = Store()
    inbox = Inbox(store.fetch)
    inbox.offer(offer_of(store, 0))
    inbox.wait_for(0)
    before = list(store.fetched)
    enclosed = encode(Patterns.of(weights_of(1)), Patterns.of(weights_of(0)))
    inbox.offer(Offer(1, store.put("w1", encode(Patterns.of(weights_of(1)))), 0, enclosed=enclosed))
    assert inbox.wait_for(1)[1]["w"][0, 0] == 1
    assert store.fetched == before
    inbox.offer(Offer(3, store.put("w3", encode(Patterns.of(weights_of(3)))), 2, enclosed=enclosed))
    assert inbox.wait_for(3)[1]["w"][0, 0] == 3
    assert {name.partition(".")[0] for name in store.fetched[len(before) :]} == {"w3"}


def test_weights_that_cannot_be_had_are_made_good_by_the_next() -> None:
    """A piece is gone, as when the learner was restarted: the next offer is taken as a whole."""
    store = Store()
    inbox = Inbox(store.fetch)
    inbox.offer(offer_of(store, 0))
    inbox.wait_for(0)
    lost = offer_of(store, 1, 0)
    for name in lost.difference:
        del store.pieces[name]
    inbox.offer(lost)
    inbox.offer(offer_of(store, 2))
    assert inbox.wait_for(2)[1]["w"][0, 0] == 2


def test_weights_that_cannot_be_had_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be no next offer: without new weights nobody collects what the next ones would be made of."""
    monkeypatch.setattr("edgelink.training.trainer.experience.inbox._FIRST_PAUSE_S", 0.01)
    store = Store()
    inbox = Inbox(store.fetch)
    inbox.offer(offer_of(store, 0))
    inbox.wait_for(0)
    lost = offer_of(store, 1, 0)
    for name in lost.difference:
        del store.pieces[name]
    inbox.offer(lost)
    assert inbox.wait_for(1)[1]["w"][0, 0] == 1


def test_a_large_version_comes_whole_over_a_link_that_breaks() -> None:
    """What has come is kept; newer versions, of which one comes with each outage, wait until it is in force."""
    store, begun = Store(), threading.Event()
    fetch, calls, in_force = store.fetch, 0, []

    def breaking(names: Any) -> dict[str, bytes]:
        nonlocal calls
        calls += 1
        in_force.append(None if inbox.policy is None else inbox.policy[0])
        if calls % 2 == 0 and calls < 40:
            inbox.offer(large(1 + calls // 2))  # which wakes it up
            raise OSError("the link is down")
        begun.set()
        return fetch(names)

    def large(version: int) -> Offer:
        return Offer(version, store.put(f"w{version}", encode(Patterns.of(weights_of(version))), 4))

    inbox = Inbox(breaking)
    offer = large(1)
    assert len(offer.whole) > 20
    inbox.offer(offer)
    assert begun.wait(20)
    assert inbox.wait_for(2)[0] > 2, "then the newest, and not those between"
    first = [name for name in store.fetched if name.startswith("w1.")]
    assert first == list(offer.whole), "each piece once, in order"
    assert store.fetched[: len(first)] == first, "and none of another version before"


def test_pieces_that_are_gone_for_good_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a version is no reason to have none: after some tries the newest is taken instead."""
    monkeypatch.setattr("edgelink.training.trainer.experience.inbox._FIRST_PAUSE_S", 0.01)
    store = Store()
    inbox = Inbox(store.fetch)
    half = Offer(1, store.put("w1", encode(Patterns.of(weights_of(1))), 4))
    for name in half.whole[8:]:
        del store.pieces[name]
    inbox.offer(half)
    inbox.offer(offer_of(store, 2))
    assert inbox.wait_for(2)[1]["w"][0, 0] == 2


def payload_of(steps: int) -> Payload:
    """Of ``steps`` frames of noise, each 32 × 32."""
    frames = np.random.default_rng(1).integers(0, 255, (steps, 1, 32, 32), dtype=np.uint8)
    numbers = np.zeros((steps, 1), np.float32)
    fragment = Fragment(
        rank=0,
        ticket=1,
        weights_version=0,
        observations=frames,
        actions=numbers,
        log_probs=numbers,
        rewards=numbers,
        terminated=numbers > 0,
        truncated=numbers > 0,
        cut_observations=frames[:0, 0],
        last_observations=frames[0],
    )
    return packed(fragment, frames[:0])[1]


def test_large_experience_is_fetched_a_few_pieces_at_a_time() -> None:
    """Each once and in order."""
    size, store = 1000, Store()
    payload = payload_of(20)
    made = in_pieces(payload, size, lambda piece: store.put(f"piece {len(store.pieces)}", piece, size)[0])
    assert isinstance(made, Pieces)
    assert max(map(len, store.pieces.values())) == size
    asked: list[int] = []

    def fetch(names: Any) -> dict[str, bytes]:
        asked.append(len(names))
        return store.fetch(names)

    back = brought(made, fetch)
    np.testing.assert_array_equal(opened(back).observations, opened(payload).observations)
    assert store.fetched == list(store.pieces)
    assert asked[0] == FIRST < len(store.pieces) / 2


class Wire:
    """A link: a piece is here a way after it was asked for, and each takes a while to pass."""

    def __init__(self, way_s: float, passes_s: float) -> None:
        self.way_s, self.passes_s, self.now_s = way_s, passes_s, 0.0
        self.most = 0
        self._due_s: dict[int, float] = {}
        self._free_s = 0.0

    def fetch(self, names: Any) -> dict[int, bytes]:
        for name in names:
            if name not in self._due_s:
                self._free_s = max(self._free_s, self.now_s + self.way_s) + self.passes_s
                self._due_s[name] = self._free_s
        self.most = max(self.most, len(names))
        first = min(names, key=lambda name: self._due_s[name])
        self.now_s = max(self.now_s, self._due_s[first])
        return {first: b"%d." % first}


@pytest.mark.parametrize(
    ("way_s", "mbit_per_s", "most"),
    [(0.25, 2, 4), (0.25, 20, 4), (0.25, 100, 10), (0.75, 20, 8), (0.75, 100, 26), (1.5, 50, 26)],
)
def test_a_link_is_kept_busy_by_as_few_pieces_as_that_takes(way_s: float, mbit_per_s: float, most: int) -> None:
    """Of 512 KiB, however long and wide it is; an outage would repeat what is on its way."""
    wire, came = Wire(way_s, 512 * 1024 * 8e-6 / mbit_per_s), dict[int, bytes]()
    count = 100
    assert sum(1 for _ in coming(range(count), came, wire.fetch, lambda: wire.now_s)) == count
    assert came == {index: b"%d." % index for index in range(count)}
    assert wire.most <= most
    at_best_s = way_s + count * wire.passes_s
    assert wire.now_s <= 1.05 * at_best_s + 5 * way_s, "some ways until it is known"


def test_what_has_come_stays_when_another_piece_is_gone() -> None:
    came: dict[int, bytes] = {}

    def fetch(names: Any) -> dict[str, bytes]:
        if names[0] == "3":
            raise OSError("gone")
        return {names[0]: b"here"}

    with pytest.raises(OSError, match="gone"):
        list(coming("01234", came, fetch))
    assert list(came) == [0, 1, 2]
    left = list(coming("01234", came, lambda names: dict.fromkeys(names, b"late")))
    assert (left, sorted(came)) == ([b"late", b"late"], [0, 1, 2, 3, 4])


def test_experience_that_is_on_its_way_at_once_in_any_case_is_left_whole() -> None:
    payload = payload_of(2)
    made = in_pieces(payload, 1000, lambda _piece: pytest.fail("nothing to be put anywhere"))
    assert brought(made, lambda _names: pytest.fail("nothing to be fetched")) is payload is made


class NeedsMoreError(Exception):
    """One that cannot be made again from its text alone, as a pipe does."""

    def __init__(self, who: str, what: int) -> None:
        super().__init__(f"{who} has no {what}")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StepServer]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def handle(method: str, *arguments: Any) -> Any:
        if method == "fail":
            raise OSError("the robot is gone")
        if method == "fail strangely":
            raise NeedsMoreError("the crane", 3)
        return method, arguments

    server = StepServer(handle)
    yield server
    server.close()


def test_steps_go_over_a_socket_that_leaves_nothing(server: StepServer, tmp_path: Path) -> None:
    """Arrays there and back; what goes wrong there is raised here; the directory is gone once they are connected."""
    client = StepClient(server.address)
    method, (actions,) = client.call("step", np.arange(3))
    assert (method, actions.tolist()) == ("step", [0, 1, 2])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="the robot is gone"):
        client.call("fail")
    with pytest.raises(RuntimeError, match="NeedsMoreError: the crane has no 3"):
        client.call("fail strangely")
    assert client.call("step") == ("step", ()), "the next request is answered"


def test_steps_go_below_a_directory_that_is_too_deep_for_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch job's TMPDIR may be: nothing is left there either."""
    deep = tmp_path / ("a" * 60) / ("b" * 60)
    deep.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    server = StepServer(lambda method: method)
    assert StepClient(server.address).call("step") == "step"
    assert not list(deep.iterdir())
    assert not Path(server.address).exists()


def die(_method: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def serve_until_killed(addresses: Any) -> None:
    server = StepServer(die)
    addresses.send(server.address)
    signal.pause()


def test_an_env_worker_that_was_killed_is_noticed() -> None:
    """Not waited for."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(target=serve_until_killed, args=(theirs,))
    process.start()
    client = StepClient(ours.recv())
    with pytest.raises(EOFError):
        client.call("step")
    process.join(20)
    assert process.exitcode == -signal.SIGKILL


class Terminal(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def test_progress_stays_within_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a line that breaks, only the last part could be cleared."""
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal(is_terminal=True)
    Voice(out).progress("0123456789012345")
    assert out.getvalue() == "\r\x1b[2K012345678"


@pytest.mark.parametrize(
    ("columns", "shown"), [(30, "step  1/20  4 s left  lag 6"), (26, "step  1/20  4 s left"), (11, "step  1/20")]
)
def test_progress_is_cut_between_its_fields(columns: int, shown: str) -> None:
    """Half a word says nothing, or something else."""
    assert fitted("step  1/20  4 s left  lag 6", columns) == shown


def test_a_line_is_no_wider_than_the_terminal_and_whole_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "xterm")
    line = "  edge-1: sent 0.201 Mbit/s, received 0.0731 Mbit/s"
    terminal, file = Terminal(is_terminal=True), Terminal(is_terminal=False)
    for out in (terminal, file):
        Voice(out).say(line)
    assert file.getvalue() == f"{line}\n"
    assert [len(each) <= 30 for each in terminal.getvalue().splitlines()] == [True, True]
    assert terminal.getvalue().split() == line.split()


def test_a_full_disk_costs_lines_and_not_the_training() -> None:
    """None of what it says; nor does Python fail at its end, for what is still to be written."""
    with Path("/dev/full").open("w") as full:
        voice = Voice(full)
        voice.say("hello")
        voice.progress("1 of 2")
        voice.settle()
        voice.finish()
        full.flush()


def test_progress_is_one_line_on_a_terminal_and_many_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that stay are written above it. A terminal without a cursor is as a file."""
    for is_terminal, term, expected in (
        (True, "xterm", "\r\x1b[2K1 of 2\r\x1b[2Khello\n1 of 2\r\x1b[2K2 of 2\n"),
        (True, "dumb", "1 of 2\nhello\n2 of 2\n"),
        (False, "xterm", "1 of 2\nhello\n2 of 2\n"),
    ):
        monkeypatch.setenv("TERM", term)
        out = Terminal(is_terminal=is_terminal)
        voice = Voice(out)
        voice.progress("1 of 2")
        voice.say("hello")
        voice.progress("2 of 2")
        voice.settle()
        assert out.getvalue() == expected

"""What a daemon says to the person at whose terminal it runs."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import structlog

from edgelink import log
from edgelink.cli.foreground import Steps


class Later(threading.Timer):
    """A timer that runs when the test says that time has passed."""

    waiting: ClassVar[list[Later]] = []

    def start(self) -> None:
        self.waiting.append(self)

    @classmethod
    def pass_time(cls) -> None:
        for timer in cls.waiting:
            if not timer.finished.is_set():
                timer.function(*timer.args, **timer.kwargs)
        cls.waiting.clear()


class Terminal:
    """A terminal of 80 columns, and the daemon's log on it."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        log.configure(renderer=Steps(self._stream, Later), stream=self._stream)
        self.log = log.get_logger("test")

    def condition(self, kind: str, status: str, reason: str, message: str = "so it is", **more: Any) -> None:
        self.log.info("node.condition", condition=kind, status=status, reason=reason, message=message, **more)

    def phase(self, phase: str) -> None:
        self.log.info("node.phase", phase=phase)

    @property
    def lines(self) -> list[str]:
        """What is to be read since this was last asked; no line is too wide."""
        told = self._stream.getvalue().splitlines()
        self._stream.seek(0)
        self._stream.truncate()
        assert all(len(line) <= 80 for line in told)
        return told


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("COLUMNS", "80")
    before = structlog.get_config()
    Later.waiting.clear()
    yield Terminal()
    structlog.configure(**before)


def test_a_start_is_a_line_a_step_and_then_ready(terminal: Terminal) -> None:
    """What passes by itself at once, what only informs, and the rest of the log are not shown, and are remembered."""
    terminal.condition("Leased", "True", "Leased", "robot holds 10.10.0.3")
    terminal.condition("OverlayUp", "False", "Starting")
    terminal.condition("RideThrough", "False", "KernelLacksRtoCap")
    terminal.condition("AddressesUnique", "True", "Unique")
    terminal.condition("OverlayUp", "True", "DeviceConfirmed", "et0 is up")
    terminal.log.info("overlay.up", device="et0")
    terminal.phase("Ready")
    Later.pass_time()
    assert terminal.lines == ["✓ robot holds 10.10.0.3", "✓ et0 is up", "Ready"]
    assert "overlay.up" in log.recent()[-2]


def test_what_lasts_is_told_once_and_so_is_its_end(terminal: Terminal) -> None:
    """With what to do where it does not go on by itself."""
    terminal.condition("RayJoined", "False", "HeadNotSeen", "no head")
    assert terminal.lines == []
    Later.pass_time()
    assert [line[0] for line in terminal.lines] == ["…"]
    terminal.condition("RayJoined", "False", "RayAsRoot", "no user")
    Later.pass_time()
    assert [line[0] for line in terminal.lines] == ["✗"]
    terminal.condition("RayJoined", "True", "AliveInRay", "alive in Ray", lasted_s=31.4)
    assert terminal.lines == ["✓ alive in Ray (after 31 s)"]


def test_what_only_informs_is_told_once_the_node_is_ready(terminal: Terminal) -> None:
    """With what to do, and with its end; what comes by itself is not told."""
    terminal.condition("NodesReady", "False", "NodesMissing", "1 of 2 nodes")
    terminal.condition("SecretCurrent", "Unknown", "NotToldYet")
    Later.pass_time()
    assert terminal.lines == []
    terminal.phase("Ready")
    Later.pass_time()
    ready, wrong, to_do = terminal.lines
    assert (ready, wrong[0]) == ("Ready", "✗")
    assert "edgelink nodes" in to_do
    terminal.condition("NodesReady", "True", "AllAlive", "2 of 2 nodes", lasted_s=31.4)
    assert terminal.lines == ["✓ 2 of 2 nodes (after 31 s)"]


def test_the_silence_of_a_head_that_has_not_started_is_no_fault(terminal: Terminal) -> None:
    """It is judged when it is told: by then it is known that nobody has seen the head."""
    terminal.condition("PeersReachable", "False", "PeerSilent", "no answer from cloud")
    terminal.condition("RayJoined", "False", "HeadNotSeen", "no head")
    Later.pass_time()
    assert [line[0] for line in terminal.lines] == ["…", "…"]


def test_a_fault_of_a_node_that_was_ready_is_told_at_once(terminal: Terminal) -> None:
    """And it is Ready once more when it was told not to be; a blip changes nothing."""
    terminal.phase("Ready")
    assert terminal.lines == ["Ready"]
    terminal.condition("OverlayUp", "False", "DeviceDown")
    terminal.phase("Degraded")
    terminal.condition("OverlayUp", "True", "DeviceConfirmed")
    terminal.phase("Ready")
    Later.pass_time()
    assert "Ready" not in terminal.lines
    terminal.condition("RegistryConnected", "False", "RegistryUnavailable", "no relay")
    terminal.phase("Degraded")
    assert terminal.lines[0].startswith("✗ no relay")
    terminal.condition("RegistryConnected", "True", "Connected", "the relay answers")
    terminal.phase("Ready")
    assert terminal.lines == ["✓ the relay answers", "Ready"]


def fail(terminal: Terminal) -> None:
    try:
        raise ValueError("no such thing")
    except ValueError:
        terminal.log.exception("overlay.crashed")


@pytest.mark.parametrize(
    ("happens", "words"),
    [
        (lambda t: t.log.warning("routes.not_set", network="10.0.0.0/8", error="not permitted"), ["not permitted"]),
        (lambda t: t.log.warning("clock.stepped", by_s=3600.0), ["clock", "3600"]),
        (lambda t: t.log.error("relay.odd", error="word " * 60), ["word"]),
        (lambda t: t.log.warning("ray.exited", last_words="\x1b[2Jgone"), ["gone"]),
        (fail, ["no such thing", "edgelink logs"]),
    ],
)
def test_warnings_and_errors_are_always_shown(
    terminal: Terminal, happens: Callable[[Terminal], None], words: list[str]
) -> None:
    """In words, without keys and quotes."""
    happens(terminal)
    told = " ".join(terminal.lines)
    assert told[0] in "!✗"
    assert all(word in told for word in words)
    assert "=" not in told
    assert told.isprintable()


def test_a_warning_that_is_a_sentence_is_shown_without_the_events_name(terminal: Terminal) -> None:
    terminal.log.warning("node.clock_off", message="9 s late", hint="mend it")
    assert terminal.lines == ["! 9 s late; mend it"]


def test_a_fault_that_is_logged_and_a_condition_is_said_once(terminal: Terminal) -> None:
    """Whichever of the two comes first."""
    terminal.log.warning("overlay.failed", reason="PortBusy", error="port 11010 is taken")
    terminal.condition("OverlayUp", "False", "PortBusy", "port 11010 is taken")
    Later.pass_time()
    assert sum("11010" in line for line in terminal.lines) == 1
    terminal.condition("OverlayUp", "True", "DeviceConfirmed", "et0 is up")
    assert terminal.lines == ["✓ et0 is up"]


def test_what_ends_while_the_daemon_stops_is_no_fault(terminal: Terminal) -> None:
    terminal.phase("Ready")
    terminal.log.info("daemon.stopping")
    terminal.condition("OverlayUp", "False", "ProcessExited")
    Later.pass_time()
    assert terminal.lines == ["Ready", "stopping …"]

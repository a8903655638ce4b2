"""`edgelink robot stop`: whether a robot has stopped is what its exit status says. Robots are played here."""

from __future__ import annotations

import fcntl
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from telling import Words

from edgelink.cli import robot as robot_commands
from edgelink.cli.robot import command
from edgelink.errors import EdgelinkError
from edgelink.testing import FakeClock

STOPPED = {"state": "stopped", "cause": "person", "needs_a_person": True, "stop_fails": 0}
BY_LINK = {"state": "stopped", "cause": "link", "needs_a_person": False, "stop_fails": 0}
STOPPING = {"state": "stopping", "stopping_for_s": 0.2}
STALLED = {"state": "stalled", "heartbeat_age_s": 0.2}
RAISES = {**STOPPED, "stop_fails": 3}
DEAD = {"state": "dead"}


class Robot:
    """An attendant that answers with each of ``states`` in turn, and then with the last one."""

    def __init__(self, place: Path, states: Sequence[dict[str, Any]]) -> None:
        self.heard: list[str] = []
        self.ending: Callable[[], object] = list  # what it does last
        self._states = list(states)
        self._lock = (place / "one.lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(place / "one.sock"))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                with self._listener.accept()[0] as person:
                    self.heard.append(person.recv(100).decode().strip())
                    state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
                    if not state:  # the last word of one that ends
                        self.ending()
                        self._lock.close()
                        return
                    person.sendall(json.dumps(state).encode() + b"\n")

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self._lock.close()


@pytest.fixture
def robot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Robot]]:
    monkeypatch.setenv("EDGELINK_ROBOT_DIR", str(tmp_path))
    monkeypatch.setattr(robot_commands, "SystemClock", FakeClock)
    with ExitStack() as robots:

        def start(*states: dict[str, Any]) -> Robot:
            started = Robot(tmp_path, states)
            robots.callback(started.close)
            return started

        yield start


def stop(*options: str) -> str:
    """What it says. Raises EdgelinkError: it ends with status 1."""
    return CliRunner().invoke(command, ["stop", "one", *options], standalone_mode=False, catch_exceptions=False).stdout


@pytest.mark.parametrize("before", [STOPPING, STALLED, RAISES, BY_LINK])
def test_a_stop_returns_when_the_robot_has_stopped(robot: Callable[..., Robot], before: dict[str, Any]) -> None:
    """And not before: it may be moving, or about to go on by itself. The stop is said once."""
    played = robot(before, before, STOPPED)
    assert stop().startswith("robot one: stopped;")
    assert played.heard == ["stop", "status", "status"]


@pytest.mark.parametrize(
    ("state", "told"), [(STOPPING, "it is stopping"), (STALLED, "it is stalled"), (RAISES, "its stop() fails")]
)
def test_a_stop_that_is_not_confirmed_in_time_is_a_failure(
    robot: Callable[..., Robot], state: dict[str, Any], told: str, words: Words
) -> None:
    """With what the robot does instead, and what to do."""
    played = robot(state)
    with pytest.raises(EdgelinkError) as raised:
        stop("--timeout", "2s")
    assert raised.value.exit_code == 1
    assert raised.value.message.endswith(told)
    words(raised.value)
    assert 5 < len(played.heard) < 50


def test_a_robot_whose_control_process_has_died_is_not_waited_for(robot: Callable[..., Robot]) -> None:
    """Nothing here can stop it any more, and each second counts."""
    played = robot(DEAD)
    with pytest.raises(EdgelinkError, match=r"robot one has not confirmed .* it is dead"):
        stop()
    assert played.heard == ["stop"]


def test_a_stop_is_said_until_it_is_heard(robot: Callable[..., Robot]) -> None:
    """An attendant that is being started takes its time."""
    played = robot({"no": "answer"}, {"no": "answer"}, STOPPED)
    stop()
    assert played.heard == ["stop", "stop", "stop"]


def test_a_robot_that_never_answers_is_a_failure(robot: Callable[..., Robot]) -> None:
    """Nobody knows what it does."""
    robot({"no": "answer"})
    with pytest.raises(EdgelinkError, match=r"robot one has not confirmed .*does not answer") as raised:
        stop()
    assert raised.value.exit_code == 1


def test_a_robot_whose_processes_end_meanwhile_has_confirmed_nothing(robot: Callable[..., Robot], words: Words) -> None:
    """They may have been killed."""
    robot(STOPPING, {})
    with pytest.raises(EdgelinkError) as raised:
        stop()
    words(raised.value)


@pytest.mark.parametrize(
    ("cause", "is_in_order", "is_stopped"),
    [("person", True, True), ("person", False, False), ("fault", True, False), ("armed", True, False)],
)
def test_a_run_that_ends_in_order_meanwhile_has_stopped_its_robot(
    robot: Callable[..., Robot], tmp_path: Path, cause: str, *, is_in_order: bool, is_stopped: bool
) -> None:
    """Its stop is written down and its socket gone; what was killed leaves that, or a worse cause."""
    played = robot(STOPPING, {})

    def end() -> None:
        stop = {"time": "2026-01-01T00:00:00+00:00", "cause": cause, "device": ""}
        (tmp_path / "one.stopped").write_text(json.dumps(stop))
        if is_in_order:
            (tmp_path / "one.sock").unlink()

    played.ending = end
    if is_stopped:
        assert stop().startswith("robot one: stopped since 2026-01-01T00:00:00+00:00, because of: person; no training")
        return
    with pytest.raises(EdgelinkError, match="ended"):
        stop()


def test_what_a_robot_does_instead_is_said_before_it_is_waited_for(robot: Callable[..., Robot]) -> None:
    """Whoever stands beside it uses its own stop at once."""
    robot(STOPPING, STOPPING, STOPPED)
    done = CliRunner().invoke(command, ["stop", "one"], standalone_mode=False, catch_exceptions=False)
    assert done.stderr.startswith("robot one: stopping;")
    assert len(done.stderr.splitlines()) == 1


def test_a_stop_that_lasts_of_a_robot_that_nobody_commands_is_one(robot: Callable[..., Robot], tmp_path: Path) -> None:
    """Nothing is there that could move it, and none that comes does."""
    (tmp_path / "one.stopped").write_text(json.dumps({"time": "2026-01-01T00:00:00+00:00", "cause": "person"}))
    assert stop().startswith("robot one: stopped since 2026-01-01T00:00:00+00:00, because of: person; no training has")

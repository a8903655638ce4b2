"""The hook that a robot is asked by before its overlay is restarted: real programs, and deadlines that end them."""

from __future__ import annotations

import os
import pwd
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgelink.clock import SystemClock
from edgelink.config import Config
from edgelink.config.models import RobotConfig
from edgelink.member import hold
from edgelink.member.hold import HoldHook
from edgelink.process import answer, procfs
from edgelink.process.outside import outside_of_unit
from edgelink.testing import eventually

USER = pwd.getpwuid(os.geteuid()).pw_name


def hook(tmp_path: Path, script: str, *, hold_for: int = 20, user: str | None = USER) -> HoldHook:
    program = tmp_path / "hook"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    robot = RobotConfig(hold=(str(program), "an argument"), hold_for=hold_for, user=user)
    return HoldHook(Config(robot=robot), SystemClock())


async def test_a_robot_at_rest_lets_it_go_on(tmp_path: Path) -> None:
    """It is told what is to happen and why, in an environment of its own, at /."""
    asked = hook(tmp_path, f'env > {tmp_path}/env; pwd > {tmp_path}/pwd; echo "$1" > {tmp_path}/argument')
    assert asked.is_set
    assert await asked.wait("a change to secret 2", 60) == ""
    environment = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert environment["EDGELINK_EVENT"] == "before-overlay-restart"
    assert environment["EDGELINK_REASON"] == "a change to secret 2"
    assert environment["EDGELINK_HOLD_FOR_S"] == "20"
    assert "PYTEST_CURRENT_TEST" not in environment
    assert (tmp_path / "pwd").read_text() == "/\n"
    assert (tmp_path / "argument").read_text() == "an argument\n"


async def test_a_robot_in_motion_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """75 means: not now."""
    monkeypatch.setattr(hold, "ASK_AGAIN_S", 0.01)
    asked = hook(tmp_path, f"echo asked >> {tmp_path}/times; [ $(wc -l < {tmp_path}/times) -ge 3 ] || exit 75")
    assert await asked.wait("a test", 60) == ""
    assert (tmp_path / "times").read_text().count("asked") == 3


async def test_a_hook_that_fails_or_hangs_holds_nothing_up(tmp_path: Path) -> None:
    """What it said is told, and all that it started is ended at its deadline."""
    assert "status 3: motor on fire" in await hook(tmp_path, "echo motor on fire; exit 3").wait("a test", 60)
    hanging = hook(tmp_path, f"echo $$ > {tmp_path}/pid; sleep 600 & wait", hold_for=1)
    assert "ended after 1 s" in await hanging.wait("a test", 60)
    pid = int((tmp_path / "pid").read_text())
    await eventually(lambda: procfs.session_members(pid) == [])
    robot = RobotConfig(hold=("/no/such/program",), user=USER)
    assert "cannot be run" in await HoldHook(Config(robot=robot), SystemClock()).wait("a test", 60)


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A shell command that starts a process in another session; it has the hook's output, and outlives it."""
    monkeypatch.setattr(answer, "_LAST_WORDS_S", 0.05)
    monkeypatch.setattr(answer, "_FAREWELL_S", 0.05)
    yield f"setsid sh -c 'echo $$ >{tmp_path}/away; exec sleep 600' & until [ -s {tmp_path}/away ]; do sleep 0.01; done"
    os.kill(int((tmp_path / "away").read_text()), signal.SIGKILL)


async def test_a_hooks_word_counts_also_where_it_leaves_something_running(tmp_path: Path, away: str) -> None:
    """What has its output still is not waited for."""
    asked = hook(tmp_path, f"{away}; echo motor on fire; exit 3", hold_for=600)
    assert "status 3: motor on fire" in await asked.wait("a test", 600)


async def test_a_hook_is_ended_at_its_deadline_whatever_it_leaves_running(tmp_path: Path, away: str) -> None:
    """A network that changes its secret does not wait longer, nor does a daemon that stops."""
    assert "ended after 1 s" in await hook(tmp_path, f"{away}; sleep 600", hold_for=1).wait("a test", 60)


async def test_a_hook_that_prints_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fills no memory."""
    monkeypatch.setattr(hold, "_MAX_ANSWER_BYTES", 1 << 20)
    assert "more than 1 MiB" in await hook(tmp_path, "exec cat /dev/zero").wait("a test", 60)


async def test_a_hook_never_runs_as_root_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a user it is not run, and that is told."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    asked = hook(tmp_path, f"touch {tmp_path}/ran", user=None)
    assert "robot.user" in await asked.wait("a test", 60)
    assert not (tmp_path / "ran").exists()
    nobody = hook(tmp_path, "true", user="no-such-user")
    assert "no user 'no-such-user'" in await nobody.wait("a test", 60)


def test_under_systemd_the_hook_is_outside_of_the_daemons_sandbox() -> None:
    """Its user, its groups, its environment; what it started ends with it, also when nobody waits any more."""
    argv, environment = ("/opt/arm/may-i", "a $HOME b"), {"EDGELINK_REASON": "a change to secret 2"}
    command = outside_of_unit(argv, environment, uid=1000, gid=1001, groups=(20, 44), for_at_most_s=12.25)
    assert command[0] == "systemd-run"
    assert command[command.index("--") :] == ["--", "/opt/arm/may-i", "a $$HOME b"]
    assert {
        *("--pipe", "--wait", "--collect", "--property=User=1000", "--property=Group=1001"),
        *("--property=SupplementaryGroups=20 44", "--property=RuntimeMaxSec=12.2s"),
        "--setenv=EDGELINK_REASON=a change to secret 2",
    } <= set(command)
    as_root = outside_of_unit(argv, environment, uid=None, gid=None, groups=(), for_at_most_s=1)
    assert not [word for word in as_root if word.startswith("--property=User")]


async def test_a_daemon_in_a_sandbox_runs_the_hook_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its word counts as ever; elsewhere nobody is asked but the hook."""
    calls: list[float] = []

    def outside(argv: list[str], _environment: object, *, for_at_most_s: float, **_who: object) -> list[str]:
        calls.append(for_at_most_s)
        return ["/usr/bin/env", *argv]

    monkeypatch.setattr(hold, "outside_of_unit", outside)
    asked = hook(tmp_path, "echo motor on fire; exit 3")
    assert "status 3: motor on fire" in await asked.wait("a test", 60)
    assert calls == []
    confined = HoldHook(Config(robot=asked._config), SystemClock(), lambda: True)
    assert "status 3: motor on fire" in await confined.wait("a test", 60)
    assert calls == [pytest.approx(20, abs=5)]

"""The hook that a robot is asked by before its overlay is restarted: real programs, and deadlines that end them."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from edgelink.clock import SystemClock
from edgelink.config import Config
from edgelink.config.models import RobotConfig
from edgelink.process import procfs
from edgelink.roles import hold
from edgelink.roles.hold import HoldHook
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
    assert await asked.wait("the network changes to secret 2", 60) == ""
    environment = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert environment["EDGELINK_EVENT"] == "before-overlay-restart"
    assert environment["EDGELINK_REASON"] == "the network changes to secret 2"
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


async def test_a_hook_never_runs_as_root_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a user it is not run, and that is told."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    asked = hook(tmp_path, f"touch {tmp_path}/ran", user=None)
    assert "robot.user" in await asked.wait("a test", 60)
    assert not (tmp_path / "ran").exists()
    nobody = hook(tmp_path, "true", user="no-such-user")
    assert "no user 'no-such-user'" in await nobody.wait("a test", 60)

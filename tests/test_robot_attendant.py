"""What is beside a robot's control loop: people, hooks, disks and latches, none of which waits for another."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from obedient_robot import ObedientRobot, policy, weights

from edgelink.lab.mount_points import MOUNT_POINTS
from edgelink.training.trainer.robot import attendant, attendant_process, control, environment, event_log, latch
from edgelink.training.trainer.robot.acting import ReplayActor
from edgelink.training.trainer.robot.attendant import Attendant
from edgelink.training.trainer.robot.deadman import Cause, DeadmanSettings, State
from edgelink.training.trainer.robot.directory import run_directory
from edgelink.training.trainer.robot.event_log import EventLog
from edgelink.training.trainer.robot.interface import Robot, RobotSettings
from edgelink.training.trainer.robot.latch import Latch, read_latch
from edgelink.training.trainer.robot.loop import ControlLoop
from edgelink.training.trainer.robot.settings import LEAVE_TIMEOUT_S, LOCK_TIMEOUT_S, MAKE_TIMEOUT_S, ControlSettings
from edgelink.training.trainer.robot.shared import Layout, SharedBlock, WeightsWriter

NS = 1_000_000_000
PERIOD_NS = NS // 100


class Running:
    """A control process as its attendant sees it."""

    returncode = None

    def poll(self) -> int | None:
        return self.returncode


class Robots:
    """A control loop whose time is ours, with its attendant, who looks when we say."""

    def __init__(self, settings: ControlSettings, *, has_policy: bool = True, device: str = "") -> None:
        self.robot = ObedientRobot(RobotSettings())
        self.block = SharedBlock(Layout(self.robot.spaces, 1, 1000))
        self.words = self.block.words
        self.loop = ControlLoop(self.robot, self.block, settings.deadman, policy(self.robot, self.block))
        self.now_ns = 100 * NS
        self.link = True
        worker, self.worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.attendant = Attendant(settings, worker)
        hello = {"rate_hz": 100.0, "action_repeat": 1, "rigs": 1, "notes": ["x"], "pid": 1, "device": device}
        hello |= {"names": {}}
        hello["resumes"] = settings.deadman.resume or self.robot.resumes
        self.attendant.adopt(hello, self.block, Running(), worker)  # type: ignore[arg-type]
        if has_policy:
            WeightsWriter(self.block).publish(1, weights(0.5))

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_ns += PERIOD_NS
            if self.link:
                self.words.link_ns = self.now_ns
            self.loop.tick(self.now_ns)
        self.attendant._look()

    @property
    def state(self) -> tuple[State, Cause]:
        return State(self.words.state), Cause(self.words.cause)

    def events(self) -> list[str]:
        return [event["event"] for event in self.attendant._events.recent()]

    def close(self) -> None:
        self.attendant.close()
        self.worker.close()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ControlSettings:
    monkeypatch.setenv("EDGELINK_ROBOT_DIR", str(tmp_path / "robots"))
    monkeypatch.setattr(Attendant, "_await_instants", lambda *_: None)  # the loop's time is ours
    for patience in ("_PERSON_TIMEOUT_S", "_LATCH_TIMEOUT_S"):  # a busy machine may take longer than a robot's
        monkeypatch.setattr(attendant, patience, 20.0)
    deadman = DeadmanSettings(link_timeout_s=0.2, stop_after_s=0.2, resume_after_s=0.1)
    return ControlSettings("obedient_robot:ObedientRobot", name="one", deadman=deadman)


@pytest.fixture
def attended(settings: ControlSettings) -> Iterator[Callable[..., Robots]]:
    made = []

    def make(*, has_policy: bool = True, device: str = "", **changes: Any) -> Robots:
        made.append(Robots(replace(settings, **changes), has_policy=has_policy, device=device))
        return made[-1]

    yield make
    for robots in made:
        robots.close()


def tell(word: str, name: str = "one") -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as person:
        person.settimeout(20)
        person.connect(str(run_directory() / f"{name}.sock"))
        person.sendall(f"{word}\n".encode())
        answer: dict[str, Any] = json.loads(person.makefile().readline())
        return answer


def eventually(condition: Callable[[], Any], timeout_s: float = 20) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def latched(name: str = "one") -> dict[str, str] | None:
    return read_latch(run_directory() / f"{name}.stopped")


def test_a_persons_stop_outlives_its_process(attended: Callable[..., Robots]) -> None:
    """However automatic the robot is: the next process of that robot moves nothing before a person says so."""
    automatic = DeadmanSettings(link_timeout_s=0.2, resume="automatic", resume_after_s=0.1)
    first = attended(deadman=automatic)
    first.tick()
    assert first.state[0] is State.RUNNING
    assert tell("stop")["stop"]["cause"] == "person"
    assert latched() is not None, "it is written before the person is told"
    first.tick()
    first.words.close_request = 1
    first.tick()
    first.close()

    second = attended(deadman=automatic, stop_hook=("touch", str(run_directory() / "hooked")))
    second.tick(500)
    assert second.state == (State.STOPPED, Cause.PERSON)
    assert "act" not in second.robot.calls
    told = tell("status")
    assert (told["stop"]["cause"], told["needs_a_person"]) == ("person", True)
    assert told["events"][-1]["since"] == told["stop"]
    tell("resume")
    second.tick()
    assert second.state[0] is State.RUNNING
    eventually(lambda: latched() is None)
    second.close()
    assert not (run_directory() / "hooked").exists(), "nothing has moved since the stop whose hook has run"
    third = attended(deadman=automatic)
    third.tick()
    assert third.state[0] is State.RUNNING


@pytest.mark.parametrize(
    ("device", "next_device", "is_held"),
    [
        ("", "", True),
        ("can0", "", True),
        ("", "can0", True),
        ("can0", "can0", True),
        ("can0", "can1", False),
    ],
)
def test_a_stop_holds_the_robot_under_its_next_name(
    attended: Callable[..., Robots], device: str, next_device: str, is_held: bool
) -> None:
    """Its name has the rank of its worker in it, and another placement gives another one. What tells two robots of a
    machine apart is their devices alone, if both are known."""
    before = attended(device=device)
    before.tick()
    tell("stop")
    before.close()
    after = attended(name="two", device=next_device)
    after.tick(5)
    assert (after.state == (State.STOPPED, Cause.PERSON)) is is_held
    if not is_held:
        assert after.state[0] is State.RUNNING
        assert latched("two") is None
        return
    assert "act" not in after.robot.calls
    stop = tell("status", "two")["stop"]
    assert (stop["cause"], stop["time"]) == ("person, as one", latched()["time"])  # type: ignore[index]
    tell("resume", "two")
    after.tick()
    assert after.state[0] is State.RUNNING
    eventually(lambda: latched("two") is None)
    assert latched() is not None, "a person lifts it by its name: it may be another robot's"


def test_names_that_change_places_lift_no_stop(attended: Callable[..., Robots]) -> None:
    """A robot that gets a stopped one's name is not held by its stop, nor does it lift that: it is put aside."""
    before = attended(device="can0")
    before.tick()
    tell("stop")
    before.close()
    other = attended(device="can1")
    other.tick(2)
    assert other.state[0] is State.RUNNING
    tell("stop")
    other.tick()
    tell("resume")
    other.tick()
    assert other.state[0] is State.RUNNING
    eventually(lambda: latched() is None)
    stopped = attended(name="two", device="can0")
    stopped.tick(5)
    assert stopped.state == (State.STOPPED, Cause.PERSON)


def test_a_stop_is_not_lifted_by_what_was_before_it(attended: Callable[..., Robots]) -> None:
    """The attendant may learn that the robot has gone on when a person has already stopped it again."""
    robots = attended()
    robots.loop.tick(robots.now_ns)
    robots.words.link_ns = robots.now_ns
    robots.loop.tick(robots.now_ns)
    assert robots.state[0] is State.RUNNING
    tell("stop")
    robots.attendant._look()
    assert latched() is not None
    assert tell("status")["stop"]["cause"] == "person"
    robots.tick()
    tell("resume")
    robots.tick(2)
    assert robots.state[0] is State.RUNNING
    eventually(lambda: latched() is None)


def test_what_is_not_to_be_seen_yet_lifts_no_stop(attended: Callable[..., Robots]) -> None:
    """A change of state that is announced before it is there, as processors may show it to another core."""
    robots = attended()
    robots.tick()
    tell("stop")
    robots.tick()
    assert robots.state == (State.STOPPED, Cause.PERSON)
    told = robots.events()
    robots.words.changes += 1  # what is there by then says WAITING
    robots.attendant._look()
    assert (robots.events(), tell("status")["stop"]["cause"]) == (told, "person")
    robots.words.changes -= 1
    robots.block.write_change(robots.now_ns, State.RUNNING, Cause.PERSON, 1.0)
    robots.attendant._look()
    assert robots.events() == [*told, "running"]
    assert tell("status")["stop"] is None


@pytest.mark.parametrize(
    ("resume", "is_closed", "is_latched"),
    [("manual", False, True), ("automatic", False, False), ("manual", True, False)],
)
def test_a_stop_that_only_a_person_lifts_outlives_its_process(
    attended: Callable[..., Robots], resume: str, is_closed: bool, is_latched: bool
) -> None:
    """Such as a lost link where a person resumes; the end of a run is none."""
    robots = attended(deadman=DeadmanSettings(link_timeout_s=0.2, stop_after_s=0.2, resume=resume))
    robots.tick()
    robots.link = False
    robots.words.close_request = int(is_closed)
    robots.tick(60)
    assert robots.state == (State.STOPPED, Cause.CLOSING if is_closed else Cause.LINK)
    robots.close()
    assert (latched() is not None) is is_latched


@pytest.mark.parametrize("how", ["raises", "hangs", "returns"])
def test_a_run_that_ends_while_stop_fails_leaves_a_stop(
    attended: Callable[..., Robots], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The next one asks a person before it moves what may be moving."""
    robots = attended()
    robots.tick()
    if how == "raises":
        monkeypatch.setattr(robots.robot, "stop", lambda: 1 / 0)
    robots.words.close_request = 1
    robots.tick(3)
    robots.words.stopping_since_ns = int(how == "hangs")
    robots.words.leaving = robots.words.ended = 1
    monkeypatch.setattr(Running, "returncode", 0)
    robots.attendant.run(lambda: False)
    assert (latched() or {}).get("cause") == (None if how == "returns" else "fault")
    assert "died" not in robots.events()


def killed_while_it_ran(name: str, device: str = "") -> None:
    """As an attendant leaves its robot that is killed, or whose machine has lost its power."""
    left = Latch(run_directory() / f"{name}.stopped")
    left.claim(device)
    left.arm()
    left.settle()


def test_an_end_that_nobody_saw_is_a_stop(attended: Callable[..., Robots]) -> None:
    """Of a robot that only a person lets go on; as often as it happens, until it has ended in order."""
    attended().close()
    for _ in range(2):
        killed_while_it_ran("one")
        robots = attended()
        robots.tick(5)
        assert robots.state == (State.STOPPED, Cause.PERSON)
        assert "act" not in robots.robot.calls
        stop = tell("status")["stop"]
        assert stop["cause"] == "unknown end"
        assert "unknown time after 2" in stop["time"]
        assert robots.attendant._events.recent()[-1]["since"] == stop
        robots.close()
        assert latched() == stop, "nobody has lifted it"
        robots = attended()
        robots.tick()
        tell("resume")
        robots.tick()
        assert robots.state[0] is State.RUNNING
        eventually(lambda: latched() is None)
        robots.close()
    robots = attended()
    robots.tick()
    assert robots.state[0] is State.RUNNING


@pytest.mark.parametrize("resume", ["manual", "automatic"])
def test_what_a_kill_would_leave_is_there_before_the_robot_can_move(
    attended: Callable[..., Robots], resume: str
) -> None:
    """On the disk before anybody can bring it a policy, where a person resumes; gone with an orderly end."""
    path = run_directory() / "one.stopped"
    robots = attended(has_policy=False, deadman=DeadmanSettings(resume=resume))
    assert path.exists() is (resume == "manual")
    assert latched() is None, "it is no stop while somebody attends the robot"
    assert tell("status")["stop"] is None
    robots.close()
    assert not path.exists()


def test_the_hook_runs_at_a_stop_though_a_fault_hid_the_one_from_before(
    tmp_path: Path, attended: Callable[..., Robots]
) -> None:
    """A robot that was stopped before this run fails at once, is let go on, and moves: then a stop is a new one."""
    first = attended()
    tell("stop")
    first.close()
    hooked = tmp_path / "hooked"
    second = attended(stop_hook=("sh", "-c", f"echo $EDGELINK_CAUSE >> {hooked}"))
    second.robot.fault = OSError("gripper")
    second.tick(2)
    assert second.state == (State.STOPPED, Cause.FAULT)
    second.robot.fault = None
    tell("resume")
    second.tick()
    assert second.state[0] is State.RUNNING
    tell("stop")
    second.tick()
    assert second.state == (State.STOPPED, Cause.PERSON)
    second.close()
    assert hooked.read_text().split() == ["fault", "person"]


def test_events_of_months_fill_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was put aside is there until the next time."""
    monkeypatch.setattr(event_log, "_MOST_BYTES", 500)
    log = EventLog(tmp_path / "arm.events.jsonl", lambda write: write())
    for number in range(200):
        log.add("holding", number=number)
    files = [tmp_path / "arm.events.jsonl.1", tmp_path / "arm.events.jsonl"]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    kept = [json.loads(line)["number"] for file in files for line in file.read_text().splitlines()]
    assert kept == list(range(kept[0], 200))
    assert max(file.stat().st_size for file in files) < 700


def test_events_that_a_full_disk_did_not_take_are_written_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once, and whole."""
    path = tmp_path / "arm.events.jsonl"
    log = EventLog(path, lambda write: write())
    log.add("first")
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", _full)
        full.setattr(sys, "stderr", FullLog())
        log.add("second")
        log.add("third")
    assert len(path.read_text().splitlines()) == 1
    log.add("fourth")
    told = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert told == ["first", "second", "third", "fourth"]


class FullLog:
    """What the process prints to, on a full disk."""

    def write(self, _: str) -> None:
        _full()

    def flush(self) -> None:
        _full()


def test_a_full_disk_that_has_the_log_too_keeps_no_stop_from_being_written(
    attended: Callable[..., Robots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it has room again."""
    robots = attended()
    with monkeypatch.context() as full:
        full.setattr(sys, "stderr", FullLog())
        failed = threading.Event()
        robots.attendant._disk.put(_full)
        robots.attendant._disk.put(failed.set)
        assert failed.wait(20)
    tell("stop")
    eventually(lambda: latched() is not None)


def test_a_robot_at_work_stops_no_other_one(attended: Callable[..., Robots]) -> None:
    """Though both have no device; one that was killed while it ran does, for it may be this one."""
    first, second = attended(), attended(name="two")
    first.tick()
    second.tick()
    assert [robots.state[0] for robots in (first, second)] == [State.RUNNING] * 2
    killed_while_it_ran("three", "can0")
    third = attended(name="four", device="can1")
    third.tick()
    assert third.state[0] is State.RUNNING
    fourth = attended(name="five", device="can0")
    fourth.tick()
    assert fourth.state == (State.STOPPED, Cause.PERSON)
    assert tell("status", "five")["stop"]["cause"] == "unknown end, as three"


def test_a_resume_before_the_first_policy_is_kept(attended: Callable[..., Robots]) -> None:
    """The person need not come back once it is there."""
    before = attended()
    tell("stop")
    before.close()
    robots = attended(has_policy=False)
    robots.tick(5)
    assert robots.state == (State.STOPPED, Cause.PERSON)
    tell("resume")
    robots.tick()
    assert robots.state == (State.WAITING, Cause.NO_POLICY)
    eventually(lambda: latched() is None)
    WeightsWriter(robots.block).publish(1, weights(0.5))
    robots.tick()
    assert robots.state[0] is State.RUNNING


def test_the_end_of_a_replay_is_no_stop_that_lasts(attended: Callable[..., Robots]) -> None:
    """Also of a robot that only a person resumes: nothing has gone wrong."""
    robots = attended(deadman=DeadmanSettings(stop_after_s=0.1, resume="manual"), has_policy=False)
    robots.loop._actor = ReplayActor(robots.words, np.full((3, 1, 1), 0.1, np.float32))
    robots.words.may_begin = 1
    robots.tick(50)
    assert len(robots.robot.acted) == 3
    assert robots.state == (State.STOPPED, Cause.NO_POLICY)
    assert latched() is None
    robots.words.close_request = 1
    robots.tick(2)
    assert latched() is None


def test_a_latch_is_written_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Till then it is said that it is not; and one that cannot be read is a stop all the same."""
    path = tmp_path / "one.stopped"
    held = Latch(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _full)
        held.set("person")
        held.settle()
    assert held.error == f"{path}: No space left on device"
    assert not path.exists()
    monkeypatch.setattr(latch.time, "monotonic", lambda: 1e12)
    held.settle()
    assert held.error == ""
    assert read_latch(path) == held.stop
    path.write_text("{")
    assert Latch(path).stop == {"time": "an unknown time", "cause": "unknown", "device": ""}
    held.lift()
    held.settle()
    assert read_latch(path) is None


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attended: Callable[..., Robots]
) -> None:
    """That is an event, and in the status; the robot goes on."""
    robots = attended(record=str(tmp_path / "r"))
    monkeypatch.setattr(robots.attendant._recorder, "look", _full)
    eventually(lambda: "recording_ended" in robots.events())
    robots.tick(5)
    assert robots.state[0] is State.RUNNING
    assert tell("status")["recording_error"] == f"{tmp_path / 'r'}: No space left on device"
    robots.close()
    assert robots.events() == ["recording_ended", "running"]


def test_what_hangs_delays_no_persons_stop(attended: Callable[..., Robots], monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk, a hook, and one who connects and says nothing."""
    disk, is_hanging, hung = threading.Event(), threading.Event(), set()

    def hang(_: object) -> None:
        is_hanging.set()
        hung.add(threading.current_thread().name)
        if threading.current_thread() is not threading.main_thread():  # which is ours here, and the attendant's
            disk.wait()

    monkeypatch.setattr(os, "fsync", hang)
    monkeypatch.setattr(attendant, "_LATCH_TIMEOUT_S", 0.05)
    robots = attended(resume_hook=("sleep", "600"), stop_hook=("true",))
    robots.tick()
    robots.words.stop_requests += 1
    robots.tick()
    tell("resume")
    robots.tick()
    assert robots.state[0] is State.RUNNING
    assert is_hanging.wait(20)
    try:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(str(run_directory() / "one.sock"))
            before = robots.words.stop_requests
            with socket.socket(socket.AF_UNIX) as person:
                person.connect(str(run_directory() / "one.sock"))
                person.sendall(b"stop\n")
                eventually(lambda: robots.words.stop_requests > before, timeout_s=0.5 * attendant._PERSON_TIMEOUT_S)
            robots.tick()
            assert robots.state == (State.STOPPED, Cause.PERSON)
            assert robots.events()[-1] == "stopped"
        assert hung == {"disk"}
    finally:
        disk.set()


def test_a_stop_is_written_down_though_the_disk_of_the_recordings_hangs(
    tmp_path: Path, attended: Callable[..., Robots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one may be a network's."""
    disk, is_hanging = threading.Event(), threading.Event()

    def hang(_: object) -> None:
        is_hanging.set()
        disk.wait(20)

    monkeypatch.setattr(attendant.Recorder, "look", hang)
    attended(record=str(tmp_path / "recordings"), deadman=DeadmanSettings(resume="automatic"))
    assert is_hanging.wait(20)
    try:
        assert tell("stop")["stop_error"] == ""
        assert latched() is not None
    finally:
        disk.set()


def test_who_stops_a_robot_is_told_that_the_stop_is_not_written_down_yet(
    attended: Callable[..., Robots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a disk that hangs: another training would not know of it."""
    disk = threading.Event()
    monkeypatch.setattr(attendant, "_LATCH_TIMEOUT_S", 0.05)
    robots = attended(deadman=DeadmanSettings(resume="automatic"))
    monkeypatch.setattr(os, "fsync", lambda _: disk.wait(20))
    try:
        told = tell("stop")
    finally:
        disk.set()
    assert told["stop"]["cause"] == "person"
    assert told["stop_error"].startswith(f"{run_directory() / 'one.stopped'}: ")
    eventually(lambda: tell("status")["stop_error"] == "")
    robots.close()
    assert latched() is not None


def test_a_stop_is_heard_though_no_thread_is_to_be_had(
    attended: Callable[..., Robots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that has too many for a moment: that one, and all that come later."""
    robots = attended()
    robots.tick()
    with monkeypatch.context() as crowded:
        crowded.setattr(threading.Thread, "start", _no_thread)
        assert tell("stop")["stop"]["cause"] == "person"
    robots.tick()
    assert robots.state == (State.STOPPED, Cause.PERSON)
    assert tell("status")["state"] == "stopped"


def _no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_a_stop_hook_waits_for_no_resume_hook(tmp_path: Path, attended: Callable[..., Robots]) -> None:
    """That one is killed, with all that it has started."""
    pids, stopped = tmp_path / "pids", tmp_path / "stopped"
    slow = ("sh", "-c", f"sleep 600 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait")
    robots = attended(resume_hook=slow, stop_hook=("touch", str(stopped)))
    robots.attendant._hooks.resumed("running", "link")
    eventually(pids.exists)
    robots.attendant._hooks.resumed("running", "link")  # has no sense any more, either
    robots.attendant._hooks.stopped("stopped", "link")
    eventually(stopped.exists)
    for pid in map(int, pids.read_text().split()):
        eventually(lambda pid=pid: _is_gone(pid))
    robots.close()
    told = robots.attendant._events.recent()
    assert [event["status"] for event in told] == [None, 0]
    assert told[0]["reason"] == "sh: the robot stopped: killed"


def test_a_stop_hook_runs_though_a_hook_before_it_cannot_be_killed(
    tmp_path: Path, attended: Callable[..., Robots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another user's, which it is by sudo: it goes on beside it, and people are told."""
    began, stopped = tmp_path / "began", tmp_path / "stopped"
    slow = ("sh", "-c", f"echo $$ > {began}.new; mv {began}.new {began}; exec sleep 600")
    robots = attended(resume_hook=slow, stop_hook=("touch", str(stopped)))
    kill = os.killpg
    monkeypatch.setattr(os, "killpg", _not_permitted)
    robots.attendant._hooks.resumed("running", "link")
    eventually(began.exists)
    try:
        robots.attendant._hooks.stopped("stopped", "link")
        eventually(stopped.exists)
        robots.close()
    finally:
        kill(int(began.read_text()), signal.SIGKILL)
    told = robots.attendant._events.recent()
    assert [event["status"] for event in told] == [None, 0]
    assert told[0]["reason"].startswith("sh: ")
    assert "not killed" in told[0]["reason"]


@pytest.mark.parametrize(("number", "status"), [(errno.EAGAIN, 0), (errno.ENOENT, None)])
def test_a_stop_hook_is_tried_again_where_that_helps(
    attended: Callable[..., Robots], monkeypatch: pytest.MonkeyPatch, number: int, status: int | None
) -> None:
    """A machine that is out of processes, for now, is one on which a robot stops."""
    robots = attended(stop_hook=("true",))
    failures = [OSError(number, os.strerror(number))] * 2
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        if failures:
            raise failures.pop()
        return popen(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    robots.attendant._hooks.stopped("stopped", "link")
    robots.close()
    assert [event["status"] for event in robots.attendant._events.recent()] == [status]


def _not_permitted(*_: object) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def test_a_hook_that_hangs_is_killed_with_all_that_it_has_started(
    tmp_path: Path, attended: Callable[..., Robots]
) -> None:
    """Not its shell alone."""
    pids = tmp_path / "pids"
    hangs = ("sh", "-c", f"sleep 600 & echo $! > {pids}.new; mv {pids}.new {pids}; wait")
    robots = attended(stop_hook=hangs, hook_timeout_s=0.1)
    robots.attendant._hooks.stopped("stopped", "link")
    robots.close()
    assert "took longer than 0.1 s" in robots.attendant._events.recent()[-1]["reason"]
    if pids.exists():
        eventually(lambda: _is_gone(int(pids.read_text())))


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_resume_hook_runs_though_the_robot_had_not_run_before(
    tmp_path: Path, attended: Callable[..., Robots]
) -> None:
    """From waiting to a stop and on: somebody has said that it goes on."""
    resumed = tmp_path / "resumed"
    robots = attended(resume_hook=("touch", str(resumed)))
    robots.words.stop_requests = 1
    robots.tick()
    assert robots.state == (State.STOPPED, Cause.PERSON)
    robots.words.resume_requests = 1
    robots.tick()
    assert (robots.state[0], robots.words.resumes) == (State.RUNNING, 1)
    robots.close()
    assert resumed.exists()


@pytest.mark.parametrize(
    ("word", "state"), [("busy_since_ns", "stalled"), ("heartbeat_ns", "silent"), ("stopping_since_ns", "stopping")]
)
def test_what_does_not_come_back_is_not_told_as_running(attended: Callable[..., Robots], word: str, state: str) -> None:
    """What it did last is not what it does; once it has come back, it is."""
    robots = attended()
    robots.tick()
    setattr(robots.words, word, 1)
    assert tell("status")["state"] == state
    robots.attendant._look()
    assert ("stop_failed" in robots.events()) is (state == "stopping")
    setattr(robots.words, word, 0)
    assert tell("status")["state"] == "running"


def test_what_is_dead_is_not_told_as_running(attended: Callable[..., Robots], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless its process has left it at rest."""
    robots = attended()
    robots.tick()
    monkeypatch.setattr(Running, "returncode", -9)
    assert robots.attendant.report()["state"] == "dead"
    robots.words.close_request = 1
    robots.tick()
    robots.words.leaving = robots.words.ended = 1
    assert robots.attendant.report()["state"] == "stopped"


def test_a_robot_that_is_let_go_of_is_not_silent(attended: Callable[..., Robots]) -> None:
    """It has been stopped; its own code may take its time. A loop that hangs is another matter."""
    robots = attended()
    robots.tick()
    robots.words.ticks, robots.words.heartbeat_ns = 1, 1
    robots.words.leaving = 1
    robots.attendant._look()
    assert "silent" not in robots.events()
    robots.words.leaving = 0
    robots.attendant._look()
    assert robots.events()[-1] == "silent"


def test_a_robot_whose_code_does_not_let_go_of_it_is_let_go_of(
    attended: Callable[..., Robots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has been stopped, and would be nobody else's for as long as its process lives. Not before its time is over."""
    robots = attended()
    kills: list[str] = []
    monkeypatch.setattr(Running, "kill", lambda _: kills.append("kill"), raising=False)
    robots.tick()
    robots.words.leaving = 1
    robots.tick(2)
    assert (kills, robots.attendant._is_killed) == ([], False)
    since_ns = robots.attendant._leaves_by_ns
    assert since_ns is not None
    monkeypatch.setattr("edgelink.training.trainer.robot.attendant.now_ns", lambda: since_ns + 1)
    robots.tick(2)
    assert kills == ["kill"]
    assert robots.events()[-1] == "killed"


CHILDREN = """
import multiprocessing, os, pathlib, signal, socket, subprocess
from edgelink.training.trainer.robot import control

lock = os.memfd_create("lock")
attendant, standard_input = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.dup2(standard_input.fileno(), 0)
standard_input.close()
other, other_end = socket.socketpair()

def has_lock():
    return "/memfd:lock (deleted)" in [entry.resolve().as_posix() for entry in pathlib.Path("/proc/self/fd").iterdir()]

def stay(link):
    link.send(has_lock())
    signal.pause()

control._outlive_signals()
control._keep_from_children([lock])
link = control._take_link()
device = control._only_one(f"device of {os.getpid()}", link)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    os.kill(os.getpid(), number)
program = subprocess.Popen(["sleep", "600"])
fork = multiprocessing.get_context("fork")
ours, theirs = fork.Pipe()
forked = fork.Process(target=stay, args=(theirs,))
forked.start()
try:
    print(has_lock(), ours.recv())
    link.close()
    device.close()
    attendant.settimeout(20)
    print(attendant.recv(1))
    control.DEVICE_TIMEOUT_S = 0.0
    control._only_one(f"device of {os.getpid()}", other)
    program.terminate()
    forked.terminate()
    print(program.wait(20))
    forked.join(20)
    print(forked.exitcode)
finally:
    program.kill()
    forked.kill()
"""


def test_the_robots_code_can_end_what_it_has_started() -> None:
    """A program and a forked process, by SIGTERM as elsewhere; the control process itself does not end by it.

    Neither keeps the robot locked if it lives longer, nor its device, nor is it taken for the control process.
    """
    ran = subprocess.run([sys.executable, "-c", CHILDREN], capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout.split()) == (0, ["True", "False", "b''", "-15", "-15"]), ran.stderr


def test_what_outlives_a_dead_control_process_holds_up_nobody(attended: Callable[..., Robots]) -> None:
    """Something that the robot's code has started may still have the other end of the attendant's socket."""
    robots = attended()
    robots.tick()
    robots.attendant._control.returncode = -9
    ending = threading.Thread(target=robots.attendant.run, args=(lambda: False,), daemon=True)
    ending.start()
    ending.join(20)
    assert not ending.is_alive()
    assert "died" in robots.events()


def test_a_control_process_that_dies_before_it_has_stopped_confirms_no_persons_stop(
    attended: Callable[..., Robots],
) -> None:
    """However automatic the robot is: what is written down is what happened after it."""
    robots = attended(deadman=DeadmanSettings(link_timeout_s=0.2, resume="automatic"))
    robots.tick()
    assert tell("stop")["stop"]["cause"] == "person"
    robots.attendant._control.returncode = -9
    robots.attendant.run(lambda: False)
    stop = latched()
    assert stop is not None
    assert stop["cause"] == "fault"


def test_a_control_process_that_has_ended_is_not_waited_for() -> None:
    """Before its hello, though something that it has started has its socket still."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    refused = pytest.raises(OSError, match="status 0")
    with ours, theirs, worker, other, refused:
        attendant_process._hear_hello(ended, ours, worker, attendant_process.Wish())


def test_what_comes_while_it_is_stopped_is_recorded(tmp_path: Path, attended: Callable[..., Robots]) -> None:
    """A person's stop, a fault; stop is called again, the hook is not."""
    hooked = tmp_path / "hooked"
    robots = attended(stop_hook=("sh", "-c", f"echo x >> {hooked}"))
    robots.tick()
    robots.link = False
    robots.tick(60)
    stops = robots.robot.calls.count("stop")
    robots.words.stop_requests = 1
    robots.tick()
    robots.robot.fault = OSError("gripper")
    robots.tick()
    told = [(event["event"], event["cause"]) for event in robots.attendant._events.recent() if "cause" in event]
    assert told[-3:] == [("stopped", "link"), ("stopped", "person"), ("stopped", "fault")]
    assert robots.robot.calls.count("stop") == stops + 2
    assert robots.words.stops == 1
    robots.close()
    assert hooked.read_text() == "x\n"


def test_who_starts_waits_longer_than_the_run_before_may_take_to_leave() -> None:
    """With its stop hook and its disk, which come before and after that; and the env worker longer than both. So does
    who wants its device; the robot's code has a minute besides."""
    assert LEAVE_TIMEOUT_S + attendant._DISK_TIMEOUT_S + DeadmanSettings().stop_after_s < LOCK_TIMEOUT_S
    assert LEAVE_TIMEOUT_S + DeadmanSettings().stop_after_s < control.DEVICE_TIMEOUT_S
    assert MAKE_TIMEOUT_S >= control.DEVICE_TIMEOUT_S + 60
    assert environment._HELLO_TIMEOUT_S > LOCK_TIMEOUT_S + MAKE_TIMEOUT_S


def test_its_socket_is_where_people_look(
    settings: ControlSettings, attended: Callable[..., Robots], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a training's configuration and environment say of directories; its events are where that says."""
    robots = attended(directory=str(tmp_path / "events"))
    assert tell("status")["name"] == "one"
    robots.tick()
    robots.close()
    assert (tmp_path / "events" / "one.events.jsonl").exists()
    monkeypatch.delenv("EDGELINK_ROBOT_DIR")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert run_directory() == Path(f"/var/tmp/edgelink-robots-{os.getuid()}")


@pytest.mark.parametrize("mode", [0o755, 0o750])
def test_a_directory_that_was_there_is_as_open_as_it_was(settings: ControlSettings, tmp_path: Path, mode: int) -> None:
    """Others read there, such as in /var/log; only one that is made is closed to them."""
    found = tmp_path / "log"
    found.mkdir()
    found.chmod(mode)
    assert replace(settings, directory=str(found)).events_file.parent == found
    assert stat.S_IMODE(found.stat().st_mode) == mode
    made = replace(settings, directory=str(tmp_path / "made")).events_file.parent
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o2775, 0o777, 0o1777])
def test_a_directory_that_others_may_write_to_is_refused(settings: ControlSettings, tmp_path: Path, mode: int) -> None:
    """As it is: where the events go could be made a link to any file of this user's."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    with pytest.raises(OSError, match=f"{shared} .*{mode:o}"):
        _ = replace(settings, directory=str(shared)).events_file
    assert stat.S_IMODE(shared.stat().st_mode) == mode
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(OSError, match=f"{link}.* link"):
        _ = replace(settings, directory=str(link)).events_file


def test_each_node_of_a_lab_has_its_own_robots(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are root's there, and nodes of two labs may have the same name."""
    monkeypatch.delenv("EDGELINK_ROBOT_DIR", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert MOUNT_POINTS[run_directory()] == 0o700


class Misshapen(ObedientRobot):
    """Its observations are not what it says."""

    made: Robot

    def __init__(self, settings: RobotSettings) -> None:
        super().__init__(settings)
        self.seen = np.zeros((1, 3), np.float32)
        Misshapen.made = self


def test_a_robot_that_has_power_is_stopped_whatever_fails_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a stop that raises at first; then its hardware is let go of."""
    monkeypatch.setattr(control, "load_robot", lambda name: Misshapen)
    monkeypatch.setattr(control, "_LOOK_S", 0.0)
    called: list[str] = []

    def stop(self: Robot) -> None:
        called.append("stop")
        if len(called) < 3:
            raise OSError("not yet")

    monkeypatch.setattr(Misshapen, "stop", stop)
    monkeypatch.setattr(Misshapen, "close", lambda self: called.append("close"))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, pytest.raises(ValueError, match=r"observe\(\) gave float32 of shape \(1, 3\)"):
        control._serve(ControlSettings("x"), theirs)
    assert called == ["stop"] * 3 + ["close"]


def test_a_robot_whose_code_exits_at_the_end_is_let_go_of() -> None:
    """It is at rest: that is the orderly end of its run, whatever its code says then."""
    called = []

    class Exiting(ObedientRobot):
        def report(self) -> dict[str, Any]:
            sys.exit("no figures")

        def close(self) -> None:
            called.append("close")
            sys.exit(0)

    robot = Exiting(RobotSettings())
    block = SharedBlock(Layout(robot.spaces, 1, 8))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        control._leave(robot, block, theirs)
        assert json.loads(ours.recv(100)) == {"report": {}}
    assert called == ["close"]
    assert block.words.ended == 1


def test_a_rate_that_a_robot_does_not_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not ignored: who asked for it counts on it."""

    class Stubborn(ObedientRobot):
        def __init__(self, settings: RobotSettings) -> None:
            super().__init__(settings)
            self.rate_hz = 100.0

    monkeypatch.setattr(control, "load_robot", lambda name: Stubborn)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, pytest.raises(ValueError, match=r"robot\.rate_hz .*200, .* 100"):
        control._serve(ControlSettings("x", settings=RobotSettings(rate_hz=200.0)), theirs)


def test_a_device_that_is_not_known_is_no_device() -> None:
    """None, as of an option that was not given, is no name: all such robots would be one, and others two."""
    assert (control._device(None), control._device(""), control._device("can0")) == ("", "", "can0")
    with pytest.raises(ValueError, match=r"device\(\) .*7"):
        control._device(7)


def test_one_device_has_one_control_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the robots are called, and whose they are; until the process that has it is gone."""
    monkeypatch.setattr(control, "DEVICE_TIMEOUT_S", 0.0)
    device = f"arm at {os.getpid()}"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    refused = pytest.raises(OSError, match=device)
    with ours, theirs:
        with control._only_one(device, ours), control._only_one(f"{device}, the other", ours), refused:
            control._only_one(device, ours)
        with control._only_one(device, ours):
            pass
        with control._only_one("", ours), control._only_one("", ours):
            pass


def test_a_robot_that_nobody_waits_for_any_more_is_not_made() -> None:
    """Its attendant has given up while another robot had the device: that may become free at any moment."""
    device = f"arm at {os.getpid()}"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, control._only_one(device, ours):
        theirs.close()
        with pytest.raises(ConnectionError, match="robot"):
            control._only_one(device, ours)


def test_an_attendant_that_is_gone_already_is_missed() -> None:
    """Also when it died before the loop began: its process id is that of the socket's maker, not of the parent."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert control._pid_of_other_end(theirs) == os.getpid()
    gone = subprocess.Popen(["true"])
    gone.wait()
    robot = ObedientRobot(RobotSettings())
    block = SharedBlock(Layout(robot.spaces, 1, 8))
    loop = ControlLoop(robot, block, DeadmanSettings(), policy(robot, block), parent=gone.pid)
    watchdog = threading.Thread(target=loop._watch)
    watchdog.start()
    eventually(lambda: block.words.worker_is_gone)
    loop._is_over = True
    watchdog.join()

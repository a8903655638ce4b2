"""A robot's processes: a clock of their own, at rest when nobody is there, gone when nobody can come back."""

from __future__ import annotations

import fcntl
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
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from obedient_robot import SPACES, weights
from telling import Words

from edgelink.cli import robot as robot_commands
from edgelink.cli.robot import _told, command
from edgelink.errors import EdgelinkError
from edgelink.training.trainer.experience.environment import EnvWorker
from edgelink.training.trainer.experience.fragment import Fragment
from edgelink.training.trainer.experience.inbox import Inbox
from edgelink.training.trainer.experience.robot_collect import RobotCollector
from edgelink.training.trainer.experience.stepping import StepClient
from edgelink.training.trainer.experience.weights_codec import Offer, Patterns, encode
from edgelink.training.trainer.report import placement_lines
from edgelink.training.trainer.robot import attendant_process, directory
from edgelink.training.trainer.robot.deadman import Cause, DeadmanSettings, State
from edgelink.training.trainer.robot.directory import is_commanded, known_directories
from edgelink.training.trainer.robot.environment import RobotEnvironment
from edgelink.training.trainer.robot.hindrance import Hindrance
from edgelink.training.trainer.robot.interface import RobotSettings
from edgelink.training.trainer.robot.link import _ANSWER, EchoServer, LinkWatch, _code
from edgelink.training.trainer.robot.recording import episodes, read_recording
from edgelink.training.trainer.robot.settings import ControlSettings
from edgelink.training.trainer.robot.shared import Layout, SharedBlock
from edgelink.training.trainer.slots import Slot
from edgelink.training.trainer.whereabouts import Whereabouts

pytestmark = pytest.mark.processes

OBEDIENT = "obedient_robot:ObedientRobot"
CART_POLE = {
    "policy/head/weight": np.zeros((2, 4), np.float32),
    "policy/head/bias": np.zeros(2, np.float32),
}


def eventually(condition: Callable[[], Any], timeout_s: float = 60) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ControlSettings:
    monkeypatch.setenv("EDGELINK_ROBOT_DIR", str(tmp_path / "robots"))
    return ControlSettings(
        OBEDIENT,
        name="one",
        # On a busy machine this process may stand still for a second, and only a person would let the robot go on.
        # And most tests serve it only now and then.
        deadman=DeadmanSettings(link_timeout_s=5, worker_timeout_s=0, stop_after_s=0.2, resume_after_s=0.3),
        watchdog_s=5,
        directory=str(tmp_path / "robots"),
        tick_file=str(tmp_path / "ticks-{rank}.json"),
    )


@pytest.fixture
def start(settings: ControlSettings) -> Iterator[Callable[..., RobotEnvironment]]:
    """Starts a robot by ``settings`` with changes; all are closed in the end."""
    started = []

    def start(**changes: Any) -> RobotEnvironment:
        started.append(RobotEnvironment(replace(settings, **changes)))
        return started[-1]

    yield start
    for robot in started:
        robot.close()


def figures(settings: ControlSettings) -> dict[str, Any]:
    path = Path(settings.tick_file.replace("{rank}", str(settings.settings.rank)))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def events(settings: ControlSettings) -> list[dict[str, Any]]:
    path = Path(settings.directory) / "one.events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tell(settings: ControlSettings, word: str) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as person:
        person.connect(str(Path(settings.directory) / "one.sock"))
        person.sendall(f"{word}\n".encode())
        answer: dict[str, Any] = json.loads(person.makefile().readline())
        return answer


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_it_ticks_in_real_time_whoever_takes_its_experience(
    settings: ControlSettings, start: Callable[..., RobotEnvironment]
) -> None:
    """Half a second without anybody taking; then what was done in the time is there, by the version that did it."""
    robot = start(robot="cart-pole", settings=RobotSettings(rigs=2, seed=1))
    robot.load_policy(3, CART_POLE)
    eventually(lambda: robot.report()["steps"] > 0)

    def keeps_time() -> bool:
        begun_s, before = time.monotonic(), robot.report()["ticks"]
        time.sleep(0.5)
        counted, elapsed_s = robot.report()["ticks"] - before, time.monotonic() - begun_s
        assert counted / 100 <= elapsed_s + 0.1
        return counted / 100 >= 0.5 * elapsed_s

    eventually(keeps_time)  # once the machine gives it the time

    parts = robot.take(20, 20.0)
    assert parts is not None
    fragment = Fragment(rank=0, ticket=1, **parts)
    assert (fragment.observations.shape, fragment.actions.shape, fragment.samples) == ((20, 2, 4), (20, 2), 40)
    assert fragment.weights_version == 3
    steps = fragment.observations[1:, :, 0] - fragment.observations[:-1, :, 0]
    ended = (fragment.terminated | fragment.truncated)[:-1]
    assert (np.abs(steps)[~ended] < 0.2).all(), "one step leads to the next"
    eventually(lambda: figures(settings)["steps"] >= 20)


def test_the_how_to_tries_a_robot_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's own robot by the page's own script, as they stand there, for a shorter time."""
    page = (Path(__file__).parents[1] / "docs/how-to/robots.md").read_text()
    slider, test, alone = (block.partition("```")[0] for block in page.split("```python\n")[1:])
    names: dict[str, Any] = {"RobotSettings": RobotSettings}
    exec(compile(slider + test, "test_slider.py", "exec"), names)
    names["test_it_ends_where_its_workspace_does"]()
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package/slider.py").write_text(slider)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("EDGELINK_ROBOT_DIR", str(tmp_path / "robots"))
    assert alone.count("robot.take(round(robot.steps_per_s)") == alone.count("SECONDS = 10") == 1
    shorter = alone.replace("round(robot.steps_per_s)", "3").replace("SECONDS = 10", "SECONDS = 2")
    exec(compile(shorter, "alone.py", "exec"), {"__name__": "__main__"})
    *seen, report = capsys.readouterr().out.split("\n", 2)
    assert [text.startswith("[[") for text in seen] == [True, True]
    told = json.loads(report)
    assert (told["name"], told["state"], told["policy_version"]) == ("alone", "stopped", 1)
    assert told["steps"] >= 6


def test_a_worker_that_is_killed_leaves_a_robot_at_rest_and_nothing_else(settings: ControlSettings) -> None:
    """Held, stopped, hook run, recorded; then control process and attendant end and let go of the name."""
    hooked = Path(settings.directory).with_name("hooked")
    hook = ("sh", "-c", f'echo "$EDGELINK_ROBOT $EDGELINK_EVENT $EDGELINK_CAUSE" >> {hooked}')
    code = (
        "import sys; from pathlib import Path; from edgelink.training.trainer.robot.environment import *\n"
        "import obedient_robot; robot = RobotEnvironment(ControlSettings.from_json(sys.argv[1]))\n"
        "robot.load_policy(1, obedient_robot.weights()); print(robot.pid, flush=True); sys.stdin.read()"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code, replace(settings, stop_hook=hook).to_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert worker.stdout is not None
    control = int(worker.stdout.readline())
    eventually(lambda: events(settings))
    worker.send_signal(signal.SIGKILL)
    worker.communicate()

    eventually(lambda: is_gone(control))
    eventually(lambda: not (Path(settings.directory) / "one.sock").exists())
    told = [(event["event"], event.get("cause")) for event in events(settings)]
    assert told == [("running", "none"), ("holding", "worker"), ("stopped", "worker"), ("hook", None)]
    assert hooked.read_text() == "one stopped worker\n"


def test_a_worker_that_hangs_is_like_a_dead_link(settings: ControlSettings) -> None:
    """SIGSTOP: hold, stop. SIGCONT: it goes on by itself after the good time, if that is allowed."""
    deadman = replace(settings.deadman, link_timeout_s=0.2, resume="automatic")
    code = (
        "import sys, obedient_robot; from edgelink.training.trainer.robot.environment import *\n"
        "robot = RobotEnvironment(ControlSettings.from_json(sys.argv[1]))\n"
        "robot.load_policy(1, obedient_robot.weights()); print(flush=True); sys.stdin.read(); robot.close()"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code, replace(settings, deadman=deadman).to_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert worker.stdout is not None
    worker.stdout.readline()
    eventually(lambda: tell(settings, "status")["state"] == "running")
    worker.send_signal(signal.SIGSTOP)
    eventually(lambda: tell(settings, "status")["state"] == "stopped")
    assert tell(settings, "status")["cause"] == "link"
    worker.send_signal(signal.SIGCONT)
    eventually(lambda: tell(settings, "status")["state"] == "running")
    worker.communicate(timeout=60)
    assert [event["event"] for event in events(settings)][-1] == "stopped"


def test_the_arm_follows_its_policy_in_real_time(
    settings: ControlSettings, start: Callable[..., RobotEnvironment]
) -> None:
    """Its physics go on in a process of their own; by a policy that wants its first joint to turn, that joint turns."""
    robot = start(robot="arm", settings=RobotSettings(seed=1))
    spaces = robot.spaces
    policy = {
        "policy/head/weight": np.zeros((spaces.outputs, spaces.features), np.float32),
        "policy/head/bias": np.array([0.5, 0.0, 0.0], np.float32),
        "policy/log_std": np.full(3, -5.0, np.float32),
    }
    robot.load_policy(1, policy)
    parts = robot.take(30, 20.0)
    assert parts is not None
    angles_rad = parts["observations"][:, 0, 0]
    assert (np.diff(angles_rad) > 0).mean() > 0.8
    robot.close()
    assert is_gone(robot.pid)


def test_a_robot_of_somebody_elses_package_is_found_by_its_name(
    settings: ControlSettings, start: Callable[..., RobotEnvironment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry point of the group `edgelink.robots`, as docs/how-to/robots.md has people write it."""
    package = tmp_path / "site" / "my_robots-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: my-robots\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[edgelink.robots]\nslider = {OBEDIENT}\n")
    monkeypatch.syspath_prepend(str(package.parent))
    robot = start(robot="slider")
    robot.load_policy(1, weights())
    eventually(lambda: robot.report()["steps"] > 0)
    assert robot.report()["robot"] == "slider"


def test_a_person_stops_and_resumes_it(settings: ControlSettings, start: Callable[..., RobotEnvironment]) -> None:
    """Over its socket, which only its user can reach; no good link resumes it before."""
    robot = start()
    robot.load_policy(1, weights())
    eventually(lambda: tell(settings, "status")["state"] == "running")
    assert (Path(settings.directory).stat().st_mode & 0o777) == 0o700
    tell(settings, "stop")
    eventually(lambda: tell(settings, "status")["state"] == "stopped")
    ticks = tell(settings, "status")["ticks"]
    eventually(lambda: tell(settings, "status")["ticks"] > ticks + 50)
    assert tell(settings, "status")["cause"] == "person"
    tell(settings, "resume")
    eventually(lambda: tell(settings, "status")["state"] == "running")
    assert tell(settings, "status")["resumes"] == 1


def test_a_person_does_it_by_command(
    settings: ControlSettings, start: Callable[..., RobotEnvironment], words: Words
) -> None:
    """`edgelink robot`: without Ray, daemon and head; a robot that is not there is told with those that are."""

    def by_command(what: str) -> tuple[int, str]:
        done = CliRunner().invoke(command, [what, "one"], standalone_mode=False, catch_exceptions=False)
        return int(done.return_value or 0), done.output

    robot = start()
    assert by_command("status")[0] == 1
    robot.load_policy(1, weights())
    eventually(lambda: by_command("status")[0] == 0)
    assert by_command("status")[1].startswith(f"robot one ({OBEDIENT}): running\n  100 Hz, ")
    assert robot.hindrance() == Hindrance()
    words(by_command("stop")[1].partition("\n")[0])
    hindrance = robot.hindrance()
    assert hindrance.needs_person
    words(hindrance.words, ON_HOST=f"on {socket.gethostname()}")
    assert by_command("resume")[1].startswith(f"robot one ({OBEDIENT}): running\n")
    assert robot.hindrance() == Hindrance()
    with pytest.raises(EdgelinkError, match=r"\btwo\b.*\bone\b"):
        CliRunner().invoke(command, ["status", "two"], standalone_mode=False, catch_exceptions=False)

    words(by_command("stop")[1].splitlines()[-1].partition(", ")[2])
    robot.close()
    words(by_command("status")[1].rpartition("person; ")[2])
    assert by_command("status")[0] == 1
    again = start()
    again.load_policy(1, weights())
    eventually(lambda: again.policy_version == 1)
    eventually(lambda: ": stopped, because of: person" in by_command("status")[1])
    assert again.notice.startswith("robot one is stopped since 2")
    words(again.notice.partition(", ")[2], ON_HOST=f"on {socket.gethostname()}")
    assert robot.notice == ""
    waits = Hindrance(again.notice, needs_person=True)
    assert again.hindrance() == waits, "who is told at the start is not told in other words later"
    here = Whereabouts("edge", 1, "net:[1]", "id", "10.0.0.9", 0, "et0", "10.0.0.9", "a" * 64, "3.11", again.notice)
    lines = placement_lines({Slot("env", 0, 1, "10.0.0.9", "edge"): here}, ["robot"])
    assert lines[1:] == [f"    {again.notice}"], "whoever trains is told where and why nothing moves"
    again.close()
    words(by_command("resume")[1])
    with pytest.raises(EdgelinkError, match="no robot one of yours"):
        by_command("status")


@pytest.mark.parametrize(
    ("state", "hindrance", "resumes", "begun_s", "is_told"),
    [
        (State.HOLDING, Cause.NONE, "manual", 0, True),
        (State.HOLDING, Cause.NONE, "automatic", 0, False),
        (State.HOLDING, Cause.LINK, "manual", 0, False),
        (State.WAITING, Cause.LINK, "manual", -99, True),
        (State.WAITING, Cause.LINK, "manual", 0, False),
        (State.WAITING, Cause.NO_POLICY, "manual", -99, False),
        (State.WAITING, Cause.NONE, "manual", -99, False),
        (State.RUNNING, Cause.NONE, "manual", -99, False),
    ],
)
def test_who_trains_is_told_of_a_robot_that_nobody_stopped_and_that_does_nothing(
    state: State, hindrance: Cause, resumes: str, begun_s: float, is_told: bool, words: Words
) -> None:
    """What it waits for, where that is no moment's hold and no usual start."""
    robot = RobotEnvironment.__new__(RobotEnvironment)
    robot.name, robot.notice, robot._is_manual = "one", "", resumes == "manual"
    robot._begun_s, robot._watchdog_s = time.monotonic() + begun_s, 0.1
    robot._block = SharedBlock(Layout(SPACES, 1, 8))
    block = robot._block.words
    block.state, block.cause, block.hindrance = state, Cause.LINK, hindrance
    told = robot.hindrance()
    assert (bool(told.words), told.needs_person) == (is_told, is_told and state is State.HOLDING)
    words(told.words, ON_HOST=f"on {socket.gethostname()}")
    for word, lost in (("heartbeat_ns", "is silent"), ("busy_since_ns", "is stalled"), ("stopping_since_ns", "stop()")):
        setattr(block, word, 1)
        assert robot.hindrance().needs_person
        assert lost in robot.hindrance().words


def test_a_stop_without_a_name_is_of_the_robot_that_is_commanded(
    settings: ControlSettings, start: Callable[..., RobotEnvironment]
) -> None:
    """Others are in the list because their stops last; of two that are commanded none is guessed."""
    place = Path(settings.directory)
    place.mkdir(mode=0o700, exist_ok=True)
    start(name="two", robot=OBEDIENT)
    (place / "away.stopped").write_text(json.dumps({"time": "2026-01-01T00:00:00+00:00", "cause": "person"}))
    done = CliRunner().invoke(command, ["stop"], standalone_mode=False, catch_exceptions=False)
    assert done.output.startswith(f"robot two ({OBEDIENT}): stopped, because of: person")
    with pytest.raises(click.UsageError, match=r"which one\? away, two"):
        CliRunner().invoke(command, ["resume"], standalone_mode=False, catch_exceptions=False)
    start()
    with pytest.raises(click.UsageError, match=r"which one\? one, two$"):
        CliRunner().invoke(command, ["stop"], standalone_mode=False, catch_exceptions=False)


def test_who_resumes_is_told_which_stops_are_left(
    settings: ControlSettings, start: Callable[..., RobotEnvironment], words: Words
) -> None:
    """One that the robot may have had under another name holds it at its next start, too."""
    directory = Path(settings.directory)
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / "two.stopped").write_text(json.dumps({"time": "2026-01-01T00:00:00+00:00", "cause": "person"}))
    robot = start()
    words(robot.notice, ON_HOST=f"on {socket.gethostname()}")
    robot.load_policy(1, weights())
    eventually(lambda: robot.policy_version == 1)
    done = CliRunner().invoke(command, ["resume", "one"], standalone_mode=False, catch_exceptions=False)
    first, *_, last = done.output.splitlines()
    assert first == f"robot one ({OBEDIENT}): running"
    words(last)


def test_code_that_hangs_is_stopped_beside_it(
    tmp_path: Path, settings: ControlSettings, start: Callable[..., RobotEnvironment]
) -> None:
    """The watchdog calls stop() and the hook runs while observe() still hangs."""
    hang, hooked = tmp_path / "hang", tmp_path / "hooked"
    options = {"hang": str(hang)}
    robot = start(watchdog_s=1.0, settings=RobotSettings(options=options), stop_hook=("touch", str(hooked)))
    robot.load_policy(1, weights())
    eventually(lambda: tell(settings, "status")["state"] == "running")
    hang.touch()
    eventually(hooked.exists)
    assert hang.exists()
    hang.unlink()
    eventually(lambda: tell(settings, "status")["state"] == "stopped")
    status = tell(settings, "status")
    assert (status["cause"], status["stalls"]) == ("stalled", 1)
    assert status["missed"] > 10


def test_a_control_process_that_dies_is_told_and_its_hook_runs(
    tmp_path: Path, settings: ControlSettings, start: Callable[..., RobotEnvironment]
) -> None:
    """To whoever takes experience, too."""
    hooked = tmp_path / "hooked"
    robot = start(stop_hook=("touch", str(hooked)))
    os.kill(robot.pid, signal.SIGKILL)
    with pytest.raises(ConnectionError, match="control process"):
        robot.take(1, 20.0)
    assert hooked.exists()
    assert [event["event"] for event in events(settings)] == ["died", "hook"]


def test_when_memory_runs_out_a_robot_is_not_killed_before_what_it_works_for(
    settings: ControlSettings, start: Callable[..., RobotEnvironment]
) -> None:
    """Whatever Ray has made of the env worker, whose processes its own are not."""
    own = Path("/proc/self/oom_score_adj")
    before = own.read_text()
    own.write_text("1000")
    try:
        robot = start()
    finally:
        own.write_text(before)
    attendant = Path(settings.directory, "one.lock").read_text()
    assert [Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in (robot.pid, attendant)] == ["0", "0"]


@pytest.mark.parametrize("resume", ["manual", "automatic"])
def test_a_robot_whose_attendant_is_killed_comes_to_rest_and_stays_there(
    tmp_path: Path, settings: ControlSettings, start: Callable[..., RobotEnvironment], resume: str
) -> None:
    """Its control process stops it, runs the hook and records it; where a person resumes, the next start moves nothing
    before that."""
    hooked, hook = tmp_path / "hooked", tmp_path / "hook"
    # SIGTERM ends what a hook starts, as elsewhere, and no hook has the control loop's right to the processor.
    hook.write_text(f"""#!/bin/sh
chrt -p $$ > {tmp_path}/class
sleep 600 & kill $!; wait $!
echo "$EDGELINK_EVENT $EDGELINK_CAUSE $?" >> {hooked}
""")
    hook.chmod(0o755)
    deadman = replace(settings.deadman, resume=resume)
    robot = start(deadman=deadman, stop_hook=(str(hook),))
    robot.load_policy(1, weights())
    eventually(lambda: tell(settings, "status")["state"] == "running")
    os.kill(int((Path(settings.directory) / "one.lock").read_text()), signal.SIGKILL)
    eventually(lambda: is_gone(robot.pid))
    assert hooked.read_text() == "stopped worker 143\n"
    assert "SCHED_OTHER" in (tmp_path / "class").read_text()
    told = {event["event"]: event for event in events(settings)}
    assert (told["stopped"]["cause"], told["hook"]["status"]) == ("worker", 0)
    assert "attendant" in told["stopped"]["reason"]

    again = start(deadman=deadman)
    again.load_policy(2, weights())
    eventually(lambda: again.policy_version == 2)
    if resume == "automatic":
        eventually(lambda: tell(settings, "status")["state"] == "running")
        return
    eventually(lambda: tell(settings, "status")["state"] == "stopped")
    for part in ("unknown time after 2", "because of: unknown end", "`edgelink robot resume one`"):
        assert part in again.notice
    assert again.report()["steps"] == 0
    assert tell(settings, "resume")["state"] == "running"


def test_a_robot_that_was_at_rest_when_its_attendant_was_killed_has_its_hook_run_once(
    tmp_path: Path, settings: ControlSettings, start: Callable[..., RobotEnvironment]
) -> None:
    """By the attendant: somebody may stand beside it by now."""
    hooked = tmp_path / "hooked"
    robot = start(stop_hook=("sh", "-c", f"echo x >> {hooked}"))
    robot.load_policy(1, weights())
    eventually(lambda: tell(settings, "status")["state"] == "running")
    tell(settings, "stop")
    eventually(lambda: [event["event"] for event in events(settings)][-1:] == ["hook"])
    os.kill(int((Path(settings.directory) / "one.lock").read_text()), signal.SIGKILL)
    eventually(lambda: is_gone(robot.pid))
    assert hooked.read_text() == "x\n"


def test_a_hook_that_takes_too_long_is_killed(
    settings: ControlSettings, start: Callable[..., RobotEnvironment]
) -> None:
    """And one that is not there is told."""
    robot = start(stop_hook=("sleep", "600"), hook_timeout_s=0.1)
    robot.close()
    assert "took longer than 0.1 s" in robot.report()["events"][-1]["reason"]
    other = start(stop_hook=("/no/such/hook",))
    other.close()
    assert "/no/such/hook cannot be started" in other.report()["events"][-1]["reason"]


@pytest.mark.parametrize(
    ("robot", "message"),
    [("obedient_robot:absent", "no robot at 192.0.2.7"), ("nowhere:X", "'nowhere:X'")],
)
def test_a_robot_that_cannot_be_made_is_told_with_its_reason(
    start: Callable[..., RobotEnvironment], robot: str, message: str
) -> None:
    """From its own process to whoever wanted it."""
    with pytest.raises(OSError, match=message):
        start(robot=robot)


def test_a_control_process_that_nobody_wants_any_more_ends_in_order(
    settings: ControlSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hello has failed, and whoever wanted it is gone: it is let end by itself, not killed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:  # it says what it is told, and ends with the socket
        control = subprocess.Popen(["cat"], stdin=theirs.fileno(), stdout=theirs.fileno())
    ours.send(b'{"error": "no robot"}')
    monkeypatch.setattr(attendant_process, "_start_control", lambda settings, lock: (control, ours))
    worker, gone = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    gone.close()
    with worker, TemporaryFile("w") as lock:
        attendant_process._attend(settings, worker, lock, attendant_process.Wish())
    assert control.returncode == 0


def test_what_wants_no_robot_any_more_starts_none(settings: ControlSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stops, an env worker that is gone, a place for files that is none: before anything has power."""
    monkeypatch.setattr(attendant_process, "_start_control", lambda *_: pytest.fail("a robot was given power"))
    wish = attendant_process.Wish()
    worker, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with worker, other_end:
        attendant_process.only_one(settings, worker, wish).close()
        wish.is_told = True
        with pytest.raises(OSError, match="told to end"):
            attendant_process.only_one(settings, worker, wish)
        wish.is_told = False
        with TemporaryFile("w") as lock, pytest.raises(OSError, match="/proc/r cannot be written"):
            attendant_process._attend(replace(settings, record="/proc/r"), worker, lock, wish)
        other_end.close()
        with pytest.raises(OSError, match="env worker"):
            attendant_process.only_one(settings, worker, wish)


def test_a_sigterm_while_the_robot_is_made_ends_nothing_in_the_middle(
    settings: ControlSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control process is let come to its end, though it takes its time; who wanted the robot is told at once."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:  # makes its robot until its hello fails
        control = subprocess.Popen(["cat"], stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
    monkeypatch.setattr(attendant_process, "_start_control", lambda settings, lock: (control, ours))
    wish = attendant_process.Wish()
    wish.hear(signal.SIGTERM, None)
    worker, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with worker, other_end, TemporaryFile("w") as lock:
        attendant_process._attend(settings, worker, lock, wish)
        assert "SIGTERM" in json.loads(other_end.recv(1000))["error"]
    assert control.returncode == 0


def test_a_stop_that_fails_is_said_to_people(words: Words) -> None:
    """In the status, with its reason."""
    counts: dict[str, Any] = dict.fromkeys(
        ("rate_hz", "ticks", "missed", "lateness_p99_us", "lateness_max_us", "holds", "stops"), 0
    )
    ages = {"link_age_s": 0, "policy_age_s": 0, "policy_version": 31, "resumes": 0, "notes": ["x"]}
    who = {"name": "one", "robot": "r", "state": "stopped", "cause": "fault", "hindered_by": "fault"}
    robot = {
        **counts,
        **ages,
        **who,
        "needs_a_person": True,
        "stop_fails": 3,
        "message": "stop() fails: OSError: brake",
    }
    robot |= {"stop": None, "stop_error": "", "recording_error": "/r: No space left on device"}
    robot |= {"recorded_steps": 9, "lost_recorded_steps": 2, "newest_policy_version": 31}
    for changed in (
        {},
        {"stop_error": "/s: No space left on device"},
        {"state": "stopping", "stopping_for_s": 7},
        {"state": "stalled", "heartbeat_age_s": 8},
        {"newest_policy_version": 33},
    ):
        words(_told({**robot, **changed}))


@pytest.fixture
def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Path]]:
    """Makes users' directories, each with a robot that does not answer; the one who asks is root."""
    monkeypatch.delenv("EDGELINK_ROBOT_DIR", raising=False)
    monkeypatch.setattr(directory, "_PLACE", tmp_path)
    owners: dict[Path, int] = {}
    locks = ExitStack()
    lstat = Path.lstat

    def as_owned(path: Path) -> os.stat_result:
        found = list(lstat(path))
        found[stat.ST_UID] = owners.get(path, found[stat.ST_UID])
        return os.stat_result(found)

    def make(user: int, owner: int | None = None) -> Path:
        path = tmp_path / f"edgelink-robots-{user}"
        path.mkdir(mode=0o700)
        owners[path] = user if owner is None else owner
        fcntl.flock(locks.enter_context((path / "one.lock").open("w")), fcntl.LOCK_EX)
        (path / "killed.lock").touch()
        return path

    monkeypatch.setattr(Path, "lstat", as_owned)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    with locks:
        yield make


def test_a_directory_that_is_not_what_it_says_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, several: Callable[..., Path]
) -> None:
    """Anybody can make one there, with a socket of the name of somebody else's robot."""
    good, other, strange, open_ = several(1000), several(1001), several(1002, owner=1001), several(1003)
    named = tmp_path / "edgelink-robots-zzz"
    named.mkdir(mode=0o700)
    open_.chmod(0o755)
    (tmp_path / "edgelink-robots-1004").symlink_to(good)
    assert known_directories() == [good, other]
    assert strange.exists()
    monkeypatch.setattr(os, "getuid", lambda: 1001)
    assert known_directories() == [other]


def test_robots_of_one_name_are_not_guessed_between(several: Callable[..., Path]) -> None:
    """Whoever means one says whose; and one that does not answer hides no other."""
    several(1000), several(1001)
    with pytest.raises(click.UsageError, match=r"one of .*, one of "):
        CliRunner().invoke(command, ["stop", "one"], standalone_mode=False, catch_exceptions=False)
    done = CliRunner().invoke(command, ["status"], standalone_mode=False, catch_exceptions=False)
    assert done.return_value == 1
    assert done.output.count("robot one does not answer: ") == 2
    done = CliRunner().invoke(command, ["status", "--json"], standalone_mode=False, catch_exceptions=False)
    assert [robot["state"] for robot in json.loads(done.output)] == ["unknown"] * 2


def test_what_other_users_put_there_holds_nobody_up(
    several: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that would never open, words for root's terminal, and an answer that never ends."""
    place = several(1000)
    os.mkfifo(place / "evil.lock")
    os.mkfifo(place / "evil.stopped")
    (place / "loud.stopped").write_text(json.dumps({"time": "now", "cause": "\x1b[2J"}))
    monkeypatch.setattr(robot_commands, "_ANSWER_TIMEOUT_S", 0.3)

    def dribble(listener: socket.socket) -> None:
        with listener.accept()[0] as link, suppress(OSError):
            while True:
                link.sendall(b"x")
                time.sleep(0.05)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "one.sock"))
        listener.listen()
        thread = threading.Thread(target=dribble, args=(listener,))
        thread.start()
        done = CliRunner().invoke(command, ["status"], standalone_mode=False, catch_exceptions=False)
        thread.join()
    assert done.return_value == 1
    assert "robot evil: stopped" in done.output
    assert "robot loud: stopped since now, because of: \N{REPLACEMENT CHARACTER}[2J" in done.output
    assert "robot one does not answer: timed out" in done.output


def test_an_attendant_of_another_version_is_heard() -> None:
    """What it was told is done already; what it says in another way is no failure of that."""
    assert _told({"name": "arm", "state": "running", "future": 1}).startswith("robot arm: running; ")


def test_a_tick_file_that_cannot_be_written_is_refused(tmp_path: Path, start: Callable[..., RobotEnvironment]) -> None:
    """Before the robot moves."""
    with pytest.raises(OSError, match=r"tick file .* cannot be written"):
        start(tick_file=str(tmp_path / "none" / "ticks"))


def test_two_runs_never_command_one_robot(settings: ControlSettings, start: Callable[..., RobotEnvironment]) -> None:
    """The second begins when the first has come to rest."""
    first = start()
    first.load_policy(1, weights())
    eventually(lambda: tell(settings, "status")["state"] == "running")
    first._link.close()  # type: ignore[union-attr]
    first._link = None
    second = start()
    assert second.pid != first.pid
    assert is_gone(first.pid)
    assert tell(settings, "status")["pid"] == second.pid

    attendant_pid = int((Path(settings.directory) / "one.lock").read_text())
    os.kill(second.pid, signal.SIGSTOP)
    try:
        os.kill(attendant_pid, signal.SIGKILL)
        eventually(lambda: is_gone(attendant_pid))
        assert is_commanded(Path(settings.directory), "one"), "whose attendant is killed, it is not driven by two"
    finally:
        os.kill(second.pid, signal.SIGCONT)
    eventually(lambda: not is_commanded(Path(settings.directory), "one"))
    eventually(lambda: is_gone(second.pid))


def test_what_is_recorded_is_what_was_done(tmp_path: Path, start: Callable[..., RobotEnvironment]) -> None:
    """Every step, in episodes; a torn end is not read."""
    robot = start(robot="cart-pole", settings=RobotSettings(rigs=2, seed=1), record=str(tmp_path / "recordings"))
    robot.load_policy(1, CART_POLE)
    parts = robot.take(60, 20.0)
    robot.close()
    assert parts is not None
    (path,) = (tmp_path / "recordings").iterdir()
    path.write_bytes(path.read_bytes() + b"torn")
    recording = read_recording(path)
    assert len(recording.rows) == robot.report()["recorded_steps"] >= 60
    assert (recording.rows["observations"][:60] == parts["observations"]).all()
    found = list(episodes(recording))
    assert sum(len(episode.rewards) for episode in found) == 2 * len(recording.rows)
    ended = [episode for episode in found if episode.terminated]
    assert len(ended) >= len(parts["episode_returns"])
    assert all((np.diff(episode.observations[:, 0]) < 0.2).all() for episode in ended)
    path.write_text("{}")
    with pytest.raises(ValueError, match=str(path)):
        read_recording(path)


def test_the_env_worker_hands_over_weights_and_takes_experience(settings: ControlSettings) -> None:
    """As the rollout worker does it, also to evaluate."""
    worker = EnvWorker("robot", 8, replace(settings, robot="cart-pole", settings=RobotSettings(rigs=2)), ("", ""), 0)
    ask = StepClient(worker.serve()).call
    assert ask("is_robot")
    assert worker.count() == 2, "as it has them, not as was asked for"
    assert str(worker.spaces()).startswith("observations 4 float32")
    collector = RobotCollector(ask, lambda: (4, CART_POLE), lambda: 4, 6)
    try:
        assert collector.collect(5, 4)["weights_version"] == 4
        played = collector.evaluate(4)
        assert len(played.returns) == 4
        assert all(value >= 5 for value in played.returns)
        assert worker.report()["kind"] == "robot"
        collector.confirm(4)
        eventually(lambda: (report := worker.report())["policy_confirmed_age_s"] < report["policy_age_s"])
    finally:
        worker.close()


def test_a_worker_that_does_not_come_round_any_more_leads_to_hold_and_stop(
    settings: ControlSettings, start: Callable[..., RobotEnvironment]
) -> None:
    """Though its process lives, and a thread of it hears the driver. It runs for as long as the worker serves it."""
    robot = start(deadman=replace(settings.deadman, worker_timeout_s=0.5))
    robot.load_policy(1, weights())
    ends_s = time.monotonic() + 1.5
    while time.monotonic() < ends_s:
        robot.take(5, 0.1)
    assert [event["event"] for event in events(settings)][-1] == "running"
    eventually(lambda: events(settings)[-1]["event"] == "stopped")
    changes = [(event["event"], event["cause"]) for event in events(settings) if event["event"] != "started"]
    assert changes[-2:] == [("holding", "worker_stuck"), ("stopped", "worker_stuck")]
    assert robot.report()["link_age_s"] < 5.0


@pytest.mark.parametrize("stuck", ["env", "rollout"])
def test_a_step_that_blocks_in_a_worker_leads_to_hold_and_stop(
    settings: ControlSettings, monkeypatch: pytest.MonkeyPatch, stuck: str
) -> None:
    """In either worker of a pair; the env worker's link is heard from a thread that goes on. Afterwards it goes on."""
    released, is_stuck = threading.Event(), threading.Event()

    def step(*_: Any) -> None:
        if is_stuck.is_set():
            released.wait(60)

    deadman = replace(settings.deadman, worker_timeout_s=1.0, resume="automatic")
    monkeypatch.setattr(RobotEnvironment, "confirm_policy", step)
    worker = EnvWorker("robot", 1, replace(settings, deadman=deadman), ("", ""), 0)
    named = replace(settings, name=f"{socket.gethostname()}-one").events_file

    def told() -> list[tuple[str, str]]:
        lines = named.read_text().splitlines() if named.exists() else []
        return [(event["event"], event.get("cause", "")) for event in map(json.loads, lines)]

    client, asking = StepClient(worker.serve()), threading.Lock()

    def ask(method: str, *arguments: Any) -> Any:
        with asking:
            if stuck == "rollout":
                step()
            return client.call(method, *arguments)

    inbox = Inbox(lambda names: dict(zip(names, names, strict=True)))
    collector = RobotCollector(ask, lambda: inbox.wait_for(None), lambda: inbox.newest_offered, 6)
    try:
        worker.spaces()
        threading.Thread(target=collector.hand_over_each, args=(inbox.wait_for,), daemon=True).start()
        inbox.offer(Offer(1, (encode(Patterns.of(weights())),)))
        eventually(lambda: told()[-1:] == [("running", "none")])
        is_stuck.set()
        threading.Thread(target=collector.confirm, args=(1,), daemon=True).start()
        eventually(lambda: told()[-1:] == [("stopped", "worker_stuck")])
        assert told()[-2] == ("holding", "worker_stuck")
        released.set()
        eventually(lambda: told()[-1:] == [("running", "worker_stuck")])
    finally:
        released.set()
        worker.close()


def test_new_weights_reach_the_robot_while_nobody_collects() -> None:
    """Each as it comes; and the steps that are asked for are not older than is told."""
    inbox, handed, asked = Inbox(lambda names: dict(zip(names, names, strict=True))), [], []

    def ask(method: str, *arguments: Any) -> Any:
        if method in ("load_policy", "beat"):
            handed.extend(arguments[:1])
            return None
        asked.append(arguments)
        return {"weights_version": 2}

    collector = RobotCollector(ask, lambda: inbox.wait_for(None), lambda: inbox.newest_offered, 1)
    threading.Thread(target=collector.hand_over_each, args=(inbox.wait_for,), daemon=True).start()
    for version in (1, 2):
        inbox.offer(Offer(version, (encode(Patterns.of(CART_POLE)),)))
        eventually(lambda version=version: handed[-1:] == [version])
    assert collector.collect(5, 2) == {"weights_version": 2}
    assert handed == [1, 2]
    assert [(steps, least, enough) for steps, _, least, enough in asked] == [(5, 1, 5)]


def test_the_links_age_is_that_of_the_last_answer() -> None:
    """A driver that answers keeps it young; one that is gone, or answers with another run's token, does not."""
    words = SharedBlock(Layout(SPACES, 1, 8)).words
    server = EchoServer("127.0.0.1")
    watch = LinkWatch(words, server.address, server.token, 0.1)
    try:
        eventually(lambda: words.link_ns > 0)
        first_ns = words.link_ns
        eventually(lambda: words.link_ns > first_ns)
        eventually(lambda: 0 < words.link_rtt_us < 100_000)  # of each answer anew: one may have waited for its turn
        server.close()
        worker_ns = words.worker_ns
        eventually(lambda: words.worker_ns - worker_ns > 200_000_000)  # an answer may have been on its way
        last_ns, worker_ns = words.link_ns, words.worker_ns
        eventually(lambda: words.worker_ns - worker_ns > 300_000_000)
        assert words.link_ns == last_ns
    finally:
        watch.close()
    strange = EchoServer("127.0.0.1")
    watch = LinkWatch(words, strange.address, "00" * 16, 0.1)
    worker_ns = words.worker_ns
    eventually(lambda: words.worker_ns - worker_ns > 300_000_000)
    watch.close()
    strange.close()
    assert words.link_ns == last_ns


def test_only_who_has_the_secret_answers_for_the_driver() -> None:
    """It never travels; what was heard of it, sent back or kept for another run of the robot, is no answer."""
    words, token = SharedBlock(Layout(SPACES, 1, 8)).words, "5a" * 16
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as between:
        between.bind(("127.0.0.1", 0))
        between.settimeout(20)
        # A link that hears nothing for a few timeouts asks from elsewhere.
        watch = LinkWatch(words, "{}:{}".format(*between.getsockname()), token, 2)
        try:
            asked, robot = between.recvfrom(100)
            assert bytes.fromhex(token) not in asked
            between.sendto(asked, robot)
            between.sendto(asked[:24] + b"\0" * 32, robot)
            other, _ = between.recvfrom(100)
            assert words.link_ns == 0
            answer = _code(bytes.fromhex(token), _ANSWER, other[:24])
            between.sendto(asked[:24] + answer, robot)
            between.recvfrom(100)
            assert words.link_ns == 0
            between.sendto(other[:24] + answer, robot)
            eventually(lambda: words.link_ns > 0)
        finally:
            watch.close()
    again = LinkWatch(SharedBlock(Layout(SPACES, 1, 8)).words, "127.0.0.1:9", token, 0.1)
    again.close()
    again._hear(other[:24] + answer)
    assert again._words.link_ns == 0


def test_a_link_that_hears_nothing_asks_from_another_socket() -> None:
    """The first may have been connected while the overlay's device was away, and have another network's address."""
    words, token = SharedBlock(Layout(SPACES, 1, 8)).words, "5a" * 16
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as driver:
        driver.bind(("127.0.0.1", 0))
        driver.settimeout(20)
        watch = LinkWatch(words, "{}:{}".format(*driver.getsockname()), token, 0.1)
        try:
            _, first = driver.recvfrom(100)
            for _ in range(1000):
                asked, robot = driver.recvfrom(100)
                if robot != first:
                    driver.sendto(asked[:24] + _code(bytes.fromhex(token), _ANSWER, asked[:24]), robot)
                if words.link_ns > 0:
                    break
            assert words.link_ns > 0
        finally:
            watch.close()


def test_settings_come_to_the_processes_as_they_were_given() -> None:
    """As JSON; and a hook that is one text instead of words is refused now, not when it is needed."""
    given = ControlSettings("arm", deadman=DeadmanSettings(0.3), stop_hook=("beep", "twice now"), cpu=1, record="/r")
    assert ControlSettings.from_json(given.to_json()) == given
    with pytest.raises(ValueError, match="stop_hook"):
        ControlSettings("arm", stop_hook=("beep twice",))

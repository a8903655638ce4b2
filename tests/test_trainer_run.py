"""What surrounds the learning: placement, options, packaging, and what workers report. Without Ray."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from telling import Words

from edgelink.placement import Node, plan
from edgelink.training.trainer import checkpoint, package, run, user_modules
from edgelink.training.trainer.crew import Crew, EnvSettings
from edgelink.training.trainer.crew_checks import (
    NOTICE_EVERY_S,
    SpacesDifferError,
    WorkerFailedError,
    agreed_spaces,
    brief,
    check_whereabouts,
)
from edgelink.training.trainer.experience.environment import EnvWorker, Introduced
from edgelink.training.trainer.experience.weights_codec import Offer
from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.flow import FlowSettings
from edgelink.training.trainer.learner_worker import Made
from edgelink.training.trainer.learning.settings import Settings
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.link_budget.links import Link, Measured
from edgelink.training.trainer.options import parse
from edgelink.training.trainer.outputs import check_outputs
from edgelink.training.trainer.robot.deadman import DeadmanSettings
from edgelink.training.trainer.robot.interface import RobotSettings
from edgelink.training.trainer.robot.settings import ControlSettings
from edgelink.training.trainer.run import Run
from edgelink.training.trainer.slots import Slot, read_slots
from edgelink.training.trainer.stop_signals import StopSignals
from edgelink.training.trainer.voice import Voice
from edgelink.training.trainer.whereabouts import Traffic, Whereabouts, device_address, rates, read_traffic

TRAINER = Path(package.__file__).parent
TCP_RETRY_S = 120  # after an outage


def placement(tmp_path: Path, **change: Any) -> Path:
    """The demo's cluster file, resolved for three nodes."""
    on_edge = {"node_group": "edge", "placement": "0-1"}
    components = {
        "actor": {"node_group": "cloud", "placement": "0"},
        "rollout": on_edge,
        "env": on_edge,
        **change,
    }
    cluster = {
        "num_nodes": 3,
        "node_groups": [{"label": "cloud", "node_ranks": "0"}, {"label": "edge", "node_ranks": "1-2"}],
        "component_placement": {name: value for name, value in components.items() if value},
    }
    nodes = [Node(rank, f"10.10.0.{rank + 1}", f"node-{rank}") for rank in range(3)]
    path = tmp_path / "placement.json"
    path.write_text(json.dumps(plan(cluster, nodes).to_dict()))
    return path


@pytest.mark.parametrize(("ride_through_s", "least_s"), [("", 900), ("300", 900), ("3600", 3720)])
def test_the_trainer_outwaits_an_outage(monkeypatch: pytest.MonkeyPatch, ride_through_s: str, least_s: float) -> None:
    """The outage, and TCP's late retry after it; what the user says counts."""
    monkeypatch.delenv("EDGELINK_RIDE_THROUGH_S", raising=False)
    if ride_through_s:
        monkeypatch.setenv("EDGELINK_RIDE_THROUGH_S", ride_through_s)
    assert parse([]).config.run.patience_s >= least_s
    assert parse(["run.stall_timeout_s=7"]).config.run.patience_s == 7


@pytest.mark.parametrize(("ride_through_s", "least_s"), [("300", 300 + TCP_RETRY_S), ("3600", 3600 + TCP_RETRY_S)])
def test_learners_are_told_how_long_an_outage_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ride_through_s: str, least_s: float
) -> None:
    """By the driver: their own environment, which is Ray's, does not say it."""
    monkeypatch.setenv("EDGELINK_RIDE_THROUGH_S", ride_through_s)
    told: list[Settings] = []

    class Told(Crew):
        def start(self, learner: Settings, *_: Any) -> dict[Any, Any]:
            told.append(learner)
            return {}

    slots = read_slots(placement(tmp_path))
    with Told(slots, [tmp_path], print, 1.0) as crew:
        Run(parse(["env.kinds=[sim]"]), slots, crew, Voice(), StopSignals())._start_workers()
    assert told[0].patience_s >= least_s


def test_slots_follow_the_placement(tmp_path: Path) -> None:
    """Learner in the cloud; rollout and env workers of one index share an edge."""
    slots = read_slots(placement(tmp_path))

    assert str(slots.learner) == "actor:0 on node 0 (node-0, 10.10.0.1)"
    assert [(rollout.ip, env.ip) for rollout, env in zip(slots.rollouts, slots.envs, strict=True)] == [
        ("10.10.0.2", "10.10.0.2"),
        ("10.10.0.3", "10.10.0.3"),
    ]


def test_several_learners_are_placed(tmp_path: Path) -> None:
    """As many as the placement has processes; the first one speaks for all."""
    slots = read_slots(placement(tmp_path, actor="0:0-1"))

    assert [slot.name for slot in slots.learners] == ["actor:0", "actor:1"]
    assert slots.learner is slots.learners[0]
    assert [slot.component for slot in slots][:3] == ["actor", "actor", "rollout"]


def test_what_learners_on_two_nodes_exchange_is_in_the_link_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two networks of two layers of 64 for four numbers and two actions have 4610 + 4545 parameters of four bytes;
    1,024 steps are four minibatches, in each of eight passes, and each update begins with the first one's parameters.
    """
    ways = [(0, 1), (1, 0), (0, 2), (2, 0)]
    links = Measured({way: Link(*way, rtt_ms=10.0, mbit_per_s=100.0) for way in ways}, {})
    (tmp_path / "links.json").write_text(json.dumps(links.to_dict()))
    monkeypatch.setenv("EDGELINK_LINKS", str(tmp_path / "links.json"))
    slots = read_slots(placement(tmp_path, actor={"node_group": "cluster", "placement": "0-1"}))
    with Crew(slots, [tmp_path], print, 1.0) as crew:
        crew.spaces, crew.widths = Spaces((4,), "float32", 2), [1, 1]
        run = Run(parse(["env.kinds=[sim]", "flow.fragment_steps=512"]), slots, crew, Voice(), StopSignals())
        run._foretell(Made(0, Offer(0, (), whole_bytes=10_000)))
    sent = {(link["from"], link["to"]): link["update_bytes"] for link in run._budget.to_dict()["before"]["links"]}
    parameters_bytes = 4 * (4610 + 4545)
    assert sent["node 0", "node 1"]["gradients"] == 33 * parameters_bytes
    assert sent["node 1", "node 0"]["gradients"] == 32 * parameters_bytes
    assert "gradients" not in sent["node 2", "node 1"], "whose experience goes to the second learner"


@pytest.mark.parametrize(
    "change",
    [
        {"env": None},
        {"env": {"node_group": "edge", "placement": "0"}},
        {"env": {"node_group": "cluster", "placement": "0-1"}},
    ],
    ids=["no env", "one env", "apart"],
)
def test_a_placement_that_does_not_suit_is_refused(tmp_path: Path, change: dict[str, Any], words: Words) -> None:
    """Before Ray is touched, with what to write instead."""
    with pytest.raises(TrainerError) as caught:
        read_slots(placement(tmp_path, **change))
    assert caught.value.exit_status == 2
    assert caught.value.hint
    words(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"nodes": [], "placements": {"actor": [{}]}}'])
def test_a_file_that_is_no_placement_is_named(tmp_path: Path, text: str) -> None:
    """Not a traceback."""
    path = tmp_path / "p.json"
    path.write_text(text)
    for file in (path, tmp_path / "none"):
        with pytest.raises(TrainerError, match=str(file)):
            read_slots(file)


def test_the_environment_gives_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head names the placement by a variable; a flag wins."""
    monkeypatch.setenv("EDGELINK_PLACEMENT", "/a/placement.json")

    assert parse([]).placement == Path("/a/placement.json")
    assert parse(["--placement", "/b"]).placement == Path("/b")


@pytest.mark.parametrize(
    ("arguments", "attempt", "iteration"),
    [
        ([], "1", 0),  # a first start never resumes by itself, whatever lies there
        ([], "2", 5),  # started again: from the newest of this run
        (["--resume"], "1", 20),
        (["--resume", "auto"], "1", 20),
        (["--resume", "auto", "run.iterations=20"], "1", 20),  # done already: a service that is started again ends
        (["--resume"], "2", 5),  # another run's may be newer by now
        (["--resume", "auto"], "3", 5),
        (["run.iterations=5"], "2", 5),  # it died after its last checkpoint: only the evaluation is left
    ],
)
def test_a_driver_that_is_started_again_resumes_its_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], attempt: str, iteration: int
) -> None:
    """From the newest checkpoint of this run, with or without an option; not from a newer one of another run."""
    checkpoint.save(tmp_path, checkpoint.About(5, 0, 9.0, run="today", env_steps=50), {})
    checkpoint.save(tmp_path, checkpoint.About(20, 0, 9.0, run="another", env_steps=200), {})
    monkeypatch.setenv("EDGELINK_RUN_ID", "today")
    monkeypatch.setenv("EDGELINK_ATTEMPT", attempt)
    options = parse(["run.iterations=30", "--checkpoint-dir", str(tmp_path), *arguments])
    slots = read_slots(placement(tmp_path))
    run = Run(options, slots, Crew(slots, [tmp_path], print, 1.0), Voice(), StopSignals())
    resumed = run._load_checkpoint()
    assert (resumed[0].iteration if resumed else 0) == iteration
    assert run.account.first_iteration == iteration + 1
    assert run.account.env_steps == 10 * iteration  # goes on from there


@pytest.mark.parametrize(("arguments", "iteration"), [(["--resume"], 20), (["--resume", "auto"], 20), ([], 0)])
def test_a_driver_that_died_before_its_first_checkpoint_begins_where_it_had_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], iteration: int
) -> None:
    """It has none of its own: with --resume it takes the newest one again, as the first attempt did."""
    checkpoint.save(tmp_path, checkpoint.About(20, 0, 9.0, run="another"), {})
    monkeypatch.setenv("EDGELINK_RUN_ID", "today")
    monkeypatch.setenv("EDGELINK_ATTEMPT", "2")
    slots = read_slots(placement(tmp_path))
    options = parse(["run.iterations=30", "--checkpoint-dir", str(tmp_path), *arguments])
    resumed = Run(options, slots, Crew(slots, [tmp_path], print, 1.0), Voice(), StopSignals())._load_checkpoint()
    assert (resumed[0].iteration if resumed else 0) == iteration


@pytest.mark.parametrize(
    ("arguments", "attempt", "is_refused"),
    [(["--resume"], "1", True), (["--resume", "auto"], "1", False), (["--resume"], "2", False), ([], "2", False)],
)
def test_without_a_checkpoint_only_a_plain_resume_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], attempt: str, is_refused: bool
) -> None:
    """A service that is started for the first time, and a driver that died before its first checkpoint, begin anew."""
    monkeypatch.setenv("EDGELINK_RUN_ID", "today")
    monkeypatch.setenv("EDGELINK_ATTEMPT", attempt)
    slots = read_slots(placement(tmp_path))
    options = parse(["--checkpoint-dir", str(tmp_path / "none"), *arguments])
    run = Run(options, slots, Crew(slots, [tmp_path], print, 1.0), Voice(), StopSignals())
    if is_refused:
        with pytest.raises(TrainerError, match="no checkpoint"):
            run._load_checkpoint()
    else:
        assert run._load_checkpoint() is None


@pytest.mark.parametrize(("arguments", "attempt"), [(["--resume"], "1"), (["--resume", "auto"], "1"), ([], "2")])
def test_checkpoints_that_cannot_be_read_do_not_begin_a_training_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], attempt: str
) -> None:
    """What was learned is not given up in silence; another run's files are no reason."""
    monkeypatch.setenv("EDGELINK_RUN_ID", "today")
    monkeypatch.setenv("EDGELINK_ATTEMPT", attempt)
    (tmp_path / "checkpoint-000005-today.npz").write_bytes(b"PK half a file")
    slots = read_slots(placement(tmp_path))
    options = parse(["--checkpoint-dir", str(tmp_path), *arguments])
    run = Run(options, slots, Crew(slots, tmp_path, print, 1.0), Voice(), StopSignals())
    with pytest.raises(TrainerError, match=r"checkpoint-000005-today\.npz"):
        run._load_checkpoint()
    if attempt == "2":
        (tmp_path / "checkpoint-000005-today.npz").rename(tmp_path / "checkpoint-000005-another.npz")
        assert run._load_checkpoint() is None


@pytest.mark.parametrize("option", ["--report", "--progress", "--tensorboard", "--checkpoint-dir"])
def test_outputs_are_tried_before_ray(
    tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not after hours of training: by the option's name, status 2."""
    monkeypatch.setenv("EDGELINK_PLACEMENT", str(placement(tmp_path)))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # nobody answers there: status 75
    monkeypatch.setattr(StopSignals, "listen", lambda _self: None)  # the signals are pytest's
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "out"
    assert run.main([option, str(path)], tmp_path) == 2
    assert f"{option} {path} cannot be written: Not a directory" in capsys.readouterr().err


def test_a_tensorboard_that_is_missing_is_told_before_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And so before a robot has moved for it; nothing is made, either."""
    monkeypatch.setenv("EDGELINK_PLACEMENT", str(placement(tmp_path)))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # nobody answers there: status 75
    monkeypatch.setattr(StopSignals, "listen", lambda _self: None)  # the signals are pytest's
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)  # as if it were not installed
    assert run.main(["--tensorboard", str(tmp_path / "board")], tmp_path) == 2
    assert f"no TensorBoard for {tmp_path / 'board'}: " in capsys.readouterr().err
    assert not (tmp_path / "board").exists()


def test_outputs_that_can_be_written_are_left_as_they_were(tmp_path: Path) -> None:
    """A file of before keeps what it has; no directory of a report is made up."""
    (tmp_path / "progress").write_text("before\n")
    arguments = ["--progress", str(tmp_path / "progress"), "--report", str(tmp_path / "report")]
    check_outputs(parse([*arguments, "--checkpoint-dir", str(tmp_path / "a" / "c")]))
    assert (tmp_path / "progress").read_text() == "before\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "progress"]
    with pytest.raises(TrainerError, match=r"--report .*none/report.*: No such file"):
        check_outputs(parse(["--report", str(tmp_path / "none" / "report")]))


def test_a_disk_that_takes_no_checkpoint_ends_no_training(tmp_path: Path) -> None:
    """It is told once, and when it works again; what was written stays, and no half of a file."""
    directory, away = tmp_path / "c", tmp_path / "away"
    said: list[str] = []
    keeper = checkpoint.Keeper(directory, 0, said.append)
    keeper.save(checkpoint.About(5, 0, 9.0), {})
    directory.rename(away)
    directory.touch()  # no directory any more
    for iteration in (10, 15):
        keeper.save(checkpoint.About(iteration, 0, 9.0), {})
    assert len(said) == 1
    for number in ("iteration 10", "iteration 5"):
        assert number in said[0]
    with pytest.raises(TrainerError, match=r"iteration 15 .*File exists"):
        keeper.check()
    directory.unlink()
    away.rename(directory)
    keeper.retry()
    keeper.check()
    assert sorted(path.name for path in directory.iterdir()) == ["checkpoint-000005.npz", "checkpoint-000015.npz"]
    (again,) = said[1:]
    for part in ("iteration 15", str(directory)):
        assert part in again


class RayTaskError(Exception):
    """As ray.exceptions has it."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class FailingRay:
    """Whoever is asked fails so."""

    exceptions = SimpleNamespace(RayTaskError=RayTaskError, RayActorError=ConnectionError, RayError=KeyError)

    def __init__(self, cause: Exception) -> None:
        self._cause = cause

    def get(self, _answer: Any) -> Any:
        raise RayTaskError(self._cause)


@pytest.mark.parametrize(
    ("cause", "told", "hint", "exit_status"),
    [
        (TrainerError("other widths", "leave it out", exit_status=2), "other widths", "leave it out", 2),
        (ValueError("x"), ": x", "log", 1),
    ],
)
def test_what_a_worker_refuses_keeps_its_status(
    tmp_path: Path, cause: Exception, told: str, hint: str, exit_status: int
) -> None:
    """A mistake of the user's is none that another attempt would mend."""
    slots = read_slots(placement(tmp_path))
    crew = Crew(slots, [tmp_path], print, 1.0)
    crew._ray, crew._pending = FailingRay(cause), {"answer": slots.learner, "of a pair": slots.rollouts[0]}
    with pytest.raises(WorkerFailedError) as refused:
        crew.value("of a pair")
    assert refused.value.slot == slots.envs[0], "by which a pair is known"
    with pytest.raises(WorkerFailedError) as refused:
        crew.value("answer")
    assert refused.value.message.startswith("actor:0 on node 0")
    assert refused.value.message.endswith(told)
    assert (hint in refused.value.hint, refused.value.exit_status) == (True, exit_status)


class SlowRay:
    """An evaluation of a quarter of an hour; time passes while it is waited for. Steps are made until it hangs."""

    exceptions = SimpleNamespace(RayTaskError=RayTaskError, RayActorError=ConnectionError, RayError=KeyError)

    def __init__(self, hangs_at_s: float) -> None:
        self.now_s = 0.0
        self._hangs_at_s = hangs_at_s

    def wait(self, asked: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        ready = [answer for answer in asked if answer == "steps" or self.now_s > 900][:num_returns]
        self.now_s += 0 if ready else timeout
        return ready, [answer for answer in asked if answer not in ready]

    def get(self, answer: Any) -> Any:
        return int(min(self.now_s, self._hangs_at_s)) if answer == "steps" else "played"


@pytest.mark.parametrize("stall_timeout_s", [None, 75.0])
@pytest.mark.parametrize("hangs_at_s", [9000.0, 200.0])
def test_a_long_evaluation_is_waited_for_while_it_makes_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs_at_s: float, stall_timeout_s: float | None
) -> None:
    """Eight times the stall timeout; what people see says how far it is. One that hangs is given up."""
    slots, said = read_slots(placement(tmp_path)), list[str]()
    crew, ray = Crew(slots, [tmp_path], said.append, 120.0), SlowRay(hangs_at_s)
    crew._ray, rollout = ray, slots.rollouts[0]
    monkeypatch.setattr("time.monotonic", lambda: ray.now_s)

    def steps() -> str:
        crew._pending["steps"] = rollout
        return "steps"

    crew._pending["evaluation"] = rollout
    if hangs_at_s > 900:
        assert crew.wait_while("evaluation", "the evaluation", steps, stall_timeout_s) == "played"
        told = [line for line in said if "steps so far" in line]
        assert len(told) == 900 // NOTICE_EVERY_S
    else:
        with pytest.raises(TrainerError, match=rf"while waiting for the evaluation: {rollout.name}"):
            crew.wait_while("evaluation", "the evaluation", steps, stall_timeout_s)
        given_up_s = 200.0 + (stall_timeout_s or 120.0)
        assert given_up_s <= ray.now_s <= given_up_s + 40.0


def test_a_checkpoint_that_finds_no_room_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would take what little there is."""

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, checkpoint.About(5, 0, 9.0), {})
    assert list(tmp_path.iterdir()) == []


def test_half_a_checkpoint_of_an_attempt_that_was_killed_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that does not take both."""
    half = tmp_path / ".checkpoint-000004-today.npz.new"
    half.write_bytes(b"half of one")

    def sync(_descriptor: int) -> None:
        if half.exists():
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", sync)
    checkpoint.save(tmp_path, checkpoint.About(5, 0, 9.0, run="today"), {})
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000005-today.npz"]


@pytest.mark.parametrize(("at", "value"), [(6, 99), (8, 1), (8, 32), (10, 99)])
def test_a_checkpoint_that_is_damaged_is_passed_over(tmp_path: Path, at: int, value: int) -> None:
    """Where a file says how it is packed, too: version, flags and method of its first entry."""
    checkpoint.save(tmp_path, checkpoint.About(5, 0, 9.0), {})
    path = checkpoint.save(tmp_path, checkpoint.About(10, 0, 9.0), {})
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + at] = value
    path.write_bytes(content)
    skipped: list[str] = []
    about, _ = checkpoint.load_latest(tmp_path, on_skip=skipped.append)
    assert about.iteration == 5
    assert str(path) in skipped[0]


def test_a_checkpoint_is_on_the_disk_before_the_one_before_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name, too: a loss of power leaves one of them."""
    synced: list[tuple[Path, list[str]]] = []  # and what was there then

    def sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((path, sorted(found.name for found in tmp_path.iterdir())))

    checkpoint.save(tmp_path, checkpoint.About(5, 0, 9.0), {}, keep=1)
    monkeypatch.setattr("os.fsync", sync)
    checkpoint.save(tmp_path, checkpoint.About(10, 0, 9.0), {}, keep=1)
    (_, begun), (directory, renamed) = synced
    assert begun == [".checkpoint-000010.npz.new", "checkpoint-000005.npz"]
    assert (directory, renamed) == (tmp_path, ["checkpoint-000005.npz", "checkpoint-000010.npz"])
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000010.npz"]


@pytest.mark.parametrize(("error", "is_told"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_file_system_that_cannot_sync_directories_takes_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, is_told: bool
) -> None:
    """Such as one over a network; a disk that fails is something else."""

    def sync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == tmp_path:
            raise OSError(error, "no")

    monkeypatch.setattr("os.fsync", sync)
    said: list[str] = []
    checkpoint.Keeper(tmp_path, 0, said.append).save(checkpoint.About(5, 0, 9.0), {})
    assert bool(said) is is_told
    assert (tmp_path / "checkpoint-000005.npz").exists()


def test_the_staged_package_is_bare(tmp_path: Path) -> None:
    """Only the trainer's modules are shipped, importable with the standard library alone, with the same hash."""
    root = package.stage(TRAINER, tmp_path)
    staged = root / "training" / "trainer"

    assert root == tmp_path / "edgelink"
    assert sorted(path.name for path in root.iterdir()) == ["__init__.py", "training"]
    assert package.content_hash(staged) == package.content_hash(TRAINER)
    (staged / "learning" / "policy.py").write_text("changed")
    assert package.content_hash(staged) != package.content_hash(TRAINER)


def test_users_modules_become_packages_to_ship(tmp_path: Path) -> None:
    """A file and a package, as Python would import them."""
    (tmp_path / "my_task.py").write_text("NAME = 'task'\n")
    (tmp_path / "my_robot").mkdir()
    (tmp_path / "my_robot" / "__init__.py").write_text("from my_robot.arm import NAME\n")
    (tmp_path / "my_robot" / "arm.py").write_text("NAME = 'arm'\n")
    (tmp_path / "my_robot" / ".#arm.py").symlink_to("me@here.123")  # it is being edited
    paths = [str(tmp_path / "my_task.py"), str(tmp_path / "my_robot")]
    staged = user_modules.stage(paths, tmp_path / "out")

    assert [path.name for path in staged] == ["my_task", "my_robot"]
    code = "import my_task, my_robot; print(my_task.NAME, my_robot.NAME)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "out", capture_output=True, text=True, check=True
    )
    assert done.stdout == "task arm\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.py", "is not there"),
        ("text.txt", "is neither"),
        ("plain", "is neither"),
        ("edgelink.py", "own package"),
        ("another/right.py", "the name right"),
    ],
)
def test_what_cannot_be_imported_is_not_shipped(tmp_path: Path, name: str, message: str) -> None:
    """Said before Ray is touched, and nothing is copied."""
    (tmp_path / "text.txt").write_text("")
    (tmp_path / "edgelink.py").write_text("")
    (tmp_path / "right.py").write_text("")
    (tmp_path / "plain").mkdir()
    (tmp_path / "another").mkdir()
    (tmp_path / "another" / "right.py").write_text("")
    with pytest.raises(TrainerError, match=message) as caught:
        user_modules.stage([str(tmp_path / "right.py"), str(tmp_path / name)], tmp_path / "out")
    assert caught.value.exit_status == 2
    assert not (tmp_path / "out").exists()


def test_a_package_that_cannot_be_copied_is_named(tmp_path: Path) -> None:
    """With what of it, and why."""
    (tmp_path / "robot").mkdir()
    (tmp_path / "robot" / "__init__.py").write_text("")
    os.mkfifo(tmp_path / "robot" / "commands")
    with pytest.raises(TrainerError, match=r"robot cannot be copied: .*commands` is a named pipe") as caught:
        user_modules.stage([str(tmp_path / "robot")], tmp_path / "out")
    assert caught.value.exit_status == 2


def start(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TRAINER / "__main__.py"), *arguments],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", **environment},
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_log_on_a_full_disk_changes_no_exit_status(tmp_path: Path, stream: str) -> None:
    """Nor does Python, which would end with 120 for what it cannot write at its end."""
    environment = {"EDGELINK_PLACEMENT": str(placement(tmp_path)), "RAY_ADDRESS": "127.0.0.1:1"}
    with Path("/dev/full").open("w") as full:
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: full}
        done = subprocess.run(
            [sys.executable, str(TRAINER / "__main__.py")],
            env={"PATH": "/usr/bin:/bin", **environment},
            check=False,
            timeout=60,
            **streams,
        )
    assert done.returncode == 75  # nobody answers at RAY_ADDRESS


def test_what_a_node_has_moved_is_told_by_its_rank(tmp_path: Path) -> None:
    """Whoever of its workers has read the counters; not where they began anew."""
    slots = read_slots(placement(tmp_path))
    env, rollout, learner = slots.envs[0], slots.rollouts[0], slots.learner
    assert env.node_rank == rollout.node_rank != learner.node_rank
    before = {env: Traffic(1_000_000, 0), learner: Traffic(9, 9)}
    after = {rollout: Traffic(2_000_000, 4_000_000), learner: Traffic(5, 9)}
    assert rates(before, after, 2.0) == {env.node_rank: (pytest.approx(16.0), pytest.approx(4.0))}
    assert rates(before, {env: Traffic(None, 7)}, 2.0) == {}


def test_help_needs_neither_ray_nor_torch() -> None:
    """It is quick and has the options."""
    done = start("--help", PYTHONPROFILEIMPORTTIME="1")

    assert done.returncode == 0
    assert "--checkpoint-dir" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "edgelink.training.trainer.crew" in imported
    assert not {"ray", "torch", "gymnasium", "yaml", "edgelink.errors"} & imported


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "ascii:strict"])
def test_a_terminal_that_lacks_a_character_ends_nothing(encoding: str) -> None:
    """Of the help as of any line: there is a question mark in its place."""
    done = start("--help", PYTHONIOENCODING=encoding)

    assert done.returncode == 0
    assert "of env workers 0, 1, ?, repeated" in done.stdout


@pytest.mark.parametrize(
    ("environment", "message"),
    [({}, "no placement: EDGELINK_PLACEMENT is not set"), ({"EDGELINK_PLACEMENT": "PATH"}, "RAY_ADDRESS is not set")],
)
def test_started_by_hand_it_says_how_to_start_it(tmp_path: Path, environment: dict[str, str], message: str) -> None:
    """One line, status 2, no traceback, and no Ray started on the way."""
    path = str(placement(tmp_path))
    done = start(**dict.fromkeys(environment, path))

    assert done.returncode == 2
    assert message in done.stderr
    assert "`edgelink run --cluster FILE -- edgelink train`" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_device_address_and_counters_come_from_the_device(tmp_path: Path) -> None:
    """Read from the kernel; a device that is not there has none."""
    assert device_address("lo") == "127.0.0.1"
    assert device_address("nosuchdevice") is None
    assert read_traffic("nosuchdevice") == Traffic(None, None)
    table = tmp_path / "dev"
    table.write_text("head\n  et0: 12 1 0 0 0 0 0 0 34 1 0 0 0 0 0 0\n et01:5 1 0 0 0 0 0 0 6 1 0 0 0 0 0 0\n")
    assert read_traffic("et0", table) == Traffic(12, 34)
    assert read_traffic("et01", table) == Traffic(5, 6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"code_hash": "b" * 64}, r"env:0 on node 1 .*\(bbbbbbbbbbbb\)"),
        ({"ray_node_id": "other"}, "edge-9"),
        ({"node_ip": "192.168.1.5"}, r"edge-9 \(192\.168\.1\.5\)"),
    ],
)
def test_workers_are_believed_about_place_and_code(tmp_path: Path, change: dict[str, str], message: str | None) -> None:
    """A worker that landed elsewhere, or runs other code than the driver, ends the run by name."""
    slot = read_slots(placement(tmp_path)).envs[0]
    own = {
        "hostname": "edge-9",
        "network_namespace": "net:[1]",
        "ray_node_id": "id",
        "node_ip": "10.10.0.2",
        "code_hash": "a" * 64,
        "python": "3.11.7",
        **change,
    }
    found = Whereabouts(pid=1, node_rank=0, device="et0", device_address="10.10.0.2", **own)

    if message is None:
        check_whereabouts(slot, found, "id", "a" * 64)
    else:
        with pytest.raises(TrainerError, match=message):
            check_whereabouts(slot, found, "id", "a" * 64)


def test_environments_of_different_tasks_are_refused(tmp_path: Path) -> None:
    """One policy cannot learn from both; the two are named with what they have."""
    first, second = read_slots(placement(tmp_path)).envs
    cart, torque = Spaces((4,), "float32", 2), Spaces((3,), "float32", None, (-2.0,), (2.0,))

    assert agreed_spaces({second: cart, first: cart}) == cart
    with pytest.raises(TrainerError, match=r"env:0 .* has .* 2 actions, env:1 .* has .* actions from \(-2\) to \(2\)"):
        agreed_spaces({second: torque, first: cart})


class PlayedCrew(Crew):
    """One whose workers are made by nobody, and answer at once."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(read_slots(placement(tmp_path)), [tmp_path], print, 1.0)
        self.env_workers: list[tuple[Any, ...]] = []  # what they were made with
        self.told: list[tuple[str, str]] = []

    def begin(self, policy_timeout_s: float) -> None:
        """With a simulator and a robot."""
        deadman = DeadmanSettings(policy_timeout_s=policy_timeout_s)

        def robot(index: int) -> ControlSettings:
            return ControlSettings("cart-pole", deadman=deadman, settings=RobotSettings(index, seed=7))

        self.start(Settings(0, 1), FlowSettings(), EnvSettings(2, robot, ("", ""), 7), ["sim", "robot"])

    def _node_ids(self) -> dict[str, str]:
        return {slot.ip: str(slot.node_rank) for slot in self._slots}

    def _make(self, slot: Slot, kind: type, _node_ids: Any, *arguments: Any, **_: Any) -> None:
        self._made += 1
        self._workers[slot] = kind
        if kind is EnvWorker:
            self.env_workers.append(arguments)

    def call(self, slot: Slot, method: str, *_arguments: Any, **_: Any) -> Any:
        self.told.append((slot.name, method))
        return slot, method

    def arrived(self, answers: Any) -> list[Any]:
        return list(answers)

    def value(self, _answer: Any) -> Any:
        return None

    def wait_each(self, answers: Any, purpose: str) -> Any:
        said = {"spaces": Spaces((4,), "float32", 2), "count": 2, "whereabouts": SimpleNamespace(notice="")}
        return iter([(answer, said[answer[1]]) for answer in answers])

    def check(self, slot: Slot, found: Any, node_ids: Any = None) -> Any:
        return found


def test_a_pair_that_is_made_anew_has_other_seeds(tmp_path: Path) -> None:
    """Each time; a robot explores and tries other things than it did at first, as a simulator does."""
    crew = PlayedCrew(tmp_path)
    crew.begin(0.0)
    for index, kind in ((0, "sim"), (1, "robot")) * 2:
        assert crew.remake(index, kind)
    assert [arguments[0] for arguments in crew.env_workers] == ["sim", "robot"] * 3
    assert len({arguments[4] for arguments in crew.env_workers}) == 6
    robots = [arguments[2].settings for arguments in crew.env_workers if arguments[0] == "robot"]
    assert len({settings.seed for settings in robots}) == 3
    assert {settings.rank for settings in robots} == {1}


@pytest.mark.parametrize(("policy_timeout_s", "told"), [(10.0, ["rollout:1"]), (0.0, [])])
def test_robots_whose_policy_may_grow_old_are_told_that_it_is_the_newest(
    tmp_path: Path, policy_timeout_s: float, told: list[str]
) -> None:
    """While anything is waited for, whatever it is."""
    crew = PlayedCrew(tmp_path)
    crew.begin(policy_timeout_s)
    crew.ready([], 0.0)
    assert [name for name, method in crew.told if method == "nothing_newer"] == told
    crew._workers.clear()
    crew.ready([], 0.0)
    assert [name for name, method in crew.told if method == "nothing_newer"] == told


def test_a_pair_that_comes_back_with_another_task_is_refused(tmp_path: Path) -> None:
    """Its node may have been given another robot or other code meanwhile."""
    slots = read_slots(placement(tmp_path))
    crew = Crew(slots, [tmp_path], print, 1.0)
    crew.spaces, crew._hash = Spaces((4,), "float32", 2), "a" * 64
    env = slots.envs[1]
    place = Whereabouts("edge", 1, "net:[1]", "id", env.ip, 2, "et0", env.ip, "a" * 64, "3.11")
    assert crew.check(env, Introduced(place, crew.spaces), {env.ip: "id"}) == place
    with pytest.raises(SpacesDifferError, match=r"env:1 .* 3 actions, .* 2 actions"):
        crew.check(env, Introduced(place, Spaces((4,), "float32", 3)), {env.ip: "id"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a cell ended with status -9", "a cell ended with status -9"),
        (
            "The actor died because of an error raised in its creation task, \x1b[36mray::X\x1b[39m\n\nOSError: z",
            "OSError: z",
        ),
        (
            "The actor died unexpectedly.\n\tpid: 3\nWorker exit type: SYSTEM_ERROR Worker exit detail: "
            "Connection error code 2. End of file. There are some potential root causes. (1) OOM",
            "its process died: Connection error code 2. End of file",
        ),
        ("", "OSError"),
    ],
)
def test_rays_long_errors_become_one_line(text: str, expected: str) -> None:
    """What a person needs of them."""
    assert brief(OSError(text)) == expected


def test_a_ray_that_does_not_answer_is_said_at_once(tmp_path: Path) -> None:
    """Status 75, within a second, instead of Ray's minutes of warnings."""
    done = start(EDGELINK_PLACEMENT=str(placement(tmp_path)), RAY_ADDRESS="127.0.0.1:1")

    assert done.returncode == 75
    assert "no Ray at 127.0.0.1:1" in done.stderr

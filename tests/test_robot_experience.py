"""What a robot did, on its way to the learner, to statistics and to recordings: nothing is taken for what it is not."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import obedient_robot
import pytest
from obedient_robot import SPACES
from played_robot import HELLO, SETTINGS, Robot, attached_to
from telling import Words

from edgelink.training.trainer.experience.robot_collect import RobotCollector
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot import control, lerobot_export
from edgelink.training.trainer.robot.attempts import BROKEN_OFF, COMPLETE, INCOMPLETE, Attempt, AttemptCounter
from edgelink.training.trainer.robot.environment import RobotEnvironment
from edgelink.training.trainer.robot.interface import RobotSettings, Sensed
from edgelink.training.trainer.robot.lerobot_export import Exported
from edgelink.training.trainer.robot.names import Names
from edgelink.training.trainer.robot.recording import Recorder, episodes, read_recording
from edgelink.training.trainer.robot.shared import Layout, RingReader, SharedBlock


@pytest.fixture
def robot() -> Robot:
    return Robot()


@pytest.fixture
def attached(robot: Robot, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RobotEnvironment, socket.socket]]:
    with attached_to(robot, monkeypatch) as both:
        yield both


def test_only_whole_attempts_have_a_return(robot: Robot) -> None:
    """One that a hold broke off has none, nor what is left of it; one whose steps are missing has none either."""
    counter, reader = AttemptCounter(1), RingReader(robot.block)

    def ended() -> list[tuple[str, float]]:
        return [(attempt.how, attempt.value) for attempt in counter.add(reader.take(100))]

    robot.play(3, ends=True)
    robot.play(2)
    robot.recorder.break_off()
    assert ended() == [(COMPLETE, 3.0)]
    robot.play(2, is_new=False, ends=True)  # a held robot goes on in the same attempt
    assert ended() == [(BROKEN_OFF, 2.0)]
    robot.play(2)
    robot.recorder.break_off()
    robot.play(1, ends=True)  # a stopped one begins anew
    assert ended() == [(BROKEN_OFF, 2.0), (COMPLETE, 1.0)]
    robot.play(2)
    ended()
    robot.play(3, is_new=False)
    assert reader.skip_to(1) == 2
    assert ended() == [(INCOMPLETE, 2.0)]
    robot.play(1, is_new=False, ends=True)
    assert ended() == []
    robot.play(2)
    assert reader.skip_to(1) == 1
    assert ended() == [(INCOMPLETE, 0.0)]
    robot.play(2, is_new=False, ends=True)
    robot.play(2, ends=True)
    assert ended() == [(COMPLETE, 2.0)]
    assert counter.counts == {COMPLETE: 3, BROKEN_OFF: 2, INCOMPLETE: 2}


def test_an_attempts_version_is_its_oldest(robot: Robot) -> None:
    """New weights may come in the midst of it."""
    counter, reader = AttemptCounter(1), RingReader(robot.block)
    for version in (4, 5):
        robot.version = version
        robot.play(2, is_new=version == 4, ends=version == 5)
    robot.play(1, ends=True)
    assert [attempt.version for attempt in counter.add(reader.take(100))] == [4, 5]


def test_a_rig_that_waits_for_another_one_is_not_broken_off(robot: Robot) -> None:
    """It does not move meanwhile; its attempt is whole, though its steps do not follow each other."""
    counter, reader = AttemptCounter(1), RingReader(robot.block)
    robot.play(2)
    robot.recorder.pause()
    robot.play(2, is_new=False, ends=True)
    rows = reader.take(100)
    assert rows["follows"].tolist() == [0, 1, 0, 1]
    assert [(attempt.how, attempt.steps) for attempt in counter.add(rows)] == [(COMPLETE, 4)]


def test_a_return_is_not_made_of_what_was_left_out(
    robot: Robot, attached: tuple[RobotEnvironment, socket.socket]
) -> None:
    """Between two stretches, too: what a worker that was slow has left in the ring counts for no episode."""
    worker, _ = attached
    robot.play(2)
    first = worker.take(2, 5.0)
    robot.play(4, is_new=False)
    robot.play(3, is_new=False, ends=True)
    second = worker.take(2, 5.0)
    robot.play(2, ends=True)
    third = worker.take(4, 5.0)
    assert first is not None
    assert second is not None
    assert third is not None
    assert [parts["episode_returns"] for parts in (first, second, third)] == [(), (), (2.0,)]
    assert third["terminated"][:, 0].tolist() == [False, True, False, True]


def test_what_grew_old_in_a_hold_does_not_spoil_what_comes_after_it(
    robot: Robot, attached: tuple[RobotEnvironment, socket.socket]
) -> None:
    """A stretch is as old as its oldest step: what was begun before is left out, and counted."""
    worker, _ = attached
    robot.play(1)
    assert worker.take(4, 0.0, 1) is None
    robot.version = 2
    robot.play(2, is_new=False)
    assert worker.take(4, 0.0, 1) is None
    robot.recorder.break_off()
    robot.version = 5
    robot.play(3)
    parts = worker.take(4, 5.0, 2)
    assert parts is not None
    assert parts["weights_version"] == 2
    assert parts["truncated"][:, 0].tolist() == [False, True, False, False]
    assert worker.take(2, 0.0, 2) is None
    robot.version = 9
    robot.play(2, is_new=False)
    parts = worker.take(2, 5.0, 9)
    assert parts is not None
    assert parts["weights_version"] == 9
    assert worker._stale == 2


def test_a_late_report_is_no_death(robot: Robot, attached: tuple[RobotEnvironment, socket.socket]) -> None:
    """Nor the answer to the next question; the end is the end."""
    worker, attendant = attached
    attendant.send(b'{"report": {"ticks": 1}}')
    assert worker.take(1, 0.0) is None
    attendant.send(b'{"report": {"ticks": 2}}')
    answers = threading.Thread(target=lambda: attendant.recv(100) and attendant.send(b'{"report": {"ticks": 3}}'))
    answers.start()
    assert worker.report()["ticks"] == 3
    answers.join()
    worker._link.send(b"report")  # type: ignore[union-attr]  # too late: it is not read any more
    attendant.send(b'{"report": {"events": [{"event": "died"}]}}')
    attendant.close()
    with pytest.raises(ConnectionError, match=r"\{'event': 'died'\}"):
        worker.take(1, 5.0)


def test_an_evaluation_counts_whole_attempts_of_its_policy() -> None:
    """Each rig as many; those that were broken off are told, and what began before the policy came is not."""
    told = iter(
        [
            [Attempt(0, COMPLETE, 9.0, 9, 3), Attempt(0, BROKEN_OFF, 9.0, 9, 3)],
            [Attempt(0, COMPLETE, 1.0, 1, 4), Attempt(1, BROKEN_OFF, 7.0, 7, 4), Attempt(1, INCOMPLETE, 7.0, 7, 4)],
            [],
            [Attempt(0, COMPLETE, 2.0, 2, 5), Attempt(1, COMPLETE, 3.0, 3, 4)],
        ]
    )

    def ask(method: str, *_: Any) -> Any:
        return {"rigs": lambda: 2, "load_policy": lambda: None, "attempts": lambda: next(told)}[method]()

    played = RobotCollector(ask, lambda: (4, {}), lambda: 4, 6).evaluate(2)
    assert (played.returns, played.broken_off) == ([1.0, 3.0], 1)


def test_an_evaluation_in_several_requests_counts_each_rigs_attempts_in_their_order() -> None:
    """Though the rig with short ones plays more of them meanwhile; of an evaluation before, nothing is left."""

    def attempt(rig: int, value: float, version: int) -> Attempt:
        return Attempt(rig, COMPLETE, value, int(value), version)

    told = [
        [attempt(0, 1.0, 4), attempt(0, 2.0, 4), attempt(0, 3.0, 4)],
        [attempt(0, 4.0, 4), attempt(1, 50.0, 4)],
        [attempt(1, 60.0, 4)],
        [attempt(0, 5.0, 4), attempt(1, 70.0, 5)],
        [attempt(0, 6.0, 5)],
    ]

    def ask(method: str, *_: Any) -> Any:
        return told.pop(0) if method == "attempts" else {"rigs": 2}.get(method)

    policies: list[tuple[int, dict[str, Any]]] = [(4, {}), (5, {})]
    collector = RobotCollector(ask, lambda: policies[0], lambda: policies[0][0], 6)
    assert [collector.evaluate(2).returns for _ in range(2)] == [[1.0, 50.0], [2.0, 60.0]]
    del policies[0]
    assert collector.evaluate(2).returns == [6.0, 70.0]


def test_word_that_a_policy_is_the_newest_is_of_the_one_that_the_robot_has(
    robot: Robot, attached: tuple[RobotEnvironment, socket.socket]
) -> None:
    """Not of one that was offered and has not come; and it brings no weights anew."""
    worker, _ = attached
    policies: list[tuple[int, dict[str, Any]]] = [(1, obedient_robot.weights())]
    asked: list[str] = []

    def ask(method: str, *arguments: Any) -> Any:
        asked.append(method)
        return getattr(worker, method)(*arguments)

    collector = RobotCollector(ask, lambda: policies[-1], lambda: policies[-1][0], 6)
    collector.confirm(1)
    assert asked == []
    robot.play(1)
    collector.collect(1, policies[-1][0])
    words = robot.block.words
    collector.confirm(2)
    assert words.weights_confirmed_ns == 0
    collector.confirm(1)
    confirmed_ns = words.weights_confirmed_ns
    assert confirmed_ns > 0
    assert asked == ["load_policy", "take", "confirm_policy"]
    policies.append((2, obedient_robot.weights()))
    robot.play(1, is_new=False)
    collector.collect(1, policies[-1][0])
    worker.confirm_policy(1)  # which was on its way meanwhile
    assert words.weights_confirmed_ns == confirmed_ns


@pytest.fixture
def record(tmp_path: Path, robot: Robot) -> Callable[[], Recorder]:
    return lambda: Recorder(tmp_path, SETTINGS, HELLO, robot.block)


def test_a_recording_that_lost_steps_says_which_episodes_lack_them(
    robot: Robot, record: Callable[[], Recorder]
) -> None:
    """Before the gap and after it; whole ones beside them, and those that a hold broke off, do not."""
    recorder = record()
    robot.play(2, ends=True)
    robot.play(2)
    recorder.look()
    robot.play(5, is_new=False)
    robot.play(4, is_new=False, ends=True)
    robot.play(2)
    robot.recorder.break_off()
    robot.play(1, ends=True)
    recorder.close()
    assert recorder.lost_steps == 5
    found = episodes(read_recording(recorder.path))
    assert [(len(episode.rewards), episode.has_gap) for episode in found] == [
        (2, False),
        (2, True),
        (4, True),
        (2, False),
        (1, False),
    ]


def test_a_rig_that_waited_for_another_one_has_one_episode(robot: Robot, record: Callable[[], Recorder]) -> None:
    """Its attempt is whole; what a hold broke off is not, nor does an attempt begin with what is left of it."""
    recorder = record()
    robot.play(2)
    robot.recorder.pause()
    robot.play(2, is_new=False, ends=True)
    recorder.look()
    robot.play(2)
    robot.recorder.break_off()
    robot.play(1, is_new=False)
    robot.recorder.break_off()
    robot.play(1, ends=True)
    recorder.close()
    found = episodes(read_recording(recorder.path))
    assert [(len(episode.rewards), episode.is_from_start) for episode in found] == [
        (4, True),
        (2, True),
        (1, False),
        (1, True),
    ]


def test_a_recording_without_a_step_is_one(record: Callable[[], Recorder]) -> None:
    """Also while it is open: whoever writes it may be killed."""
    recorder = record()
    assert list(episodes(read_recording(recorder.path))) == []
    recorder.close()


def test_rewards_of_small_integers_are_summed_as_numbers(robot: Robot) -> None:
    """Over the control periods of a step, the sum may be none of theirs."""
    reader, seen, no = RingReader(robot.block), np.zeros((1, 2), np.float32), np.zeros(1, np.bool_)
    counted: Any = np.array([100], np.int8)
    sensed = Sensed(seen, counted, no, no)
    robot.recorder.begin(0, 1, seen, np.zeros((1, 1), np.float32), np.zeros(1, np.float32))
    for _ in range(4):
        robot.recorder.reward(sensed)
    robot.recorder.finish(sensed)
    assert reader.take(1)["rewards"].tolist() == [[400.0]]


class Dataset:
    """LeRobot's, as far as it is used."""

    def __init__(self) -> None:
        self.features: dict[str, Any] = {}
        self.frames: list[dict[str, Any]] = []
        self.episodes = 0

    def create(self, *, features: dict[str, Any], **about: Any) -> Dataset:
        self.features, self.about = features, about
        return self

    def add_frame(self, frame: dict[str, Any]) -> None:
        self.frames.append(frame)

    def save_episode(self) -> None:
        self.episodes += 1

    def finalize(self) -> None:
        return


@pytest.fixture
def dataset(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """What is exported."""
    made = Dataset()
    module = types.ModuleType("lerobot.datasets.lerobot_dataset")
    module.LeRobotDataset = made  # type: ignore[attr-defined]
    for name in ("lerobot", "lerobot.datasets"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return made


def test_what_is_exported_is_whole_and_as_commanded(
    robot: Robot, record: Callable[[], Recorder], dataset: Dataset, tmp_path: Path
) -> None:
    """With all commands of a step beside the one that was in force at its end; what lacks steps is left out."""
    recorder = record()
    robot.play(2, ends=True)
    recorder.look()
    robot.play(9)
    recorder.close()
    done = lerobot_export.export(tmp_path / "reach", "reach", [recorder.path])
    assert done == Exported(episodes=1, frames=2, with_gap=1)
    assert dataset.features["commanded"]["shape"] == (2,)
    assert [frame["commanded"].tolist() for frame in dataset.frames] == [[0.5, 1.0]] * 2
    assert [frame["action"].tolist() for frame in dataset.frames] == [[1.0]] * 2
    assert all(set(frame) - {"task"} == set(dataset.features) for frame in dataset.frames)
    assert dataset.about["fps"] == 50
    names = {column: dataset.features[column]["names"] for column in ("observation.state", "action", "commanded")}
    assert names == {
        "observation.state": ["rail.pos", "rail.vel"],
        "action": ["rail.vel"],
        "commanded": ["rail.vel.0", "rail.vel.1"],
    }


@pytest.mark.parametrize(("option", "kind"), [((), "image"), (("--video",), "video")])
def test_a_camera_has_a_column_of_its_own(dataset: Dataset, tmp_path: Path, option: tuple[str, ...], kind: str) -> None:
    """By the name that the robot gives it, as a policy of LeRobot's looks for it; as pictures, unless asked for."""
    spaces = Spaces((8, 8, 3), "uint8", 2)
    block = SharedBlock(Layout(spaces, 1, SETTINGS.ring_rows, 1))
    names = Names.of(spaces, ("front",)).to_dict()
    recorder = Recorder(tmp_path / "r", SETTINGS, {**HELLO, "action_repeat": 1, "names": names}, block)
    recorder.close()
    assert lerobot_export.main([*option, str(tmp_path / "seen"), "look", str(recorder.path)]) == 0
    assert dataset.features["observation.images.front"]["dtype"] == kind
    assert dataset.about["use_videos"] is (kind == "video")
    assert dataset.features["action"] == {"dtype": "int64", "shape": (1,), "names": ["action_0"]}


@pytest.mark.parametrize(("steps_per_s", "fps", "says"), [(33.4, 33, "33.4 steps a second"), (60.0, 60, "")])
def test_a_rate_that_lerobot_cannot_have_is_said(
    robot: Robot,
    dataset: Dataset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    steps_per_s: float,
    fps: int,
    says: str,
) -> None:
    """Its frames have whole rates only; a dataset that plays at another speed is no secret."""
    recorder = Recorder(tmp_path / "r", SETTINGS, {**HELLO, "rate_hz": 2 * steps_per_s}, robot.block)
    recorder.close()
    assert lerobot_export.main([str(tmp_path / "reach"), "reach", str(recorder.path)]) == 0
    assert dataset.about["fps"] == fps
    said = capsys.readouterr().err
    assert (says in said) if says else not said


def test_a_recording_of_an_earlier_edgelink_gets_plain_names(record: Callable[[], Recorder]) -> None:
    """Its first line says none."""
    path = record().path
    head = json.loads(path.read_bytes())
    del head["names"]
    path.write_bytes(json.dumps(head).encode() + b"\n")
    assert read_recording(path).names == Names(("observation_0", "observation_1"), ("action_0",))


@pytest.mark.parametrize(
    ("spaces", "names", "wrong"),
    [
        (SPACES, {"observation": ("x",)}, "observation_names"),
        (SPACES, {"observation": ("x", "x")}, "observation_names"),
        (SPACES, {"action": ("x", "y")}, "action_names"),
        (SPACES, {"action": "x"}, "action_names"),
        (SPACES, {"action": ("",)}, "action_names"),
        (Spaces((8, 8, 3), "uint8", 2), {"observation": ("../front",)}, "camera"),
    ],
)
def test_names_that_are_not_one_for_each_number_are_refused(spaces: Spaces, names: dict[str, Any], wrong: str) -> None:
    """When the robot is made, not when its recordings are to be used."""
    with pytest.raises(ValueError, match=wrong):
        Names.of(spaces, **names)


def test_what_begins_in_the_middle_of_an_attempt_is_not_exported(
    robot: Robot,
    record: Callable[[], Recorder],
    dataset: Dataset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: Words,
) -> None:
    """No robot can be brought there: from the dataset, whose episodes do not say so, it would be replayed."""
    recorder = record()
    robot.play(2)
    robot.recorder.break_off()
    robot.play(3, is_new=False, ends=True)
    recorder.close()
    assert lerobot_export.main([str(tmp_path / "reach"), "reach", str(recorder.path)]) == 0
    assert (dataset.episodes, len(dataset.frames)) == (1, 2)
    said = capsys.readouterr()
    assert said.out.startswith("1 episodes, 2 frames in ")
    words(said.err)


def test_recordings_of_two_robots_are_not_one_dataset(
    robot: Robot, dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though all numbers of theirs are the same: the dataset would call both by the first's name."""
    paths = []
    for name in ("pusher", "puller"):
        recorder = Recorder(tmp_path / name, replace(SETTINGS, robot=name), HELLO, robot.block)
        recorder.close()
        paths.append(str(recorder.path))
    assert lerobot_export.main([str(tmp_path / "reach"), "reach", *paths]) == 1
    said = capsys.readouterr().err
    assert f"{paths[1]} is of robot puller" in said
    assert f"unlike {paths[0]}, of robot pusher" in said


@pytest.mark.parametrize("has_lerobot", [True, False])
def test_an_export_that_cannot_be_says_what_to_do(
    record: Callable[[], Recorder],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: Words,
    has_lerobot: bool,
) -> None:
    """The dataset is there already; or this interpreter has no LeRobot, as EdgeLink's own has none."""
    recorder = record()
    recorder.close()
    target = tmp_path / "reach"
    if has_lerobot:
        target.mkdir()
    monkeypatch.setitem(sys.modules, "lerobot", None)
    assert lerobot_export.main([str(target), "reach", str(recorder.path)]) == 1
    words(capsys.readouterr().err, TARGET=target, PYTHON=sys.executable)


def test_an_empty_file_does_not_keep_the_others_from_being_exported(
    robot: Robot,
    record: Callable[[], Recorder],
    dataset: Dataset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: Words,
) -> None:
    """It is named; without any other there is nothing to export."""
    empty = tmp_path / "one-0.steps"
    empty.touch()
    recorder = record()
    robot.play(2, ends=True)
    recorder.close()
    assert lerobot_export.main([str(tmp_path / "reach"), "reach", str(empty), str(recorder.path)]) == 0
    assert dataset.episodes == 1
    words(capsys.readouterr().err, EMPTY=empty)
    assert lerobot_export.main([str(tmp_path / "reach"), "reach", str(empty)]) == 1
    words(capsys.readouterr().err, EMPTY=empty)


def test_spaces_are_plain_whatever_they_are_made_of() -> None:
    """Limits often come from an array; they go to other processes as JSON."""
    box: Any = np.ones(1, np.float32)
    made = Spaces(np.zeros((1, 2)).shape[1:], "float32", None, -box, box)
    assert made == SPACES
    assert Spaces.from_json(made.to_json()) == made
    count: Any = np.int64(3)
    assert json.loads(Spaces((2,), "float32", count).to_json())["action_count"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observations": np.zeros((1, 2))}, "float64 of shape (1, 2)"),
        ({"rewards": np.float32(1)}, "as rewards"),
        ({"rewards": [1.0]}, "[1.0] as rewards"),
        ({"terminated": np.zeros(2, np.bool_)}, "array([False, False]) as terminated"),
        ({"truncated": np.zeros(1)}, "array([0.]) as truncated"),
    ],
)
def test_what_a_robot_senses_is_looked_at_before_it_moves(change: dict[str, Any], message: str) -> None:
    """Each of its parts, and what it should be is told."""
    sensed = obedient_robot.ObedientRobot(RobotSettings()).observe()
    control._check_shape(sensed, SPACES, 1)
    with pytest.raises(ValueError, match=re.escape(message)):
        control._check_shape(replace(sensed, **change), SPACES, 1)


class Teller(obedient_robot.ObedientRobot):
    said: Any = None

    def report(self) -> dict[str, Any]:
        said: dict[str, Any] = self.said
        return said


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            {"torque": np.float32(0.5), "joints": np.arange(2), 3: (np.bool_(1), {np.int64(4)}), "path": Path("/x")},
            {"torque": 0.5, "joints": [0, 1], "3": [True, [4]], "path": "/x"},
        ),
        ({"heat": float("nan"), "far": np.asarray([np.inf, 1.0])}, {"heat": None, "far": [None, 1.0]}),
        ("fine", ["ValueError"]),
        ({"log": "x" * 100_000}, ["97 KiB", "64 KiB"]),
    ],
)
def test_what_a_robot_reports_is_told_as_far_as_json_goes(robot: Robot, said: Any, told: Any) -> None:
    """Whatever its code puts into it: the process ends in order."""
    teller = Teller(RobotSettings())
    teller.said = said
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        control._leave(teller, robot.block, theirs)
        heard = json.loads(ours.recv(1 << 20))["report"]
    if isinstance(told, list):  # what the error names, which comes instead
        assert heard.keys() == {"report_error"}
        assert all(part in heard["report_error"] for part in told)
    else:
        assert heard == told
    assert robot.block.words.ended


@pytest.mark.parametrize(
    ("shape", "kind"), [((2,), "float64"), ((2, 3), "float32"), ((4, 4), "uint8"), ((2,), "int32")]
)
def test_observations_that_no_learner_takes_are_told_before_it_moves(shape: tuple[int, ...], kind: str) -> None:
    """A camera's image has three axes, also if it is grey; all else is one row of numbers."""
    spaces = Spaces(shape, kind, 2)
    sensed = obedient_robot.ObedientRobot(RobotSettings()).observe()
    seen = replace(sensed, observations=np.zeros((1, *shape), kind))
    with pytest.raises(ValueError, match=r"float32 .*uint8"):
        control._check_shape(seen, spaces, 1)
    image = replace(sensed, observations=np.zeros((1, 4, 4, 1), np.uint8))
    control._check_shape(image, Spaces((4, 4, 1), "uint8", 2), 1)

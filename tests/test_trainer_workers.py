"""The two ends of experience on its way, as Ray calls them; Ray's memory is played."""

from __future__ import annotations

import sys
import threading
import tomllib
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement
from test_trainer_transport import payload_of

from edgelink.training.trainer.experience.environment import EVALUATION, ROBOT, SIMULATOR, EnvWorker
from edgelink.training.trainer.experience.parcel import Payload, opened
from edgelink.training.trainer.experience.pieces import Pieces
from edgelink.training.trainer.experience.robot_collect import RobotCollector
from edgelink.training.trainer.experience.rollout import RolloutWorker
from edgelink.training.trainer.experience.simulator import Task
from edgelink.training.trainer.experience.stepping import StepClient
from edgelink.training.trainer.experience.weights_codec import Offer, Patterns, encode
from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.learner_worker import LearnerWorker
from edgelink.training.trainer.learning.settings import Settings
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.needs import LEAST, check_modules
from edgelink.training.trainer.robot.interface import RobotSettings
from edgelink.training.trainer.robot.settings import ControlSettings

SPACES = Spaces((4,), "float32", 2)
CHUNK_BYTES = 2000


class RayError(Exception):
    """As Ray's errors are."""


@dataclass
class Memory:
    """Ray's, of all nodes."""

    objects: dict[str, Any] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def put(self, value: Any) -> str:
        name = f"object {len(self.objects)}"
        self.objects[name] = value
        return name

    def get(self, names: Any) -> Any:
        if isinstance(names, list):
            return [self.get(name) for name in names]
        if names in self.gone:
            raise RayError(f"the owner of {names} has died")
        return self.objects[names]

    def wait(self, names: Sequence[str], *, num_returns: int) -> tuple[list[str], list[str]]:
        return list(names[-num_returns:]), list(names[:-num_returns])  # the last first: no order is promised


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    memory = Memory()
    ray = SimpleNamespace(
        put=memory.put, get=memory.get, wait=memory.wait, exceptions=SimpleNamespace(RayError=RayError)
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    return memory


def collected(memory: Memory, monkeypatch: pytest.MonkeyPatch, payload: Payload) -> Any:
    """What a rollout worker answers when that is what it collects."""
    worker = RolloutWorker(0, None, SPACES, 1, 1, 0, CHUNK_BYTES)
    monkeypatch.setattr(worker, "_fragment", lambda *_: ("about", payload))
    about, found = worker.collect(1, 10, None, 0)
    assert about == "about"
    return found


def test_what_is_not_finite_does_not_leave_its_edge(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """There it costs one pair; at the learner it would cost everybody."""
    worker = RolloutWorker(0, None, SPACES, 1, 1, 0, CHUNK_BYTES)
    good = opened(payload_of(4))
    rewards = good.rewards.copy()
    rewards[3] = np.nan
    bad = replace(good, ticket=2, rewards=rewards)
    monkeypatch.setattr(worker._inbox, "wait_for", lambda _version: (1, {}))
    monkeypatch.setattr(worker, "_collect", lambda ticket, *_: ({1: good, 2: bad}[ticket], good.observations[:0]))
    worker.collect(1, 4, None, 0)
    with pytest.raises(TrainerError, match=r"fragment 2 of env:0 .*rewards.* nan"):
        worker.collect(2, 4, None, 0)


def test_that_nothing_newer_was_made_is_told_of_what_was_offered(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a robot: its policy is the newest only if nothing else is on its way. A simulator has nothing to be told."""
    worker = RolloutWorker(0, None, SPACES, 1, 1, 0, CHUNK_BYTES)
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(worker, "_ask", lambda *question: asked.append(question))
    worker.nothing_newer()
    worker.offer_weights(Offer(3, (memory.put(encode(Patterns.of({"bias": np.zeros(2)}))),)))
    worker._inbox.wait_for(3)
    inbox = worker._inbox
    collector = RobotCollector(worker._ask, lambda: inbox.wait_for(None), lambda: inbox.newest_offered, 6)
    worker._is_robot, worker._collector = True, collector
    worker._collector._hand_over()
    asked.clear()
    worker.nothing_newer()
    assert asked == [("confirm_policy", 3)]
    memory.gone.add("of version 4")
    worker.offer_weights(Offer(4, ("of version 4",)))
    worker.nothing_newer()
    assert asked == [("confirm_policy", 3)]


@pytest.fixture
def learner(memory: Memory) -> LearnerWorker:
    return LearnerWorker(Settings(seed=1, total_iterations=1), SPACES, CHUNK_BYTES)


def test_a_large_fragment_is_put_together_by_the_learner(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, learner: LearnerWorker
) -> None:
    """From pieces that come in any order; nothing larger lies on the edge's way out."""
    payload = payload_of(40)
    found = collected(memory, monkeypatch, payload)
    assert isinstance(found, Pieces)
    assert max(len(memory.objects[name]) for name in found.names) == CHUNK_BYTES
    why, held = learner.hold([memory.put(found)])
    assert why == ""
    assert held is not None
    np.testing.assert_array_equal(opened(held).observations, opened(payload).observations)


def test_a_small_fragment_goes_as_it_is(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, learner: LearnerWorker
) -> None:
    payload = payload_of(2)
    found = collected(memory, monkeypatch, payload)
    assert found is payload
    assert memory.objects == {}
    assert learner.hold([memory.put(found)]) == ("", payload)


@pytest.mark.parametrize("which", ["the first", "one in the middle", "what they are named in"])
def test_why_a_fragment_cannot_be_had_is_told(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, learner: LearnerWorker, which: str
) -> None:
    """The edge died before all of it was here: that is no failure of the learner's."""
    found = collected(memory, monkeypatch, payload_of(40))
    boxed = memory.put(found)
    lost = {"the first": found.names[0], "one in the middle": found.names[9], "what they are named in": boxed}
    memory.gone.add(lost[which])
    why, held = learner.hold([boxed])
    assert f"the owner of {lost[which]} has died" in why
    assert held is None


@pytest.fixture
def bound_task(monkeypatch: pytest.MonkeyPatch) -> Task:
    """Of environments that belong to the thread that made them, as one with an OpenGL context does; ``fails``: so does
    each step."""
    gymnasium = pytest.importorskip("gymnasium")

    class Bound(gymnasium.Env):  # type: ignore[misc,name-defined]
        observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, *, fails: bool = False) -> None:
            self._fails = fails
            self._thread = threading.get_ident()

        def _check(self) -> None:
            assert threading.get_ident() == self._thread

        def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
            self._check()
            return np.zeros(3, np.float32), {}

        def step(self, _action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self._check()
            if self._fails:
                raise RuntimeError("EGL_BAD_ACCESS")
            return np.zeros(3, np.float32), 1.0, False, False, {}

        def close(self) -> None:
            self._check()

    monkeypatch.setattr(gymnasium.envs.registration, "registry", {**gymnasium.envs.registration.registry})
    gymnasium.register("Bound-v0", entry_point=Bound)
    return Task("Bound-v0")


def env_worker(task: Task) -> EnvWorker:
    return EnvWorker(SIMULATOR, 2, ControlSettings("cart-pole"), ("", ""), 0, task)


def test_a_simulator_stays_in_the_thread_that_made_it(bound_task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for it: Ray's thread, which is here this one, or the rollout worker, to train and to evaluate."""
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "a node"))
    worker, other = env_worker(bound_task), env_worker(bound_task)
    actions = np.zeros(2, np.int64)
    assert worker.introduced().spaces == Spaces((3,), "float32", 2)
    assert worker.count() == 2
    for one in (worker, other):  # the other one is first asked by its rollout worker
        ask = StepClient(one.serve()).call
        for purpose in ([], [EVALUATION], []):
            assert ask("reset", *purpose)[0] == 2
            assert ask("step", actions).rewards.tolist() == [1.0, 1.0]
        ask("reset", EVALUATION)
        assert one.report()["environments"] == 2
        one.close()


@pytest.fixture
def counting_task(monkeypatch: pytest.MonkeyPatch) -> Task:
    """Episodes of five steps; what is seen is how many there were. The first one pays so much that 1 more is nothing
    to a number of 32 bits."""
    gymnasium = pytest.importorskip("gymnasium")

    class Counting(gymnasium.Env):  # type: ignore[misc,name-defined]
        observation_space = gymnasium.spaces.Box(0, 5, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
            self._steps = 0
            return np.zeros(1, np.float32), {}

        def step(self, _action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self._steps += 1
            reward = 2.0**24 if self._steps == 1 else 1.0
            return np.full(1, self._steps, np.float32), reward, False, self._steps == 5, {}

    monkeypatch.setattr(gymnasium.envs.registration, "registry", {**gymnasium.envs.registration.registry})
    gymnasium.register("Counting-v0", entry_point=Counting)
    return Task("Counting-v0")


def counting_pair(memory: Memory, task: Task) -> tuple[RolloutWorker, EnvWorker]:
    """A rollout worker with a policy, and the env worker next to it."""
    env = env_worker(task)
    ask = SimpleNamespace(serve=SimpleNamespace(remote=lambda: memory.put(env.serve())))
    rollout = RolloutWorker(0, ask, env.spaces(), 1, 1, 0, CHUNK_BYTES)
    weights = {"policy/head/weight": np.zeros((2, 1)), "policy/head/bias": np.zeros(2)}
    rollout.offer_weights(Offer(1, (memory.put(encode(Patterns.of(weights))),)))
    return rollout, env


def test_training_goes_on_after_an_evaluation_where_it_was(memory: Memory, counting_task: Task) -> None:
    """Begun anew each time, no episode would come further than the training does between two evaluations."""
    rollout, env = counting_pair(memory, counting_task)
    rollout.evaluate(1, 2)
    seen: list[float] = []
    lengths: list[int] = []
    for ticket in (1, 2, 3):
        about, payload = rollout.collect(ticket, 2, None, 0)
        seen += opened(payload).observations[:, 0, 0].tolist()
        lengths += about.episode_lengths
        assert len(rollout.evaluate(1, 2).returns) == 2
    assert env._apart is None
    assert rollout.steps() == 4 * 5 + 3 * 2  # by which a slow simulator is told from one that hangs
    env.close()

    assert seen == [0, 1, 2, 3, 4, 0]
    assert lengths == [5, 5]  # of each of the two environments


def test_an_evaluation_changes_no_random_number_of_the_training(memory: Memory, counting_task: Task) -> None:
    """Runs with and without, or with more of them, can be compared."""
    played: list[list[Any]] = []
    for evaluates in (False, True):
        rollout, env = counting_pair(memory, counting_task)
        own: list[Any] = []
        for ticket in (1, 2, 3):
            if evaluates:
                rollout.evaluate(1, 2)
            own += opened(rollout.collect(ticket, 16, None, 0)[1]).actions.tolist()
        env.close()
        played.append(own)
    assert played[0] == played[1]


def test_a_return_is_the_sum_of_its_rewards(memory: Memory, counting_task: Task) -> None:
    """Of small ones after many, too."""
    rollout, env = counting_pair(memory, counting_task)
    about, _ = rollout.collect(1, 5, None, 0)
    played = rollout.evaluate(1, 2)
    env.close()

    assert about.episode_returns == (2.0**24 + 4, 2.0**24 + 4)
    assert played.returns == [2.0**24 + 4, 2.0**24 + 4]


def test_what_a_simulator_raises_is_told_with_where(bound_task: Task) -> None:
    """Whoever asked; and the next one is answered."""
    worker = env_worker(replace(bound_task, options={"fails": True}))
    worker._handle("reset")
    with pytest.raises(RuntimeError, match="EGL_BAD_ACCESS") as told:
        worker._handle("step", np.zeros(2, np.int64))
    assert traceback.extract_tb(told.value.__traceback__)[-1].filename == __file__
    with pytest.raises(RuntimeError, match="EGL_BAD_ACCESS"):
        StepClient(worker.serve()).call("step", np.zeros(2, np.int64))
    assert worker.report()["task"] == "Bound-v0"


@pytest.mark.parametrize(
    ("kind", "missing", "named"),
    [
        (SIMULATOR, ["zstandard"], "zstandard"),
        (SIMULATOR, ["gymnasium", "zstandard"], "gymnasium zstandard"),
        (ROBOT, ["gymnasium", "zstandard"], "zstandard"),  # and no robot is started
    ],
)
def test_what_an_edge_lacks_is_named_before_anything_is_played(
    monkeypatch: pytest.MonkeyPatch, kind: str, missing: list[str], named: str
) -> None:
    """With what brings it, and a status after which nobody tries again; the crew adds the node."""
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    worker = EnvWorker(kind, 2, ControlSettings("cart-pole", settings=RobotSettings(0)), ("", ""), 0)
    for ask in (worker.spaces, worker.whereabouts, worker.introduced):
        with pytest.raises(TrainerError, match="zstandard cannot be imported: ") as refused:
            ask()
        assert f"`{sys.executable} -m pip install {named}`" in refused.value.hint
        assert refused.value.exit_status == 2


def test_what_a_learner_lacks_is_named(monkeypatch: pytest.MonkeyPatch, learner: LearnerWorker, tmp_path: Path) -> None:
    """Also what is there and broken."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(TrainerError, match=r"torch .*: libcudart\.so\.12: .*; zstandard ") as refused:
        learner.whereabouts()
    assert "-m pip install torch zstandard`" in refused.value.hint


def test_what_is_older_than_the_trainer_knows_is_named(monkeypatch: pytest.MonkeyPatch, learner: LearnerWorker) -> None:
    """With the version that it is to be; a vendor's build of a new one is no old one."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.4.1+cu121"))
    monkeypatch.setitem(sys.modules, "zstandard", SimpleNamespace(__version__="0.9"))
    with pytest.raises(TrainerError) as refused:
        learner.whereabouts()
    for version in ("torch 2.4.1+cu121", "2.5", "zstandard 0.9"):
        assert version in refused.value.message
    assert "-m pip install 'torch>=2.5' 'zstandard>=0.22'`" in refused.value.hint
    assert refused.value.exit_status == 2

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.5.0a0+872d972e41.nv24.08"))
    monkeypatch.setitem(sys.modules, "zstandard", SimpleNamespace(__version__="1.0.0"))
    monkeypatch.setitem(sys.modules, "gymnasium", SimpleNamespace(__version__="unknown"))
    check_modules("torch", "zstandard", "gymnasium")


def test_the_oldest_versions_are_those_that_the_package_asks_for() -> None:
    """One who installs the extra has them."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    asked = {
        wanted.name: str(wanted.specifier) for wanted in map(Requirement, project["optional-dependencies"]["train"])
    }
    assert {name: asked[name] for name in LEAST} == {name: f">={version}" for name, version in LEAST.items()}

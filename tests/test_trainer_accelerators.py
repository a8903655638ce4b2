"""Which accelerators the trainer's workers see. There are none here: what counts is what the processes are told."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from telling import Words

from edgelink.placement import Node, plan
from edgelink.training.trainer import learner_worker
from edgelink.training.trainer.accelerators import Accelerators, one_each
from edgelink.training.trainer.crew import Crew, EnvSettings
from edgelink.training.trainer.experience.environment import SIMULATOR, EnvWorker
from edgelink.training.trainer.experience.simulator import Task
from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.learner_worker import LearnerWorker
from edgelink.training.trainer.learning.device import chosen, why_unused
from edgelink.training.trainer.learning.settings import Settings
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.settings import ControlSettings
from edgelink.training.trainer.slots import Slot, Slots, read_slots
from edgelink.training.trainer.whereabouts import Located, Whereabouts

SPACES = Spaces((4,), "float32", 2)
SECOND = ("1",)
RAY = SimpleNamespace(put=None, get=None, exceptions=SimpleNamespace(RayError=KeyError))


@pytest.mark.parametrize(
    ("kind", "indices", "node", "expected"),
    [
        pytest.param("NV_GPU", ("1", "2"), {}, {"CUDA_VISIBLE_DEVICES": "1,2"}, id="NVIDIA's"),
        pytest.param("NV_GPU", SECOND, {"MUJOCO_EGL_DEVICE_ID": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}, id="user's EGL"),
        pytest.param(
            "NV_GPU",
            SECOND,
            {"CUDA_VISIBLE_DEVICES": "2, 3"},
            {"CUDA_VISIBLE_DEVICES": "3", "MUJOCO_EGL_DEVICE_ID": "3"},
            id="second of the two that the node shows",
        ),
        pytest.param(
            "NV_GPU",
            SECOND,
            {"CUDA_VISIBLE_DEVICES": "GPU-8c01,MIG-77aa"},
            {"CUDA_VISIBLE_DEVICES": "MIG-77aa"},
            id="named otherwise",
        ),
        pytest.param("AMD_GPU", SECOND, {}, {"HIP_VISIBLE_DEVICES": "1"}, id="AMD's"),
        pytest.param(
            "AMD_GPU",
            SECOND,
            {"HIP_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": "0"},
            {"HIP_VISIBLE_DEVICES": "5"},
            id="AMD's own variable counts",
        ),
        pytest.param(
            "AMD_GPU", SECOND, {"CUDA_VISIBLE_DEVICES": "4,5"}, {"CUDA_VISIBLE_DEVICES": "5"}, id="AMD's, as CUDA's"
        ),
        pytest.param("NPU", SECOND, {}, {"ASCEND_RT_VISIBLE_DEVICES": "1"}, id="Ascend's"),
        pytest.param("INTEL_GPU", SECOND, {}, {"ZE_AFFINITY_MASK": "1"}, id="Intel's"),
        pytest.param(
            "INTEL_GPU",
            SECOND,
            {"ONEAPI_DEVICE_SELECTOR": "level_zero:2,3"},
            {"ONEAPI_DEVICE_SELECTOR": "level_zero:3"},
            id="Intel's, by oneAPI",
        ),
        pytest.param("NV_GPU", (), {"CUDA_VISIBLE_DEVICES": "0,1"}, {}, id="none"),
        pytest.param("NV_GPU", SECOND, {"CUDA_VISIBLE_DEVICES": ""}, {}, id="all hidden on purpose, and yet counted"),
        pytest.param("TPU", SECOND, {}, {}, id="of an unknown kind"),
    ],
)
def test_a_process_is_shown_its_own_accelerators(
    kind: str, indices: tuple[str, ...], node: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    """By its vendor's variable, out of those that the node itself may use: Ray counts only them."""
    assert Accelerators(kind, indices).variables(node) == expected


@pytest.mark.parametrize(("shown", "missing"), [("3", "1, 2"), ("3,4", "2")])
def test_an_accelerator_that_the_node_hides_is_named(shown: str, missing: str) -> None:
    """No other one is taken for it."""
    with pytest.raises(TrainerError, match=f"on accelerator {missing}, and CUDA_VISIBLE_DEVICES is '{shown}'") as told:
        Accelerators("NV_GPU", ("1", "2")).variables({"CUDA_VISIBLE_DEVICES": shown})
    assert "ray.num_gpus" in told.value.hint
    assert told.value.exit_status == 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param([(0, "0"), (0, "1")], ["0", "1"], id="by accelerator"),
        pytest.param([(0, "01"), (0, "01"), (0, "01")], ["0", "1", "0"], id="by node"),
        pytest.param([(0, "01"), (0, "23")], ["0", "2"], id="two each"),
        pytest.param([(0, "01"), (1, "01"), (2, "")], ["0", "0", ""], id="of several nodes"),
    ],
)
def test_learners_take_one_each(given: list[tuple[int, str]], expected: list[str]) -> None:
    """Of a node's, another one as long as there is another one."""
    places = [(node, Accelerators("NV_GPU", tuple(indices))) for node, indices in given]
    assert ["".join(each.indices) for each in one_each(places)] == expected


def test_the_placement_gives_learners_one_each(tmp_path: Path) -> None:
    """Whole nodes too; a simulator gets all that it is placed on, and what they are is known."""
    cluster = {
        "num_nodes": 1,
        "component_placement": {
            "actor": {"node_group": "node", "placement": "0:0-1"},
            "rollout,env": {"node_group": "cluster", "placement": "0-1:0"},
        },
    }
    path = tmp_path / "placement.json"
    nodes = [Node(0, "10.10.0.1", "cloud", accelerator="AMD_GPU", accelerator_count=2)]
    path.write_text(json.dumps(plan(cluster, nodes).to_dict()))
    slots = read_slots(path)
    assert [slot.accelerators for slot in slots.learners] == [Accelerators("AMD_GPU", (each,)) for each in "01"]
    assert slots.envs[0].accelerators == Accelerators("AMD_GPU", ("0", "1"))


def test_a_learner_is_shown_its_own_before_torch_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Some torches look for accelerators when they are imported; asked again, it is still its own."""
    (tmp_path / "torch.py").write_text("import os\n__version__ = '2.9'\nseen = os.environ['CUDA_VISIBLE_DEVICES']\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setitem(sys.modules, "ray", RAY)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "0")

    def seen(*_: object) -> Any:
        raise TrainerError(sys.modules["torch"].seen)

    monkeypatch.setattr(learner_worker, "Learner", seen)
    worker = LearnerWorker(Settings(1, 1), SPACES, 1 << 20, 0, 1, Accelerators("NV_GPU", SECOND))
    for _ in range(2):
        with pytest.raises(TrainerError, match=r"^7$"):
            worker.whereabouts()
    monkeypatch.delitem(sys.modules, "torch")


class Seen:
    """A task that keeps what its process sees."""

    accelerators: str | None = None

    def __init__(self) -> None:
        Seen.accelerators = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise TypeError("that was all")


def test_a_simulator_is_shown_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that renders on an accelerator does so on the one that it is placed on."""
    gymnasium = pytest.importorskip("gymnasium")
    gymnasium.register("Seen-v0", entry_point=Seen)
    for name, value in (("CUDA_VISIBLE_DEVICES", "6,7"), ("MUJOCO_EGL_DEVICE_ID", "0")):
        monkeypatch.setenv(name, value)
    arguments = (SIMULATOR, 1, ControlSettings("cart-pole"), ("", ""), 0, Task("Seen-v0"))
    worker = EnvWorker(*arguments, Accelerators("NV_GPU", SECOND))
    for _ in range(2):
        with pytest.raises(ValueError, match="that was all"):
            worker.spaces()
        assert Seen.accelerators == "7"
    gymnasium.registry.pop("Seen-v0")


def test_the_crew_gives_an_env_worker_what_it_is_placed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As it does a learner."""
    own = Accelerators("NV_GPU", SECOND)
    slot = Slot("env", 0, 1, "10.10.0.2", "edge", own)
    crew = Crew(Slots((), (), (slot,)), [tmp_path], print, 1.0)
    made: list[Any] = []
    monkeypatch.setattr(crew, "_make", lambda *arguments: made.extend(arguments))
    crew._make_env(0, SIMULATOR, EnvSettings(1, lambda _rank: ControlSettings("cart-pole"), ("", ""), 0), {})
    assert made[0] is slot
    assert own in made


def test_ray_leaves_what_a_worker_sees_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else an older one hides everything from workers that ask it for nothing, and what the node had set is lost."""
    told: list[Any] = []
    ray = SimpleNamespace(init=lambda **options: told.append(options["runtime_env"]), nodes=list)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    Crew(Slots((), (), ()), [tmp_path], print, 1.0).connect()
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        assert told[0]["env_vars"][f"RAY_EXPERIMENTAL_NOSET_{name}"] == "1"


@pytest.mark.parametrize("notice", ["", "by gloo"])
def test_what_slows_learners_down_is_said_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, notice: str) -> None:
    """Not by each of them: all say the same."""
    learners = tuple(Slot("actor", rank, 0, "10.10.0.1", "cloud") for rank in range(2))
    said: list[str] = []
    crew = Crew(Slots(learners, (), ()), [tmp_path], said.append, 1.0)
    monkeypatch.setattr(crew, "call", lambda slot, method, *_: (method, slot))
    monkeypatch.setattr(crew, "wait_each", lambda answers, _purpose: [(answer, notice) for answer in answers])
    monkeypatch.setattr(crew, "wait", lambda answer, _purpose: answer)
    crew._let_learners_meet()
    assert said == [notice] * bool(notice)


def torch_of(*, cuda: str | None = None, hip: str | None = None, is_there: bool = False) -> Any:
    """A torch as built for something, on a node with or without what it knows."""
    return SimpleNamespace(
        __version__="2.9.1",
        version=SimpleNamespace(cuda=cuda, hip=hip),
        cuda=SimpleNamespace(is_available=lambda: is_there),
        device=lambda name: name,
    )


@pytest.mark.parametrize(
    ("wanted", "is_there", "expected"), [("auto", True, "cuda"), ("auto", False, "cpu"), ("cpu", True, "cpu")]
)
def test_a_learner_takes_what_is_there(wanted: str, is_there: bool, expected: str) -> None:
    """AMD's, too: torch calls it cuda."""
    assert chosen(torch_of(hip="6.4", is_there=is_there), wanted) == expected


@pytest.mark.parametrize(
    ("torch", "built_for"),
    [(torch_of(), "CPUs alone"), (torch_of(cuda="13.2"), "CUDA 13.2"), (torch_of(hip="6.4"), "ROCm 6.4")],
)
def test_an_accelerator_that_is_not_found_is_told_with_what_torch_is(torch: Any, built_for: str, words: Words) -> None:
    """Where one is asked for, and where one is there that nobody would notice to be idle."""
    with pytest.raises(TrainerError, match=rf"cuda.*torch 2\.9\.1, .*{built_for}") as told:
        chosen(torch, "cuda")
    assert (told.value.exit_status, "algorithm.device=auto" in told.value.hint) == (2, True)
    words(why_unused(torch, "NV_GPU"))
    words(why_unused(torch, "NPU"))


@pytest.mark.torch
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("indices", "device", "is_told"), [(SECOND, "auto", True), (SECOND, "cpu", False), ((), "auto", False)]
)
def test_a_learner_that_leaves_its_accelerator_idle_says_so(
    monkeypatch: pytest.MonkeyPatch, indices: tuple[str, ...], device: str, is_told: bool
) -> None:
    """Unless that is what was asked for, or it has none."""
    monkeypatch.setitem(sys.modules, "ray", RAY)
    found = Whereabouts("cloud", 1, "", "", "10.10.0.1", 0, None, None, "", "")
    monkeypatch.setattr(Located, "whereabouts", lambda _self: found)
    worker = LearnerWorker(Settings(1, 1, device=device), SPACES, 1 << 20, 0, 1, Accelerators("NPU", indices))
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,1")
    assert ("CPU" in worker.whereabouts().notice) is is_told


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB.\nGPU 0 has"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_an_accelerator_without_memory_is_told_with_what_needs_less(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_told: bool
) -> None:
    """When its learner is made, and when it learns; other failures stay what they are."""

    def raised(*_: object) -> Any:
        raise error

    monkeypatch.setitem(sys.modules, "ray", RAY)
    monkeypatch.setattr(learner_worker, "check_modules", lambda *_: None)
    for made, method, arguments in (
        (raised, "whereabouts", ()),
        (lambda *_: SimpleNamespace(update=raised), "update", (1,)),
    ):
        monkeypatch.setattr(learner_worker, "Learner", made)
        worker = LearnerWorker(Settings(1, 1), SPACES, 1 << 20)
        with pytest.raises(TrainerError if is_told else RuntimeError) as told:
            getattr(worker, method)(*arguments)
        if is_told:
            assert isinstance(told.value, TrainerError)
            assert f": {str(error).splitlines()[0]}" in str(told.value)
            assert "algorithm.minibatch" in told.value.hint
            assert "GPU 0" not in told.value.message

"""Which accelerators a worker sees: those that the placement gives it, whatever Ray would show. Standard library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from edgelink.training.trainer.failure import USAGE, TrainerError

_NVIDIA = "NV_GPU"
# By RLinf's names: what hides accelerators from a process. Of several the one that the node sets, else the first.
_VISIBLE = {
    _NVIDIA: ("CUDA_VISIBLE_DEVICES",),
    "AMD_GPU": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),  # the second counts where the first is not set
    "NPU": ("ASCEND_RT_VISIBLE_DEVICES",),
    "INTEL_GPU": ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
}
# Older versions of Ray show none to a worker that asks it for none, and what the node had set would be lost.
LEFT_ALONE_BY_RAY: Mapping[str, str] = {
    f"RAY_EXPERIMENTAL_NOSET_{name}": "1" for names in _VISIBLE.values() for name in names
}
_EGL_DEVICE = "MUJOCO_EGL_DEVICE_ID"  # EGL shows every card whatever CUDA is told; MuJoCo takes the first by itself


@dataclass(frozen=True)
class Accelerators:
    """Of one worker."""

    kind: str = ""  # as RLinf calls it
    indices: tuple[str, ...] = ()  # among those that Ray counts on the node; empty: what the process sees by itself

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """What shows these to a process, and no others.

        Args:
            environment: the node's. What it hides from Ray already is not counted by the indices; cards may be named
                otherwise than by number there.

        Raises:
            TrainerError: there are not as many.
        """
        names = _VISIBLE.get(self.kind, ())
        name = next((each for each in names if each in environment), "".join(names[:1]))
        hides_all = environment.get(name) == ""  # on purpose: Ray counts what it is told
        if not self.indices or not name or hides_all:
            return {}
        prefix, colon, listed = environment.get(name, "").rpartition(":")  # level_zero:0,1
        if name in environment:
            there = [each.strip() for each in listed.split(",")]
            missing = [index for index in self.indices if int(index) >= len(there)]
            if missing:
                raise TrainerError(
                    f"it is placed on accelerator {', '.join(missing)}, and {name} is {environment[name]!r} there",
                    "let Ray count what it shows: set ray.num_gpus to it or leave both out, and `edgelink restart-ray`",
                    exit_status=USAGE,
                )
            chosen = [there[int(index)] for index in self.indices]
        else:
            chosen = list(self.indices)
        found = {name: prefix + colon + ",".join(chosen)}
        if self.kind == _NVIDIA and len(chosen) == 1 and chosen[0].isdigit() and _EGL_DEVICE not in environment:
            found[_EGL_DEVICE] = chosen[0]
        return found


def one_each(places: Iterable[tuple[int, Accelerators]]) -> list[Accelerators]:
    """For learners, which use one each: of what the placement gives each the one that the fewest before it have.

    Args:
        places: of each learner, in order: node rank, and what the placement gives it.
    """
    users: dict[tuple[int, str], int] = {}
    dealt = []
    for node_rank, given in places:
        own = sorted(given.indices, key=lambda index: users.get((node_rank, index), 0))[:1]
        for index in own:
            users[node_rank, index] = users.get((node_rank, index), 0) + 1
        dealt.append(replace(given, indices=tuple(own)))
    return dealt

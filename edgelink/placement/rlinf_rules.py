"""What differs between the versions of RLinf, as far as a plan shows it. Everything else is one in all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_RECORD_STREAMS = "TORCH_NCCL_AVOID_RECORD_STREAMS"


@dataclass(frozen=True)
class RlinfRules:
    """The rules of one version of RLinf."""

    version: str = "0.3.0"
    compares_lists: bool = False  # two robots that are the same but for the identity of a list are one
    unread_keys: frozenset[str] = frozenset({"net_emulation", "tracer"})  # of ``cluster``, which a later version reads
    defaults: Mapping[str, str] = field(default_factory=dict)  # variables beside those that all versions set
    egl_variables: tuple[str, ...] = ("MUJOCO_EGL_DEVICE_ID",)
    renderers_without_egl: tuple[str, ...] = ()  # values of MUJOCO_GL
    avoids_record_streams: bool = True

    def of_nvidia(self, first_device: str | None, renderer: str | None) -> dict[str, str]:
        """Return the variables of a process with NVIDIA's GPUs.

        Args:
            first_device: its first GPU; None: it has none. From 0.4 on RLinf gives the index that EGL has for that
                GPU, where the driver's machine tells; this is CUDA's, which RLinf falls back to.
            renderer: ``MUJOCO_GL`` of the driver.
        """
        with_egl = first_device is not None and renderer not in self.renderers_without_egl
        egl = dict.fromkeys(self.egl_variables, str(first_device)) if with_egl else {}
        return egl | ({_RECORD_STREAMS: "1"} if self.avoids_record_streams else {})


RLINF_0_3 = RlinfRules()
_AVOIDS_BEFORE_TORCH = (2, 8)


def rlinf_rules(version: str | None = None, torch: str | None = None) -> RlinfRules:
    """Return the rules of the installed RLinf.

    Args:
        version: of RLinf. None or one that cannot be read: the rules of 0.3.0, the newest release on PyPI.
        torch: the version of torch beside it. None: not known.
    """
    if version is None or _numbers(version) < (0, 4):
        return RLINF_0_3
    return RlinfRules(
        version,
        compares_lists=True,
        unread_keys=frozenset(),
        defaults={"RLINF_NET_EMULATION": "0"},
        egl_variables=("MUJOCO_EGL_DEVICE_ID", "EGL_DEVICE_ID"),
        renderers_without_egl=("osmesa", "glx"),
        avoids_record_streams=torch is None or _numbers(torch) < _AVOIDS_BEFORE_TORCH,
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])

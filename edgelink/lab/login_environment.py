"""What somebody who logs in on a node of the lab finds in his environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What the common accelerator stacks read; "" means none. Ray itself is told by ray.num_gpus in the node's file.
_HIDDEN_ACCELERATORS = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",  # not ROCR_…: Ray refuses to start where that is set
    "ASCEND_RT_VISIBLE_DEVICES",
)


def environment(lab: str, node: str, *, home: Path, extra_path: Sequence[Path], accelerators: bool) -> dict[str, str]:
    """Nothing of the caller's but the kind of terminal, and our own interpreter's programs.

    Args:
        extra_path: more directories for PATH.
        accelerators: whether programs may see the machine's.
    """
    found = {
        "PATH": ":".join([str(Path(sys.executable).parent), *map(str, extra_path), SYSTEM_PATH]),
        "HOME": str(home),
        "USER": "root",
        "LOGNAME": "root",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "EDGELINK_LAB": lab,
        "EDGELINK_LAB_NODE": node,
    }
    if "TERM" in os.environ:
        found["TERM"] = os.environ["TERM"]
    if not accelerators:
        found |= dict.fromkeys(_HIDDEN_ACCELERATORS, "")
    return found

"""``cluster.profiling``: which worker groups run under a profiler, and how their interpreter is started then."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from posixpath import join
from re import sub
from typing import Any

from edgelink.placement.problems import Findings, Stage

_KEY = "cluster.profiling"
_FIELDS = ("backend", "enabled", "worker_groups", "steps", "output_dir")
_BACKENDS = {"nsight": ("options", "flags"), "rocprof_sys": ("args", "env")}
_OUTPUT_DIR = "/tmp"  # noqa: S108 - where RLinf puts reports if it is told nothing


@dataclass(frozen=True)
class Profiling:
    """A valid ``cluster.profiling``."""

    backend: str
    worker_groups: tuple[str, ...]  # lower case; empty: none
    output_dir: str
    options: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False)

    def covers(self, worker_group: str) -> bool:
        """Whether the processes of ``worker_group`` run under the profiler."""
        return "all" in self.worker_groups or worker_group.lower() in self.worker_groups

    def command(self, python: str, worker_name: str) -> str:
        """``python`` with the profiler before it."""
        tokens = [f"--{flag}" if len(flag) > 1 else f"-{flag}" for flag in self.flags]
        options = dict(self.options)
        if self.backend == "nsight":
            options.setdefault("o", join(self.output_dir, self._prefix(worker_name)))
        for name, value in options.items():
            tokens += [f"--{name}={value}"] if len(name) > 1 else [f"-{name}", value]
        words = ["nsys", "profile", *tokens] if self.backend == "nsight" else ["rocprof-sys-python", *tokens, "--"]
        return shlex.join([*words, python])

    def variables(self, worker_name: str) -> dict[str, str]:
        """What the profiler adds to the environment of a worker."""
        if self.backend != "rocprof_sys":
            return {}
        output = {
            "ROCPROFSYS_TIME_OUTPUT": "false",
            "ROCPROFSYS_OUTPUT_PATH": self.output_dir,
            "ROCPROFSYS_OUTPUT_PREFIX": self._prefix(worker_name),
        }
        return output | dict(self.env)

    @staticmethod
    def _prefix(worker_name: str) -> str:
        return f"rlinf_profile_{sub(r'[^A-Za-z0-9._-]', '_', worker_name)}_%p"


def read_profiling(value: Any, findings: Findings) -> Profiling | None:
    """``cluster.profiling``; None if there is none, or none that is valid."""
    if value is None:
        return None
    known = ", ".join(_BACKENDS)
    if not isinstance(value, Mapping):
        findings.add(Stage.PARSE, _KEY, value, "profiling not a mapping", "", f"write backend: and one of {known}")
        return None
    backend = str(value.get("backend", ""))
    if backend not in _BACKENDS:
        rule = "profiling backend unknown" if backend else "profiling backend missing"
        findings.add(Stage.PARSE, f"{_KEY}.backend", value.get("backend"), rule, "", f"known backends are {known}")
        return None
    before = findings.count
    fields = (*_FIELDS, *_BACKENDS[backend])
    for name in value:
        if name not in fields:
            fix = f"known fields are {', '.join(fields)}"
            findings.add(Stage.PARSE, f"{_KEY}.{name}", value[name], "profiling field unknown", "", fix)
    groups = _names(value.get("worker_groups"), "worker_groups", findings)
    steps = _read_steps(value.get("steps"), findings)
    flags = _names(value.get("flags"), "flags", findings) if backend == "nsight" else []
    texts = {}
    for name in ("options", "args", "env"):
        texts[name] = _texts(value.get(name), name, findings) if name in fields else {}
    options = _nsight_options(texts["options"], flags, steps, findings) if backend == "nsight" else texts["args"]
    if findings.count > before:
        return None
    return Profiling(
        backend,
        tuple(name.lower() for name in groups) if value.get("enabled", True) else (),
        str(value.get("output_dir") or _OUTPUT_DIR),
        tuple(options.items()),
        tuple(flags),
        texts["env"],
    )


def _names(value: Any, name: str, findings: Findings) -> list[str]:
    """A string, or a list of them."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Sequence):
        fix = "write one name, or a list of names"
        findings.add(Stage.PARSE, f"{_KEY}.{name}", value, f"profiling {name} not a list", "", fix)
        return []
    return [str(item) for item in value]


def _read_steps(value: Any, findings: Findings) -> list[int] | None:
    key, fix = f"{_KEY}.steps", "write a list of step numbers, from 0"
    if value is None:
        return None
    if not isinstance(value, Sequence) or isinstance(value, str):
        findings.add(Stage.PARSE, key, value, "profiling steps not a list", "", fix)
        return None
    try:
        steps = [int(step) for step in value]
    except (TypeError, ValueError):
        findings.add(Stage.PARSE, key, value, "profiling step not an integer", "", fix)
        return None
    if any(step < 0 for step in steps):
        findings.add(Stage.PARSE, key, value, "profiling step negative", "", fix)
    return steps


def _texts(value: Any, name: str, findings: Findings) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        findings.add(Stage.PARSE, f"{_KEY}.{name}", value, f"profiling {name} not a mapping", "", "write name: value")
        return {}
    if name != "options":
        return {str(key): str(item) for key, item in value.items()}
    return {str(key): str(item).lower() if isinstance(item, bool) else str(item) for key, item in value.items()}


def _nsight_options(
    options: dict[str, str], flags: list[str], steps: list[int] | None, findings: Findings
) -> dict[str, str]:
    """With RLinf's own additions: an alias, and what makes ``steps`` work."""
    key = f"{_KEY}.options"
    if "" in flags:
        findings.add(Stage.PARSE, f"{_KEY}.flags", flags, "profiling flag empty", "", "name each flag")
    if "stop-on-range-end" in options:
        if "capture-range-end" in options:
            detail = "stop-on-range-end and capture-range-end are the same"
            findings.add(Stage.PARSE, key, options, "profiling options contradict", detail, "keep one of them")
        ends = options.pop("stop-on-range-end")
        word = ends.strip().lower()
        options["capture-range-end"] = (
            "stop" if word in ("true", "1", "yes", "on") else "none" if word in ("false", "0", "no", "off") else ends
        )
    if "o" in options and "output" in options:
        detail = "o and output are the same"
        findings.add(Stage.PARSE, key, options, "profiling options contradict", detail, "keep one of them")
    if steps is not None:
        options.setdefault("capture-range", "cudaProfilerApi")
        options.setdefault("capture-range-end", "stop")
    if both := sorted(set(flags) & set(options)):
        detail = f"{', '.join(both)} as a flag and as an option"
        findings.add(Stage.PARSE, key, options, "profiling options contradict", detail, "keep one of them")
    return options

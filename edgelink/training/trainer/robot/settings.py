"""Everything that the processes of one robot are told; plain data, JSON on its way to them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_type_hints

from edgelink.training.trainer.robot.deadman import DeadmanSettings
from edgelink.training.trainer.robot.directory import default_directory, own_directory
from edgelink.training.trainer.robot.interface import RobotSettings

_DEADMAN = "deadman."


@dataclass(frozen=True)
class ControlSettings:
    """Of one robot. Paths are on the node that it is attached to."""

    robot: str  # as for load_robot
    name: str = "robot"  # as people call it: of its socket and its files
    settings: RobotSettings = field(default_factory=RobotSettings)
    deadman: DeadmanSettings = field(default_factory=DeadmanSettings)
    priority: int = 50  # of SCHED_FIFO; 0: the ordinary class
    cpu: int | None = None  # the only one for the control process
    watchdog_s: float = 0.1  # the longest that the robot's code may take in one control instant
    ring_rows: int = 1024  # steps that are kept for an env worker that does not take them
    stop_hook: tuple[str, ...] = ()  # argument list, run after a safe stop
    resume_hook: tuple[str, ...] = ()  # likewise, after it has gone on again
    hook_timeout_s: float = 30.0
    directory: str = ""  # of socket and events; "": see default_directory
    tick_file: str = ""  # figures of the loop, ten times a second
    record: str = ""  # directory for recordings of all steps

    @property
    def own_directory(self) -> Path:
        """Of this user alone: whoever could write there could command the robot.

        Raises:
            OSError: it is somebody else's.
        """
        return own_directory(Path(self.directory) if self.directory else default_directory())

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ControlSettings:
        content = json.loads(text)
        content["settings"] = RobotSettings(**content["settings"])
        content["deadman"] = DeadmanSettings(**content["deadman"])
        for name in ("stop_hook", "resume_hook"):
            content[name] = tuple(content[name])
        return cls(**content)


def with_values(settings: ControlSettings, values: Mapping[str, str]) -> ControlSettings:
    """``settings`` with fields changed by name, as people write them: ``deadman.link_timeout_s`` = ``0.3``.

    Raises:
        ValueError: there is no such field, or the value is none of its kind.
    """
    own = {name: value for name, value in values.items() if not name.startswith(_DEADMAN)}
    deadman = {name.removeprefix(_DEADMAN): value for name, value in values.items() if name.startswith(_DEADMAN)}
    changed: ControlSettings = _changed(settings, own, ("robot", "name", "settings", "deadman"))
    return replace(changed, deadman=_changed(settings.deadman, deadman, ()))


def _changed(settings: Any, values: Mapping[str, str], not_these: Collection[str]) -> Any:
    kinds = {name: kind for name, kind in get_type_hints(type(settings)).items() if name not in not_these}
    changes: dict[str, Any] = {}
    for name, text in values.items():
        if name not in kinds:
            known = ", ".join([*kinds, *([f"{_DEADMAN}…"] if not_these else [])])
            raise ValueError(f"a robot has no setting {name!r}; known are {known}")
        try:
            changes[name] = _value(kinds[name], text)
        except ValueError as error:
            raise ValueError(f"robot setting {name}: {text!r} is not what it wants: {error}") from error
    return replace(settings, **changes)


def _value(kind: Any, text: str) -> Any:
    if kind is str:
        return text
    if kind is float:
        return float(text)
    if kind == tuple[str, ...]:
        return tuple(shlex.split(text))
    return int(text)

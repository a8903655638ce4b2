"""Everything that the processes of one robot are told; plain data, JSON on its way to them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from edgelink.training.trainer.robot.deadman import DeadmanSettings
from edgelink.training.trainer.robot.directory import make_run_directory, usable_directory
from edgelink.training.trainer.robot.interface import RobotSettings
from edgelink.training.trainer.setting import setting

# How long the processes wait for one another; who waits for two others has the time of both.
LEAVE_TIMEOUT_S = 60.0  # for the robot's report() and close(), and the threads of its code
LOCK_TIMEOUT_S = LEAVE_TIMEOUT_S + 30.0  # for the run before this one: its hold and stop, that, its hook and its disk
DEVICE_TIMEOUT_S = LOCK_TIMEOUT_S  # likewise, if that had the robot's device under another name
MAKE_TIMEOUT_S = DEVICE_TIMEOUT_S + 60.0  # for that, and the robot's code: one may have to be switched on first


@dataclass(frozen=True)
class ControlSettings:
    """Of one robot. Paths are on the node that it is attached to."""

    robot: str  # as for load_robot
    name: str = "robot"  # as people call it: of its socket and its files
    settings: RobotSettings = field(default_factory=RobotSettings)
    deadman: DeadmanSettings = field(default_factory=DeadmanSettings)
    priority: int = setting(50, "of SCHED_FIFO; 0: the ordinary class", at_least=0, at_most=99)
    cpu: int | None = setting(None, "the only one for the control process; its watchdog has the others", at_least=0)
    watchdog_s: float = setting(0.1, "so long may observe or act take before stop is called beside it", above=0)
    ring_rows: int = setting(
        1024,
        "steps kept for an env worker that does not take them; then the oldest are dropped, and counted",
        at_least=2,
    )
    stop_hook: tuple[str, ...] = setting((), "argument list, run after a safe stop")
    resume_hook: tuple[str, ...] = setting((), "likewise, after it has gone on again")
    hook_timeout_s: float = setting(30.0, "a hook is killed after so long", above=0)
    directory: str = setting(
        "", "of the events, an absolute path; default: where the sockets are, /var/tmp/edgelink-robots-UID"
    )
    tick_file: str = setting("", "for the loop's figures, ten times a second; {rank} is the worker's")
    replay: str = ""  # file of the commands that it is to repeat, instead of acting by a policy
    record: str = setting("", "directory for recordings of all steps, an absolute path")

    def __post_init__(self) -> None:
        for name, hook in (("stop_hook", self.stop_hook), ("resume_hook", self.resume_hook)):
            if len(hook) == 1 and " " in hook[0]:  # known only when it is needed, otherwise
                raise ValueError(f"{name} must be a list of words, as [systemctl, stop, gripper], not {hook[0]!r}")
        for name, path in (("directory", self.directory), ("record", self.record)):
            if path and not Path(path).is_absolute():  # it would be below wherever Ray starts its workers
                raise ValueError(
                    f"control.{name} must be an absolute path on the robot's machine, as /var/lib/robot, not {path!r}"
                )

    @property
    def ticks_at(self) -> Path | None:
        """The tick file of this robot; None: there is to be none."""
        return Path(self.tick_file.replace("{rank}", str(self.settings.rank))) if self.tick_file else None

    @property
    def events_file(self) -> Path:
        """In a directory that nobody but this user may write to.

        Raises:
            OSError: it is somebody else's, or others may.
        """
        directory = usable_directory(Path(self.directory)) if self.directory else make_run_directory()
        return directory / f"{self.name}.events.jsonl"

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

"""Recordings on the robot: every step, as it was, appended to one file; read back as episodes.

A file begins with a line of JSON that says what its rows are; the rows follow as they lie in memory. What a crash cut
off at the end is no whole row and is not read.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.names import Names
from edgelink.training.trainer.robot.settings import ControlSettings
from edgelink.training.trainer.robot.shared import Layout, RingReader, SharedBlock

SUFFIX = ".steps"
_FORMAT = 2
_BATCH = 256


class Recorder:
    """Takes rows from the ring of experience, beside the env worker, and appends them."""

    def __init__(
        self, directory: Path, settings: ControlSettings, hello: Mapping[str, Any], block: SharedBlock
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{settings.name}-{time.time_ns() // 1_000_000}{SUFFIX}"
        self.steps = 0
        self._reader = RingReader(block)
        self._file: BinaryIO = self.path.open("xb")
        head = {
            "format": _FORMAT,
            "robot": settings.robot,
            "name": settings.name,
            "spaces": asdict(block.layout.spaces),
            "names": hello["names"],
            "rigs": block.layout.rigs,
            "action_repeat": block.layout.action_repeat,
            "steps_per_s": hello["rate_hz"] / hello["action_repeat"],
        }
        self._file.write(json.dumps(head).encode() + b"\n")
        self._file.flush()  # a robot that is killed before its first step leaves a recording, without steps

    @property
    def lost_steps(self) -> int:
        """Those that the ring had no more room for before they could be written."""
        return self._reader.dropped

    def look(self) -> None:
        """Append what has come."""
        rows = self._reader.take(_BATCH)
        if len(rows):
            self._file.write(rows.tobytes())
            self._file.flush()
            self.steps += len(rows)

    def close(self) -> None:
        while self._reader.available:
            self.look()
        os.fsync(self._file.fileno())
        self._file.close()


@dataclass(frozen=True)
class Recording:
    """A file of recorded steps."""

    robot: str
    spaces: Spaces
    names: Names
    rigs: int
    action_repeat: int
    steps_per_s: float
    rows: Any  # structured, one a step; see Layout.row


@dataclass(frozen=True)
class Episode:
    """One rig's steps without a gap, from the start of an attempt, or from where control began, to its end."""

    observations: Any  # (steps, *shape)
    actions: Any  # (steps, action_repeat, …): as commanded at each control instant, within the limits
    rewards: Any
    terminated: bool
    truncated: bool  # false for both: it was broken off by a hold or the end of the recording
    last_observation: Any
    is_from_start: bool  # it begins with the first step of an attempt, not after a hold
    has_gap: bool  # steps of it are missing at its beginning or its end: they were not written in time


def read_recording(path: Path) -> Recording:
    """A whole file.

    Raises:
        ValueError: it is no recording, or of another version.
    """
    with path.open("rb") as file:
        try:
            head = json.loads(file.readline(1 << 20))
            if head["format"] != _FORMAT:
                raise ValueError(f"format {head['format']}, this EdgeLink reads {_FORMAT}")
            spaces = Spaces.from_dict(head["spaces"])
            names = Names.from_dict(spaces, head.get("names", {}))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no recording of a robot: {error}") from error
        dtype = Layout(spaces, head["rigs"], 1, head["action_repeat"]).row
        content = file.read()
    whole = len(content) // dtype.itemsize * dtype.itemsize
    rows = np.frombuffer(content[:whole], dtype)
    return Recording(head["robot"], spaces, names, head["rigs"], head["action_repeat"], head["steps_per_s"], rows)


def episodes(recording: Recording) -> Iterator[Episode]:
    """One rig after the other, each in the order it happened."""
    rows = recording.rows
    if not len(rows):
        return
    is_lost = np.diff(rows["number"], prepend=0, append=rows["number"][-1:] + 1) != 1  # rows before row i
    for rig in range(recording.rigs):
        # One that waits for another to be ready goes on in the same attempt.
        step = rows["step"][:, rig]
        goes_on = (step[1:] == step[:-1] + 1) & (step[:-1] > 0)
        is_broken = is_lost.copy()
        is_broken[1:-1] |= (rows["follows"][1:] == 0) & ~goes_on
        is_broken[-1] = True
        begin = 0
        for index in range(len(rows)):
            is_end = rows["terminated"][index, rig] or rows["truncated"][index, rig]
            if is_end or is_broken[index + 1]:
                part = slice(begin, index + 1)
                has_lost_start = is_lost[begin] and rows["step"][begin, rig] != 1
                yield Episode(
                    rows["observations"][part, rig],
                    rows["executed"][part, rig],
                    rows["rewards"][part, rig],
                    bool(rows["terminated"][index, rig]),
                    bool(rows["truncated"][index, rig]),
                    rows["next_observations"][index, rig],
                    is_from_start=bool(rows["step"][begin, rig] == 1),
                    has_gap=bool(has_lost_start or (is_lost[index + 1] and not is_end)),
                )
                begin = index + 1

"""Recordings as a dataset of LeRobot's, written by LeRobot itself. Run by an interpreter that has it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.recording import Episode, Recording, episodes, read_recording

STATE, IMAGE, COMMANDED = "observation.state", "observation.image", "commanded"


@dataclass
class Exported:
    """What became of the recordings."""

    episodes: int = 0
    frames: int = 0
    with_gap: int = 0  # episodes left out, as steps of them are missing
    from_the_middle: int = 0  # likewise, as they do not begin with an attempt: no robot can be brought there


def export(target: Path, task: str, sources: list[Path]) -> Exported:
    """Write a new dataset at ``target``.

    Raises:
        ValueError: the recordings are not of the same kind.
    """
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    recordings = [read_recording(source) for source in sources]
    first = recordings[0]
    for recording, source in zip(recordings, sources, strict=True):
        if _kind(recording) != _kind(first):
            raise ValueError(f"{source} is of {_told(recording)}, unlike {sources[0]}, of {_told(first)}")
    dataset = LeRobotDataset.create(
        repo_id=f"edgelink/{target.name}",
        fps=round(first.steps_per_s),
        features=features(first.spaces, first.action_repeat),
        root=target,
        robot_type=first.robot,
        use_videos=False,
    )
    done = Exported()
    for episode in itertools.chain.from_iterable(map(episodes, recordings)):
        if episode.has_gap:
            done.with_gap += 1
        elif not episode.is_from_start:
            done.from_the_middle += 1
        else:
            for index in range(len(episode.rewards)):
                dataset.add_frame({**_frame(first.spaces, episode, index), "task": task})
            dataset.save_episode()
            done.episodes += 1
            done.frames += len(episode.rewards)
    dataset.finalize()
    return done


def _kind(recording: Recording) -> tuple[str, Spaces, float, int]:
    return recording.robot, recording.spaces, recording.steps_per_s, recording.action_repeat


def _told(recording: Recording) -> str:
    return (
        f"robot {recording.robot} with {recording.spaces} at {recording.steps_per_s:g} Hz and "
        f"{recording.action_repeat} commands a step"
    )


def features(spaces: Spaces, action_repeat: int = 1) -> dict[str, dict[str, Any]]:
    """What a frame holds: the observation, the action that was commanded by it, and what came of that.

    With several commands a step, ``action`` is the last of them, and ``commanded`` all, one after the other: limits may
    have changed each in another way.
    """
    if spaces.is_pixels:
        names = ["height", "width", "channels"]
        seen: dict[str, Any] = {"dtype": "image", "shape": spaces.observation_shape, "names": names}
    else:
        seen = {"dtype": "float32", "shape": spaces.observation_shape, "names": None}
    done = ("int64", (1,)) if spaces.is_discrete else ("float32", (len(spaces.action_low),))
    every = {COMMANDED: {"dtype": done[0], "shape": (action_repeat * done[1][0],), "names": None}}
    return {
        IMAGE if spaces.is_pixels else STATE: seen,
        **(every if action_repeat > 1 else {}),
        "action": {"dtype": done[0], "shape": done[1], "names": None},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    }


def _frame(spaces: Spaces, episode: Episode, index: int) -> dict[str, Any]:
    commands = episode.actions[index]
    is_last = index == len(episode.rewards) - 1
    return {
        IMAGE if spaces.is_pixels else STATE: episode.observations[index],
        **({COMMANDED: commands.reshape(-1)} if len(commands) > 1 else {}),
        "action": np.atleast_1d(commands[-1]),
        "next.reward": episode.rewards[index : index + 1],
        "next.done": np.asarray([is_last and (episode.terminated or episode.truncated)]),
    }


def main(arguments: Sequence[str]) -> int:
    """``DATASET TASK RECORDING…``; returns the exit status."""
    target, task, *sources = arguments
    try:
        done = export(Path(target), task, _begun([Path(source) for source in sources]))
    except (ImportError, OSError, ValueError) as error:
        print(f"edgelink robot export: {error}", file=sys.stderr)
        return 1
    print(f"{done.episodes} episodes, {done.frames} frames in {target}")
    if done.with_gap:
        print(f"episodes left out: {done.with_gap}, of which steps were not recorded in time", file=sys.stderr)
    if done.from_the_middle:
        why = "which begin in the middle of an attempt, after a hold"
        print(f"episodes left out: {done.from_the_middle}, {why}", file=sys.stderr)
    return 0


def _begun(sources: list[Path]) -> list[Path]:
    """Those of ``sources`` that have anything in them: not, where the machine lost its power too early.

    Raises:
        ValueError: none has.
    """
    found = []
    for source in sources:
        if source.stat().st_size:
            found.append(source)
        else:
            print(f"{source} is left out: it is empty", file=sys.stderr)
    if not found:
        raise ValueError("there is nothing in any of the recordings")
    return found

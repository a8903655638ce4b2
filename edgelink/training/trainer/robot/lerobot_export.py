"""Recordings as a dataset of LeRobot's, written by LeRobot itself. Run by an interpreter that has it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.recording import Episode, Recording, episodes, read_recording

STATE, IMAGE, COMMANDED = "observation.state", "observation.image", "commanded"


def export(target: Path, task: str, sources: list[Path]) -> tuple[int, int, int]:
    """Write a new dataset at ``target``; how many episodes and frames it has, and how many episodes were left out
    because steps of them are missing.

    Raises:
        ValueError: the recordings are not of the same kind.
    """
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    recordings = [read_recording(source) for source in sources]
    first = recordings[0]
    for recording, source in zip(recordings, sources, strict=True):
        if _kind(recording) != _kind(first):
            raise ValueError(
                f"{source} has {recording.spaces} at {recording.steps_per_s:g} Hz with {recording.action_repeat} "
                f"commands a step, unlike {sources[0]}"
            )
    dataset = LeRobotDataset.create(
        repo_id=f"edgelink/{target.name}",
        fps=round(first.steps_per_s),
        features=features(first.spaces, first.action_repeat),
        root=target,
        robot_type=first.robot,
        use_videos=False,
    )
    count = frames = left_out = 0
    for recording in recordings:
        for episode in episodes(recording):
            if episode.has_gap:
                left_out += 1
                continue
            for index in range(len(episode.rewards)):
                dataset.add_frame({**_frame(first.spaces, episode, index), "task": task})
            dataset.save_episode()
            count += 1
            frames += len(episode.rewards)
    dataset.finalize()
    return count, frames, left_out


def _kind(recording: Recording) -> tuple[Spaces, float, int]:
    return recording.spaces, recording.steps_per_s, recording.action_repeat


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
        count, frames, left_out = export(Path(target), task, [Path(source) for source in sources])
    except (ImportError, OSError, ValueError) as error:
        print(f"edgelink robot export: {error}", file=sys.stderr)
        return 1
    print(f"{count} episodes, {frames} frames in {target}")
    if left_out:
        print(f"{left_out} episodes are left out: steps of them were not recorded in time", file=sys.stderr)
    return 0

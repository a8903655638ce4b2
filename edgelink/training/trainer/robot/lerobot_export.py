"""Recordings as a dataset of LeRobot's, written by LeRobot itself. Run by an interpreter that has it."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.names import Names
from edgelink.training.trainer.robot.recording import Episode, Recording, episodes, read_recording

STATE, IMAGES, COMMANDED = "observation.state", "observation.images", "commanded"
_SAME_RATE = 1e-3  # 29.97 Hz is no 30 Hz after a minute


@dataclass
class Exported:
    """What became of the recordings."""

    episodes: int = 0
    frames: int = 0
    with_gap: int = 0  # episodes left out, as steps of them are missing
    from_the_middle: int = 0  # likewise, as they do not begin with an attempt: no robot can be brought there


def export(target: Path, task: str, sources: list[Path], *, as_video: bool = False) -> Exported:
    """Write a new dataset at ``target``.

    Raises:
        ValueError: the recordings are not of the same kind, or LeRobot has no such rate.
    """
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    recordings = [read_recording(source) for source in sources]
    first = recordings[0]
    for recording, source in zip(recordings, sources, strict=True):
        if _kind(recording) != _kind(first):
            raise ValueError(f"{source} is of {_told(recording)}, unlike {sources[0]}, of {_told(first)}")
    dataset = LeRobotDataset.create(
        repo_id=f"edgelink/{target.name}",
        fps=_fps(first.steps_per_s),
        features=features(first.spaces, first.names, first.action_repeat, as_video=as_video),
        root=target,
        robot_type=first.robot,
        use_videos=as_video,
    )
    done = Exported()
    for episode in itertools.chain.from_iterable(map(episodes, recordings)):
        if episode.has_gap:
            done.with_gap += 1
        elif not episode.is_from_start:
            done.from_the_middle += 1
        else:
            for index in range(len(episode.rewards)):
                dataset.add_frame({**_frame(first, episode, index), "task": task})
            dataset.save_episode()
            done.episodes += 1
            done.frames += len(episode.rewards)
    dataset.finalize()
    return done


def _kind(recording: Recording) -> tuple[str, Spaces, Names, float, int]:
    return recording.robot, recording.spaces, recording.names, recording.steps_per_s, recording.action_repeat


def _told(recording: Recording) -> str:
    return (
        f"robot {recording.robot} with {recording.spaces}, {recording.names} at {recording.steps_per_s:g} Hz and "
        f"{recording.action_repeat} commands a step"
    )


def _fps(steps_per_s: float) -> int:
    """The rate as LeRobot has it, in whole frames a second."""
    fps = round(steps_per_s)
    if not fps:
        raise ValueError(f"it was recorded at {steps_per_s:g} steps a second, and LeRobot has no rate below 1")
    if abs(fps - steps_per_s) > _SAME_RATE * steps_per_s:
        told = f"it was recorded at {steps_per_s:g} steps a second, and LeRobot has whole rates only"
        print(f"{told}: the dataset says {fps}, at which it plays at another speed", file=sys.stderr)
    return fps


def features(
    spaces: Spaces, names: Names, action_repeat: int = 1, *, as_video: bool = False
) -> dict[str, dict[str, Any]]:
    """What a frame holds: the observation, the action that was commanded by it, and what came of that.

    With several commands a step, ``action`` is the last of them, and ``commanded`` all, one after the other: limits may
    have changed each in another way.
    """
    if spaces.is_pixels:
        kind, seen_names = "video" if as_video else "image", ["height", "width", "channels"]
    else:
        kind, seen_names = "float32", list(names.observation)
    done = "int64" if spaces.is_discrete else "float32"
    every = [f"{name}.{instant}" for instant in range(action_repeat) for name in names.action]
    return {
        _seen(spaces, names): {"dtype": kind, "shape": spaces.observation_shape, "names": seen_names},
        **({COMMANDED: {"dtype": done, "shape": (len(every),), "names": every}} if action_repeat > 1 else {}),
        "action": {"dtype": done, "shape": (len(names.action),), "names": list(names.action)},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    }


def _seen(spaces: Spaces, names: Names) -> str:
    """The column of the observation; one a camera, as LeRobot has it."""
    return f"{IMAGES}.{names.observation[0]}" if spaces.is_pixels else STATE


def _frame(recording: Recording, episode: Episode, index: int) -> dict[str, Any]:
    commands = episode.actions[index]
    is_last = index == len(episode.rewards) - 1
    return {
        _seen(recording.spaces, recording.names): episode.observations[index],
        **({COMMANDED: commands.reshape(-1)} if len(commands) > 1 else {}),
        "action": np.atleast_1d(commands[-1]),
        "next.reward": episode.rewards[index : index + 1],
        "next.done": np.asarray([is_last and (episode.terminated or episode.truncated)]),
    }


def main(arguments: Sequence[str]) -> int:
    """``[--video] DATASET TASK RECORDING…``; returns the exit status."""
    parser = argparse.ArgumentParser(prog="edgelink robot export")
    parser.add_argument("--video", action="store_true")
    parser.add_argument("target", type=Path)
    parser.add_argument("task")
    parser.add_argument("sources", type=Path, nargs="+")
    told = parser.parse_args(arguments)
    target = told.target
    try:
        if target.exists():
            raise ValueError(f"{target} is there already, and a dataset is new; name another --to")
        done = export(target, told.task, _begun(told.sources), as_video=told.video)
    except ImportError:
        print(f"edgelink robot export: {sys.executable} has no LeRobot that can write datasets", file=sys.stderr)
        print("  what to do: name one that has lerobot[dataset] 0.6, by --python", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
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

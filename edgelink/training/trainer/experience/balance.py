"""How many samples each worker gives to an iteration, so that no edge is only decoration. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from edgelink.training.trainer.experience.environment import ROBOT

_MIN_SHARE = 0.25  # of all samples, from each worker; the acceptance bar is 0.2


def steps_per_worker(kinds: Sequence[str], widths: Sequence[int], robot_steps: int) -> list[int]:
    """Steps that each worker takes in one iteration.

    A robot's pace is given by its clock: it takes ``robot_steps``. A simulator could give any number; it gives as many
    as leave each robot a quarter of the samples (or its even share, with more than four workers).

    Args:
        kinds: of each worker.
        widths: environments that each worker steps together.
    """
    robots = [index for index, kind in enumerate(kinds) if kind == ROBOT]
    simulators = [index for index in range(len(kinds)) if index not in robots]
    if not simulators or not robots:
        return [robot_steps] * len(kinds)
    share = min(_MIN_SHARE, 1 / len(kinds))
    smallest = min(widths[index] for index in robots) * robot_steps
    from_robots = sum(widths[index] for index in robots) * robot_steps
    each = max(0.0, smallest / share - from_robots) / len(simulators)
    steps = [robot_steps] * len(kinds)
    for index in simulators:
        steps[index] = max(1, int(each / widths[index]))
    return steps

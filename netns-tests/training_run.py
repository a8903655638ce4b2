"""The built-in trainer under `edgelink run` in the lab, followed by the files that it writes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from machines import records_in, wait_until

from edgelink.lab import CLOUD, Lab
from edgelink.lab.road import Road, write_demo_cluster

CHECKPOINT_EVERY = 2  # iterations
_ENVIRONMENTS, _FRAGMENT_STEPS = 2, 64  # of one env worker


def paced(updates_per_s: float) -> tuple[str, ...]:
    """Settings of a simulator that lets the learner make so many updates a second, on next to no CPU."""
    step_s = 1 / (updates_per_s * _ENVIRONMENTS * _FRAGMENT_STEPS)
    return (
        *("env.kinds=sim", f"env.modules=[{Path(__file__).with_name('paced_env.py')}]", "env.task=paced_env:Paced-v0"),
        *(f"env.options.step_s={step_s:.6f}", f"env.per_worker={_ENVIRONMENTS}", "run.eval_episodes=1"),
        f"flow.fragment_steps={_FRAGMENT_STEPS}",
    )


# What is done to a training in its middle must not come after its end.
SIMULATOR = paced(updates_per_s=1)
ROBOT = ("env.kinds=robot", "run.eval_episodes=1")


class TrainingRun:
    """`edgelink run … -- edgelink train`, its output in ``log``; ``options`` are those of `edgelink run`."""

    def __init__(
        self,
        road: Road,
        directory: Path,
        iterations: int,
        *options: str,
        edges: int = 1,
        resume: bool = False,
        settings: Sequence[str] = SIMULATOR,
    ) -> None:
        self.checkpoints, self.progress, self.log = directory / "c", directory / "progress", directory / "train.log"
        cluster = write_demo_cluster(directory / "cluster.yaml", edges)
        train = ["edgelink", "train", f"run.iterations={iterations}", *settings]
        train += ["--checkpoint-dir", str(self.checkpoints), f"run.checkpoint_every={CHECKPOINT_EVERY}"]
        train += ["--progress", str(self.progress), *(["--resume", "auto"] if resume else [])]
        self._road = road
        self._argv = ["edgelink", "run", "--no-preflight", "--cluster", str(cluster), *options, "--", *train]
        self.command = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return self._road.lab.popen(CLOUD, self._argv, self.log)

    def start_again(self) -> None:
        """The very same command once more, as a unit of systemd does after a boot."""
        self.command = self._start()

    def iterations(self) -> list[int]:
        """Those that were learned, in the order they were."""
        return iterations_in(self.progress)

    def wait_for_iteration(self, number: int) -> None:
        self._wait(f"iteration {number}", lambda learned: number in learned)

    def wait_for_more_than(self, count: int) -> None:
        """Until more iterations than so many were learned, whichever they are."""
        self._wait(f"more than {count} iterations", lambda learned: len(learned) > count)

    def _wait(self, what: str, wanted: Callable[[list[int]], bool]) -> None:
        def learned() -> list[int]:
            assert self.command.poll() is None, self.log.read_text()
            return self.iterations()

        wait_until(what, learned, 120, wanted=wanted)


def iterations_in(progress: Path) -> list[int]:
    """Each iteration, in the order they were learned."""
    return [record["iteration"] for record in records_in(progress)]


def learned_again(learned: list[int]) -> list[int]:
    """How many iterations were lost at each step backwards."""
    return [before - after + 1 for before, after in pairwise(learned) if after <= before]


def find_learner(lab: Lab) -> int:
    """The pid of the trainer's learner (Ray gives its processes the actor's name, and changes it with each call)."""

    def look() -> int | None:
        for pid in lab.pids(CLOUD):
            with suppress(FileNotFoundError, ProcessLookupError):  # some end between one look and the next
                title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if title.startswith("ray::") and "Learner" in title:
                    return pid
        return None

    return wait_until("a learner on the cloud node", look, 10)

"""Workers of a training that are played: no Ray, no network, a clock of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from edgelink.training.trainer.crew_checks import WorkerFailedError, WorkerLostError
from edgelink.training.trainer.experience.parcel import About
from edgelink.training.trainer.experience.pieces import Pieces
from edgelink.training.trainer.experience.weights_codec import Offer
from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.flow import FlowSettings
from edgelink.training.trainer.learner_worker import Made
from edgelink.training.trainer.learning.evaluation import Played
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.options import parse
from edgelink.training.trainer.robot.hindrance import Hindrance
from edgelink.training.trainer.run import Run
from edgelink.training.trainer.slots import Slot, Slots
from edgelink.training.trainer.stop_signals import StopSignals
from edgelink.training.trainer.training import Training
from edgelink.training.trainer.voice import Voice
from edgelink.training.trainer.whereabouts import Traffic, Whereabouts


def slots_of(pairs: int) -> Slots:
    def places(component: str) -> tuple[Slot, ...]:
        return tuple(Slot(component, i, i + 1, f"10.0.0.{i + 2}", f"edge-{i + 1}") for i in range(pairs))

    return Slots((Slot("actor", 0, 0, "10.0.0.1", "cloud"),), places("rollout"), places("env"))


@dataclass
class PlayedCrew:
    """Workers that answer after a number of looks; a pair can be killed, and its node can be away."""

    here: ClassVar[Any] = "here"  # what a worker says of where it is

    looks: list[int]  # until a pair's fragment is there
    kills: dict[int, int] = field(default_factory=dict)  # iteration → pair whose node dies then
    away: set[int] = field(default_factory=set)  # pairs whose node is not in Ray
    new_nodes: list[tuple[int, str, str]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=lambda: {"steps": 0})  # answers by method
    steps: dict[int, int] = field(default_factory=dict)  # that each pair was asked for at last
    is_large: bool = False  # what is collected is in pieces
    hold_looks: dict[int, int] = field(default_factory=dict)  # until what a pair collected is at the learner
    lost: dict[tuple[int, int], str] = field(default_factory=dict)  # why that of a pair and ticket cannot be had
    held: list[tuple[int, int]] = field(default_factory=list)  # pair and ticket of what was begun to be brought there
    update_looks: int = 0  # until the learner's answer is there
    remake_looks: list[int] = field(default_factory=list)  # until the workers of each pair that is made answer
    now_s: float = 0.0
    told: list[tuple[str, str, Any]] = field(default_factory=list)
    learned: list[list[Any]] = field(default_factory=list)
    remade: list[int] = field(default_factory=list)
    forgotten: list[Any] = field(default_factory=list)
    dies_again: int = 0  # so often a pair that is made anew dies before it has answered
    failing: dict[tuple[int, int], str] = field(default_factory=dict)  # pair and ticket → what its simulator raises
    evaluation_looks: int = 0  # until an evaluation is done
    broken_off: int = 0  # attempts, beside those of each request to evaluate
    waits_for_a_person: bool = False
    newer: int = 0  # versions: so much newer is the policy that evaluates than what was asked for
    asked_for: list[int] = field(default_factory=list)  # episodes, in each of them
    _holding: dict[Any, int] = field(default_factory=dict)  # answer → pair
    _due: dict[Any, int] = field(default_factory=dict)
    _values: dict[Any, Any] = field(default_factory=dict)
    _of: dict[Any, int] = field(default_factory=dict)
    _dead: set[int] = field(default_factory=set)
    _copied: set[Any] = field(default_factory=set)  # answers whose value is on the head, too
    _versions: dict[int, int] = field(default_factory=dict)
    _produced: dict[int, int] = field(default_factory=dict)
    _count: int = 0
    _slots: Slots | None = None

    def clock(self) -> float:
        return self.now_s

    def _answer(self, value: Any, looks: int, pair: int) -> str:
        self._count += 1
        name = f"answer {self._count}"
        self._due[name], self._values[name], self._of[name] = looks, value, pair
        return name

    def call(self, slot: Slot, method: str, *arguments: Any, returns: int = 1, group: str | None = None) -> Any:
        pair = slot.process_rank
        if method == "offer_weights":
            self.told.append((slot.name, method, arguments))
            self._versions[pair] = arguments[0].version
            return self._answer(0.0, 0, pair)
        if method == "hold":
            ((payload,),) = arguments
            pair, found = self._of[payload], self._values[payload]
            self.held.append(found.names[0] if self.is_large else found)
            assert not self.is_large or list(self._holding.values()).count(pair) < 2, "two at a time over each link"
            held = self._answer(self.lost.get(self.held[-1], ""), self.hold_looks.get(pair, 0), -1)
            self._holding[held] = pair
            return [held, self._answer(self.held[-1], 0, -1)]
        if method == "update":
            iteration, *payloads = arguments
            at_edges = {self._of[payload] for payload in payloads if payload not in self._copied}
            assert not self._dead & at_edges, "a fragment was lost with its node"
            self.learned.append([self._values[payload] for payload in payloads])
            if (killed := self.kills.get(iteration)) is not None:
                self._dead.add(killed)
            return self._answer(Made(iteration, Offer(iteration, ("w",)), {"policy_loss": 0.5}), self.update_looks, -1)
        if method == "evaluate":
            self.asked_for.append(arguments[1])
            returns = [1.0, 3.0] * (arguments[1] // 2) or [2.0]
            played = Played(returns, arguments[0] + self.newer, self.broken_off)
            return self._answer(played, self.evaluation_looks, pair)
        if method in self.figures:
            return self._answer(self.figures[method], 0, pair)
        ticket, steps, least, _ = arguments
        self.steps[pair] = steps
        version = self._versions.get(pair, 0)
        assert least is None or least <= version, "weights that were never offered"
        sent = {"observations": 10_000_000 if self.is_large else 8}
        about = About(pair, ticket, version, steps, (float(ticket),), (1,), sent, {"observations": 16}, 4)
        self._produced[pair] = self._produced.get(pair, 0) + steps
        about = replace(about, produced=self._produced[pair], weights_bytes=100 * version)
        looks = self.looks[pair]
        if (why := self.failing.get((pair, ticket))) is not None:
            env = slots_of(9).envs[pair]
            failed = WorkerFailedError(env, TrainerError(f"{env} failed: {why}", "its log", exit_status=2))
            return [self._answer(failed, looks, pair), self._answer(failed, looks, pair)]
        payload = Pieces(((pair, ticket),)) if self.is_large else (pair, ticket)
        return [self._answer(about, looks, pair), self._answer(payload, looks, pair)]

    def tell(self, slot: Slot, method: str, *arguments: Any) -> None:
        self.call(slot, method, *arguments)

    def ready(self, answers: Sequence[Any], timeout_s: float) -> list[Any]:
        self.now_s += timeout_s
        for answer in answers:
            self._due[answer] -= 1
        return [
            answer
            for answer in answers
            if self._due[answer] <= 0 or {self._of[answer], self._holding.get(answer)} & self._dead
        ]

    def value(self, answer: Any) -> Any:
        pair = self._of[answer]
        if pair in self._dead:
            raise WorkerLostError(slots_of(9).envs[pair], OSError("the node died"))
        self._copied.add(answer)
        self._holding.pop(answer, None)
        if isinstance(found := self._values[answer], WorkerFailedError):
            raise found
        return found

    def forget(self, answer: Any) -> None:
        self.forgotten.append(answer)
        self._holding.pop(answer, None)

    def check(self, slot: Slot, found: Any) -> Any:
        assert found == self.here
        return found

    def remake(self, index: int, kind: str) -> dict[Any, Slot] | None:
        if index in self.away:
            return None
        self.remade.append(index)
        self._produced.pop(index, None)
        self._dead.discard(index)
        slots = self._slots or slots_of(9)
        if self.dies_again:
            self.dies_again -= 1
            self._dead.add(index)
        looks = self.remake_looks.pop(0) if self.remake_looks else 0
        return {self._answer(self.here, looks, index): part[index] for part in (slots.envs, slots.rollouts)}

    def drop(self, index: int) -> None:
        pass

    def leave_out(self, index: int) -> list[Any]:
        return []

    def newcomers(self) -> list[tuple[int, str, str]]:
        found, self.new_nodes = self.new_nodes, []
        return found

    def take_in(self, slots: Slots) -> None:
        self._slots = slots
        self.looks.append(1)


def training(
    crew: PlayedCrew, iterations: int = 30, kinds: Sequence[str] = (), **more: Any
) -> tuple[Training, list[Any]]:
    said: list[Any] = []
    pairs = len(crew.looks)
    made = Training(
        crew,
        slots_of(pairs),
        list(kinds) or ["sim"] * pairs,
        [10] * pairs,
        more.pop("flow", FlowSettings(max_policy_lag=2)),
        first_iteration=1,
        iterations=iterations,
        say=said.append,
        on_update=more.pop("on_update", lambda learned: None),
        clock=crew.clock,
        **more,
    )
    return made, said


def first() -> Made:
    return Made(0, Offer(0, ("w",)))


class PlayedRunCrew(PlayedCrew):
    """What a whole run needs besides; robots have one rig."""

    here = Whereabouts("edge", 1, "net:[1]", "id", "10.0.0.9", 0, "et0", "10.0.0.9", "a" * 64, "3.11")
    spaces = Spaces((4,), "float32", 2)
    widths = (1, 16)
    left_out: ClassVar[set[str]] = set()

    def connect(self) -> None:
        pass

    def own_ip(self) -> str:
        return "127.0.0.1"

    def start(self, *_: Any) -> dict[Slot, Any]:
        self.figures = {
            "latest": first(),
            "traffic": Traffic(1, 1),
            "produced": 9,
            "fetched_bytes": 8,
            "report": {"kind": "played"},
            "state": {"w": np.zeros(2)},
            "hindrance": Hindrance(),
            "load_state": Made(8, Offer(8, ("w",))),
        }
        return {}

    def has(self, slot: Slot) -> bool:
        return True

    def wait(self, answer: Any, purpose: str, within_s: float | None = None) -> Any:
        return self.value(answer)

    def wait_while(self, answer: Any, purpose: str, steps: Any, within_s: float | None = None) -> Any:
        return self.wait(answer, purpose, within_s)

    def is_near(self, slot: Slot) -> bool:
        return True


class LosingCrew(PlayedRunCrew):
    """Pairs that are dropped are gone."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gone: set[int] = set()

    def has(self, slot: Slot) -> bool:
        return slot.process_rank not in self.gone or slot.component == "actor"

    def drop(self, index: int) -> None:
        self.gone.add(index)

    def leave_out(self, index: int) -> list[Any]:
        self.gone.add(index)
        return []


def whole_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, crew: PlayedRunCrew, *settings: str) -> Any:
    """Its report."""
    monkeypatch.setattr(StopSignals, "listen", lambda _self: None)
    report = tmp_path / "report.json"
    options = parse(["--report", str(report), "env.per_worker=16", "run.iterations=8", *settings])
    Run(options, slots_of(2), crew, Voice(), StopSignals()).execute()  # type: ignore[arg-type]
    return json.loads(report.read_text())

"""The training loop with workers that are played: no Ray, no network, a clock of its own."""

from __future__ import annotations

import errno
import json
import re
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from edgelink.training.trainer.crew import Crew
from edgelink.training.trainer.crew_checks import NOTICE_EVERY_S, Patience, WorkerFailedError, WorkerLostError
from edgelink.training.trainer.experience.parcel import About
from edgelink.training.trainer.experience.pieces import Pieces
from edgelink.training.trainer.experience.weights_codec import Offer
from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.flow import FlowSettings
from edgelink.training.trainer.learner_worker import Made
from edgelink.training.trainer.learning.evaluation import Played
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.link_budget.links import Link, Measured
from edgelink.training.trainer.metrics import Metrics
from edgelink.training.trainer.offers import Offers
from edgelink.training.trainer.options import parse
from edgelink.training.trainer.report import Account
from edgelink.training.trainer.robot.hindrance import Hindrance
from edgelink.training.trainer.run import Run
from edgelink.training.trainer.slots import Slot, Slots
from edgelink.training.trainer.stop_signals import Stopped, StopSignals
from edgelink.training.trainer.training import _LOOK_S, ElasticSettings, Learned, Training
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
        ticket, steps, least = arguments
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


def test_every_update_learns_from_every_worker() -> None:
    """Each fragment once, in order; each new version is offered to each worker."""
    crew = PlayedCrew([1, 2])
    loop, _ = training(crew, 10)
    assert loop.run(first()).version == 10
    assert [[pair for pair, _ in update] for update in crew.learned] == [[0, 1]] * 10
    for pair in (0, 1):
        assert [ticket for update in crew.learned for who, ticket in update if who == pair] == list(range(1, 11))
    assert [offer[0].version for name, _, offer in crew.told if name == "rollout:1"] == list(range(11))


def test_experience_crosses_its_link_while_the_learner_learns() -> None:
    """Learning takes 10 looks; a fragment 4 to be known, and 4 more to be here: nobody waits."""
    crew = PlayedCrew([4], update_looks=10)
    loop, _ = training(crew, 20, is_near_learner=True)
    assert loop.run(first()).version == 20
    looks_each = crew.now_s / _LOOK_S / 20
    assert 10 <= looks_each < 10.5


def test_large_experience_is_brought_to_the_learner_in_pieces() -> None:
    """Also where the driver is next to it, which fetches what is small by itself."""
    crew = PlayedCrew([1, 2], is_large=True)
    loop, _ = training(crew, 20, is_near_learner=True)
    loop.run(first())
    learned = [payload for payloads in crew.learned for payload in payloads]
    assert not [payload for payload in learned if isinstance(payload, Pieces)]
    assert {(pair, ticket) for pair, ticket in learned} >= {(0, 1), (1, 1)}
    assert len(learned) == len(set(learned)), "none twice"


@pytest.mark.parametrize("is_near_learner", [True, False])
def test_large_experience_of_a_silent_edge_holds_up_nobody(is_near_learner: bool) -> None:
    """Its link has two on their way, however long; what is too old before its turn comes never crosses it."""
    crew = PlayedCrew([1, 1, 1], is_large=True, hold_looks={0: 8, 1: 8, 2: 800})
    loop, _ = training(crew, 200, is_near_learner=is_near_learner)
    assert loop.run(first()).version == 200
    learned_of = [{pair for pair, _ in update} for update in crew.learned]
    assert sum(of >= {0, 1} for of in learned_of) >= 195
    of_silent = [ticket for pair, ticket in crew.held if pair == 2]
    assert len(of_silent) <= 2 + 2 * (crew.now_s / _LOOK_S // 800)
    assert loop.flow.counts.dropped >= 1


@pytest.mark.parametrize("is_large", [True, False])
def test_a_pair_whose_experience_cannot_be_had_is_made_anew(is_large: bool) -> None:
    """Each time, and nothing of it is learned from."""
    crew = PlayedCrew([1, 1], is_large=is_large, lost={(1, 4): "its owner has died", (1, 9): "its owner has died"})
    loop, said = training(crew, 60, is_near_learner=False)
    assert loop.run(first()).version == 60
    assert crew.remade == [1, 1]
    assert sum("is gone: its owner has died" in line for line in said) == 2
    assert not {(1, 4), (1, 9)} & {each for update in crew.learned for each in update}


def test_an_edge_that_dies_while_its_experience_crosses_is_used_again() -> None:
    """What was behind that is forgotten; none of it keeps the link of those that come after it."""
    crew = PlayedCrew([1, 1], kills={5: 1, 20: 1}, is_large=True, hold_looks={0: 4, 1: 6})
    loop, said = training(crew, 60)
    assert loop.run(first()).version == 60
    assert crew.remade == [1, 1]
    assert sum("is gone: the node died" in line for line in said) == 2
    learned = [each for update in crew.learned for each in update]
    assert len(learned) == len(set(learned))
    assert max(number for number, update in enumerate(crew.learned) if any(pair == 1 for pair, _ in update)) > 40
    (loss,) = loop._losses.values()
    assert loss.__traceback__ is None, "it would hold on to what was learned from"


def test_an_edge_that_dies_takes_only_its_own_workers_and_is_used_again() -> None:
    """No update is lost; the pair is made anew when its node is back; both are told and counted."""
    crew = PlayedCrew([1, 1], kills={5: 1}, away={1})
    events: list[tuple[str, str]] = []

    def on_update(learned: Learned) -> None:
        if learned.iteration == 40:
            crew.away.clear()

    loop, said = training(
        crew, 80, on_update=on_update, on_event=lambda what, slot, why: events.append((what, slot.name))
    )
    assert loop.run(first()).version == 80
    alone = [number for number, update in enumerate(crew.learned, 1) if len(update) == 1]
    assert alone[0] in (6, 7)
    assert 40 <= alone[-1] < 70
    assert len(crew.learned) == 80
    assert crew.remade == [1]
    assert events == [("lost", "env:1"), ("joined", "env:1")]
    assert any("training goes on with 1 of 2" in line for line in said)
    assert any("training goes on with 2 of 2" in line for line in said)


def test_a_simulator_that_fails_takes_only_its_own_pair() -> None:
    """An exception is no worse than a death: the others go on, and the pair is made anew."""
    crew = PlayedCrew([1, 1], failing={(1, 4): "huge value in QACC", (1, 30): "huge value in QACC"})
    events: list[tuple[str, str]] = []
    loop, said = training(crew, 80, on_event=lambda what, slot, why: events.append((what, why)))
    assert loop.run(first()).version == 80
    assert crew.remade == [1, 1]
    failed = "env:1 on node 2 (edge-2, 10.0.0.3) failed: huge value in QACC"
    assert events == [("lost", failed), ("joined", "")] * 2
    assert f"{failed}; training goes on with 1 of 2 pairs of workers" in said
    assert not {(1, 4), (1, 30)} & {each for update in crew.learned for each in update}


def test_a_simulator_that_fails_everywhere_ends_the_run_with_its_words() -> None:
    """A defect of the task: nobody is left, and another attempt would not mend it."""
    crew = PlayedCrew([1, 1], failing={(pair, 4): "no such joint" for pair in (0, 1)})
    loop, _ = training(crew, 80)
    with pytest.raises(TrainerError, match="failed: no such joint") as caught:
        loop.run(first())
    assert (caught.value.hint, caught.value.exit_status) == ("its log", 2)
    assert crew.remade == []


def test_an_edge_that_dies_again_and_again_is_tried_at_growing_intervals() -> None:
    """Ten deaths: training goes on to its end each time."""
    crew = PlayedCrew([1, 1], kills={20 * n: 1 for n in range(1, 11)})
    loop, _ = training(crew, 400)
    assert loop.run(first()).version == 400
    assert len(crew.learned) == 400
    assert len(crew.remade) >= 5


def test_a_node_that_dies_again_while_its_pair_is_made_is_tried_again() -> None:
    """Both of its workers' answers fail at once then."""
    crew = PlayedCrew([1, 1], kills={20: 1}, dies_again=2)
    loop, said = training(crew, 100)
    assert loop.run(first()).version == 100
    assert crew.remade == [1, 1, 1]
    assert any("tried again" in line for line in said)


def test_payloads_that_the_driver_does_not_fetch_are_let_go_of() -> None:
    """A learner on another node takes them from the edges; here nobody asks for them."""
    crew = PlayedCrew([1, 1])
    loop, _ = training(crew, 10, is_near_learner=False)
    loop.run(first())
    assert len(crew.forgotten) == len(set(crew.forgotten)) >= 20


def test_an_edge_that_dies_during_an_update_costs_no_learner_its_fragments() -> None:
    """They are on the learners' node before an update is begun with them; here it takes 10 s until a death is known."""
    crew = PlayedCrew([3, 1], kills={5: 1})
    ready, all_there_s = crew.ready, 0.0

    def unnoticed(answers: Sequence[Any], timeout_s: float) -> list[Any]:
        nonlocal all_there_s
        found = ready(answers, timeout_s)
        if not crew._dead:
            all_there_s = crew.now_s
        return [a for a in found if crew._of[a] not in crew._dead or crew.now_s > all_there_s + 10]

    crew.ready = unnoticed  # type: ignore[method-assign]
    loop, said = training(crew, 40, is_near_learner=False)
    assert loop.run(first()).version == 40
    assert len(crew.learned[5]) == 2, "with what the dead one had sent"
    assert len([line for line in said if line.startswith("env:1 on node 2") and "is gone" in line]) == 1


def test_a_fragment_that_cannot_be_had_any_more_costs_its_pair() -> None:
    """Not the learner that asked for it."""
    crew = PlayedCrew([1, 1])
    call, whys = crew.call, ["its node died"]

    def losing(slot: Slot, method: str, *arguments: Any, **more: Any) -> Any:
        answers = call(slot, method, *arguments, **more)
        if method == "hold" and crew._of[arguments[0][0]] == 1 and whys:
            crew._values[answers[0]] = whys.pop()
        return answers

    crew.call = losing  # type: ignore[method-assign]
    loop, said = training(crew, 20, is_near_learner=False)
    assert loop.run(first()).version == 20
    assert [line for line in said if "env:1 on node 2" in line and "is gone: its node died" in line]
    assert crew.remade == [1]


def test_a_pair_that_never_starts_is_given_up_and_tried_again() -> None:
    """After a time, with a pause; the others go on meanwhile."""
    crew = PlayedCrew([1, 1], kills={20: 1}, remake_looks=[10**9, 10**9])
    loop, said = training(crew, 1400, stall_timeout_s=300.0)
    assert loop.run(first()).version == 1400
    assert crew.remade == [1, 1, 1]
    given_up = [line for line in said if "did not start within 300 s; it is tried again in" in line]
    assert [line.rpartition("in ")[2] for line in given_up] == ["4 s", "8 s"]
    assert given_up[0].startswith("env:1 on node 2 (edge-2, 10.0.0.3) and rollout:1 on node 2")
    assert len(crew.learned[-1]) == 2


def test_why_a_pair_cannot_be_made_again_is_said_with_what_to_do() -> None:
    """Once for each time that it is tried."""
    crew = PlayedCrew([1, 1], kills={20: 1})
    check, refusals = crew.check, [TrainerError("no numpy there", "install it"), TrainerError("another task")]

    def refusing(slot: Slot, found: Any) -> Any:
        if refusals:
            raise refusals.pop(0)
        return check(slot, found)

    crew.check = refusing  # type: ignore[method-assign]
    loop, said = training(crew, 400)
    assert loop.run(first()).version == 400
    given_up = [line for line in said if "it is tried again in" in line]
    assert given_up == [
        "no numpy there (install it); it is tried again in 4 s",
        "another task; it is tried again in 8 s",
    ]


@pytest.mark.parametrize("is_made", [True, False])
def test_the_last_pairs_death_waits_for_one_that_is_being_made(is_made: bool) -> None:
    """So long as that may take, and no longer."""
    crew = PlayedCrew([1, 1], kills={5: 0, 15: 1}, away={1}, remake_looks=[60 if is_made else 10**9])
    loop, said = training(crew, 30, stall_timeout_s=300.0)
    if is_made:
        assert loop.run(first()).version == 30
        assert any("nobody is left; waiting for env:0 on node 1" in line for line in said)
    else:
        with pytest.raises(TrainerError, match=r"no answer for 300 s while waiting for experience: .*env:0 on node 1"):
            loop.run(first())
        assert 300 < crew.now_s < 400


@pytest.mark.parametrize("kinds", [["sim"], ["robot"]])
def test_an_only_edge_that_leaves_is_waited_for(kinds: list[str]) -> None:
    """Its machine starts again, say: no update is lost, none comes twice, and nothing has to be started by hand."""
    crew = PlayedCrew([1], kills={5: 0}, away={0})
    ready = crew.ready

    def back_after_a_minute(answers: Sequence[Any], timeout_s: float) -> list[Any]:
        if crew.now_s > 60:
            crew.away.clear()
        return ready(answers, timeout_s)

    crew.ready = back_after_a_minute  # type: ignore[method-assign]
    loop, said = training(crew, 20, kinds=kinds, elastic=ElasticSettings(robots_return=True), stall_timeout_s=300.0)
    assert loop.run(first()).version == 20
    assert len(crew.learned) == 20
    assert crew.remade == [0]
    assert any("nobody is left; waiting for env:0 on node 1" in line for line in said)
    assert any(re.match("waiting 1. s for experience: env:0 on node 1", line) for line in said)


def test_an_only_edge_that_stays_away_ends_the_run_after_the_stall_timeout() -> None:
    """With who was waited for; another attempt may find it there."""
    crew = PlayedCrew([1], kills={5: 0}, away={0})
    loop, _ = training(crew, 20, stall_timeout_s=300.0)
    with pytest.raises(TrainerError, match="no answer for 300 s while waiting for experience: env:0") as caught:
        loop.run(first())
    assert caught.value.exit_status == 75
    assert 300 < crew.now_s < 310


def test_an_only_robot_that_leaves_ends_the_run_where_it_may_not_come_back() -> None:
    """It would not be commanded: there is nothing to wait for."""
    crew = PlayedCrew([1], kills={5: 0}, away={0})
    loop, said = training(crew, 20, kinds=["robot"])
    with pytest.raises(TrainerError, match=r"env:0 on node 1 .* is gone: the node died"):
        loop.run(first())
    assert crew.now_s < 30
    assert said[-1].endswith("is gone: the node died; nobody is left")


def test_offers_do_not_pile_up_towards_a_node_that_is_out_of_reach() -> None:
    """A few are under way; of the others the newest are told when those have been answered."""
    told: list[int] = []

    class Silent:
        def call(self, _slot: Slot, _method: str, offer: Offer) -> int:
            told.append(offer.version)
            return offer.version

        def forget(self, answer: int) -> None:
            forgotten.append(answer)

    forgotten: list[int] = []
    now_s = 0.0
    offers = Offers(Silent(), max_policy_lag=2, clock=lambda: now_s)
    for version in range(100):
        now_s = version / 10
        offers.tell(1, slots_of(2).rollouts[1], Offer(version, ()))
    assert told == [0, 1, 2]
    now_s = 20.0
    noted = [offers.answered(1, answer, 77.0) for answer in (0, 1, 2, 96)]
    assert [told.made_s for told in noted] == pytest.approx([0.0, 0.1, 0.2, 9.6]), "the wait for others counts"
    assert {(told.noted_s, told.answered_s) for told in noted} == {(77.0, 20.0)}
    assert told[3:] == [96, 97, 98, 99], "an unbroken chain of differences to the newest"
    assert set(offers.answers) == {97, 98, 99}
    offers.lost(1)
    assert not offers.answers
    assert sorted(forgotten) == [97, 98, 99]


def test_one_that_delivers_hides_nobody_who_hangs() -> None:
    """The synchronous loop waits for all; who owes something is named."""
    crew = PlayedCrew([1, 10**9])
    loop, _ = training(crew, 5, flow=FlowSettings(max_policy_lag=0), stall_timeout_s=0.0)
    with pytest.raises(TrainerError, match="waiting for experience: rollout:1 "):
        loop.run(first())


@pytest.mark.parametrize(("may_return", "expected"), [(False, []), (True, [0])])
def test_a_robot_is_commanded_again_only_where_that_is_allowed(may_return: bool, expected: list[int]) -> None:
    """An arm does not start to move by itself because its computer is back."""
    crew = PlayedCrew([1, 1], kills={3: 0})
    loop, _ = training(crew, 60, kinds=["robot", "sim"], elastic=ElasticSettings(robots_return=may_return))
    loop.run(first())
    assert crew.remade == expected


@pytest.mark.parametrize("may_grow", [False, True])
def test_a_new_node_gets_a_simulator_if_the_settings_allow(may_grow: bool) -> None:
    """It takes part from then on, with fragments as large as the others'."""
    crew = PlayedCrew([1])

    def on_update(learned: Learned) -> None:
        if learned.iteration == 5:
            crew.new_nodes.append((7, "10.0.0.99", "late"))

    loop, _ = training(crew, 30, elastic=ElasticSettings(grow=may_grow), on_update=on_update)
    loop.run(first())
    assert {len(update) for update in crew.learned} == ({1, 2} if may_grow else {1})
    assert len(loop.slots.envs) == (2 if may_grow else 1)
    if may_grow:
        assert (loop.slots.envs[1].node_rank, loop.slots.envs[1].ip) == (7, "10.0.0.99")


def test_nothing_for_long_ends_the_run() -> None:
    """By the stall timeout, with the names of those who owe something."""
    loop, _ = training(PlayedCrew([10**9]), 5, stall_timeout_s=0.0)
    with pytest.raises(TrainerError, match="waiting for experience: rollout:0") as caught:
        loop.run(first())
    assert caught.value.exit_status == 75


def test_a_person_may_take_any_time() -> None:
    """Who has stopped the only robot has lunch; the run is there afterwards, and then waits as long as ever."""
    stall_s = 4 * NOTICE_EVERY_S
    crew = PlayedCrew([10**9], waits_for_a_person=True)
    loop, said = training(crew, 5, kinds=["robot"], stall_timeout_s=stall_s)
    back_s = 10 * stall_s
    real = crew.ready

    def ready(answers: Any, timeout_s: float) -> Any:
        crew.waits_for_a_person = crew.now_s < back_s
        return real(answers, timeout_s)

    crew.ready = ready  # type: ignore[method-assign]
    with pytest.raises(TrainerError, match="waiting for experience"):
        loop.run(first())
    assert back_s + stall_s <= crew.now_s < back_s + 2 * stall_s
    assert any("waiting" in line for line in said)


@pytest.mark.parametrize("newer", [0, 2])
def test_evaluations_go_on_beside_the_training(newer: int) -> None:
    """On a simulator, and told as of the version that played: at an edge newer weights may be there meanwhile."""
    found: list[Any] = []
    loop, _ = training(
        PlayedCrew([1, 1], newer=newer),
        12,
        kinds=["robot", "sim"],
        evaluate_every=5,
        on_evaluation=lambda version, returns: found.append((version, returns)),
    )
    loop.run(first())
    assert found == [(5 + newer, [1.0, 3.0] * 8), (10 + newer, [1.0, 3.0] * 8)]


def test_evaluations_that_come_due_beside_another_one_are_made_up_for_by_one() -> None:
    """As soon as that one is done, by the weights that there are then."""
    crew = PlayedCrew([1, 1], evaluation_looks=10**9)
    found: list[int] = []

    def on_update(learned: Learned) -> None:
        if learned.iteration == 17:
            crew.evaluation_looks = 0
            crew._due.update(dict.fromkeys(loop._evaluating, 0))

    loop, _ = training(
        crew,
        28,
        evaluate_every=5,
        on_evaluation=lambda version, _returns: found.append(version),
        on_update=on_update,
    )
    loop.run(first())
    assert found[0] == 5
    assert found[1] in (17, 18, 19)
    assert found[2:] == [20, 25]


@pytest.mark.parametrize(
    ("fate", "evaluators"), [("edge dies", [0, 1, 1]), ("raises", [0, 1]), ("each edge dies", [0, 1, 2])]
)
def test_an_evaluation_that_is_lost_with_its_edge_is_made_up_for(fate: str, evaluators: list[int]) -> None:
    """Once, on another simulator: one that ends each of them, or raises, takes no more of them before the next is due.
    Of iterations 5 and 10."""
    begun: list[int] = []
    crew = PlayedCrew([1, 1, 1], away={0, 1})
    real = crew.call

    def call(slot: Slot, method: str, *arguments: Any, **more: Any) -> Any:
        answer, pair = real(slot, method, *arguments, **more), slot.process_rank
        if method == "evaluate":
            begun.append(pair)
            if fate == "raises" and pair == 0:
                crew._values[answer] = WorkerFailedError(slot, TrainerError(f"{slot} failed: no such joint"))
            elif fate != "raises" and pair < (1 if fate == "edge dies" else 2):
                crew._dead.add(pair)
        return answer

    crew.call = call  # type: ignore[method-assign]
    found: list[int] = []
    loop, _ = training(crew, 14, evaluate_every=5, on_evaluation=lambda version, _returns: found.append(version))
    assert loop.run(first()).version == 14
    assert begun == evaluators
    assert found[-1] == 10
    assert len(found) == (2 if fate == "edge dies" else 1)


def test_an_evaluation_waits_for_the_only_simulator_to_come_back() -> None:
    """It is away when one is due; a robot goes on."""
    crew = PlayedCrew([1, 1], kills={18: 0}, away={0})
    found: list[int] = []

    def on_update(learned: Learned) -> None:
        if learned.iteration == 25:
            crew.away.clear()

    loop, _ = training(
        crew,
        65,
        kinds=["sim", "robot"],
        evaluate_every=20,
        on_evaluation=lambda version, _returns: found.append(version),
        on_update=on_update,
    )
    loop.run(first())
    assert 25 <= found[0] < 40
    assert found[1:] == [40, 60]


@pytest.mark.parametrize(("kinds", "every", "told"), [(["robot"], 5, 1), (["robot", "sim"], 5, 0), (["robot"], 0, 0)])
def test_that_robots_alone_are_not_evaluated_meanwhile_is_said(kinds: list[str], every: int, told: int) -> None:
    """Once, and only to who asked for it."""
    loop, said = training(PlayedCrew([1] * len(kinds)), 12, kinds=kinds, evaluate_every=every)
    loop.run(first())
    assert len([line for line in said if "run.eval_every needs a simulator" in line]) == told


@pytest.mark.parametrize("fate", ["done", "slow", "lost", "stalled", "stopped"])
def test_an_evaluation_that_outlasts_the_training_is_waited_for(fate: str) -> None:
    """As long as it comes further; not when its node is gone, nor when it stands still: that costs what was trained
    nothing. A stop ends it. What nobody learns from any more crosses no link meanwhile."""
    stall_s = 4 * NOTICE_EVERY_S
    looks = {"done": 40, "slow": int(4 * stall_s / _LOOK_S)}.get(fate, 10**9)
    found: list[int] = []
    held_before: list[Any] = []
    crew = PlayedCrew([1, 1])
    real = crew.ready

    class Steps(dict[str, Any]):
        def __getitem__(self, name: str) -> int:
            return int(crew.now_s) if fate == "slow" else 7

    def ready(answers: Sequence[Any], timeout_s: float) -> list[Any]:
        if fate == "stopped" and not loop.flow.left:
            raise Stopped(signal.SIGTERM)
        return real(answers, timeout_s)

    def on_update(learned: Learned) -> None:
        if learned.iteration == 10:  # the evaluation of this version is begun with it
            crew.evaluation_looks = looks
            crew.looks[0] = 30  # its fragments are late, too: the last update is made without them
        if learned.iteration == 12:
            held_before.extend(crew.held)
            if fate == "lost":
                crew._dead.add(0)

    crew.figures = Steps(steps=0)
    crew.ready = ready  # type: ignore[method-assign]
    loop, said = training(
        crew,
        12,
        kinds=["sim", "robot"],
        evaluate_every=5,
        on_evaluation=lambda version, _returns: found.append(version),
        on_update=on_update,
        is_near_learner=False,
        stall_timeout_s=stall_s,
    )
    if fate == "stopped":
        with pytest.raises(Stopped):
            loop.run(first())
    else:
        assert loop.run(first()).version == 12
    assert found == ([5, 10] if fate in ("done", "slow") else [5])
    assert crew.asked_for == [16, 16]
    assert crew.held == held_before
    stalls = [line for line in said if "while waiting for the evaluation: rollout:0 on node 1" in line]
    assert len(stalls) == (fate == "stalled")
    assert fate == "slow" or crew.now_s < 2 * stall_s


@pytest.mark.parametrize("comes_further", [True, False])
def test_an_evaluation_takes_its_time_as_long_as_it_comes_further(comes_further: bool) -> None:
    """Of the only pair, so that nothing else comes: four times the stall timeout; one that stands still is a stall."""
    stall_s = 4 * NOTICE_EVERY_S
    crew = PlayedCrew([1], evaluation_looks=int(4 * stall_s / _LOOK_S))
    asked_at_s: list[float] = []

    class Steps(dict[str, Any]):
        def __getitem__(self, name: str) -> int:
            assert name == "steps"
            asked_at_s.append(crew.now_s)
            return int(crew.now_s) if comes_further else 7

    def on_update(learned: Learned) -> None:  # what is asked for at iteration 5 is behind the evaluation
        crew.looks[0] = crew.evaluation_looks // 2 if learned.iteration == 5 else 1  # its account, and all of it

    crew.figures = Steps(steps=0)
    loop, _ = training(crew, 8, evaluate_every=5, stall_timeout_s=stall_s, on_update=on_update)
    if comes_further:
        assert loop.run(first()).version == 8
    else:
        with pytest.raises(TrainerError, match="waiting for experience"):
            loop.run(first())
    apart_s = [later - before for before, later in pairwise(asked_at_s)]
    assert min(apart_s) >= NOTICE_EVERY_S


@pytest.mark.parametrize("comes_further", [True, False])
def test_a_slow_simulator_is_no_stall_as_long_as_it_makes_steps(comes_further: bool) -> None:
    """One fragment takes four times the stall timeout, and nothing else comes. One that hangs is a stall."""
    stall_s = 4 * NOTICE_EVERY_S
    crew = PlayedCrew([int(4 * stall_s / _LOOK_S)])

    class Steps(dict[str, Any]):
        def __getitem__(self, name: str) -> int:
            return int(crew.now_s) if comes_further else 7

    crew.figures = Steps(steps=0)
    loop, _ = training(crew, 3, stall_timeout_s=stall_s, is_near_learner=False)
    if comes_further:
        assert loop.run(first()).version == 3
    else:
        with pytest.raises(TrainerError, match="while waiting for experience: rollout:0"):
            loop.run(first())
        assert crew.now_s < 2 * stall_s


@pytest.mark.filterwarnings("ignore")
def test_steps_go_on_after_a_resume(tmp_path: Path) -> None:
    """In the records, and TensorBoard is told from where its curves are anew; rates are of this part."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    account = Account(0, ["sim", "sim"], first_iteration=6, env_steps_before=1000)
    progress = tmp_path / "progress"
    metrics = Metrics(account, 8, progress, tmp_path / "board", lambda: Traffic(0, 0), print)

    def on_update(learned: Learned) -> None:
        for about in learned.abouts:
            account.learned[about.rank] = account.learned.get(about.rank, 0) + about.samples
            account.sent_bytes["observations"] = account.sent_bytes.get("observations", 0) + 8
        metrics.update(learned, 2)

    loop, _ = training(PlayedCrew([1, 1]), 3, on_update=on_update)
    loop.run(first())
    metrics.close()
    records = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [record["env_steps"] for record in records] == [1020, 1040, 1060]
    assert records[-1]["bytes_per_env_step"] == {"observations": 0.8}
    assert account.to_dict()["env_steps"] == 1060
    file = next((tmp_path / "board").iterdir())
    events = list(EventFileLoader(str(file)).Load())
    assert [event.step for event in events if event.HasField("session_log")] == [6]
    curves = [
        (event.step, value.tensor.float_val[0])
        for event in events
        for value in event.summary.value
        if value.tag == "env_steps"
    ]
    assert curves == [(iteration, record["env_steps"]) for iteration, record in enumerate(records, 1)]


@pytest.mark.parametrize(("attempt", "begins_anew"), [("1", []), ("2", [1])])
def test_curves_of_a_run_that_is_started_again_without_a_checkpoint_begin_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, attempt: str, begins_anew: list[int]
) -> None:
    """TensorBoard shows what was lost no more. Another run in the same directory hides nothing of the one before."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    monkeypatch.setenv("EDGELINK_ATTEMPT", attempt)
    whole_run(monkeypatch, tmp_path, PlayedRunCrew([1, 1]), "env.kinds=sim", "--tensorboard", str(tmp_path / "board"))
    file = next((tmp_path / "board").iterdir())
    events = list(EventFileLoader(str(file)).Load())
    assert [event.step for event in events if event.HasField("session_log")] == begins_anew


def test_a_full_disk_does_not_end_a_training(tmp_path: Path) -> None:
    """It is said once, and the training goes on."""
    progress, said = tmp_path / "progress", list[str]()
    metrics = Metrics(Account(0, ["sim"], learned={0: 1}), 3, progress, None, lambda: Traffic(0, 0), said.append)
    progress.mkdir()  # no file any more that can be written to
    loop, _ = training(PlayedCrew([1, 1]), 3, on_update=lambda learned: metrics.update(learned, 2))
    assert loop.run(first()).version == 3
    progress.rmdir()
    assert len(said) == 1
    assert str(progress) in said[0]


@pytest.mark.filterwarnings("ignore")
def test_an_output_that_cannot_be_written_costs_no_other(tmp_path: Path) -> None:
    """The records' disk is full; those who watch, and the curves, are on others."""
    progress, live, said = tmp_path / "progress", tmp_path / "live", list[str]()
    account = Account(0, ["sim"], learned={0: 1})
    progress.mkdir()
    metrics = Metrics(account, 3, progress, tmp_path / "board", lambda: Traffic(0, 0), said.append, live)
    loop, _ = training(PlayedCrew([1]), 3, on_update=lambda learned: metrics.update(learned, 1))
    loop.run(first())
    metrics.close()
    assert [json.loads(line)["step"] for line in live.read_text().splitlines()] == [1, 2, 3]
    assert next((tmp_path / "board").iterdir()).stat().st_size > 1000
    assert len(said) == 1


def test_a_disk_that_takes_no_curves_when_a_training_begins_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """TensorBoard's writer begins its file at once."""

    def writer(_directory: str) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("edgelink.training.trainer.metrics.tensorboard_for", lambda _directory: (None, None, writer))
    progress, said = tmp_path / "progress", list[str]()
    account = Account(0, ["sim"], learned={0: 1})
    metrics = Metrics(account, 3, progress, tmp_path / "board", lambda: Traffic(0, 0), said.append)
    loop, _ = training(PlayedCrew([1]), 3, on_update=lambda learned: metrics.update(learned, 1))
    loop.run(first())
    metrics.close()
    assert len(progress.read_text().splitlines()) == 3
    assert [line for line in said if "--tensorboard" in line and "No space left" in line] == said
    assert len(said) == 1


def test_half_a_record_spoils_no_other(tmp_path: Path) -> None:
    """The disk takes part of one, and later ones whole."""
    progress, said = tmp_path / "progress", list[str]()
    metrics = Metrics(Account(0, ["sim"], learned={0: 1}), 9, progress, None, lambda: Traffic(0, 0), said.append)
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_update(learned: Learned) -> None:
        if learned.iteration == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (progress.stat().st_size + 40, allowed[1]))
        try:
            metrics.update(learned, 1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, allowed)

    loop, _ = training(PlayedCrew([1]), 3, on_update=on_update)
    loop.run(first())
    metrics.close()
    assert [json.loads(line)["iteration"] for line in progress.read_text().splitlines()] == [1, 3]
    assert len(said) == 1


def test_each_update_is_written_down(tmp_path: Path) -> None:
    """As a JSON line, for TensorBoard, and for people with what is left to do."""
    account = Account(0, ["sim", "sim"])
    progress = tmp_path / "progress"
    traffic = iter([Traffic(100, 50), *[Traffic(100 + n, 50) for n in (10, 20, 30)]])
    metrics = Metrics(account, 3, progress, tmp_path / "board", lambda: next(traffic), print)
    lines = []

    def on_update(learned: Learned) -> None:
        account.counts = loop.flow.counts
        for about in learned.abouts:
            account.learned[about.rank] = account.learned.get(about.rank, 0) + about.samples
            account.sent_bytes["observations"] = account.sent_bytes.get("observations", 0) + 8
        metrics.evaluated(learned.iteration, [3.0, 5.0])
        metrics.update(learned, 2)
        lines.append(metrics.line(learned, ["sim", "sim"]))

    loop, _ = training(PlayedCrew([1, 1]), 3, on_update=on_update)
    loop.run(first())
    metrics.close()
    records = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [record["iteration"] for record in records] == [1, 2, 3]
    last = records[-1]
    assert (last["env_steps"], last["samples"], last["live_pairs"]) == (60, {"0": 10, "1": 10}, 2)
    assert last["bytes_per_env_step"] == {"observations": 0.8}
    assert last["wan_bytes"] == {"received": 30, "sent": 0}
    assert (last["policy_loss"], last["evaluations"]) == (
        0.5,
        [{"version": 3, "return": 4.0, "margin": 12.706, "episodes": 2}],
    )
    assert last["lag"]["max"] <= 2
    assert lines[-1].startswith("iteration 3/3  return sim:0")
    assert lines[-1].endswith("0 s left")
    assert [path.name.partition(".")[0] for path in (tmp_path / "board").iterdir()] == ["events"]


def test_no_evaluation_is_missing_in_the_records(tmp_path: Path) -> None:
    """Two fall between two updates, and one comes after the last update, before that of the last version."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    progress = tmp_path / "progress"
    account = Account(0, ["sim"], learned={0: 1})
    metrics = Metrics(account, 6, progress, tmp_path / "board", lambda: Traffic(0, 0), print)

    def on_update(learned: Learned) -> None:
        if learned.iteration == 4:
            metrics.evaluated(2, [1.0, 1.0])
            metrics.evaluated(3, [2.0, 2.0])
        metrics.update(learned, 1)

    loop, _ = training(PlayedCrew([1]), 6, on_update=on_update)
    loop.run(first())
    metrics.evaluated(5, [3.0, 3.0])
    metrics.evaluated(6, [4.0, 4.0])
    metrics.close()
    records = [json.loads(line) for line in progress.read_text().splitlines()]
    told = {record["iteration"]: [one["version"] for one in record.get("evaluations", ())] for record in records}
    assert told == {1: [], 2: [], 3: [], 4: [2, 3], 5: [], 6: [5, 6]}
    file = next((tmp_path / "board").iterdir())
    curve = [
        (event.step, value.tensor.float_val[0])
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
        if value.tag == "evaluation/return"
    ]
    assert curve == [(2, 1.0), (3, 2.0), (5, 3.0), (6, 4.0)]


def test_an_evaluation_before_a_stop_is_not_missing_in_the_records(tmp_path: Path) -> None:
    """No update comes after it: the last one's record comes a second time, and of two of an iteration the last one
    counts."""
    progress = tmp_path / "progress"
    metrics = Metrics(Account(0, ["sim"], learned={0: 1}), 9, progress, None, lambda: Traffic(0, 0), print)
    metrics.evaluated(0, [1.0, 1.0])
    loop, _ = training(PlayedCrew([1]), 1, on_update=lambda learned: metrics.update(learned, 1))
    loop.run(first())
    metrics.evaluated(1, [2.0, 2.0])
    metrics.close()
    records = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [record["iteration"] for record in records] == [1, 1]
    assert [one["version"] for one in records[-1]["evaluations"]] == [0, 1]


def test_small_figures_are_not_rounded_away(tmp_path: Path) -> None:
    """Rewards may be of any size, and a learning rate may be tiny."""
    progress = tmp_path / "progress"
    metrics = Metrics(Account(0, ["sim"], learned={0: 1}), 1, progress, None, lambda: Traffic(0, 0), print)
    lines = []

    def on_update(learned: Learned) -> None:
        (about,) = learned.abouts
        made = replace(learned.made, figures={"learning_rate": 2.5e-7})
        learned = replace(learned, made=made, abouts=[replace(about, episode_returns=(0.001, 0.003))])
        metrics.update(learned, 1)
        metrics.evaluated(1, [0.002, 0.006])
        lines.append(metrics.line(learned, ["sim"]))

    loop, _ = training(PlayedCrew([1]), 1, on_update=on_update)
    loop.run(first())
    metrics.close()
    record = json.loads(progress.read_text())
    assert (record["learning_rate"], record["returns"]) == (2.5e-7, {"0": 0.002})
    (evaluation,) = record["evaluations"]
    assert (evaluation["return"], evaluation["margin"]) == (0.004, 0.025412)
    assert "return sim:0 0.002 " in lines[0]


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

    def wait(self, answer: Any, purpose: str) -> Any:
        return self.value(answer)

    def wait_while(self, answer: Any, purpose: str, steps: Any) -> Any:
        return self.value(answer)

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


def whole_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, crew: PlayedRunCrew, *settings: str) -> Any:
    """Its report."""
    monkeypatch.setattr(StopSignals, "listen", lambda _self: None)
    report = tmp_path / "report.json"
    options = parse(["--report", str(report), "env.per_worker=16", "run.iterations=8", *settings])
    Run(options, slots_of(2), crew, Voice(), StopSignals()).execute()  # type: ignore[arg-type]
    return json.loads(report.read_text())


def test_a_robot_gives_its_share_whatever_was_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the rigs that it has: one, where simulators are sixteen."""
    crew = PlayedRunCrew([1, 1])
    whole_run(monkeypatch, tmp_path, crew, "env.kinds=robot,sim")
    assert crew.steps == {0: 64, 1: 12}


def test_workers_that_die_after_the_last_update_cost_only_their_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next pair evaluates; with nobody left the report is there all the same."""
    one_dead = whole_run(monkeypatch, tmp_path, PlayedRunCrew([1, 1], kills={8: 0}), "env.kinds=sim,robot")
    assert (one_dead["return_after"], one_dead["evaluated_on"], one_dead["iterations"]) == (2.0, "robot:1", 8)
    assert one_dead["events"][-1]["worker"] == "env:0"
    crew = PlayedRunCrew([1, 1], kills={7: 0, 8: 1}, away={0, 1})
    none_left = whole_run(monkeypatch, tmp_path, crew, "env.kinds=sim,sim")
    assert (none_left["return_after"], none_left["iterations"]) == (None, 8)


def test_workers_that_are_being_made_when_the_training_is_done_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor asked: the others evaluate and tell their figures."""
    monkeypatch.setattr("edgelink.training.trainer.making._FIRST_PAUSE_S", 0.0)

    class Making(PlayedRunCrew):
        gone: ClassVar[set[int]] = set()
        asked_in_vain: ClassVar[set[Any]] = set()

        def has(self, slot: Slot) -> bool:
            return slot.process_rank not in self.gone or slot.component == "actor"

        def drop(self, index: int) -> None:
            self.gone.add(index)

        def call(self, slot: Slot, method: str, *arguments: Any, **more: Any) -> Any:
            answer = super().call(slot, method, *arguments, **more)
            if slot.process_rank in self.remade and slot.component != "actor":
                self.asked_in_vain.add(answer)
            return answer

        def remake(self, index: int, kind: str) -> dict[Any, Slot] | None:
            self.gone.discard(index)
            return super().remake(index, kind)

        def wait(self, answer: Any, purpose: str) -> Any:
            if answer in self.asked_in_vain:
                raise TrainerError("no answer for 900 s", exit_status=75)
            return super().wait(answer, purpose)

        def wait_while(self, answer: Any, purpose: str, steps: Any) -> Any:
            return self.wait(answer, purpose)

    crew = Making([1, 1], kills={3: 0}, remake_looks=[10**9])
    report = whole_run(monkeypatch, tmp_path, crew, "env.kinds=sim")
    assert crew.remade == [0]
    assert (report["return_after"], report["evaluated_on"]) == (2.0, "sim:1")


def test_a_node_that_is_silent_when_the_training_is_done_costs_no_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What was trained is told, whatever the figures of the end are waited for in vain."""

    class Silent(LosingCrew):
        def wait(self, answer: Any, purpose: str) -> Any:
            if "figures" in purpose and len(self.learned) == 8:
                raise TrainerError("no answer for 900 s while waiting for figures for the report", exit_status=75)
            return super().wait(answer, purpose)

    with pytest.raises(TrainerError, match="no answer for 900 s"):
        whole_run(monkeypatch, tmp_path, Silent([1, 1]), "env.kinds=sim")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["iterations"] == 8


def test_workers_that_are_made_anew_count_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What those before them made and got is in the sums; they themselves begin at 0."""
    monkeypatch.setattr("edgelink.training.trainer.making._FIRST_PAUSE_S", 0.0)
    crew = PlayedRunCrew([1, 1], kills={8: 1})
    report = whole_run(monkeypatch, tmp_path, crew, "env.kinds=sim", "run.iterations=30")
    (rollout,) = [worker for worker in report["workers"] if worker["component"] == "rollout"]
    of_the_first = rollout["samples_produced"] - 9  # which is what the others say in the end
    assert of_the_first >= 8 * 64
    assert of_the_first % 64 == 0
    assert report["bytes"]["weights_by_node"]["2"] > 500


def test_the_last_version_is_evaluated_in_the_records_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the update that made it; it is a record an update all the same."""
    progress = tmp_path / "progress"
    whole_run(monkeypatch, tmp_path, PlayedRunCrew([1, 1]), "env.kinds=sim", "--progress", str(progress))
    records = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [record["iteration"] for record in records] == list(range(1, 9))
    assert [one["version"] for record in records for one in record.get("evaluations", ())] == [8]


def test_an_edge_that_came_later_is_one_for_a_driver_that_is_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only who was there when the run began and is not in the placement was left out on purpose."""
    kept = ["env.kinds=sim", "--checkpoint-dir", str(tmp_path / "c")]
    monkeypatch.setenv("EDGELINK_RUN_ID", "today")
    crew = PlayedRunCrew([1, 1])
    crew.left_out = {"10.0.0.50"}  # type: ignore[misc]
    whole_run(monkeypatch, tmp_path, crew, *kept)
    monkeypatch.setenv("EDGELINK_ATTEMPT", "2")
    crew = PlayedRunCrew([1, 1])
    crew.left_out = {"10.0.0.50", "10.0.0.60"}  # type: ignore[misc]
    whole_run(monkeypatch, tmp_path, crew, *kept, "run.iterations=16")
    assert crew.left_out == {"10.0.0.50"}


@pytest.mark.parametrize(("least", "is_told"), [(-4.0, True), (-7.0, False)])
def test_a_policy_that_becomes_wider_by_a_resume_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], least: float, is_told: bool
) -> None:
    """A robot moves by it."""
    kept = ["env.kinds=sim", "--checkpoint-dir", str(tmp_path / "c")]
    crew = PlayedRunCrew([1, 1])
    real = crew.start

    def start(*arguments: Any) -> Any:
        started = real(*arguments)
        crew.figures["state"] = {"w": np.zeros(2), "net/policy/log_std": np.asarray([-1.0, -6.5])}
        return started

    crew.start = start  # type: ignore[method-assign]
    whole_run(monkeypatch, tmp_path, crew, *kept)
    settings = ["run.iterations=9", f"algorithm.least_log_std={least}", "--resume=always"]
    whole_run(monkeypatch, tmp_path, PlayedRunCrew([1, 1]), *kept, *settings)
    said = "".join(capsys.readouterr())
    assert "resumed after iteration 8" in said
    assert ("was -6.5, and algorithm.least_log_std is -4" in said) == is_told


def test_a_budget_that_does_not_do_is_told_before_anything_moves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A robot plays no episode with the untrained policy for a training that is refused."""
    ways = [Link(source, target, 100.0, 0.01) for source, target in ((0, 1), (1, 0), (0, 2), (2, 0))]
    links = Measured({link.way: link for link in ways}, {0: "cloud", 1: "edge-1", 2: "edge-2"})
    (tmp_path / "links.json").write_text(json.dumps(links.to_dict()))
    monkeypatch.setenv("EDGELINK_LINKS", str(tmp_path / "links.json"))
    crew = PlayedRunCrew([1, 1])
    with pytest.raises(TrainerError, match="the links do not carry this training") as refused:
        whole_run(monkeypatch, tmp_path, crew, "env.kinds=robot", "flow.wanted_env_steps_per_s=1000")
    assert refused.value.exit_status == 75
    assert crew.asked_for == []
    assert crew.steps == {}


def test_a_task_that_fails_in_its_first_evaluation_ends_the_run_with_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other pair evaluates; where there is none, what the task raised is what the run says."""

    class Failing(LosingCrew):
        def wait_while(self, answer: Any, purpose: str, steps: Any) -> Any:
            env = slots_of(9).envs[self._of[answer]]
            raise WorkerFailedError(env, TrainerError(f"{env} failed: no such joint", "its log"))

    with pytest.raises(TrainerError, match=r"env:1 .* failed: no such joint"):
        whole_run(monkeypatch, tmp_path, Failing([1, 1]), "env.kinds=sim")


@pytest.mark.parametrize("silent", [{0}, {0, 1}])
def test_an_edge_that_is_silent_when_the_training_is_done_costs_its_own_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, silent: set[int]
) -> None:
    """After the stall timeout another one evaluates; with nobody left what was trained is there all the same."""

    class Silent(LosingCrew):
        def wait_while(self, answer: Any, purpose: str, steps: Any) -> Any:
            if len(self.learned) == 8 and self._of[answer] in silent:
                Patience(print, stall_timeout_s=-1.0).check(purpose, [slots_of(2).rollouts[self._of[answer]]])
            return self.value(answer)

    report = whole_run(monkeypatch, tmp_path, Silent([1, 1]), "env.kinds=sim")
    assert report["return_after"] == (2.0 if silent == {0} else None)
    assert [(event["what"], event["worker"]) for event in report["events"]] == [("lost", f"env:{i}") for i in silent]
    assert "waiting for the evaluation: rollout:0" in report["events"][0]["why"]


def test_attempts_that_were_broken_off_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside those that count. And a robot is asked for one attempt after the other, each of which takes its time."""
    crew = PlayedRunCrew([1, 1], broken_off=3)
    settings = "env.kinds=robot", "run.eval_episodes=5"
    assert whole_run(monkeypatch, tmp_path, crew, *settings)["return_after"] == 2.0
    told = capsys.readouterr()
    assert "(95 %), 5 episodes; 15 broken off, which do not count\n" in told.out + told.err
    assert set(crew.asked_for) == {1}


@pytest.mark.parametrize(
    ("hindrances", "evaluator", "is_said"),
    [
        ([Hindrance("env-0 is stopped", needs_person=True), Hindrance()], 1, False),
        ([Hindrance("env-0 is stopped", needs_person=True), Hindrance("env-1 has not begun")], 1, True),
        ([Hindrance("env-0 has not begun"), None], 0, True),
        ([None, Hindrance()], 1, False),
        ([Hindrance(), Hindrance()], 0, False),
    ],
)
def test_a_robot_that_may_move_is_the_one_that_evaluates(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    hindrances: list[Hindrance | None],
    evaluator: int,
    is_said: bool,
) -> None:
    """As each says when it is asked; None: it does not answer. Where none may, it is said who is waited for."""

    class Robots(PlayedRunCrew):
        def call(self, slot: Slot, method: str, *arguments: Any, **more: Any) -> Any:
            if method == "hindrance":
                found = hindrances[slot.process_rank]
                return self._answer(found, 10**9 if found is None else 1, slot.process_rank)
            return super().call(slot, method, *arguments, **more)

    crew = Robots([1, 1])
    monkeypatch.setattr(time, "monotonic", crew.clock)
    report = whole_run(monkeypatch, tmp_path, crew, "env.kinds=robot")
    assert report["evaluated_on"] == f"robot:{evaluator}"
    told = capsys.readouterr()
    said = [line for line in (told.out + told.err).splitlines() if line.startswith("no robot may move")]
    words = getattr(hindrances[evaluator], "words", "")
    assert said == [f"no robot may move; the evaluation waits for env:{evaluator}: {words}"] * (2 * is_said)


def test_two_newcomers_are_told_of_in_whatever_order_they_come(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Their kinds are known when the first of them is learned from."""
    crew = PlayedRunCrew([1, 1], new_nodes=[(7, "10.0.0.97", "a"), (8, "10.0.0.98", "b")], remake_looks=[9, 0])
    report = whole_run(monkeypatch, tmp_path, crew, "env.kinds=sim", "run.iterations=30", "elastic.grow=true")
    assert [event["worker"] for event in report["events"]] == ["env:3", "env:2"]
    assert {3, 4} <= {len(update) for update in crew.learned}


def test_only_nodes_that_were_not_there_at_the_start_are_newcomers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A node that the placement leaves out on purpose gets no worker."""

    def node(rank: int, *, is_alive: bool = True) -> dict[str, Any]:
        labels = {"edgelink.rank": str(rank)}
        return {"Alive": is_alive, "NodeManagerAddress": f"10.0.0.{rank + 1}", "Labels": labels}

    nodes = [node(0), node(1), node(5), node(6, is_alive=False)]
    played = SimpleNamespace(init=lambda **_: None, nodes=lambda: nodes)
    monkeypatch.setitem(sys.modules, "ray", played)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    crew = Crew(slots_of(1), [tmp_path], print, 1.0)
    crew.connect()
    assert crew.newcomers() == []
    nodes[3:] = [node(6), node(7)]
    assert [rank for rank, _, _ in crew.newcomers()] == [6, 7]
    nodes[3:] = [node(6), node(6)]  # Ray was started again there, and has not given up the one before
    assert [rank for rank, _, _ in crew.newcomers()] == [6]

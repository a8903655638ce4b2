"""The training loop with workers that are played."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from played_crew import PlayedCrew, first, slots_of, training

from edgelink.training.trainer.crew_checks import NOTICE_EVERY_S, WorkerFailedError
from edgelink.training.trainer.experience.pieces import Pieces
from edgelink.training.trainer.experience.weights_codec import Offer
from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.flow import FlowSettings
from edgelink.training.trainer.offers import Offers
from edgelink.training.trainer.slots import Slot
from edgelink.training.trainer.stop_signals import Stopped
from edgelink.training.trainer.training import _LOOK_S, ElasticSettings, Learned


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
    assert any("1 of 2" in line for line in said)
    assert any("2 of 2" in line for line in said)


def test_a_simulator_that_fails_takes_only_its_own_pair() -> None:
    """An exception is no worse than a death: the others go on, and the pair is made anew."""
    crew = PlayedCrew([1, 1], failing={(1, 4): "huge value in QACC", (1, 30): "huge value in QACC"})
    events: list[tuple[str, str]] = []
    loop, said = training(crew, 80, on_event=lambda what, slot, why: events.append((what, why)))
    assert loop.run(first()).version == 80
    assert crew.remade == [1, 1]
    failed = "env:1 on node 2 (edge-2, 10.0.0.3) failed: huge value in QACC"
    assert events == [("lost", failed), ("joined", "")] * 2
    assert any(line.startswith(failed) and "1 of 2" in line for line in said)
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
    given_up = [line for line in said if "300 s" in line]
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
    given_up = [line.partition(";") for line in said if line.endswith((" in 4 s", " in 8 s"))]
    assert [why for why, _, _ in given_up] == ["no numpy there (install it)", "another task"]


@pytest.mark.parametrize("is_made", [True, False])
def test_the_last_pairs_death_waits_for_one_that_is_being_made(is_made: bool) -> None:
    """So long as that may take, and no longer."""
    crew = PlayedCrew([1, 1], kills={5: 0, 15: 1}, away={1}, remake_looks=[60 if is_made else 10**9])
    loop, said = training(crew, 30, stall_timeout_s=300.0)
    if is_made:
        assert loop.run(first()).version == 30
        assert any("waiting for env:0 on node 1" in line for line in said)
    else:
        with pytest.raises(TrainerError, match=r"300 s .*env:0 on node 1"):
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
    assert any("waiting for env:0 on node 1" in line for line in said)
    assert any(re.match("waiting 1. s for experience: env:0 on node 1", line) for line in said)


def test_an_only_edge_that_stays_away_ends_the_run_after_the_stall_timeout() -> None:
    """With who was waited for; another attempt may find it there."""
    crew = PlayedCrew([1], kills={5: 0}, away={0})
    loop, _ = training(crew, 20, stall_timeout_s=300.0)
    with pytest.raises(TrainerError, match=r"300 s .*env:0") as caught:
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


@dataclass
class CutCrew(PlayedCrew):
    """Nothing comes from pair 1 between two moments, and Ray gives up nobody."""

    cut_s: tuple[float, float] = (0.0, 0.0)
    left_out: list[int] = field(default_factory=list)

    def ready(self, answers: Sequence[Any], timeout_s: float) -> list[Any]:
        begin_s, end_s = self.cut_s
        is_cut = begin_s <= self.now_s < end_s
        return [answer for answer in super().ready(answers, timeout_s) if not (is_cut and self._of[answer] == 1)]

    def leave_out(self, index: int) -> list[Any]:
        self.left_out.append(index)
        return []


@pytest.mark.parametrize(("until_s", "told"), [(40.0, ["silent", "answers"]), (1e9, ["silent"])])
def test_a_pair_that_does_not_answer_is_told_and_not_waited_for_at_the_end(until_s: float, told: list[str]) -> None:
    """It is no pair that is lost: nothing is made anew, and it goes on where it answers again."""
    events: list[tuple[str, str, float]] = []
    crew = CutCrew([1, 1], cut_s=(5.0, until_s))
    loop, said = training(
        crew,
        iterations=100,
        on_event=lambda what, slot, _why: events.append((what, slot.name, crew.now_s)),
        flow=FlowSettings(max_policy_lag=2, straggler_patience_s=1.0),
    )
    loop.run(first())
    assert [(what, name) for what, name, _ in events] == [(what, "env:1") for what in told]
    assert 10.0 <= events[0][2] - 5.0 < 15.0
    assert len(said) == len(told)
    assert crew.left_out == ([1] if told == ["silent"] else [])
    assert not crew.remade


@pytest.mark.parametrize(("looks", "events"), [(10**9, ["left out"]), (75, ["left out", "takes part"])])
def test_a_pair_that_contributes_nothing_is_told(looks: int, events: list[str]) -> None:
    """Though it answers: once, with for how long, and once more when it takes part again; each record counts it."""
    found: list[tuple[str, str]] = []
    crew, missed = PlayedCrew([1, looks]), []
    loop, said = training(
        crew,
        iterations=160,
        on_event=lambda what, slot, _why: found.append((what, slot.name)),
        on_update=lambda learned: missed.append(learned.missed.get(1, 0)),
        flow=FlowSettings(max_policy_lag=160, straggler_patience_s=1.0),
    )
    loop.run(first())
    assert found == [(what, "env:1") for what in events]
    assert len(said) == len(events)
    assert "env:1 on node 2" in said[0]
    assert missed[:3] == [1, 2, 3]
    assert (missed[-1] < 160) == ("takes part" in events)


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

"""The training loop: asks for experience, has the learner learn from it, offers the new weights, and keeps going while
edges come and go. What is decided is in ``flow``; who does it is the crew's."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from edgelink.training.trainer.crew_checks import COLLECT, HOLD, Patience, Pulse, WorkerFailedError, WorkerLostError
from edgelink.training.trainer.experience.environment import ROBOT, SIMULATOR
from edgelink.training.trainer.experience.parcel import About
from edgelink.training.trainer.experience.pieces import is_large
from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.flow import Arrival, Flow, FlowSettings
from edgelink.training.trainer.learner_worker import Made
from edgelink.training.trainer.learning.evaluation import Played
from edgelink.training.trainer.learning.group import dealt
from edgelink.training.trainer.making import NODES_EVERY_S, Making
from edgelink.training.trainer.offers import Offers, Told
from edgelink.training.trainer.setting import setting
from edgelink.training.trainer.slots import Slot, Slots, grown
from edgelink.training.trainer.voice import duration_text
from edgelink.training.trainer.whereabouts import Whereabouts

_LARGE_AT_ONCE = 2  # over each link: while the last pieces of one come, the first of the next are asked for
_EVALUATION_TRIES = 2  # what ends each simulator that it is tried on must not take all of them
_SILENT_S = 10.0  # an offer is answered within a round trip, also while the worker collects
_MISSED_S, _MISSED_UPDATES = 30.0, 10  # without a pair, before that is said
_LOOK_S = 0.5  # how often time itself is looked at: patience, and nodes that are back


@dataclass(frozen=True)
class ElasticSettings:
    """What happens when edges go and come while a policy is trained."""

    grow: bool = setting(False, "nodes that join the network meanwhile each get a simulator, too")
    robots_return: bool = setting(
        False, "a robot whose node was gone is commanded again as soon as it is back, without being asked"
    )


class Workers(Protocol):
    """What the loop needs of the crew."""

    @property
    def waits_for_a_person(self) -> bool: ...
    def call(self, slot: Slot, method: str, *arguments: Any, returns: int = 1, group: str | None = None) -> Any: ...
    def ready(self, answers: Sequence[Any], timeout_s: float) -> list[Any]: ...
    def value(self, answer: Any) -> Any: ...
    def forget(self, answer: Any) -> None: ...
    def check(self, slot: Slot, found: Any) -> Whereabouts: ...
    def remake(self, index: int, kind: str) -> dict[Any, Slot] | None: ...
    def drop(self, index: int) -> None: ...
    def leave_out(self, index: int) -> Sequence[Any]: ...
    def newcomers(self) -> list[tuple[int, str, str]]: ...
    def take_in(self, slots: Slots) -> None: ...


@dataclass(frozen=True)
class Learned:
    """One update, as it is told to whoever counts."""

    iteration: int
    abouts: Sequence[About]
    made: Made
    seconds: float
    lags: Sequence[int]
    missed: Mapping[int, int] = field(default_factory=dict)  # pairs without a part in it: for how many updates now


class Training:
    """From one version of the weights to the last one."""

    def __init__(
        self,
        crew: Workers,
        slots: Slots,
        kinds: Sequence[str],
        steps: Sequence[int],
        settings: FlowSettings,
        *,
        first_iteration: int,
        iterations: int,
        say: Callable[[str], None],
        on_update: Callable[[Learned], None],
        on_fragment: Callable[[About], None] = lambda _about: None,
        on_offered: Callable[[int, Told], None] = lambda _pair, _told: None,
        on_evaluation: Callable[[int, Sequence[float]], None] = lambda _version, _returns: None,
        on_located: Callable[[Slot, Any, str], None] = lambda _slot, _found, _kind: None,
        on_event: Callable[[str, Slot, str], None] = lambda _what, _slot, _why: None,
        evaluate_every: int = 0,
        evaluation_episodes: int = 16,
        elastic: ElasticSettings | None = None,
        is_near_learner: bool = True,
        stall_timeout_s: float = 900.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._crew = crew
        self._slots = slots
        self._kinds = list(kinds)
        self._steps = list(steps)
        self._iteration = first_iteration - 1
        self._say = say
        self._on_update = on_update
        self._on_fragment = on_fragment
        self._on_offered = on_offered
        self._on_evaluation = on_evaluation
        self._on_event = on_event
        self._evaluate_every = evaluate_every
        self._episodes = evaluation_episodes
        self._elastic = elastic or ElasticSettings()
        self._is_near_learner = is_near_learner
        self._clock = clock
        self._patience = Patience(say, stall_timeout_s, clock, lambda: crew.waits_for_a_person)
        self._collecting: dict[Any, tuple[int, int, Any]] = {}  # answer → pair, ticket, where the payload will be
        self._fetching: dict[Any, tuple[int, About, Any]] = {}  # answer → pair, and what is on its way to the learners
        # Large experience, by the address that it comes from.
        self._large: defaultdict[str, list[Any]] = defaultdict(list)  # answers of what is on its way
        self._next: defaultdict[str, deque[tuple[int, About, Any]]] = defaultdict(deque)  # what is behind that
        self._evaluating: dict[Any, tuple[int, Pulse]] = {}  # answer → pair, how far it is
        self._tries_due = 0  # of an evaluation that is to be begun as soon as that can be
        self._tries_left = 0  # of the one that runs, should it be lost
        self._slow: dict[int, Pulse] = {}  # pairs that collect for long: how far each is
        self._offers = Offers(crew, settings.max_policy_lag, clock)
        self._making = Making(
            crew, say, lambda slot, found, index: on_located(slot, found, self._kinds[index]), clock, stall_timeout_s
        )
        self._losses: dict[int, WorkerLostError] = {}  # the last one of each pair, the newest at the end
        self._heard_s: dict[int, float] = {}  # when something last came from a pair
        self._silent: dict[int, float] = {}  # pairs that do not answer, and since when
        self._again_s: dict[int, float] = {}  # pairs that were silent: when they answered again
        self._unlearned: dict[int, float] = {}  # pairs of which it was said that nothing is learned from them; since
        self._nodes_next_s = 0.0
        self._made: Made | None = None
        self.flow = Flow(settings, [kind == ROBOT for kind in kinds], iterations - self._iteration)

    def run(self, made: Made) -> Made:
        """All updates that are left; returns the last version.

        Raises:
            TrainerError: no pair of workers is left and none may come back, nothing comes any more, or a learner is
                gone.
        """
        self._made = made
        if self._evaluate_every and all(kind == ROBOT for kind in self._kinds):
            self._say(
                "run.eval_every needs a simulator, and there are only robots: one of them evaluates before and after "
                "the training, none meanwhile"
            )
        self.flow.begin(made.version, self._clock())
        self._patience.begin()
        for index in self.flow.pairs:
            self._making.lives(index)
            self._offer(index)
        while self.flow.left:
            self._evaluate()
            self._ask()
            self._mind_nodes()
            if not self.flow.pairs and not self._awaited:
                raise next(reversed(self._losses.values()))
            if chosen := self.flow.choose(self._clock()):
                self._learn(chosen)  # which looks, too
            else:
                self._look()
        self._await_evaluation()
        # Who is not there, or does not answer, is not waited for to evaluate or to tell figures.
        for index in self._making.gone:
            self._crew.drop(index)
        for index in self._silent:
            self._crew.leave_out(index)
        return self._made

    @property
    def slots(self) -> Slots:
        """The placement, with what has joined."""
        return self._slots

    @property
    def kinds(self) -> list[str]:
        """Of the pairs, by index; with what has joined."""
        return self._kinds

    def _await_evaluation(self) -> None:
        """One that goes on after the last update is told, too. If it stalls, that costs the training nothing."""
        self._collecting.clear()  # nothing is learned from it any more, so it need not cross its link
        for index in list(self._slow):
            self._is_back(index)
        self._fetching.clear()
        self._next.clear()
        try:
            while self._evaluating:
                self._look()
        except TrainerError as error:
            self._say(f"{error.message}; the training is done without it")

    def _ask(self) -> None:
        for credit in self.flow.credits():
            steps = max(1, int(self._steps[credit.pair] * credit.share))
            slot = self._slots.rollouts[credit.pair]
            try:
                arguments = credit.ticket, steps, credit.least_version, self.flow.version
                about, payload = self._crew.call(slot, "collect", *arguments, returns=2, group=COLLECT)
            except WorkerLostError as error:
                self._lost(credit.pair, error)
                continue
            self._collecting[about] = credit.pair, credit.ticket, payload

    def _look(self, learning: Collection[Any] = ()) -> list[Any]:
        """Wait for something to happen, and take note of all that has; which of ``learning`` have answered."""
        making, offers = self._making.answers, self._offers.answers
        others = [*(*self._collecting, *self._fetching, *self._evaluating, *self._pulses, *making, *offers)]
        ready = self._crew.ready([*learning, *others], _LOOK_S)
        if not ready:  # what comes begins it anew, in `_arrived` and `_learn`
            rollouts = self._slots.rollouts
            late = [rollouts[index] for index in self.flow.waited_for()] or self._awaited
            if not self.flow.left:
                what, who = "the evaluation", [rollouts[index] for index, _ in self._evaluating.values()]
            else:
                what, who = ("new weights", [*self._slots.learners]) if learning else ("experience", late)
            self._patience.check(what, who)
            collecting = {pair for pair, *_ in self._collecting.values()}
            for pair in collecting - self._slow.keys() - {pair for pair, _ in self._evaluating.values()}:
                self._slow[pair] = self._pulse(pair)
        for _, pulse in [*self._evaluating.values(), *self._slow.items()]:
            with suppress(WorkerLostError):  # of which what it was asked for tells
                pulse.ask()
        for answer in ready:  # those of a pair that is lost meanwhile are in none of them any more
            if answer in self._collecting:
                self._collected(answer)
            elif answer in self._fetching:
                self._fetched(answer)
            elif answer in self._evaluating:
                self._evaluated(answer)
            elif answer in self._pulses:
                self._goes_on(answer)
            elif answer in self._offers.answers:
                self._offered(offers[answer], answer)
            elif answer in making and (index := self._making.located(answer)) is not None:
                self._joined(index)
        self._mind_silence()
        return [answer for answer in ready if answer in learning]

    def _heard(self, index: int) -> None:
        """Something came from a pair."""
        self._heard_s[index] = self._clock()
        if (since_s := self._silent.pop(index, None)) is not None:
            self._again_s[index] = self._clock()
            slot = self._slots.rollouts[index]
            self._on_event("answers", self._slots.envs[index], "")
            self._say(f"{slot} answers again after {duration_text(self._clock() - since_s)}; {self._strength()}")

    def _mind_silence(self) -> None:
        """Tell of each pair that has stopped to answer. Only Ray's word makes it a pair that is lost."""
        for index in self.flow.pairs:
            since_s = max(self._heard_s.get(index, 0.0), self._clock() - self._offers.unanswered_s(index))
            if index not in self._silent and self._clock() - since_s >= _SILENT_S:
                self._silent[index] = since_s
                why = f"{self._slots.rollouts[index]} has not answered for {self._clock() - since_s:.0f} s"
                self._on_event("silent", self._slots.envs[index], why)
                self._say(f"{why}; {self._strength()}")

    def _mind_missed(self) -> None:
        """Say of which pair nothing has been learned for long, though it answers, and when that is over."""
        missed, now_s = self.flow.missed(), self._clock()
        excused = {pair for pair, _ in self._evaluating.values()} | self._silent.keys()
        for index, (updates, begun_s) in missed.items():
            since_s = max(begun_s, self._again_s.get(index, begun_s))
            is_long = updates >= _MISSED_UPDATES and now_s - since_s >= _MISSED_S
            if is_long and index not in self._unlearned.keys() | excused:
                self._unlearned[index] = since_s
                env = self._slots.envs[index]
                why = (
                    f"nothing of {env} was learned from for {duration_text(now_s - since_s)}, in {updates} updates: it "
                    "sends nothing, or what is too old when it comes"
                )
                self._on_event("left out", env, why)
                self._say(f"{why}; the training goes on without it")
        for index in self._unlearned.keys() - missed.keys():
            since_s, env = self._unlearned.pop(index), self._slots.envs[index]
            self._on_event("takes part", env, "")
            self._say(f"{env} takes part again, after {duration_text(now_s - since_s)}")

    def _collected(self, answer: Any) -> None:
        index, _, payload = self._collecting.pop(answer)
        self._is_back(index)
        about = self._value_of(index, answer)
        if about is None:
            return
        self._heard(index)
        self._on_fragment(about)
        if self._dropped(index, about, payload):
            return
        if is_large(sum(about.sent_bytes.values()), self.flow.settings.chunk_bytes):
            address = self._slots.rollouts[index].ip
            self._next[address].append((index, about, payload))
            self._carry_on(address)
        elif self._is_near_learner:
            self._fetching[payload] = index, about, payload
        else:
            self._hold(index, about, payload)

    def _dropped(self, index: int, about: About, payload: Any) -> bool:
        """What is too old does not cross the link: whether this was, and is let go of."""
        if not self.flow.is_too_old(about.weights_version):
            return False
        self._crew.forget(payload)
        self._arrived(index, about, None)
        return True

    def _hold(self, index: int, about: About, payload: Any) -> Any:
        """To the learners' side before an update is begun with it: they would all wait for an edge that dies then."""
        self._crew.forget(payload)  # it is not this driver that takes it from where it is
        learner = self._slots.learners[index % len(self._slots.learners)]
        held, copy = self._crew.call(learner, "hold", [payload], returns=2, group=HOLD)
        self._crew.forget(copy)
        self._fetching[held] = index, about, copy
        return held

    def _carry_on(self, address: str) -> None:
        """With the next large ones over the link to there, a few at a time: an outage costs no more, and what gets too
        old meanwhile does not cross it."""
        waiting = self._next[address]
        large = self._large[address] = [held for held in self._large[address] if held in self._fetching]
        while waiting and len(large) < _LARGE_AT_ONCE:
            index, about, payload = waiting.popleft()
            if not self._dropped(index, about, payload):
                large.append(self._hold(index, about, payload))

    def _fetched(self, answer: Any) -> None:
        index, about, payload = self._fetching.pop(answer)
        found = self._value_of(index, answer)
        if isinstance(found, str) and found:
            self._lost(index, WorkerLostError(self._slots.envs[index], OSError(found)))
        elif found is not None:
            self._heard(index)
            self._arrived(index, about, payload)
        self._carry_on(self._slots.rollouts[index].ip)

    def _arrived(self, index: int, about: About, payload: Any) -> None:
        self._patience.begin()
        arrival = Arrival(index, about.ticket, about.weights_version, about.samples, (about, payload))
        self.flow.arrived(arrival, self._clock())

    def _evaluated(self, answer: Any) -> None:
        index, pulse = self._evaluating[answer]
        played: Played | None = self._value_of(index, answer)
        if played is None:
            return
        del self._evaluating[answer]
        if pulse.answer is not None:
            self._crew.forget(pulse.answer)
        self.flow.evaluated(index)
        self._on_evaluation(played.version, played.returns)

    @property
    def _pulses(self) -> dict[Any, tuple[int, Pulse]]:
        """By the answer that is waited for: the pair, and its pulse."""
        found = [*self._evaluating.values(), *self._slow.items()]
        return {pulse.answer: (index, pulse) for index, pulse in found if pulse.answer is not None}

    def _pulse(self, index: int) -> Pulse:
        slot = self._slots.rollouts[index]
        return Pulse(lambda: self._crew.call(slot, "steps"), self._clock)

    def _is_back(self, index: int) -> None:
        """A pair has collected what took long, or need not any more."""
        pulse = self._slow.pop(index, None)
        if pulse is not None and pulse.answer is not None:
            self._crew.forget(pulse.answer)

    def _goes_on(self, answer: Any) -> None:
        """Nothing else may come meanwhile, and that is no stall as long as a simulator makes steps."""
        index, pulse = self._pulses[answer]
        steps = self._value_of(index, answer)
        if steps is not None:
            self._heard(index)
        if steps is not None and pulse.comes_further(steps):
            self._patience.begin()

    def _value_of(self, index: int, answer: Any) -> Any:
        """None if the pair is gone. Of a learner that is gone, the error is everybody's."""
        try:
            return self._crew.value(answer)
        except WorkerLostError as error:
            if error.slot in self._slots.learners:
                raise
            self._lost(index, error)
            return None

    def _learn(self, chosen: Sequence[Arrival]) -> None:
        begun_s = self._clock()
        lags = [self.flow.version - arrival.version for arrival in chosen]
        pairs: list[tuple[About, Any]] = [arrival.what for arrival in chosen]  # type: ignore[misc]
        self._iteration += 1
        payloads = [payload for _, payload in pairs]
        learners = self._slots.learners
        learning = [  # all make the update together; the first one tells of it
            self._crew.call(slot, "update", self._iteration, *(payloads[index] for index in share))
            for slot, share in zip(learners, dealt([about.samples for about, _ in pairs], len(learners)), strict=True)
        ]
        # All at once: of a learner that is gone its own answer tells, the others would wait for it. And beside what
        # comes from the edges meanwhile, so that large experience crosses its link while the learner learns.
        told: dict[Any, Any] = {}
        while rest := [answer for answer in learning if answer not in told]:
            told.update((answer, self._crew.value(answer)) for answer in self._look(rest))
        made: Made = told[learning[0]]
        self._made = made
        self.flow.learned(made.version, self._clock())
        for index in self.flow.pairs:
            self._offer(index)
        self._patience.begin()
        abouts, seconds = [about for about, _ in pairs], self._clock() - begun_s
        missed = {index: updates for index, (updates, _) in self.flow.missed().items()}
        self._on_update(Learned(self._iteration, abouts, made, seconds, lags, missed))
        self._mind_missed()
        if self._evaluate_every and self._iteration % self._evaluate_every == 0:
            self._tries_due = _EVALUATION_TRIES

    def _offer(self, index: int) -> None:
        """Tell a worker of the newest weights; those that share a node fetch them once together."""
        assert self._made is not None
        slot, offer = self._slots.rollouts[index], self._made.offer
        if sum(self._slots.rollouts[other].ip == slot.ip for other in self.flow.pairs) == 1:
            offer = replace(offer, enclosed=self._made.enclosed)
        try:
            self._offers.tell(index, slot, offer)
        except WorkerLostError as error:
            self._lost(index, error)

    def _offered(self, index: int, answer: Any) -> None:
        try:
            noted_s = self._crew.value(answer)
            self._on_offered(index, self._offers.answered(index, answer, noted_s))
            self._heard(index)
        except WorkerLostError as error:
            self._lost(index, error)

    def _evaluate(self) -> None:
        """If one is due: on a simulator, as soon as there is one; its next fragments wait for it. What has come due
        meanwhile is one evaluation."""
        index = next((i for i in self.flow.pairs if self._kinds[i] != ROBOT), None)
        if not self._tries_due or index is None or self._evaluating:
            return
        slot = self._slots.rollouts[index]
        try:
            answer = self._crew.call(slot, "evaluate", self.flow.version, self._episodes, group=COLLECT)
        except WorkerLostError as error:
            self._lost(index, error)
            return
        self._evaluating[answer] = index, self._pulse(index)
        self._tries_left, self._tries_due = self._tries_due - 1, 0
        self.flow.evaluates(index)

    def _lost(self, index: int, error: WorkerLostError) -> None:
        """A pair is gone: what it was doing is forgotten, and it is made anew when its node is there."""
        if index not in self.flow.pairs:
            return
        self.flow.lost(index)
        self._is_back(index)
        self._crew.drop(index)
        self._offers.lost(index)
        self._silent.pop(index, None)
        self._unlearned.pop(index, None)
        if index in {pair for pair, _ in self._evaluating.values()} and not isinstance(error, WorkerFailedError):
            self._tries_due = max(self._tries_due, self._tries_left)  # not of what raises: it would do so again
        for waiting in (self._collecting, self._fetching, self._evaluating):
            for answer in [answer for answer, (pair, *_) in waiting.items() if pair == index]:
                del waiting[answer]
                self._crew.forget(answer)
        address = self._slots.rollouts[index].ip
        self._next[address] = deque(other for other in self._next[address] if other[0] != index)
        self._carry_on(address)
        self._making.lost(index)
        # Without those frames, which would hold on to the experience of an update for as long as the run lasts.
        self._losses.pop(index, None)
        self._losses[index] = error.with_traceback(None)
        error.__cause__ = error.__context__ = None
        self._on_event("lost", self._slots.envs[index], error.message)
        self._say(f"{error.message}; {self._strength()}")

    def _mind_nodes(self) -> None:
        self._making.begin(self._kind_to_make)
        now_s = self._clock()
        if self._elastic.grow and now_s >= self._nodes_next_s:
            self._nodes_next_s = now_s + NODES_EVERY_S
            for rank, address, name in self._crew.newcomers():
                self._take_in(rank, address, name)

    def _kind_to_make(self, index: int) -> str | None:
        kind = self._kinds[index]
        return None if kind == ROBOT and not self._elastic.robots_return else kind

    def _take_in(self, rank: int, address: str, name: str) -> None:
        """A node that was not in the placement gets a pair with a simulator."""
        self._slots = grown(self._slots, rank, address, name)
        self._crew.take_in(self._slots)
        index = len(self._kinds)
        like = next((i for i, kind in enumerate(self._kinds) if kind == SIMULATOR), 0)
        self._kinds.append(SIMULATOR)
        self._steps.append(self._steps[like])
        self._making.expect(index)
        self._say(f"node {rank} ({name or address}) has joined: it gets a simulator")

    def _joined(self, index: int) -> None:
        """Both workers of a pair that was made are there."""
        self.flow.joined(index, is_robot=self._kinds[index] == ROBOT)
        self._offer(index)
        env = self._slots.envs[index]
        self._on_event("joined", env, "")
        self._say(f"{env} is there; {self._strength()}")

    def _strength(self) -> str:
        """In words."""
        if answering := len(self.flow.pairs) - len(self._silent):
            return f"training goes on with {answering} of {len(self._kinds)} pairs of workers"
        if self.flow.pairs:
            return "nobody else is left: it is waited for"
        awaited = ", ".join(str(slot) for slot in self._awaited)
        return f"nobody is left; waiting for {awaited}" if awaited else "nobody is left"

    @property
    def _awaited(self) -> list[Slot]:
        """Workers that are being made, and those that will be once their node is back. What has raised is not waited
        for when nobody else is left: it would do so again."""
        coming = [
            self._slots.envs[index]
            for index in self._making.gone
            if self._kind_to_make(index) is not None and not isinstance(self._losses.get(index), WorkerFailedError)
        ]
        return self._making.slots or coming

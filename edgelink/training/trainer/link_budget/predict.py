"""From links and traffic: how fast a training will be, what limits it, and whether another placement is better."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from edgelink.training.trainer.experience.pieces import FIRST, is_large, widened
from edgelink.training.trainer.link_budget.links import Link, Measured, Way
from edgelink.training.trainer.link_budget.traffic import (
    CHANNELS_NODE,
    RLINF_BY_ENV,
    TRAINER,
    WEIGHTS,
    Path,
    Seats,
    Work,
    flows,
    other_seats,
)

TIGHT = 0.7  # of what a link carries; above it, its queues begin to grow
# What Ray's ways cost beside the bytes, in round trips, and beside the half that the bytes themselves take: answers
# that are small come by themselves; large ones, and objects, are asked for; of an object, where it is has to be found.
SMALL_ANSWER_BYTES = 100 * 1024
SMALL_ANSWER, LARGE_ANSWER, OBJECT = 0.0, 1.0, 2.5
ENCLOSED_BYTES = 64 * 1024  # new weights up to this come with their offer, where one worker on the node wants them
# What limits, by its kind.
LINK, LEARNER, LEARNERS, ENVIRONMENTS, ACTIONS, ROUND_TRIP, TURNS = (
    "link", "learner", "learners", "environments", "actions", "round trip", "turns",
)  # fmt: skip
_STAYS = "rollout beside"  # of another placement: the environments stay where they are


@dataclass(frozen=True)
class Load:
    """What a training puts on one direction of a link.

    Attributes:
        parts: bytes of one update, by what they are.
        mbit_per_s: at the predicted, or wanted, pace.
        share: of what the link carries; None: it was not measured.
        carries_env_steps_per_s: how many of all workers' steps the link has room for; None likewise.
    """

    source: int
    target: int
    parts: Mapping[str, float]
    mbit_per_s: float
    share: float | None
    carries_env_steps_per_s: float | None

    @property
    def update_bytes(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True)
class Prediction:
    """What is to be expected of a placement.

    Attributes:
        env_steps_per_s: of all workers together; None: neither their own pace nor a link limits it.
        limit: what does, in words.
        kind: what kind of limit it is; empty: none.
        sync_s: by node rank, from the end of an update to its weights' arrival.
        unmeasured: ways that are used, and of which nothing is known.
        wanted_share: of what there can be, the wanted steps; None: nothing is wanted, or nothing known.
    """

    loads: tuple[Load, ...]
    env_steps_per_s: float | None
    limit: str
    kind: str
    sync_s: Mapping[int, float]
    unmeasured: tuple[Way, ...] = ()
    wanted_share: float | None = None

    @property
    def is_too_much(self) -> bool:
        return self.wanted_share is not None and self.wanted_share > 1

    @property
    def is_tight(self) -> bool:
        return any(load.share is not None and load.share > TIGHT for load in self.loads)


@dataclass
class _Limits:
    """The most updates a second, and who says so."""

    found: list[tuple[float, str, str]] = field(default_factory=list)

    def at_most(self, updates_per_s: float, kind: str, who: str) -> None:
        self.found.append((updates_per_s, kind, who))

    def least(self) -> tuple[float, str, str]:
        """With the kind of what limits, and who does."""
        return min(self.found, key=lambda each: each[0], default=(math.inf, "", "nothing that is known"))


def predict(seats: Seats, work: Work, measured: Measured) -> Prediction:
    """How ``work`` goes with this placement over these links.

    All workers give a fragment to each update, so all go at the pace of the slowest: of env workers, of the learner,
    of each direction of a link, and of the way of one fragment there and the weights back, of which ``max_policy_lag``
    + 1 are under way at once.
    """
    moved = flows(seats, work)
    parts: dict[Way, dict[str, float]] = {}
    for flow in moved:
        by_part = parts.setdefault((flow.source, flow.target), {})
        by_part[flow.what] = by_part.get(flow.what, 0.0) + flow.size_bytes
    links = measured.links
    of_weights = [flow for flow in moved if flow.what == WEIGHTS and (flow.source, flow.target) in links]
    weights_way = {flow.target: (flow.source, flow.target) for flow in of_weights}
    sync_s = {
        node: _sync_s(links[way], parts[way][WEIGHTS], seats.rollout.count(node), work)
        for node, way in weights_way.items()
    }
    limits = _limits(seats, work, measured, parts, sync_s)
    updates_per_s, kind, limit = limits.least()
    held_s = {node: _held_s(links[way], parts, work, updates_per_s) for node, way in weights_way.items()}
    possible = updates_per_s * work.steps
    wanted = work.wanted_env_steps_per_s
    pace = possible if wanted is None else wanted
    loads = tuple(_load(way, by_part, work, links.get(way), pace) for way, by_part in sorted(parts.items()))
    return Prediction(
        loads,
        possible if math.isfinite(possible) else None,
        limit,
        kind,
        {node: seconds + work.sync_rest_s + held_s[node] for node, seconds in sync_s.items()},
        tuple(way for way in sorted(parts) if way not in links),
        wanted / possible if wanted is not None and math.isfinite(possible) else None,
    )


def reducing_s(seats: Seats, work: Work, measured: Measured) -> float:
    """What the trainer's learners wait in one update for each other's gradients because these cross links; 0 where
    they do not, or where it is not known."""
    to_others = {(seats.actor[0], node) for node in seats.actor[1:] if node != seats.actor[0]}
    if work.rules != TRAINER or not work.reductions or not measured.links.keys() >= {*seats.ring(), *to_others}:
        return 0.0
    learners = len(seats.actor)
    passes = [measured.links[way].transfer_s(work.gradient_bytes / learners, is_warm=True) for way in seats.ring()]
    follows = [measured.links[way].transfer_s(work.gradient_bytes, is_warm=True) for way in to_others]
    return work.reductions * 2 * (learners - 1) * max(passes, default=0.0) + max(follows, default=0.0)


def traffic(prediction: Prediction, node: int) -> tuple[float, float]:
    """What a node is expected to send and to receive, in Mbit/s, over all its links."""
    sent = sum(load.mbit_per_s for load in prediction.loads if load.source == node)
    return sent, sum(load.mbit_per_s for load in prediction.loads if load.target == node)


def better(seats: Seats, work: Work, measured: Measured, *, env_may_move: bool) -> list[tuple[str, Prediction]]:
    """Other placements of the same processes that go faster, the best first; each with what to do."""
    now = predict(seats, work, measured)
    found = []
    for name, other in other_seats(seats, env_may_move=env_may_move, rules=work.rules).items():
        then = predict(other, work, measured)
        if not then.unmeasured and _pace(then) > 1.05 * _pace(now):
            found.append((name, then))
    # What leaves the environments where they are comes first, if it does.
    return sorted(found, key=lambda each: (each[1].is_too_much, not each[0].startswith(_STAYS), -_pace(each[1])))


def _pace(prediction: Prediction) -> float:
    return math.inf if prediction.env_steps_per_s is None else prediction.env_steps_per_s


def _limits(
    seats: Seats,
    work: Work,
    measured: Measured,
    parts: Mapping[Way, Mapping[str, float]],
    sync_s: Mapping[int, float],
) -> _Limits:
    limits = _Limits()
    for way, by_part in parts.items():
        if way in measured.links:
            name = f"the link {measured.name(way[0])} → {measured.name(way[1])}"
            limits.at_most(measured.links[way].bytes_per_s / sum(by_part.values()), LINK, name)
    exchanging_s = reducing_s(seats, work, measured)
    if update_s := (work.update_s or 0.0) + exchanging_s:
        is_of_links = exchanging_s > update_s / 2
        who = (LEARNERS, "the learners' exchange of gradients") if is_of_links else (LEARNER, "the learner")
        limits.at_most(1 / update_s, *who)
    for path in seats.paths(work.rules):
        if not work.fragment_steps[path.worker]:
            continue  # a robot, say, that had nothing ready: updates do not wait for it
        pace = work.pace(path.worker)
        asking_s = _asking_s(seats, work, measured, path)
        there = _asking_words(work, measured, path.env, path.rollout)
        collect_s = asking_s + (work.fragment_steps[path.worker] / pace if pace else 0.0)
        if collect_s:
            who = (ACTIONS, there) if asking_s > collect_s / 2 else (ENVIRONMENTS, "the environments")
            limits.at_most(1 / collect_s, *who)
        ways = path.home(work.rules)
        way_s = held_s = 0.0
        if ways and all(way in measured.links for way in ways):
            way_s = sync_s.get(path.rollout, 0.0) + sum(_experience_s(seats, work, measured, path, way) for way in ways)
            both = {each for way in ways for each in (way, way[::-1])} & parts.keys() & measured.links.keys()
            held_s = sum(measured.links[way].held_s(sum(parts[way].values())) for way in both)
        if pace is None and work.max_policy_lag == 0 and not way_s and not asking_s:
            continue
        turn_s = collect_s + way_s + update_s + work.rest_s
        if turn_s:
            sender = path.env if work.rules == RLINF_BY_ENV else path.rollout
            who = (TURNS, "taking turns with the learner")
            if way_s:
                who = (ROUND_TRIP, f"the round trip to {measured.name(sender)}")
            if asking_s > turn_s / 2:
                who = (ACTIONS, there)
            # What is held up holds up all that is under way behind it.
            limits.at_most(1 / (turn_s / (work.max_policy_lag + 1) + held_s), *who)
    return limits


def _asking_s(seats: Seats, work: Work, measured: Measured, path: Path) -> float:
    """What an env worker waits for actions in one update because they have to cross links, with all that it asks
    others for at the same time and that goes by the same links."""
    there, back = path.asking(work.rules)
    if any(way not in measured.links for way in (*there, *back)):
        return 0.0
    answer_bytes = work.action_bytes + (work.observation_bytes if work.rules == RLINF_BY_ENV else 0.0)
    share: Counter[Way] = Counter()
    for each in seats.paths(work.rules):
        if each.worker == path.worker:
            share.update(dict.fromkeys(itertools.chain(*each.asking(work.rules)), each.share))
    sent = [(way, work.observation_bytes * share[way]) for way in there]
    sent += [(way, answer_bytes * share[way]) for way in back]
    round_trip_s = sum(measured.links[way].rtt_ms / 2000 for way, _ in sent)
    step_s = sum(size_bytes / measured.links[way].bytes_per_s for way, size_bytes in sent)
    return work.exchanges(path.worker) * round_trip_s + work.fragment_steps[path.worker] * step_s


def _asking_words(work: Work, measured: Measured, env: int, rollout: int) -> str:
    if env == rollout:  # where it crosses a link all the same
        return f"the way of each action of {measured.name(env)} through {measured.name(CHANNELS_NODE)}"
    through = work.rules != TRAINER and CHANNELS_NODE not in (env, rollout)
    by = f" through {measured.name(CHANNELS_NODE)}" if through else ""
    return f"the way of each action from {measured.name(rollout)} to {measured.name(env)}{by}"


def _experience_s(seats: Seats, work: Work, measured: Measured, path: Path, way: Way) -> float:
    """What one of the ways to the learner takes, with the fragments of all workers that go there."""
    link, step_bytes = measured.links[way], work.observation_bytes + work.action_bytes + work.rest_bytes
    one_bytes = work.fragment_steps[path.worker] * path.share * step_bytes
    trips = SMALL_ANSWER if one_bytes <= SMALL_ANSWER_BYTES else LARGE_ANSWER
    if work.rules == TRAINER and is_large(one_bytes, work.chunk_bytes):
        trips = OBJECT * _idle_ways(link, one_bytes, work)
    steps = sum(
        work.fragment_steps[each.worker] * each.share
        for each in seats.paths(work.rules)
        if way in each.home(work.rules)
    )
    return trips * link.rtt_ms / 1000 + link.transfer_s(steps * step_bytes, is_warm=work.max_policy_lag > 0)


def _sync_s(link: Link, size_bytes: float, workers: int, work: Work) -> float:
    """The offer of a new version, then its pieces; RLinf sends all of it in one go."""
    is_enclosed = size_bytes <= ENCLOSED_BYTES and workers == 1
    ways = 0.0 if work.rules != TRAINER or is_enclosed else _idle_ways(link, size_bytes, work)
    return ways * OBJECT * link.rtt_ms / 1000 + link.transfer_s(size_bytes, is_warm=work.max_policy_lag > 0)


def _held_s(link: Link, parts: Mapping[Way, Mapping[str, float]], work: Work, updates_per_s: float) -> float:
    """What new weights wait for lost packets: their own, and those before them, of whatever was on the way."""
    own_s = link.held_s(parts[link.way][WEIGHTS])
    if work.max_policy_lag == 0 or not math.isfinite(updates_per_s):
        return own_s  # the loop that takes turns has nothing else on the way
    there, back = (sum(parts.get(way, {}).values()) * updates_per_s for way in (link.way, link.way[::-1]))
    return own_s + link.behind_s(there, back)


def _idle_ways(link: Link, size_bytes: float, work: Work) -> float:
    """For how many ways of a piece the link waits for pieces to be asked for, the first way included.

    Four are asked for at first; as they come, a quarter more than they were, until so many are on their way that the
    link always has one (``Window`` in ``experience/pieces.py``).
    """
    pieces = math.ceil(size_bytes / work.chunk_bytes)
    passing = link.bytes_per_s * OBJECT * link.rtt_ms / 1000 / work.chunk_bytes  # pass the link during one way
    ways, width = 1.0, FIRST
    # The second that comes of each round is the one that lets the next be asked for.
    while pieces > width and width - 2 < passing:
        ways += 1 - (width - 2) / passing
        pieces -= width
        width = widened(width)
    return ways


def _load(way: Way, parts: Mapping[str, float], work: Work, link: Link | None, env_steps_per_s: float) -> Load:
    update_bytes = sum(parts.values())
    mbit_per_s = 0.0
    if math.isfinite(env_steps_per_s):
        mbit_per_s = update_bytes * env_steps_per_s / work.steps * 8e-6
    carries = None if link is None else link.bytes_per_s / update_bytes * work.steps
    share = None if link is None else mbit_per_s / link.mbit_per_s
    return Load(*way, parts, mbit_per_s, share, carries)

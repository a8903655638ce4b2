"""Who sends what to whom: the rules of the built-in trainer and of RLinf, as bytes of one update of the policy."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from edgelink.training.trainer.flow import FlowSettings
from edgelink.training.trainer.link_budget.links import Way

CHUNK_BYTES = FlowSettings().chunk_bytes  # of the pieces in which what is large crosses, where nobody says otherwise
# Bytes of one env step beside observation and action: log-probability, reward, and how the episode ended.
REST_BYTES = 4 + 4 + 1 + 1
DISCRETE_ACTION_BYTES = 8
ACTION_BYTES = 4  # of each dimension of a continuous one
WEIGHT_BYTES = 2  # of a parameter: bfloat16
# What the overlay's device counts beside what is packed, measured with two edges over 61 updates: names and shapes,
# Ray's calls and answers, headers, and the acknowledgements of what goes the other way.
FRAGMENT_BYTES = 4500  # a fragment, to the learner
UPDATE_BYTES = 6000  # a version of the weights, and being asked for the next fragment
_ITEM_BYTES = {"uint8": 1, "int8": 1, "bool": 1, "float16": 2, "bfloat16": 2, "float32": 4, "int32": 4, "float64": 8}

OBSERVATIONS, STEPS, WEIGHTS, ACTIONS = "observations", "actions and rewards", "weights", "actions"
GRADIENTS = "gradients"  # of the trainer's learners, to each other
MESSAGES = "messages"  # takes room on the link, but nobody waits for it
TRAINER, RLINF_BY_ENV, RLINF_BY_ROLLOUT = "trainer", "rlinf, env assembles", "rlinf, rollout assembles"
# Where RLinf's channels are: its runners make each with Channel.create(name), which has one process, on this node.
CHANNELS_NODE = 0


@dataclass(frozen=True)
class Path:
    """Where a share of one env worker's steps goes: the nodes of the processes that work together."""

    worker: int
    env: int
    rollout: int
    actor: int
    share: float = 1.0

    def asking(self, rules: str) -> tuple[list[Way], list[Way]]:
        """The links of an observation to the policy, and of its action back."""
        return route(self.env, self.rollout, rules), route(self.rollout, self.env, rules)

    def home(self, rules: str) -> list[Way]:
        """The links of experience to the learner."""
        return route(self.env if rules == RLINF_BY_ENV else self.rollout, self.actor, rules)


@dataclass(frozen=True)
class Seats:
    """On which node each process of a component is, by node rank.

    Attributes:
        accelerated: the nodes whose processes see accelerators.
    """

    actor: tuple[int, ...]
    rollout: tuple[int, ...]
    env: tuple[int, ...]
    accelerated: frozenset[int] = frozenset()

    @classmethod
    def of(cls, placements: Mapping[str, Sequence[Mapping[str, Any]]]) -> Seats | None:
        """From a resolved placement's ``placements``; None where one of the three is missing."""
        ranks = {name: tuple(each["node_rank"] for each in placements.get(name, ())) for name in _COMPONENTS}
        placed = itertools.chain.from_iterable(placements.values())
        accelerated = frozenset(each["node_rank"] for each in placed if each.get("accelerators"))
        return cls(**ranks, accelerated=accelerated) if all(ranks.values()) else None

    def ring(self) -> list[Way]:
        """The links on which the trainer's learners add up gradients: each sends to the one before it, as gloo does."""
        return [(node, self.actor[rank - 1]) for rank, node in enumerate(self.actor) if node != self.actor[rank - 1]]

    def paths(self, rules: str) -> list[Path]:
        """One of each env process, or more where it works with processes on several nodes.

        RLinf (``CommMapper``) cuts the environments of all into equal parts for the processes of each component, in the
        order of their ranks. The trainer has one rollout process for each env process, and learners take turns.
        """
        parts = (self.env, self.rollout, self.actor)
        units = math.lcm(*map(len, parts))
        cuts = sorted({at * units // len(part) for part in parts for at in range(len(part) + 1)})
        shares: Counter[tuple[int, int, int, int]] = Counter()
        for start, end in itertools.pairwise(cuts):
            worker, rollout, actor = (start * len(part) // units for part in parts)
            if rules == TRAINER:
                actor = worker % len(self.actor)
            shares[worker, self.env[worker], self.rollout[rollout], self.actor[actor]] += end - start
        return [Path(*path, share * len(self.env) / units) for path, share in shares.items()]


_COMPONENTS = ("actor", "rollout", "env")


@dataclass(frozen=True)
class Work:
    """What a training moves, and how it takes turns.

    Attributes:
        observation_bytes: of one env step, as it crosses a link (compressed, if that is known).
        action_bytes: likewise.
        weights_bytes: of one version of the policy, as it crosses a link.
        fragment_steps: env steps in one fragment, by env worker: an update takes one of each. Of a run that was, the
            mean over its updates.
        max_policy_lag: by how many versions; each worker has one fragment more than that under way.
        env_steps_per_s: each env worker's own pace, without a network; None: not known.
        update_s: how long the learner takes for one update; None: not known.
        rest_s: what one turn takes beside collecting, the way and the update: calls, waking up, the driver's own work.
            It can be seen only of a run that took turns, and is 0 of others.
        sync_rest_s: what new weights take to a node beside the way: calls, packing and unpacking. It is part of rest_s.
        wanted_env_steps_per_s: of all workers together; None: as many as there can be.
        rules: whose.
        gradient_bytes: of all parameters, as the trainer's learners add them up.
        reductions: how often in one update.
        chunk_bytes: of the pieces in which what is large crosses.
        environments: of one env worker. It sends one observation of each and waits for the actions of all, which are
            on the way for long where its rollout process is on another node.
    """

    observation_bytes: float
    action_bytes: float
    weights_bytes: float
    fragment_steps: tuple[float, ...]
    max_policy_lag: int = 0
    env_steps_per_s: tuple[float | None, ...] = ()
    update_s: float | None = None
    wanted_env_steps_per_s: float | None = None
    rules: str = TRAINER
    rest_bytes: float = REST_BYTES  # of one env step, beside observation and action
    rest_s: float = 0.0
    sync_rest_s: float = 0.0
    chunk_bytes: int = CHUNK_BYTES
    environments: int = 1
    gradient_bytes: float = 0.0
    reductions: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Work:
        """What :meth:`to_dict` made. Raises TypeError, KeyError, ValueError."""
        tuples = {name: tuple(content[name]) for name in ("fragment_steps", "env_steps_per_s")}
        if not sum(tuples["fragment_steps"]) > 0:
            raise ValueError("fragment_steps has no env steps")
        return cls(**{**content, **tuples})

    @property
    def steps(self) -> float:
        """Env steps of one update."""
        return sum(self.fragment_steps)

    def exchanges(self, worker: int) -> int:
        """Of observations for actions, in one update, one after the other."""
        return math.ceil(self.fragment_steps[worker] / self.environments)

    def pace(self, worker: int) -> float | None:
        return self.env_steps_per_s[worker] if worker < len(self.env_steps_per_s) else None


@dataclass(frozen=True)
class Flow:
    """What one update moves from a node to another one."""

    source: int
    target: int
    what: str
    size_bytes: float
    path: Path | None = None  # that a fragment takes


@dataclass
class _Flows:
    found: list[Flow] = field(default_factory=list)

    def add(self, ways: Sequence[Way], what: str, size_bytes: float, path: Path | None = None) -> None:
        self.found += [Flow(*way, what, size_bytes, path) for way in ways]


def route(source: int, target: int, rules: str = TRAINER) -> list[Way]:
    """The links that something takes on its way; none where it stays on its node.

    Under RLinf all but weights goes through a channel, also from one process to another on the same node.
    """
    stops = (source, target) if rules == TRAINER else (source, CHANNELS_NODE, target)
    return [(a, b) for a, b in itertools.pairwise(stops) if a != b]


def flows(seats: Seats, work: Work) -> list[Flow]:
    """What crosses links in one update; what stays on a node does not count."""
    flows = _Flows()
    for path in seats.paths(work.rules):
        steps = work.fragment_steps[path.worker] * path.share
        observations = steps * work.observation_bytes
        there, back = path.asking(work.rules)
        flows.add(there, OBSERVATIONS, observations, path)
        flows.add(back, ACTIONS, steps * work.action_bytes, path)
        if work.rules == RLINF_BY_ENV:
            flows.add(back, OBSERVATIONS, observations, path)
        home = path.home(work.rules)
        flows.add(home, OBSERVATIONS, observations, path)
        flows.add(home, STEPS, steps * (work.action_bytes + work.rest_bytes), path)
        flows.add(home, MESSAGES, FRAGMENT_BYTES, path)
    targets = seats.rollout if work.rules != TRAINER else tuple(dict.fromkeys(seats.rollout))
    for node in targets:
        direct = route(seats.actor[0], node)
        flows.add(direct, WEIGHTS, work.weights_bytes)
        flows.add(direct, MESSAGES, UPDATE_BYTES)
    if work.rules == TRAINER and work.reductions:
        learners = len(seats.actor)
        # Measured with two and three learners: parts of all go once around to be summed, and once as sums.
        flows.add(seats.ring(), GRADIENTS, work.reductions * work.gradient_bytes * 2 * (learners - 1) / learners)
        for node in seats.actor[1:]:  # each update begins with the first one's parameters
            flows.add(route(seats.actor[0], node), GRADIENTS, work.gradient_bytes)
    return flows.found


def crossings(seats: Seats, rules: str) -> list[int]:
    """How often an observation of each path goes from one node to another."""
    counts = dict.fromkeys(seats.paths(rules), 0)
    for flow in flows(seats, _one_step(seats, rules)):
        if flow.what == OBSERVATIONS and flow.path is not None:
            counts[flow.path] += 1
    return list(counts.values())


def talking_pairs(seats: Seats, rules: str = TRAINER) -> list[Way]:
    """The pairs of nodes that have something to send each other, each once."""
    ways = [(flow.source, flow.target) for flow in flows(seats, _one_step(seats, rules))]
    return sorted({(min(way), max(way)) for way in ways})


def _one_step(seats: Seats, rules: str) -> Work:
    return Work(1.0, 0.0, 0.0, (1,) * len(seats.env), rules=rules, gradient_bytes=1.0, reductions=1)


def observation_bytes(shape: Sequence[int], dtype: str) -> int:
    """Of one env step. Raises KeyError: the type of its numbers is not known."""
    return math.prod(shape) * _ITEM_BYTES[dtype]


def other_seats(seats: Seats, *, env_may_move: bool, rules: str) -> dict[str, Seats]:
    """Placements that could be better, by what is to be done."""
    beside_env = tuple(seats.env[index * len(seats.env) // len(seats.rollout)] for index in range(len(seats.rollout)))
    beside_rollout = tuple(
        seats.rollout[index * len(seats.rollout) // len(seats.env)] for index in range(len(seats.env))
    )
    home = seats.actor[0]
    found = {}
    if rules != TRAINER:  # whose pairs share a node anyhow
        found["rollout beside actor"] = replace(seats, rollout=(home,) * len(seats.rollout))
        found["rollout beside env"] = replace(seats, rollout=beside_env)
        if env_may_move:
            found["env beside rollout"] = replace(seats, env=beside_rollout)
    if env_may_move:
        found["rollout and env beside actor"] = replace(
            seats, rollout=(home,) * len(seats.rollout), env=(home,) * len(seats.env)
        )
    return {name: other for name, other in found.items() if other != seats and _keeps_accelerators(seats, other)}


def _keeps_accelerators(seats: Seats, other: Seats) -> bool:
    """Whether no process moves from a node with accelerators to one without: it may need them."""
    moves = zip((*seats.rollout, *seats.env), (*other.rollout, *other.env), strict=True)
    return all(then in seats.accelerated or now not in seats.accelerated for now, then in moves)

"""Which nodes speak in turns: two machines with one key, or two copies of a state directory (ADR 0023)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

ALTERNATION_S = 300.0
_REMEMBERED = 8  # lives of a node


@dataclass
class _Lives:
    """From when on each of a node's lives spoke, oldest first."""

    turns: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    alternated_s: float | None = None


def cloned(alternations: Iterable[tuple[str, float]], now_s: float) -> list[str]:
    """The names of those that spoke in turns in the last five minutes; pure."""
    return sorted(name for name, at_s in alternations if now_s - at_s < ALTERNATION_S)


class Alternation:
    """Which nodes speak in turns: one life, another one, and the first again. A daemon is over when the next one of its
    machine begins, so these are two machines, or two copies of a state directory on one."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Lives] = {}

    def note(self, node_id: str, instance: str, now_s: float) -> bool:
        """This life has spoken; whether another one had taken its place, less than five minutes ago."""
        lives = self._nodes.setdefault(node_id, _Lives())
        if lives.turns and lives.turns[-1][0] == instance:
            return False
        is_back = any(
            life == instance and now_s - ended_s < ALTERNATION_S for (life, _), (_, ended_s) in pairwise(lives.turns)
        )
        lives.turns.append((instance, now_s))
        if is_back:
            lives.alternated_s = now_s
        return is_back

    def alternated(self) -> dict[str, float]:
        """When each node that did so did so last, in seconds on the monotonic clock, by node id."""
        return {n: lives.alternated_s for n, lives in self._nodes.items() if lives.alternated_s is not None}

    def forget_others(self, node_ids: Iterable[str]) -> None:
        """Keep what is known of these nodes only."""
        wanted = set(node_ids)
        self._nodes = {node_id: lives for node_id, lives in self._nodes.items() if node_id in wanted}

"""Keep figures, print them as one table at the end, and write them to ``build/bench.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

RESULT = Path(__file__).parent.parent.parent / "build" / "bench.json"


@dataclass(frozen=True)
class Figure:
    name: str
    unit: str
    edgelink: Sequence[float]
    by_hand: Sequence[float] = ()
    bar: str = ""  # in words; the test asserts it

    @property
    def ratio(self) -> float | None:
        """EdgeLink's median over the by-hand one."""
        return median(self.edgelink) / median(self.by_hand) if self.by_hand and median(self.by_hand) else None


@dataclass
class Figures:
    taken: list[Figure] = field(default_factory=list)

    def add(self, figure: Figure) -> Figure:
        self.taken.append(figure)
        print("\n" + _row(figure), flush=True)
        return figure

    def finish(self) -> None:
        if not self.taken:
            return
        RESULT.parent.mkdir(exist_ok=True)
        values = [asdict(figure) | {"ratio": figure.ratio} for figure in self.taken]
        RESULT.write_text(json.dumps(values, indent=2) + "\n")
        print(f"\n{'figure':<44} {'EdgeLink':>24} {'by hand':>24} {'ratio':>7}  bar")
        print("\n".join(_row(figure) for figure in self.taken))
        print(f"median (smallest - largest); also in {RESULT}", flush=True)


def _row(figure: Figure) -> str:
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    return (
        f"{figure.name + ', ' + figure.unit:<44} {_spread(figure.edgelink):>24} {_spread(figure.by_hand):>24} "
        f"{ratio:>7}  {figure.bar}"
    )


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.3g} ({min(values):.3g} - {max(values):.3g})" if values else "-"

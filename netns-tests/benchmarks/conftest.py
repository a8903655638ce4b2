"""Labs of the benchmarks: both roads up side by side, once for all figures that compare them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from contenders import ByHand, EdgeLink, Pair, bench_lab
from figures import Figures


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    """Relay and head of both roads run; the edges do not yet."""
    pair = Pair(ByHand(bench_lab("by-hand")), EdgeLink(bench_lab("edgelink")))
    try:
        for contender in pair.both:
            contender.prepare()
        yield pair
    finally:
        for contender in pair.both:
            contender.lab.down()


@pytest.fixture(scope="session")
def figures() -> Iterator[Figures]:
    figures = Figures()
    yield figures
    figures.finish()

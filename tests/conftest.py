"""What all tests have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgelink import log


@pytest.fixture(autouse=True)
def forgotten_secrets() -> Iterator[None]:
    """The secrets of a test are forgotten after it: each line of log is searched for all, and here are thousands."""
    before = set(log._hidden)
    yield
    log._hidden.intersection_update(before)
    log._longest_first = None

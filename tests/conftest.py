"""What all tests have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from in_memory import IN_MEMORY

from edgelink import log

if IN_MEMORY is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", IN_MEMORY)  # pytest's own word for where tmp_path is


@pytest.fixture(autouse=True)
def forgotten_secrets() -> Iterator[None]:
    """The secrets of a test are forgotten after it: each line of log is searched for all, and here are thousands."""
    before = set(log._hidden)
    yield
    log._hidden.intersection_update(before)
    log._longest_first = None

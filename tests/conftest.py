"""What all tests have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from in_memory import IN_MEMORY

from edgelink import log

if IN_MEMORY is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", IN_MEMORY)  # pytest's own word for where tmp_path is


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that import torch come first: with ``--dist worksteal`` one process gets them all, and no other waits."""
    items.sort(key=lambda item: item.get_closest_marker("torch") is None)


@pytest.fixture(autouse=True)
def forgotten_secrets() -> Iterator[None]:
    """The secrets of a test are forgotten after it: each line of log is searched for all, and here are thousands."""
    before = set(log._hidden)
    yield
    log._hidden.intersection_update(before)
    log._longest_first = None

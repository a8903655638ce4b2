"""On a machine whose processors are all busy, nobody is called paused who answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from conftest import MakeLab
from machines import brought_up_on

from edgelink.lab import CLOUD

LOAD = 15
WATCHED_S = 3600.0
EDGES = ("edge-1", "edge-2")

pytestmark = [
    pytest.mark.usefixtures("easytier"),
    pytest.mark.skipif(not os.environ.get("EDGELINK_SOAK"), reason="an hour beside a load of 15: `make soak`"),
    pytest.mark.timeout(WATCHED_S + 1800),
]


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that each want a processor for themselves."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.told_truly
def test_an_hour_at_load_15_pauses_nobody_who_answers(make_lab: MakeLab) -> None:
    """And at its end all are Ready."""
    road = brought_up_on(make_lab(), len(EDGES))
    with busy(LOAD):
        ends_s = time.monotonic() + WATCHED_S
        while (left_s := ends_s - time.monotonic()) > 0:
            time.sleep(min(60.0, left_s))  # how long it is watched; not a synchronisation
            print(f"{left_s:.0f} s left, load {os.getloadavg()[0]:.1f}")
    log = road.lab.daemon_log(CLOUD).read_text().splitlines()
    print([json.loads(line) for line in log if '"runs.node_' in line])
    for node in (CLOUD, *EDGES):
        road.wait_ready(node)

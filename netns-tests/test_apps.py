"""Programs on named nodes, supervised together, on a head and an edge without Ray."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from conftest import MakeLab
from faults import cut
from machines import wait_until

from edgelink.clock import SystemClock
from edgelink.lab import CLOUD
from edgelink.lab.road import Road

EDGE, PORT, CUT_S = "edge-1", 50051, 20
GONE = "no other end"
PROGRAMS = Path(__file__).parent / "apps"

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("easytier")]


@pytest.fixture(scope="module")
def road(make_shared_lab: MakeLab) -> Road:
    road = Road(make_shared_lab(), SystemClock(), print)
    road.bring_up(1, config={"ray": {"enabled": False, "user": "root"}})
    return road


class Run:
    """One ``edgelink run --apps`` on the head, and what it has said so far."""

    def __init__(
        self, road: Road, directory: Path, *, actor: dict[str, object] | None = None, **changes: object
    ) -> None:
        for program in PROGRAMS.glob("*.py"):
            (directory / program.name).write_text(program.read_text())
        address = ["{learner.host}", "{learner.port}"]
        apps = {
            "learner": {"node": CLOUD, "command": ["learner.py", *address], "listens": PORT},
            "actor": {"node": EDGE, "command": ["actor.py", *address], "after": "learner"},
        }
        apps = {name: {"python": sys.executable, **app} for name, app in apps.items()}
        apps["actor"] |= actor or {}
        file = directory / "pair.yaml"
        file.write_text(yaml.safe_dump({"apps": apps, "files": ["actor.py"], **changes}))
        self.log = directory / "run.log"
        self.process = road.lab.popen(CLOUD, ["edgelink", "run", "--apps", str(file)], self.log)

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def count(self) -> int:
        found = re.findall(r"counted (\d+)", self.said())
        return int(found[-1]) if found else 0

    def waits_for(self, text: str, timeout_s: float = 60) -> None:
        wait_until(f"the run says {text!r}", self.said, timeout_s, wanted=lambda said: text in said)

    def end(self, timeout_s: float = 30) -> int:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGINT)
        return self.process.wait(timeout_s)


@pytest.fixture
def run(road: Road, tmp_path: Path) -> Iterator[Run]:
    run = Run(road, tmp_path, stuck_after="6s")
    yield run
    run.end()


def apps_on(road: Road, node: str) -> list[int]:
    """The processes of the two programs on a node."""
    found = []
    for pid in road.lab.pids(node):
        with suppress(OSError):
            if {"learner.py", "actor.py"} & set(Path(f"/proc/{pid}/cmdline").read_text().split("\0")):
                found.append(pid)
    return found


def test_a_pair_works_through_a_cut_and_ctrl_c_ends_both(road: Road, run: Run) -> None:
    """In order, with one log; the same processes go on after 20 s without a link; nothing is left at the end."""
    run.waits_for("actor   | sent 20")
    assert run.said().index("learner | listening") < run.said().index("actor   | connected")
    with cut(road.lab, EDGE):
        run.waits_for(f"{EDGE} is paused", 30)
        before = run.count()
        time.sleep(CUT_S)  # the fault's own length
    run.waits_for(f"{EDGE} answers again")
    wait_until("numbers go on", run.count, 20, wanted=lambda count: count > before + 40)
    assert run.said().count("actor   | connected") == 1, run.said()

    assert run.end() == 130
    for node in (CLOUD, EDGE):
        wait_until(f"{node} is empty", lambda node=node: apps_on(road, node), 15, wanted=lambda left: not left)


def test_who_is_alive_and_moves_nothing_is_started_again(road: Road, run: Run) -> None:
    """The process is there, and so is its connection; after ``stuck_after`` it is another one, and numbers go on."""
    run.waits_for("actor   | sent 20")
    (actor,) = apps_on(road, EDGE)
    Path(f"/proc/{actor}/cwd/stuck").touch()
    run.waits_for("byte moved", 60)
    wait_until(
        "it has connected again", lambda: run.said().count("actor   | connected"), wanted=lambda count: count == 2
    )
    before = run.count()
    wait_until("numbers go on", run.count, 20, wanted=lambda count: count > before + 20)


def test_after_a_reboot_in_a_cut_the_slot_is_free(road: Road, run: Run) -> None:
    """The kernel of the edge is asked and no longer has the connection: the learner's end is closed, and only then."""
    run.waits_for("actor   | sent 20")
    with cut(road.lab, EDGE):
        run.waits_for(f"{EDGE} is paused", 30)
        road.lab.reboot(EDGE)
        road.lab.start(EDGE)
        assert GONE not in run.said()
    road.wait_ready(EDGE)
    run.waits_for(f"{EDGE} answers again")
    run.waits_for(GONE, 15)
    assert run.said().partition(GONE)[2].splitlines()[0].endswith("closed")
    wait_until(
        "it has connected again", lambda: run.said().count("actor   | connected"), wanted=lambda count: count == 2
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"node": "edge-9"}, ("no node edge-9", "cloud, edge-1")),
        (
            {"command": ["not-there.py"], "python": "/opt/none/bin/python"},
            ("edge-1 has no program /opt/none/bin/python",),
        ),
    ],
)
def test_what_cannot_come_true_is_refused_before_anything_starts(
    road: Road, tmp_path: Path, change: dict[str, object], words: tuple[str, ...]
) -> None:
    refused = Run(road, tmp_path, actor=change)
    assert refused.process.wait(60) == 78
    assert all(word in refused.said() for word in words), refused.said()
    assert "runs on" not in refused.said()

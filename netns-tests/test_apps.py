"""Programs on named nodes, supervised together, on a head and an edge without Ray."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from conftest import MakeLab
from faults import cut
from machines import assert_error, wait_until

from edgelink.clock import SystemClock
from edgelink.lab import CLOUD
from edgelink.lab.road import Road

EDGE, OTHER, PORT, CUT_S = "edge-1", "edge-2", 50051, 20
GRPC_CUT_S, BACK_S = 75.0, 5.0  # of gRPC's own, 20 s and 60 s; the bound on what goes on after the link
SILENT_S = 5.0  # how long a node is waited for that takes a connection and says nothing
GONE = "no other end"
PROGRAMS = Path(__file__).parent / "apps"
GRPC_PAIR = Path(__file__).with_name("grpc_pair.py")

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("easytier")]


@pytest.fixture(scope="module")
def road(make_shared_lab: MakeLab) -> Road:
    road = Road(make_shared_lab(), SystemClock(), print)
    road.bring_up(2, config={"ray": {"enabled": False, "user": "root"}})
    return road


class Run:
    """One ``edgelink run --apps`` on the head, and what it has said so far."""

    def __init__(
        self,
        road: Road,
        directory: Path,
        *,
        actor: dict[str, object] | None = None,
        learner: dict[str, object] | None = None,
        **changes: object,
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
        apps["learner"] |= learner or {}
        file = directory / "pair.yaml"
        file.write_text(yaml.safe_dump({"apps": apps, "files": ["actor.py", "learner.py"], **changes}))
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


def last_run(road: Road) -> tuple[str, bool, list[tuple[int | None, str]]]:
    """What the head's daemon has recorded of it: command, whether it goes on, how each attempt ended."""
    status = road.status(CLOUD)
    assert status is not None
    run = status["run"]
    ends = [(attempt["exit_status"], attempt["what_followed"]) for attempt in run["attempts"]]
    return run["command"], run["in_progress"], ends


def test_a_pair_works_through_a_cut_and_ctrl_c_ends_both(road: Road, run: Run) -> None:
    """In order, with one log; the same processes go on after 20 s without a link; nothing is left at the end."""
    run.waits_for("actor   | sent 20")
    assert run.said().index("learner | listening") < run.said().index("actor   | connected")
    assert last_run(road) == ("--apps pair.yaml", True, [(None, "")])
    second = road.lab.exec(CLOUD, ["edgelink", "run", "--apps", str(run.log.with_name("pair.yaml"))], capture=True)
    assert_error(second, 75, "RunInProgress")
    with cut(road.lab, EDGE):
        run.waits_for(f"{EDGE} is paused", 30)
        before = run.count()
        time.sleep(CUT_S)  # the fault's own length
    run.waits_for(f"{EDGE} answers again")
    wait_until("numbers go on", run.count, 20, wanted=lambda count: count > before + 40)
    assert run.said().count("actor   | connected") == 1, run.said()

    assert run.end() == 130
    assert last_run(road) == ("--apps pair.yaml", False, [(130, "ended by SIGINT")])
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
    _, _, [(_, what), *_] = last_run(road)
    assert what.startswith("actor")
    assert str(PORT) in what


@pytest.mark.parametrize("where", [CLOUD, OTHER])
def test_after_a_reboot_in_a_cut_the_slot_is_free(road: Road, tmp_path: Path, where: str) -> None:
    """The kernel of the edge is asked and no longer has the connection: the learner's end is closed, and only then.

    The learner's own node closes it, and the actor is started again at once, too.
    """
    run = Run(road, tmp_path, learner={"node": where})
    try:
        run.waits_for("actor   | sent 20")
        with cut(road.lab, EDGE):
            run.waits_for(f"{EDGE} is paused", 30)
            road.lab.reboot(EDGE)
            road.lab.start(EDGE)
            assert GONE not in run.said()
        road.wait_ready(EDGE)
        back_s = time.monotonic()
        run.waits_for(GONE, 30)
        free_s = time.monotonic() - back_s
        print(f"free {free_s:.1f} s after the node is back")
        assert free_s <= BACK_S
        assert f"{GONE} on {EDGE} any more: closed" in run.said()
        wait_until(
            "it has connected again", lambda: run.said().count("actor   | connected"), wanted=lambda count: count == 2
        )
    finally:
        run.end()


def test_apps_have_the_patience_of_ride_through_on_every_node(road: Road, tmp_path: Path) -> None:
    """On the head and on an edge, neither of which has Ray; beside a PYTHONPATH of the app's own."""
    ask = "import os, sys; print(sys.modules['sitecustomize'].__file__, os.environ['EDGELINK_GRPC_TIMEOUT_MS'])"
    app = {"command": ["-c", ask], "env": {"PYTHONPATH": "/own"}, "after": [], "listens": []}
    run = Run(road, tmp_path, learner=app, actor=app)
    assert run.process.wait(60) == 0, run.said()
    told = dict(line.split(" | ") for line in run.said().splitlines() if " | " in line)
    assert len(told) == 2, run.said()
    for words in told.values():
        hook, timeout_ms = words.split()
        assert ("/import-hook/0/" in hook, int(timeout_ms) >= 300_000) == (True, True)


@pytest.mark.long
def test_plain_grpc_goes_on_after_a_cut(road: Road, tmp_path: Path) -> None:
    """A learner and an actor that know nothing of outages, as apps: the same processes, within seconds of the link."""
    records = {role: tmp_path / f"{role}.record" for role in ("learner", "actor")}
    address = "{learner.host}:{learner.port}"
    apps: dict[str, dict[str, object]] = {
        role: {"command": [str(GRPC_PAIR), role, str(record), address]} for role, record in records.items()
    }
    run = Run(road, tmp_path, learner=apps["learner"], actor=apps["actor"])

    def times_s(event: str, since_s: float = 0.0) -> list[float]:
        lines = [
            json.loads(line) for path in records.values() if path.exists() for line in path.read_text().splitlines()
        ]
        return [line["at_s"] for line in lines if line["event"] == event and line["at_s"] > since_s]

    try:
        for event in ("parameters", "transitions"):
            wait_until(event, lambda event=event: times_s(event), 60)
        with cut(road.lab, EDGE):
            time.sleep(GRPC_CUT_S)  # the outage itself
        mended_s = time.monotonic()
        back_s = {
            event: wait_until(event, lambda event=event: times_s(event, mended_s))[0] - mended_s
            for event in ("parameters", "transitions")
        }
        print(f"cut for {GRPC_CUT_S:g} s: back after {back_s}")
        assert max(back_s.values()) <= BACK_S
        assert not times_s("ended")
        assert "started again" not in run.said()
    finally:
        run.end()


def test_nobody_else_has_programs_run(road: Road) -> None:
    """Neither a user of the head who is not the one that apps run as, nor an edge."""
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    found = road.lab.exec(CLOUD, [*as_nobody, "edgelink", "exec", EDGE, "--", "id"], capture=True, cwd=Path("/"))
    assert_error(found, 2, "PermissionDenied")
    for target in (CLOUD, OTHER):
        assert_error(road.lab.exec(EDGE, ["edgelink", "exec", target, "--", "id"], capture=True), 1, "ExecRefused")


def test_exec_names_a_node_that_does_not_answer(road: Road) -> None:
    """Its daemon hangs, or its link was cut a moment ago: the others' answers do not wait for it for ever."""
    ask = ["edgelink", "exec", EDGE, OTHER, "--", "hostname"]

    def asked() -> tuple[subprocess.CompletedProcess[str], float]:
        begun_s = time.monotonic()
        found = road.lab.exec(CLOUD, ask, capture=True, timeout_s=60)
        took_s = time.monotonic() - begun_s
        print(f"{took_s:.1f} s: {found.stderr}")
        return found, took_s

    wait_until("both run it", lambda: asked()[0].returncode == 0, 30)  # the link of an earlier test may be just back
    _, usual_s = asked()
    daemon = road.lab.daemon(EDGE)
    assert daemon is not None
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        hung, hung_s = asked()
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    with cut(road.lab, EDGE):
        silent, silent_s = asked()
        wait_until("it is known", lambda: "paused" in asked()[0].stderr, 20)
        known, known_s = asked()
    for found in (hung, silent, known):
        assert (found.stdout, found.returncode != 0, EDGE in found.stderr) == (f"{OTHER} | {OTHER}\n", True, True)
    assert known.returncode == 75
    assert max(hung_s, silent_s) <= SILENT_S + 3 * usual_s
    assert known_s <= 3 * usual_s


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

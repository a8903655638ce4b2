"""`edgelink run` as a process, against a head daemon that is played: attempts, environment, account, exit status."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_process import start_edgelink

from edgelink.api.client import DaemonNotRunningError
from edgelink.api.server import Caller, LocalApi, route, stream_route
from edgelink.cli import driver_run
from edgelink.cli.driver_environment import EnvironmentWishes
from edgelink.cli.driver_run import read_cluster_file
from edgelink.cli.options import RunWishes
from edgelink.cli.preflight import PreflightWishes
from edgelink.cli.waiting import GangWishes
from edgelink.config import Paths
from edgelink.errors import ConfigError, DeadlineError, EdgelinkError, NotRecordedError
from edgelink.runs.run_lock import RunInProgressError
from edgelink.testing import FakeClock, eventually
from edgelink.training.framework import Framework
from edgelink.training.run_record import program_of
from edgelink.training.supervision import Ended, Supervision

pytestmark = pytest.mark.processes

# Fails the first time, once the head has been told that it runs; then says how far it is, and is done.
FAILS_ONCE = """
import os, pathlib, sys, time
attempt = os.environ["EDGELINK_ATTEMPT"]
print("attempt", attempt, os.environ["EDGELINK_RUN_ID"], flush=True)
pathlib.Path("started-" + attempt).touch()
while attempt == "1" and not pathlib.Path("fail").exists():
    time.sleep(0.02)
pathlib.Path(os.environ["EDGELINK_STEP_FILE"]).write_text("7")
sys.exit(5 if attempt == "1" else 0)
"""

WAITS = "import pathlib, signal; pathlib.Path('started-1').touch(); signal.pause()"


class Head:
    """Grants whatever is asked; ``ray_node_id`` is that of edge-1's Ray."""

    def __init__(self, directory: Path) -> None:
        self.ray_node_id = "first"
        self.records: list[dict[str, Any]] = []
        self.bodies: list[dict[str, Any]] = []
        self.open = 0
        self.most_open = 0
        self.directory = directory
        self.grant: dict[str, Any] = {"environment": {}}
        self.grants = True
        self.alive: list[dict[str, Any]] = []
        self._changed = asyncio.Event()

    def lose_node(self) -> None:
        """Another Ray takes the place of the one that died."""
        self.ray_node_id = "second"
        self._changed.set()

    def _nodes(self) -> list[dict[str, Any]]:
        return [{"node_rank": 1, "hostname": "edge-1", "ready": True, "ray_node_id": self.ray_node_id}]

    async def _status(self, _caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return {"role": "head", "ride_through_s": 300}

    async def _record(self, _caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        self.records.append(body["record"])
        return {}

    async def _run(self, _caller: Caller, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        self.bodies.append(body)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            yield {"event": "waiting", "nodes": self._nodes(), "left_s": 1.0, "notes": ["somebody is in the way"]}
            if not self.grants:
                await asyncio.Event().wait()  # for ever
            yield {"event": "granted", "placement": None, **self.grant, "nodes": self._nodes()}
            while True:
                self._changed.clear()
                await self._changed.wait()
                yield {"event": "nodes", "nodes": self._nodes()}
        finally:
            self.open -= 1

    async def _alive(self, _caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return {"nodes": self.alive, "paused": []}

    async def _environment(self, _caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return self.grant

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        api = LocalApi(self.directory / "node.sock")
        async with api.serving(
            [
                route("GET", "/status", self._status),
                route("POST", "/run/record", self._record),
                route("GET", "/driver-environment", self._environment),
                route("GET", "/placement/nodes", self._alive),
                stream_route("POST", "/run", self._run),
            ]
        ):
            yield

    async def start(self, code: str, *options: str, verb: str = "run", **shell: str) -> asyncio.subprocess.Process:
        command = ("--", sys.executable, "-c", code)
        return await start_edgelink(self.directory, verb, *options, *command, cwd=self.directory, env=shell)

    async def started(self, attempt: int) -> None:
        await eventually((self.directory / f"started-{attempt}").exists, 60)


@pytest.fixture
async def head(tmp_path: Path) -> AsyncIterator[Head]:
    head = Head(tmp_path)
    async with head.serving():
        yield head


async def test_a_driver_is_run_again_after_its_node_died(head: Head) -> None:
    """In the same run, under the same lock; its account says why, and its own output is untouched."""
    head.grant["left_actors"] = ["replay (namespace train, on 10.10.0.3)"]
    run = await head.start(FAILS_ONCE, "--retries", "2")
    await head.started(1)
    head.lose_node()
    (head.directory / "fail").touch()
    output, words = await run.communicate()
    assert run.returncode == 0, words
    one, two = output.decode().split("\n")[:2]
    assert (one.split()[:2], two.split()[:2]) == (["attempt", "1"], ["attempt", "2"])
    assert one.split()[2] == two.split()[2], "the run's id"
    assert b"Ray on edge-1 had died; running it again, 1 of 2" in words
    assert words.count(b"still alive: replay (namespace train, on 10.10.0.3)") == 1, "not before each attempt"
    last = head.records[-1]["attempts"]
    assert [(attempt["exit_status"], attempt["lost_nodes"]) for attempt in last] == [(5, ["edge-1"]), (0, [])]
    assert last[1]["step"] == "7"
    assert head.most_open == 2, "the lock is held from one attempt to the next"
    await eventually(lambda: head.open == 0)


WAITING: dict[str, Any] = {"event": "waiting", "nodes": [], "left_s": 1.0}
AWAY, SLOW = DaemonNotRunningError("nobody answers"), ConfigError("slow")


class Relaunch:
    """The second attempt of a run, whose requests for its grant go as told: who is waited for, seconds, an error."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.requests = 0
        self._directory = directory
        self._monkeypatch = monkeypatch

    def claim(self, courses: Iterable[tuple[object, ...]], *, attempts: int = 1) -> None:
        """Ask until it is granted; after ``courses`` each request is, at once."""
        relaunch, left = self, iter(courses)

        class Request:
            def __init__(self, *_: object) -> None:
                relaunch.requests += 1

            def wait_until_granted(self, show: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
                for step in next(left, ()):
                    if isinstance(step, EdgelinkError):
                        raise step
                    if isinstance(step, float):
                        relaunch.clock.block(step)
                    else:
                        show(WAITING)
                return {"event": "granted"}

        self._monkeypatch.setattr(driver_run, "RunRequest", Request)
        self._monkeypatch.setattr(driver_run, "SystemClock", lambda: self.clock)
        run = driver_run._Run(
            Paths(self._directory, self._directory),
            None,
            ("true",),
            self._directory,
            Framework("plain"),
            RunWishes(None, GangWishes(600.0), Supervision(retries=1), EnvironmentWishes(), PreflightWishes()),
        )
        run._attempts += [Ended(exit_status=1, lived_s=1.0, at_s=0.0)] * attempts
        run._claim()


@pytest.fixture
def relaunch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Relaunch:
    return Relaunch(tmp_path, monkeypatch)


def test_the_head_daemon_may_be_restarted_late_in_the_wait_for_the_nodes(relaunch: Relaunch) -> None:
    """It has its time to come back from when it went away, each time."""
    relaunch.claim([(WAITING, 1200.0, AWAY), (AWAY,), (WAITING, 1200.0, AWAY)])
    assert relaunch.requests == 4


def test_a_head_daemon_that_stays_away_ends_the_run(relaunch: Relaunch) -> None:
    """Ten minutes after it went."""
    with pytest.raises(DaemonNotRunningError):
        relaunch.claim([(WAITING, 1200.0, AWAY), *[(AWAY,)] * 1000])
    assert 1800.0 <= relaunch.clock.monotonic_s() <= 1810.0


def test_a_head_daemon_that_fails_at_each_request_is_not_asked_without_end(relaunch: Relaunch) -> None:
    """However far each gets: no longer than the nodes are waited for, and the daemon after that."""
    with pytest.raises(NotRecordedError):
        relaunch.claim([(WAITING, NotRecordedError("the disk is full"))] * 10_000)
    assert 4190.0 <= relaunch.clock.monotonic_s() <= 4210.0


def test_trouble_of_a_new_head_daemon_ends_no_run(relaunch: Relaunch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said once, and the run goes on when it is over."""
    relaunch.claim([(AWAY,), (SLOW,), (SLOW,)])
    assert relaunch.requests == 4
    assert capsys.readouterr().err.count(str(SLOW)) == 1


@pytest.mark.parametrize(
    "refusal", [RunInProgressError("another run"), DeadlineError("1 of 2 nodes were ready", reason="NodesMissing")]
)
def test_a_refusal_that_stays_ends_the_run_at_once(relaunch: Relaunch, refusal: EdgelinkError) -> None:
    """Nobody waits for what does not come."""
    with pytest.raises(type(refusal)):
        relaunch.claim([(refusal,)])


@pytest.mark.parametrize("trouble", [AWAY, SLOW])
def test_a_run_that_was_never_granted_is_not_asked_for_again(relaunch: Relaunch, trouble: EdgelinkError) -> None:
    """Who typed the command sees at once what is wrong."""
    with pytest.raises(type(trouble)):
        relaunch.claim([(trouble,)], attempts=0)


async def test_the_wait_is_for_the_nodes_that_are_asked_for(head: Head) -> None:
    """Names and labels reach the daemon; what it says of the wait is a line, or JSON for scripts, and never stdout."""
    said = []
    for options in ((), ("--json", "--nodes", "edge-1, site=lab-a")):
        run = await head.start("print('driver')", *options)
        output, words = await run.communicate()
        assert (run.returncode, output) == (0, b"driver\n"), words
        said.append(words.decode().splitlines())
    assert [body["nodes"] for body in head.bodies] == [[], ["edge-1", "site=lab-a"]]
    assert "1/1: edge-1 ready" in said[0]
    assert "edgelink: warning: somebody is in the way" in said[0]
    events = [json.loads(line) for line in said[1] if line.startswith("{")]
    assert [(event["event"], event["notes"]) for event in events] == [("waiting", ["somebody is in the way"])]


@pytest.mark.parametrize("nodes", ["", "edge-1,", "=lab-a"])
async def test_what_names_no_nodes_is_a_usage_error(head: Head, nodes: str) -> None:
    """Nobody's Ray is touched for a typing error."""
    run = await head.start("", "--nodes", nodes)
    _, words = await run.communicate()
    assert run.returncode == 2
    assert b"is no list of node names" in words
    assert head.bodies == []


async def test_what_may_be_regretted_of_the_placement_is_said_once(head: Head) -> None:
    """Before the driver starts, on stderr; in the next attempt it is known. What is found out then is not regretted."""
    notice = {"code": "accelerators_shared", "key": "cluster.x", "message": "a and b share 0", "fix": "mind it"}
    unchecked = {"code": "interpreter_not_checked", "key": "cluster.y", "message": "is not known", "fix": ""}
    head.grant["placement"] = {"notices": [notice, unchecked]}
    run = await head.start(FAILS_ONCE, "--retries", "2")
    await head.started(1)
    head.lose_node()
    (head.directory / "fail").touch()
    _, words = await run.communicate()
    assert run.returncode == 0, words
    assert words.decode().count("edgelink: note: cluster.x: a and b share 0; mind it") == 1
    assert b"is not known" not in words


async def test_stop_ends_a_driver_that_would_wait_for_ever(head: Head) -> None:
    """With a status of its own, so that a script knows."""
    run = await head.start(WAITS, "--on-node-loss", "stop")
    await head.started(1)
    head.lose_node()
    _, words = await run.communicate()
    assert run.returncode == 69, words
    assert "--on-node-loss stop" in head.records[-1]["attempts"][0]["what_followed"]


async def test_who_stops_the_wait_for_the_nodes_is_told_that_nothing_runs(head: Head) -> None:
    """CMD has not begun."""
    head.grants = False
    run = await head.start(WAITS)
    await eventually(lambda: head.open == 1, 60)
    run.send_signal(signal.SIGINT)
    _, words = await run.communicate()
    assert run.returncode == 130
    assert b"CMD does not run" in words
    assert not (head.directory / "started-1").exists()


async def test_a_signal_to_the_command_is_the_end(head: Head) -> None:
    """Whatever retries are left, and whatever the driver's status is."""
    run = await head.start("import signal, sys; signal.signal(15, lambda *_: sys.exit(1))\n" + WAITS, "--retries", "5")
    await head.started(1)
    run.send_signal(signal.SIGTERM)
    _, words = await run.communicate()
    assert run.returncode == 1, words
    (attempt,) = head.records[-1]["attempts"]
    assert attempt["what_followed"] in words.decode(), "people are told what has ended"
    assert "ended" in attempt["what_followed"]
    assert head.records[-1]["command"] == sys.executable, "no arguments: they may hold secrets"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["edgelink", "train", "robot.options.key=s3cret"], "edgelink train"),
        (["/opt/venv/bin/edgelink", "exec"], "/opt/venv/bin/edgelink exec"),
        (["edgelink", "--verbose", "train"], "edgelink"),
        (["python", "train.py", "--key", "s3cret"], "python train.py"),
        (["bash", "examples/run.sh"], "bash examples/run.sh"),
        (["uv", "run.py"], "uv run.py"),
        (["sh", "https://me:s3cret@host/run.sh"], "sh"),
        (["python", "-c", "print('s3cret')"], "python"),
        (["./login", "s3cret"], "./login"),
        (["true"], "true"),
    ],
)
def test_a_run_is_told_by_what_runs_and_no_secret(argv: list[str], told: str) -> None:
    """On the page and in `edgelink status`, which others may see."""
    assert program_of(argv) == told


TELLS = "import json, os\nprint(json.dumps(dict(os.environ)))\nif 0:\n import rlinf"


async def test_the_drivers_environment_is_sealed(head: Head) -> None:
    """What RLinf would carry to all nodes stays here, in words on stderr; what is named or meant for it is passed."""
    head.grant = {"environment": {"RLINF_NODE_RANK": "0"}, "of_ray": {"HOME": "/home/robot"}, "pass_env": ["AWS_*"]}
    shell = {"HOME": "/root", "RLINF_NODE_RANK": "7", "https_proxy": "http://p", "AWS_PROFILE": "x", "HF_HOME": "/hf"}
    run = await head.start(TELLS, "--env", "DATA=/data", "--env", "MINE", **shell, MINE="m", NOT_NAMED="n")
    output, words = await run.communicate()
    assert run.returncode == 0, words
    found = json.loads(output)
    expected = {"HOME": "/home/robot", "RLINF_NODE_RANK": "0", "DATA": "/data", "MINE": "m", "AWS_PROFILE": "x"}
    assert {**expected, "HF_HOME": "/hf"}.items() <= found.items()
    assert not {"https_proxy", "NOT_NAMED"} & set(found)
    assert b"edgelink: framework rlinf: the code after -c imports rlinf\n" in words
    line = next(line for line in words.decode().splitlines() if "NOT_NAMED" in line)
    assert "CMD" in line
    assert {"NOT_NAMED", "https_proxy"} <= set(line.replace(",", "").split())


async def test_a_command_with_a_cluster_file_is_rlinf_where_nothing_else_is_sure(head: Head) -> None:
    """Whatever hides behind it would have its whole environment carried to all nodes."""
    cluster = head.directory / "cluster.yaml"
    cluster.write_text("cluster: {num_nodes: 1, component_placement: {actor: 0}}")
    program = "import json, os\nprint(json.dumps(dict(os.environ)))"
    run = await head.start(program, "--cluster", str(cluster), GH_TOKEN="secret")
    output, words = await run.communicate()
    assert run.returncode == 0, words
    assert b"framework rlinf: a cluster file is RLinf's" in words
    assert "GH_TOKEN" not in json.loads(output)


@pytest.mark.parametrize("composes", [True, False])
async def test_the_cluster_section_is_the_one_that_plan_reads(head: Head, composes: bool) -> None:
    """Of a file with a defaults list what the training's interpreter composes; without hydra there, a warning."""
    section = {"num_nodes": 1, "component_placement": {"agent": "0"}}
    answer = {"section": section} if composes else {"error": "no hydra here"}
    python = head.directory / "composer"
    python.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\nexit {0 if composes else 3}\n")
    python.chmod(0o755)
    cluster = head.directory / "train.yaml"
    cluster.write_text("defaults: [other]\ncluster: {num_nodes: 2, component_placement: {actor: 0}}")
    run = await head.start("", "--cluster", str(cluster), EDGELINK_RAY__PYTHON=str(python))
    _, words = await run.communicate()
    assert run.returncode == 0, words
    (body,) = head.bodies
    own = {"num_nodes": 2, "component_placement": {"actor": 0}}
    assert body["cluster"] == (section if composes else own)
    assert words.count(b"what other bring to the cluster section was not seen") == (0 if composes else 1)


@pytest.mark.parametrize("composes", [True, False])
def test_what_the_command_overrides_is_in_the_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], composes: bool
) -> None:
    """Of its arguments those that Hydra would read so; where nobody can compose them, they are named."""
    section = {"num_nodes": 1, "component_placement": {"agent": "0"}}
    python = tmp_path / "composer"
    answer = f"echo '{json.dumps({'section': section})}'" if composes else "exit 3"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n{answer}\n')
    python.chmod(0o755)
    cluster = tmp_path / "train.yaml"
    cluster.write_text("cluster: {num_nodes: 2, component_placement: {actor: 0}}")
    argv = ("python", "train.py", "--config-name", "train", "runner.epochs=3", "cluster.num_nodes=1", "+cluster.x=2")

    read = read_cluster_file(cluster, argv, python)

    (composed, *_) = (tmp_path / "asked").read_text().splitlines()
    assert composed.split()[1:] == [str(cluster), "cluster.num_nodes=1", "+cluster.x=2"]
    assert read is not None
    assert read.section == (section if composes else {"num_nodes": 2, "component_placement": {"actor": 0}})
    assert ("cluster.num_nodes=1, +cluster.x=2" in capsys.readouterr().err) == (not composes)


async def test_a_framework_can_be_told(head: Head) -> None:
    """Against what the command looks like."""
    run = await head.start(TELLS, "--framework", "verl", NOT_NAMED="n", https_proxy="http://p")
    output, words = await run.communicate()
    assert b"framework verl: as --framework says" in words
    assert {"NOT_NAMED": "n", "https_proxy": "http://p"}.items() <= json.loads(output).items()


async def test_code_that_cannot_be_carried_is_refused_before_the_nodes_are_waited_for(head: Head) -> None:
    """As the configuration error that it is."""
    run = await head.start(TELLS, RLINF_CODE_WORKING_DIR="relative")
    output, words = await run.communicate()
    assert run.returncode == 78, words
    assert (output, head.most_open) == (b"", 0)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["no-such-program"], "no-such-program: command not found"),
        (["python3", "-X", "dev", "mytrian.py"], "did you mean mytrain.py?"),
    ],
)
async def test_a_command_that_cannot_begin_is_refused_before_the_nodes_are_waited_for(
    head: Head, command: list[str], told: str
) -> None:
    """They may take a minute to come."""
    (head.directory / "mytrain.py").touch()
    run = await start_edgelink(head.directory, "run", "--", *command, cwd=head.directory)
    _, words = await run.communicate()
    assert (run.returncode, head.bodies) == (2, [])
    assert told in words.decode()


@pytest.mark.parametrize("options", [("--json",), ()])
async def test_env_show_lists_what_would_happen(head: Head, options: tuple[str, ...]) -> None:
    """With reasons; no value of the caller's own."""
    head.grant = {"environment": {"RLINF_NODE_RANK": "0"}}
    show = await head.start(TELLS, "--show", *options, verb="env", https_proxy="http://secret", WANDB_API_KEY="secret")
    output, words = await show.communicate()
    assert show.returncode == 0, words
    assert b"secret" not in output
    if options:
        answer = json.loads(output)
        fates = {each["name"]: each["fate"] for each in answer["variables"]}
        assert answer["framework"] == "rlinf"
        assert (fates["https_proxy"], fates["WANDB_API_KEY"], fates["RLINF_NODE_RANK"]) == ("dropped", "passed", "set")
    else:
        lines = output.decode().splitlines()
        assert any(line.startswith("dropped https_proxy  (") for line in lines)
        assert "set     RLINF_NODE_RANK=0  (the head's)" in lines


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--wrong"], "--wrong"),
        (["run.iterations=many", "x.y=1"], "run.iterations"),
        (["--resume"], "--checkpoint-dir"),
    ],
)
async def test_the_trainers_own_options_are_read_before_nodes_are_waited_for(
    head: Head, options: list[str], told: str
) -> None:
    """By the interpreter that will run it. Nothing is asked of the head."""
    head.grant["environment"] = {"EDGELINK_RAY_PYTHON": sys.executable}
    command = ("run", "--", "edgelink", "train", *options)
    run = await start_edgelink(head.directory, *command, cwd=head.directory)
    _, words = await run.communicate()
    assert (run.returncode, head.bodies) == (2, [])
    assert told.encode() in words
    assert b"Traceback" not in words

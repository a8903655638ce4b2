"""`status`, `nodes` and `ping` as text: what they say, that it fits, and what `--watch` tells."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import json
import os
import signal
import socket
import struct
import sys
import termios
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
from cli_process import start_edgelink
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from edgelink.api import schema
from edgelink.api.client import DaemonNotRunningError
from edgelink.api.server import Caller, LocalApi, route
from edgelink.cli import completion, node_argument, nodes, ping, status, wait, watch
from edgelink.cli.layout import columns, table
from edgelink.cli.main import edgelink
from edgelink.cli.report import made_in_words
from edgelink.cli.waiting import WaitingList
from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.errors import DeadlineError
from edgelink.testing import FakeClock

pytestmark = pytest.mark.processes

LONG = "franka-panda-in-the-third-laboratory-on-the-left-hand-side-0001"  # 63 characters, as DNS allows
WAY = {
    "hostname": LONG,
    "overlay_ip": "192.168.100.101",
    "path": "relayed",
    "via": LONG,
    "protocol": None,
    "latency_ms": 1031.5,
    "loss": 0.125,
    "loses_full_packets": True,
}
CONDITION = {
    "type": "RegistryConnected",
    "status": "False",
    "reason": "RegistryUnavailable",
    "message": "the broker at relay.example.org:8883 does not answer; what to do: see whether it is switched on",
    "since": "2026-02-03T04:05:06.000+00:00",
}
DAEMON: dict[str, Any] = {
    "role": "edge",
    "version": "0.2.0",
    "hostname": LONG,
    "phase": "Degraded",
    "ready": False,
    "overlay_ip": "192.168.100.100",
    "node_rank": 499,
    "node_id": "wm7c3t6ocrh5n4p2q7h3yq6dzu",
    "ray_auth": "the firewall only, because Ray 2.47 knows no token",
    "impact": {"goes_on": ["the overlay, and what uses it"], "waits": ["new nodes " * 12]},
    "conditions": [CONDITION],
    "run": {
        "in_progress": True,
        "command": "python train.py " * 8,
        "retries": 3,
        "on_node_loss": "relaunch",
        "attempts": [
            {
                "number": 1,
                "started_at": "2026-02-03T04:05:06+00:00",
                "ended_at": None,
                "exit_status": None,
                "step": 10**9,
                "what_followed": f"{LONG} was lost",
            }
        ],
    },
    "paths": [WAY],
}
NODE = {
    "hostname": LONG,
    "node_rank": 499,
    "overlay_ip": "192.168.100.100",
    "ready": False,
    "ray": f"Ray refused (Python 3.12.1 here, 3.11.7 on {LONG})",
    "path": "relayed",
    "via": LONG,
    "protocol": None,
    "latency_ms": 1031.5,
    "cpus": 128.0,
    "gpus": 16,
    "versions": {"ray": "2.60.0", "python": "3.11.7", "torch": "2.13.0+cu130.rocm", "rlinf": "0.3.0.dev20260203"},
    "open_ports": [f"tcp/{port} from 255 nodes" for port in range(8000, 8020)],
    "wrong": ["Python 3.12.1 here, 3.11.7 on the head: set ray.python to an interpreter of the head's version"],
}
FOUND: dict[str, Any] = {
    "nodes": [NODE, {**NODE, "hostname": "cloud", "node_rank": 0, "ready": True, "versions": {"ray": "2.60.0"}}],
    "strangers": [{"overlay_ip": "192.168.100.77", "hostname": LONG, "wrong": ["somebody else's Ray " * 5]}],
    "left_out": [{"hostname": LONG}],
    "totals": {"enrolled": 500, "nodes": 499, "gpus": 8000, "cpus": 64000.0},
}
PROBE = {**WAY, "event": "probe", "seq": 100000, "rtt_ms": 99999.25}


def seen(**changes: Any) -> dict[str, Any]:
    return {"ready": False, "daemons": [{**DAEMON, **changes}], "silent": []}


@pytest.mark.parametrize("width", [40, 80, 120])
def test_everything_that_people_read_fits(width: int) -> None:
    """With the longest names there are; nothing of a message is lost but its line breaks."""
    summary = {"event": "summary", **ping.summary([PROBE, {**PROBE, "rtt_ms": None}])}
    told = [
        *status.lines(seen(), width),
        *status.short_lines(seen(), width),
        *status.short_lines(
            {**seen(phase="Ready", ready=True, conditions=[]), "silent": [CONDITION["message"]]}, width
        ),
        *nodes.lines(FOUND, max(width, 80)),  # eight columns of figures need their place
        *ping.lines(PROBE, width),
        *ping.lines({**PROBE, "rtt_ms": None}, width),
        *ping.lines(summary, width),
    ]
    fits = [click.unstyle(line) for line in told]
    assert [line for line in fits if len(line) > max(width, 80)] == []
    if width >= 80:
        assert CONDITION["message"] in " ".join(" ".join(fits).split())
        assert NODE["wrong"][0] in " ".join(" ".join(fits).split())


WELL: dict[str, Any] = {
    "role": "head",
    "version": "0.2.0",
    "hostname": "cloud",
    "phase": "Ready",
    "ready": True,
    "overlay_ip": "10.10.0.2",
    "node_rank": 0,
    "node_id": "wm7c3t6ocrh5n4p2q7h3yq6dzu",
    "ray_auth": "token",
    "impact": None,
    "run": None,
    "paths": [{**WAY, "loses_full_packets": False, "loss": None}],
    "conditions": [
        {**CONDITION, "type": kind, "status": state, "reason": reason, "message": reason.lower()}
        for kind, state, reason in (
            ("Leased", "True", "Leased"),
            ("RayJoined", "True", "AliveInRay"),
            ("NodesReady", "True", "AllAlive"),
            ("DriverRunning", "False", "NoRun"),
            ("RideThrough", "False", "KernelLacksRtoCap"),
            ("RayCurrent", "Unknown", "StartNotNoted"),
        )
    ],
}


def shown(draw: Any = status.short_lines, **changes: Any) -> list[str]:
    """What `status` prints of one daemon on a terminal of 80 columns."""
    told = draw({"ready": True, "daemons": [{**WELL, **changes}], "silent": []}, 80)
    assert all(len(click.unstyle(line)) <= 80 for line in told)
    return [click.unstyle(line) for line in told]


def test_a_node_that_is_well_is_told_in_a_few_lines() -> None:
    """And nothing idle is a fault, there and in the long form."""
    short = shown()
    assert short[0] == "head cloud: Ready"
    assert 3 <= len(short) <= 5
    full = shown(status.lines)
    assert not any("✗" in line for line in (*short, *full))
    assert [one["type"] in "".join(full) for one in WELL["conditions"]] == [True] * len(WELL["conditions"])


def test_the_relay_is_called_relay() -> None:
    """Whatever the command is called that starts it; once, where the machine has the same name."""
    relay: dict[str, Any] = {"role": "bootstrap", "hostname": "relay", "nodes": [], "node_rank": None}
    assert shown(**relay)[0] == "relay: Ready"
    assert shown(**{**relay, "hostname": "vps"})[0] == "relay vps: Ready"


def test_what_is_wrong_comes_first_with_what_to_do() -> None:
    """What to do is said once: by the message, or by the table of conditions."""
    missing = {**CONDITION, "type": "NodesReady", "reason": "NodesMissing", "message": "1 of 2 alive"}
    told = shown(conditions=[*WELL["conditions"], missing])
    assert told[1].startswith("  ✗ 1 of 2 alive")
    assert "NodesMissing" in told[1]
    assert "edgelink nodes" in told[2]
    told = shown(conditions=[{**missing, "message": "1 of 2 alive; see `edgelink nodes`"}])
    assert sum("edgelink nodes" in line for line in told) == 1
    assert "--verbose" in told[-1]


def test_a_head_that_has_not_started_is_no_fault() -> None:
    """Its silence is a part of the same wait. Once its Ray was seen, the silence is a fault."""
    silent = {**CONDITION, "type": "PeersReachable", "reason": "PeerSilent", "message": "no answer from cloud"}
    waits = {**CONDITION, "type": "RayJoined", "reason": "HeadNotSeen", "message": "no head"}
    starting = {"role": "edge", "phase": "Starting", "ready": False}
    marks = [line[2] for line in shown(**starting, conditions=[silent, waits])[1:3]]
    assert marks == ["…", "…"]
    joined = {**waits, "status": "True", "reason": "AliveInRay"}
    assert shown(**starting, conditions=[silent, joined])[1][2] == "✗"


def test_lines_after_the_first_begin_under_the_text() -> None:
    """So that marks and names stay in a column of their own."""
    long = {**CONDITION, "status": "True", "reason": "Leased", "type": "Leased", "message": "word " * 40}
    first, *rest = [line for line in shown(status.lines, conditions=[long]) if "word" in line]
    assert {line.index("word") for line in rest} == {first.index("word")}


def test_of_many_ways_those_that_lack_something_are_shown() -> None:
    """The conditions of a relay with 500 nodes are not what scrolls away."""
    well = {**WAY, "loss": None, "loses_full_packets": False}
    told = status.lines(seen(paths=[{**well, "hostname": f"n{number}"} for number in range(499)] + [WAY]), 200)
    ways = [line for line in told if "→" in line]
    assert len(ways) == 21
    assert LONG in ways[0]
    assert "and 480 more nodes" in ways[-1]


def test_a_report_tells_its_file_in_one_piece() -> None:
    """It is copied; what does not fit beside it comes below."""
    short, long = Path("night.tar.gz"), Path(f"edgelink-report-{'x' * 32}-20260203-040506.tar.gz")
    assert made_in_words(short, "24 files, 300 KiB", 80) == "night.tar.gz: 24 files, 300 KiB"
    assert made_in_words(long, "24 files, 300 KiB", 80) == f"{long}:\n    24 files, 300 KiB"
    assert len(str(long)) < 80


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_what_is_waited_for_fits_a_terminal(monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    """In a log the same is one line, because a line is one event there."""
    row = {
        "node_rank": 1,
        "hostname": LONG,
        "ready": False,
        "brief": "never seen " * 9,
        "warnings": ["a warning " * 12],
    }
    monkeypatch.setenv("TERM", term)
    for is_terminal in (True, False):
        if is_terminal:
            monkeypatch.setenv("COLUMNS", "80")
        else:
            monkeypatch.delenv("COLUMNS")
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda is_terminal=is_terminal: is_terminal)
        with WaitingList(stream) as waiting:
            waiting.show({"nodes": [row], "left_s": 60.0})
        told = stream.getvalue().splitlines()
        assert (max(map(len, told)) <= 80) == is_terminal
        assert len(told) == 3 or is_terminal


def test_what_fits_is_not_cut() -> None:
    """On a wide terminal the table is whole."""
    assert LONG in nodes.lines(FOUND, 300)[1]


def test_the_widest_column_is_cut_first() -> None:
    """And never below what still tells something."""
    assert table([("n", "rank"), ("edge-1-of-many", "0")], 14, [0]) == ["n         rank", "edge-1-…  0"]
    assert table([("abcdef", "1234567890")], 8, [0]) == ["abc…  1234567890"]


def test_the_width_is_the_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS overrules it; in a pipe nothing is broken or cut."""
    monkeypatch.delenv("COLUMNS", raising=False)
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb"), os.fdopen(theirs, "w") as terminal:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 97, 0, 0))
        assert columns(terminal) == 97
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        assert columns(terminal) == 80  # a serial line
        monkeypatch.setenv("COLUMNS", "132")
        assert columns(terminal) == 132
        monkeypatch.setenv("COLUMNS", "7")
        assert columns(terminal) == 40
    monkeypatch.delenv("COLUMNS")
    out, into = os.pipe()
    with os.fdopen(out, "rb"), os.fdopen(into, "w") as pipe:
        assert nodes.lines(FOUND, columns(pipe)) == nodes.lines(FOUND, 10_000)


class Watched:
    """Looks that end with Ctrl-C."""

    def __init__(self, *looks: Any) -> None:
        self._looks = list(looks)

    def __call__(self) -> Any:
        if not self._looks:
            raise KeyboardInterrupt
        look = self._looks.pop(0)
        if isinstance(look, Exception):
            raise look
        return look


class QuickClock(FakeClock):
    def block(self, seconds: float) -> None:
        assert seconds <= watch.LOOK_S


def watched(capsys: pytest.CaptureFixture[str], *looks: Any, as_json: bool = False) -> list[str]:
    code = watch.watch(Watched(*looks), draw=status.lines, facts=status.facts, as_json=as_json, clock=QuickClock())
    assert code == 0
    return capsys.readouterr().out.splitlines()


def test_a_watch_tells_all_once_and_then_what_changed(capsys: pytest.CaptureFixture[str]) -> None:
    """Round trips change with each look and are no news; a daemon that is away is said once."""
    direct = {**WAY, "path": "direct", "protocol": "udp"}
    away = DaemonNotRunningError("no daemon")
    told = watched(
        capsys,
        seen(),
        seen(paths=[{**WAY, "latency_ms": 3.0}]),
        seen(paths=[direct]),
        away,
        away,
        seen(paths=[direct], phase="Ready"),
        seen(paths=[], phase="Ready"),
    )
    assert [line.split(" ", 1)[1] for line in told] == [
        f"edge {LONG}: Degraded",
        f"edge {LONG}: RegistryConnected: False RegistryUnavailable: {CONDITION['message']}",
        f"edge {LONG}: way to {LONG}: through {LONG}",
        f"edge {LONG}: way to {LONG}: direct, udp",
        "no daemon",
        "the daemon answers",
        f"edge {LONG}: Ready",
        f"edge {LONG}: way to {LONG}: gone",
    ]


def test_a_watch_as_json_is_a_document_a_change(capsys: pytest.CaptureFixture[str]) -> None:
    """The same as without --watch, on one line."""
    told = watched(capsys, seen(), seen(), seen(phase="Ready"), as_json=True)
    assert [json.loads(line) for line in told] == [seen(), seen(phase="Ready")]


def test_also_that_nobody_answers_is_a_documented_document(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads them finds it by its own key."""
    (told,) = watched(capsys, DaemonNotRunningError("no daemon"), as_json=True)
    schema.Away.model_validate(json.loads(told))
    assert json.loads(told)["error"] == "no daemon"


def test_changes_of_nodes_are_told() -> None:
    """Who is alive, with what, on what way, and what is wrong; not how much, nor for how long."""
    found = {**FOUND, "left_out": []}
    before = nodes.facts(found)
    alive = {**NODE, "ray": "alive", "path": "direct", "protocol": "udp", "wrong": []}
    alive |= {"ready": True, "cpus": 32.0, "gpus": 8}
    now = nodes.facts({**found, "nodes": [alive, FOUND["nodes"][1]], "strangers": []})
    told = watch.changes(before, now)
    has = "alive, direct, udp, 32 CPUs"
    assert told == [f"{LONG}: {has}, 8 GPUs", f"Ray at 192.168.100.77 ({LONG}): gone"]

    looks: list[dict[str, Any]] = [
        {**alive, "gpus": 4},
        {**alive, "gpus": 4, "wrong": ["StateNotRecorded: disk full for 1 s"]},
        {**alive, "gpus": 4, "wrong": ["StateNotRecorded: disk full for 2 s"]},
        {**alive, "gpus": 4, "wrong": ["SecretOutdated: the network's secret changed"]},
    ]
    seen_of = [nodes.facts({**found, "nodes": [node], "strangers": []}) for node in looks]
    seen_of.append(nodes.facts({**FOUND, "nodes": [], "strangers": [], "left_out": [{"hostname": LONG}]}))
    assert [watch.changes(*pair) for pair in pairwise(seen_of)] == [
        [f"{LONG}: {has}, 4 GPUs; StateNotRecorded: disk full for 1 s"],
        [],
        [f"{LONG}: {has}, 4 GPUs; SecretOutdated: the network's secret changed"],
        [f"{LONG}: {seen_of[-1][LONG].text}"],
    ]
    assert "--nodes" in seen_of[-1][LONG].text


def test_a_terminal_is_redrawn_in_place(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What is seen last stays, with no trace of what it replaced."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    text = "\n".join(watched(capsys, seen(), seen(phase="Ready")))
    assert text.index("Degraded") < text.index("\x1b[2K") < text.index(": Ready")
    monkeypatch.setenv("TERM", "dumb")  # Emacs's shell: there it is as in a file
    lines = watched(capsys, seen(), seen(phase="Ready"))
    assert lines[-1].endswith(": Ready")
    assert all(line.isprintable() for line in lines)


def test_a_summary_of_pings() -> None:
    """Quantiles by rank, of those that were answered; a way is named when it changes."""
    direct = {**PROBE, "path": "direct", "protocol": "udp"}
    answers = [
        {**PROBE, "rtt_ms": 40.0},
        {**PROBE, "rtt_ms": None},
        {**direct, "rtt_ms": 10.0},
        {**direct, "rtt_ms": 12.0},
    ]
    found = ping.summary(answers)
    assert (found["sent"], found["answered"], found["loss"]) == (4, 3, 0.25)
    assert [found[f"rtt_{key}_ms"] for key in ("min", "median", "p95", "max")] == [10.0, 12.0, 40.0, 40.0]
    assert found["ways"] == [f"through {LONG}", "direct, udp"]
    many = ping.summary([{**direct, "rtt_ms": float(number)} for number in range(1, 101)])
    assert (many["rtt_median_ms"], many["rtt_p95_ms"]) == (50.5, 95.0)
    silent = ping.summary([{**PROBE, "rtt_ms": None, "path": None}])
    assert (silent["loss"], silent["rtt_p95_ms"], silent["ways"]) == (1.0, None, ["no route known"])


def pinging(monkeypatch: pytest.MonkeyPatch, rtts: Sequence[float | str | None], *argv: str) -> Result:
    """`edgelink ping edge-1 ARGV`, where Ctrl-C comes after the last answer; a text is why no daemon answers."""
    left = list(rtts)

    def ask(_method: str, _path: str, _question: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
        if not left:
            raise KeyboardInterrupt
        if isinstance(rtt := left.pop(0), str):
            raise DaemonNotRunningError(rtt)
        return {**WAY, "rtt_ms": rtt}

    monkeypatch.setattr(ping, "call_here", ask)
    return CliRunner().invoke(ping.command, ["edge-1", "--interval", "0.05", *argv], standalone_mode=False)


def pinged(monkeypatch: pytest.MonkeyPatch, rtts: Sequence[float | str | None], *argv: str) -> tuple[int, list[str]]:
    """Exit status and lines."""
    result = pinging(monkeypatch, rtts, *argv)
    assert result.exception is None, result.exception
    return result.return_value, result.output.splitlines()


def test_pings_are_told_as_they_come_and_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer is enough for exit status 0; Ctrl-C ends without a trace of an error."""
    monkeypatch.setenv("COLUMNS", "300")
    code, lines = pinged(monkeypatch, [1.5, None], "-c", "2")
    assert code == 0
    assert lines[0] == f"  1 {LONG} (192.168.100.101): 1.5 ms, through {LONG}"
    assert lines[1] == f"  2 {LONG} (192.168.100.101): no answer, through {LONG}"
    assert lines[2].endswith("2 sent, 1 answered, 50% lost")
    code, lines = pinged(monkeypatch, [None, None], "-c", "0", "--json")
    assert code == 1
    assert [json.loads(line)["event"] for line in lines] == ["probe", "probe", "summary"]
    assert pinged(monkeypatch, []) == (1, [])


def test_pings_go_on_through_a_restart_of_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without end they wait for it; with one they say what there was before they fail."""
    monkeypatch.setenv("COLUMNS", "300")
    code, lines = pinged(monkeypatch, [1.5, "no daemon", 2.5], "-c", "0")
    assert code == 0
    assert "edgelink: no daemon" in lines
    assert lines[-3].endswith("2 sent, 2 answered, 0% lost")
    failed = pinging(monkeypatch, [1.5, "no daemon"], "-c", "3")
    assert isinstance(failed.exception, DaemonNotRunningError)
    assert "1 sent, 1 answered, 0% lost" in failed.output


async def typed(runtime: Path, *argv: str) -> list[str]:
    """What `edgelink ARGV` prints on a terminal of 80x24."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {name: text for name, text in os.environ.items() if name != "COLUMNS"}
    env |= {"EDGELINK_RUNTIME_DIR": str(runtime), "EDGELINK_STATE_DIR": str(runtime), "TERM": "xterm"}
    command = (sys.executable, "-m", "edgelink.cli.main", *argv)
    process = await asyncio.create_subprocess_exec(*command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    told = bytearray()

    def read() -> None:
        with os.fdopen(ours, "rb", buffering=0) as seen, contextlib.suppress(OSError):  # EIO: nobody writes any more
            while part := seen.read(4096):
                told.extend(part)

    await asyncio.wait_for(asyncio.gather(asyncio.to_thread(read), process.wait()), 60)
    return click.unstyle(told.decode()).splitlines()


@pytest.mark.parametrize("argv", [("status",), ("wait", "--timeout", "0s"), ("nodes",)])
@pytest.mark.parametrize("is_there", [True, False])
async def test_nothing_is_wider_than_a_small_terminal(
    argv: tuple[str, ...], is_there: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With a daemon in trouble and with none, also what goes to stderr."""
    paths = Paths(runtime := tmp_path_factory.mktemp("r"), runtime)

    async def answer(_caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return {**DAEMON, "role": "head", "pid": 1, "device": "et0"}

    async def found(_caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return {**FOUND, "paths": [WAY], "nodes": [{**NODE, "open_ports": []}]}

    routes = [route("GET", path, found) for path in ("/nodes", "/paths")]
    async with contextlib.AsyncExitStack() as stack:
        if is_there:
            api = LocalApi(paths.node_socket)
            await stack.enter_async_context(api.serving([route("GET", "/status", answer), *routes]))
        told = await typed(runtime, *argv)
    assert told
    assert [line for line in told if len(line) > 80] == []


async def test_a_daemon_that_was_killed_is_not_hidden_by_one_that_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine that is relay and head: its socket is there, and nobody answers on it."""
    paths = Paths(tmp_path, tmp_path)

    async def answer(_caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return {**DAEMON, "role": "bootstrap", "ready": True, "conditions": []}

    monkeypatch.setattr(wait, "_LOOK_S", 0.01)
    api, looks = LocalApi(paths.bootstrap_socket), []

    async def no_paths(_caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return {"paths": []}

    async with api.serving([route("GET", "/status", answer), route("GET", "/paths", no_paths)]):
        assert (await asyncio.to_thread(status.look, paths))["ready"]
        await asyncio.to_thread(wait.wait_ready, paths, SystemClock(), 20.0, look=lambda: looks.append(1))
        assert looks, "what else there is to see is looked at before it is said to be ready"
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(paths.node_socket))
        seen = await asyncio.to_thread(status.look, paths)
        (told,) = seen["silent"]
        assert (seen["ready"], "killed or hangs" in told, str(paths.node_socket) in told) == (False, True, True)
        assert told in " ".join(" ".join(status.lines(seen, 300)).split())
        capsys.readouterr()
        with pytest.raises(DeadlineError):
            await asyncio.to_thread(wait.wait_ready, paths, SystemClock(), 0.05, look=lambda: None)
        assert capsys.readouterr().err.count("killed or hangs") == 1


async def test_ping_asks_the_daemon_and_completion_too(tmp_path: Path) -> None:
    """As processes: an unknown node is a usage error; Tab gives the names that the daemon knows."""
    api = LocalApi(tmp_path / "bootstrap.sock")  # a relay has this one only
    asked: list[dict[str, Any]] = []

    async def answer(_caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body)
        return {**WAY, "rtt_ms": 1.5}

    async def peers(_caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return {"peers": [{**WAY, "hostname": "edge-1"}, {**WAY, "hostname": "cloud"}]}

    async with api.serving([route("POST", "/ping", answer), route("GET", "/peers", peers)]):
        done = await start_edgelink(tmp_path, "ping", "edge-1", "-c", "1", "--full")
        out, err = await done.communicate()
        assert done.returncode == 0, err
        assert b"1 sent, 1 answered" in out
        assert asked == [{"node": "edge-1", "timeout_s": 2.0, "full": True}]
        words = {"_EDGELINK_COMPLETE": "bash_complete", "COMP_WORDS": "edgelink ping e", "COMP_CWORD": "2"}
        tab = await start_edgelink(tmp_path, env=words)
        assert (await tab.communicate())[0].split() == [b"plain,edge-1"]
    alone = await start_edgelink(tmp_path, "ping", "edge-1")
    assert b"node.sock" in (await alone.communicate())[1], "not the socket that only a relay has"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_printed(shell: str) -> None:
    """It asks `edgelink` itself, by the variable that click knows."""
    result = CliRunner().invoke(completion.command, [shell], standalone_mode=False)
    assert result.exception is None
    assert f"_EDGELINK_COMPLETE={shell}_complete" in result.output


def test_names_of_nodes_are_completed_where_a_command_takes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the daemon knows; where none runs, nothing, and no error."""
    monkeypatch.setattr(node_argument, "call", lambda *_, **__: {"peers": [{**WAY, "hostname": "edge-1"}, WAY]})
    for words in (
        ["ping"],
        ["logs", "--ray"],
        ["restart-ray"],
        ["revoke"],
        ["registry", "show"],
        ["registry", "release"],
    ):
        found = ShellComplete(edgelink, {}, "edgelink", "_X").get_completions(words, "e")
        assert [item.value for item in found] == ["edge-1"], words

    def refuse(*_: Any, **__: Any) -> None:
        raise DaemonNotRunningError("no EdgeLink daemon")

    monkeypatch.setattr(node_argument, "call", refuse)
    assert ShellComplete(edgelink, {}, "edgelink", "_X").get_completions(["ping"], "") == []


async def test_a_watch_ends_with_ctrl_c_and_zero(tmp_path: Path) -> None:
    """As a process, without a terminal, while no daemon runs."""
    process = await start_edgelink(tmp_path, "status", "--watch")
    assert process.stdout is not None
    assert b"no EdgeLink daemon runs on this machine" in await asyncio.wait_for(process.stdout.readline(), 60)
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, err) == (0, b"")

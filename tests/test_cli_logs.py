"""`edgelink logs`: where each log is found, that it is followed, and that no secret is in it."""

from __future__ import annotations

import io
import json
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import structlog
from click.testing import CliRunner
from telling import refuses
from test_cli_report import node  # noqa: F401 - a fixture

from edgelink import log
from edgelink.api.client import DaemonNotRunningError
from edgelink.cli import logs
from edgelink.cli.foreground import Steps
from edgelink.config import Paths
from edgelink.errors import EdgelinkError, UsageError

Node = tuple[Paths, dict[str, str]]
HEAD = {"role": "head", "hostname": "cloud", "overlay_ip": "10.10.0.2", "node_rank": 0, "pid": 4711}


def line(event: str, minutes_ago: float = 0, **more: Any) -> str:
    at = datetime.now(UTC) - timedelta(minutes=minutes_ago)
    return json.dumps({"component": "node", **more, "event": event, "level": "info", "timestamp": at.isoformat()})


@pytest.fixture
def here(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """This node's directories, and no daemon."""
    paths, secrets = node
    monkeypatch.setenv("EDGELINK_STATE_DIR", str(paths.state))
    monkeypatch.setenv("EDGELINK_RUNTIME_DIR", str(paths.runtime))
    monkeypatch.setenv("EDGELINK_CONFIG", str(tmp_path / "config.yaml"))
    (tmp_path / "config.yaml").write_text(f"ray: {{temp_dir: {tmp_path / 'ray'}}}\n")
    monkeypatch.setattr(logs, "_UNIT_DIRECTORIES", ())
    return paths, secrets


def shown(*argv: str) -> list[str]:
    result = CliRunner().invoke(logs.command, list(argv), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    assert result.return_value == 0
    return result.output.splitlines()


@pytest.fixture
def on_a_terminal(here: Node) -> Iterator[Any]:
    """Has a daemon's log written as on a terminal without `-v`, for a role."""
    before = structlog.get_config()

    def start(role: str) -> Any:
        log.configure(renderer=Steps(io.StringIO()), file=here[0].daemon_log(role))
        return log.get_logger("node")

    yield start
    structlog.configure(**before)


def test_a_daemon_that_ran_on_a_terminal_has_left_its_log(here: Node, on_a_terminal: Any) -> None:
    """Whatever its role; without secrets, readable by root only."""
    paths, secrets = here
    shutil.rmtree(paths.logs)
    log.hide(*secrets.values())
    for role in ("relay", "head", "edge"):
        on_a_terminal(role).info(f"{role}.odd", why=next(iter(secrets.values())))
    assert [told.split()[3:] for told in shown()] == [[f"{role}.odd", "why=***"] for role in ("relay", "head", "edge")]
    assert len(shown("-n", "1")) == 1
    assert {stat.S_IMODE(each.stat().st_mode) for each in paths.logs.iterdir()} == {0o600}
    assert stat.S_IMODE(paths.logs.stat().st_mode) == 0o700
    with pytest.raises(DaemonNotRunningError):
        shown("--follow")


def test_a_log_that_cannot_be_written_costs_the_daemon_nothing(here: Node, on_a_terminal: Any) -> None:
    shutil.rmtree(here[0].logs)
    here[0].logs.touch()
    on_a_terminal("head").info("head.odd")
    assert "head.odd" in log.recent()[-1]


def played(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[Any]:
    """A daemon that is no unit: its memory after each question; then Ctrl-C."""
    asked: list[Any] = []
    left = iter(answers)

    def call(_socket: Path, _method: str, path: str, body: Any = None, **_: Any) -> dict[str, Any]:
        if path == "/status":
            return HEAD
        assert path == "/log"
        asked.append(body["after"])
        try:
            lines = next(left)
        except StopIteration:
            raise KeyboardInterrupt from None
        return {"lines": lines, "number": body["after"] + len(lines)}

    monkeypatch.setattr(logs, "daemons_here", lambda _paths: ([HEAD], []))
    monkeypatch.setattr(logs, "unit_of", lambda _pid: None)
    monkeypatch.setattr(logs, "call", call)
    monkeypatch.setattr(logs, "_LOOK_S", 0.0)
    return asked


def test_a_daemon_that_is_no_unit_tells_what_it_remembers(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """For people with the local time, or as it is; by age or number; without what looks like a secret."""
    lines = [line("node.old", 90), line("node.new", 1, why="two words", password="hunter2hunter2"), line("node.last")]
    played(monkeypatch, lines, lines, lines)
    told = shown("--since", "1h")
    assert [text.split()[3] for text in told] == ["node.new", "node.last"]
    assert told[0].endswith('info    node.new  why="two words" password=***')
    assert shown("-n", "1", "--json") == [lines[2]]
    assert shown("--lines", "0") == []


def test_with_json_each_line_is_json(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is masked in it; for people a value is masked as a whole, quotes and all."""
    said = line("node.x", error='can\'t use password="abcd\nef"', secret='e"fg hi', many=["password: abcd"])
    played(monkeypatch, [said], [said])
    (told,) = map(json.loads, shown("--json"))
    assert (told["error"], told["secret"]) == ('can\'t use password="***\nef"', "***")
    (told,) = shown()
    assert "secret=***" in told
    assert "fg" not in told


def test_a_long_time_ago_is_the_beginning(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no calendar goes back that far."""
    played(monkeypatch, [line("node.started")])
    assert len(shown("--since", "99999999d")) == 1


def test_what_others_wrote_commands_no_terminal(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other nodes choose what some events say of them."""
    played(monkeypatch, [line("node.wrong", why="\x1b]0;you\x07are here", name="a\x1b[2J")])
    assert not [each for told in shown() for each in told if not each.isprintable()]


def test_it_is_followed_until_ctrl_c(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is new is asked for, and --lines is for what was there before."""
    old = [line(f"old.{number}") for number in range(5)]
    asked = played(monkeypatch, old, [], [line("new.1"), line("new.2")])
    assert [text.split()[3] for text in shown("-f", "-n", "1")] == ["old.4", "new.1", "new.2"]
    assert asked == [0, 5, 5, 7]


def test_of_a_unit_the_journal_is_read(here: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What systemd says of it, too; also when no daemon runs, which is when it is wanted most."""
    _, secrets = here
    at = int(datetime(2026, 2, 3, tzinfo=UTC).timestamp() * 1e6)
    entries = [
        {"MESSAGE": "edgelink-edge.service: Main process exited", "__REALTIME_TIMESTAMP": str(at)},
        {"MESSAGE": line("node.x", secret=secrets["network secret"]), "__REALTIME_TIMESTAMP": str(at)},
        {"MESSAGE": [104, 105, 255], "__REALTIME_TIMESTAMP": str(at)},
    ]
    (tmp_path / "bin").mkdir()
    journal = tmp_path / "bin/journalctl"
    said = "\n".join(map(json.dumps, entries))
    journal.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path}/argv\ncat <<'END'\n{said}\nnonsense\nEND\n")
    journal.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    units = tmp_path / "units"
    units.mkdir()
    (units / "edgelink-edge.service").touch()
    monkeypatch.setattr(logs, "_UNIT_DIRECTORIES", (units,))
    told = shown("--since", "90s", "-n", "7", "--follow")
    assert [text.split(maxsplit=3)[3] for text in told] == [
        "edgelink-edge.service: Main process exited",
        "node.x  secret=***",
        "hi\N{REPLACEMENT CHARACTER}",
    ]
    argv = (tmp_path / "argv").read_text().split()
    assert {"--output=json", "--lines=7", "--unit=edgelink-edge.service", "--since=-90s", "--follow"} <= set(argv)


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Units of head and relay are installed; what their journal is asked is in the file, and it has one line."""
    (tmp_path / "bin").mkdir()
    asked, program = tmp_path / "argv", tmp_path / "bin/journalctl"
    at = int((datetime.now(UTC) - timedelta(minutes=5)).timestamp() * 1e6)
    entry = json.dumps({"MESSAGE": line("of.unit", 5), "__REALTIME_TIMESTAMP": str(at)})
    program.write_text(f"#!/bin/sh\necho \"$@\" >{asked}\necho '{entry}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    for role in ("head", "bootstrap"):
        (tmp_path / f"edgelink-{role}.service").touch()
    monkeypatch.setattr(logs, "_UNIT_DIRECTORIES", (tmp_path,))
    return asked


def test_a_long_line_of_the_journal_is_shown_as_well(here: Node, journal: Path) -> None:
    """As of a traceback: without --all journalctl gives null for what has more than 4096 bytes."""
    long = {"MESSAGE": line("of.unit", exception="x" * 5000), "__REALTIME_TIMESTAMP": "1770000000000000"}
    short = json.dumps(long | {"MESSAGE": None})
    script = f"case \" $* \" in *' --all '*) echo '{json.dumps(long)}';; *) echo '{short}';; esac"
    (journal.parent / "bin/journalctl").write_text(f"#!/bin/sh\n{script}\n")
    (told,) = shown()
    assert told.endswith("x" * 5000)


@pytest.mark.parametrize(
    ("journalctl", "message"), [("true", "holds nothing"), ("echo broken >&2; exit 3", "exit status 3")]
)
def test_a_journal_that_tells_nothing_is_a_failure(here: Node, journal: Path, journalctl: str, message: str) -> None:
    """Whoever asks is not told by exit status 0 that nothing has happened."""
    (journal.parent / "bin/journalctl").write_text(f"#!/bin/sh\n{journalctl}\n")
    with pytest.raises(EdgelinkError, match=message) as refused:
        shown()
    assert refused.value.condition_reason == "NoLog"


@pytest.mark.parametrize("unit", [None, "edgelink-head.service"])
def test_of_two_daemons_neither_is_left_out(
    here: Node, monkeypatch: pytest.MonkeyPatch, journal: Path, unit: str | None
) -> None:
    """The head answers, started by hand or as a unit; the relay, a unit, was killed: its last words are wanted."""
    played(monkeypatch, [line("head.old", 9), line("head.new", 1)])
    monkeypatch.setattr(logs, "unit_of", lambda _pid: unit)
    told = [text.split()[3] for text in shown()]
    asked = {word for word in journal.read_text().split() if word.startswith("--unit=")}
    if unit is None:
        assert told == ["head.old", "of.unit", "head.new"]
        assert asked == {"--unit=edgelink-bootstrap.service"}
        played(monkeypatch, [line("head.old", 9), line("head.new", 1)])
        monkeypatch.setattr(logs, "unit_of", lambda _pid: None)
        assert [text.split()[3] for text in shown("-n", "1")] == ["head.new"]
    else:
        assert told == ["of.unit"]
        assert asked == {"--unit=edgelink-head.service", "--unit=edgelink-bootstrap.service"}


def test_two_logs_are_followed_at_once(here: Node) -> None:
    """What comes of either; what is wrong with one of them is the end."""

    def broken() -> Iterator[str]:
        yield "b"
        raise DaemonNotRunningError("it is away")

    assert sorted(logs._as_they_come([iter(["a", "c"]), iter(["b"])])) == ["a", "b", "c"]
    with pytest.raises(DaemonNotRunningError, match="it is away"):
        list(logs._as_they_come([broken(), iter(["a"])]))


def test_without_daemon_and_unit_it_is_said(here: Node) -> None:
    """As every other command does."""
    with pytest.raises(DaemonNotRunningError):
        shown()


@pytest.mark.parametrize(
    ("groups", "unit"),
    [
        ("0::/system.slice/edgelink-head.service\n", "edgelink-head.service"),
        ("12:cpu:/system.slice/edgelink-edge.service\n0::/\n", "edgelink-edge.service"),
        ("0::/system.slice/cron.service\n", None),
        ("0::/user.slice/user-0.slice/session-3.scope\n", None),
    ],
)
def test_a_daemons_unit_is_known_by_its_control_group(tmp_path: Path, groups: str, unit: str | None) -> None:
    """One that somebody started by hand in another unit, as cron, has none."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(groups)
    assert logs.unit_of(7, tmp_path) == unit
    assert logs.unit_of(8, tmp_path) is None


def test_easytiers_log_is_without_secrets(here: Node) -> None:
    """It prints its own in its banner."""
    _, secrets = here
    text = "\n".join(shown("--easytier"))
    assert "somebody logged" in text
    assert [name for name, secret in secrets.items() if secret in text] == []
    assert len(shown("--easytier", "-n", "2")) == 2


def test_rays_logs_of_this_node(here: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By whatever name it is called; each file under its name; a worker's words are the user's own."""
    _, secrets = here
    (tmp_path / "ray/sessions/session_latest/logs/gcs_server.out").write_text("gcs is up\n")
    monkeypatch.setattr(logs, "call", lambda *_: HEAD)
    for argv in (("--ray",), ("--ray", "cloud"), ("--ray", "0"), ("--ray", "10.10.0.2")):
        told = shown(*argv)
        assert [text for text in told if text.startswith("==>")] == ["==> raylet.out <==", "==> gcs_server.out <=="]
        assert told[-1] == "gcs is up"
        assert [name for name, secret in secrets.items() if secret in "\n".join(told)] == []
        assert "the user's own words" not in told


def test_files_are_followed_without_secrets(here: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also one that is yet to come; of several each line says whose it is."""
    paths, secrets = here
    easytier, raylet, gcs = paths.logs / "easytier.log", "raylet.out", "gcs_server.out"
    ray = tmp_path / "ray/sessions/session_latest/logs"

    both = logs._as_they_come

    def as_they_come(sources: list[Iterator[str]]) -> Iterator[str]:
        """What is written once it is followed, a line of each file; then Ctrl-C."""
        easytier.write_text(easytier.read_text() + f"\nnew {secrets['network secret']}\n")
        with (ray / raylet).open("a") as stream:
            stream.write("node up\n")
        (ray / gcs).write_text("first words\n")
        lines = (told for told in both(sources) if told.strip() not in ("", f"{raylet}:"))
        yield from islice(lines, len(sources[:2]))
        raise KeyboardInterrupt

    monkeypatch.setattr(logs, "_as_they_come", as_they_come)
    assert shown("--easytier", "-f", "-n", "0")[-1] == "new ***"
    (ray / gcs).unlink()
    assert sorted(shown("--ray", "-f", "-n", "0")[-2:]) == ["gcs_server.out: first words", "raylet.out: node up"]


def test_rays_logs_of_another_node_come_to_the_head(
    here: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """That node alone is asked; what it sends is masked here, too."""
    asked: list[dict[str, Any]] = []
    files: dict[str, str] = {"ray/raylet.out": "token=abcdefgh\nup\n", "about.json": "{}"}

    def stream(_socket: Path, method: str, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        assert (method, path) == ("POST", "/reports")
        asked.append(body)
        return iter([{"hostname": "edge-1", "files": files}] if files else [{"missing": ["edge-1"]}])

    monkeypatch.setattr(logs, "EventStream", stream)
    monkeypatch.setattr(logs, "call", lambda *_: HEAD)
    peers = [{"hostname": "edge-1", "overlay_ip": "10.10.0.3", "node_rank": 1}]
    monkeypatch.setattr(logs, "known_nodes", lambda _paths: peers)
    assert shown("--ray", "1") == ["token=***", "up"]
    assert [body["hostname"] for body in asked] == ["edge-1"]
    with refuses(UsageError, "edgelink exec edge-1 -- tail", tmp_path / "ray/sessions"):
        shown("--ray", "1", "-f")
    files["ray/raylet.out"] = "\x1b[36mblue\x1b[0m\tup \x1b]52;c;cm0gLXJm\x07\x9b2J \ud800\r\n"
    assert shown("--ray", "1") == ["blue\tup �]52;c;cm0gLXJm��2J �"], "a worker's words, on root's terminal"
    with pytest.raises(UsageError, match="edge-9"):
        shown("--ray", "edge-9")
    files.clear()
    with pytest.raises(EdgelinkError, match="edge-1 did not answer"):
        shown("--ray", "edge-1")
    monkeypatch.setattr(logs, "call", lambda *_: {**HEAD, "role": "edge", "head": {**HEAD}})
    with refuses(UsageError, "edgelink logs --ray", HEAD["hostname"], reason="NotTheHead"):
        shown("--ray", "edge-1")


@pytest.mark.parametrize("argv", [("--ray", "--easytier"), ("--easytier", "--since", "1h"), ("--ray", "--json")])
def test_what_does_not_go_together_is_refused(here: Node, argv: tuple[str, ...]) -> None:
    """Before anything is read."""
    with pytest.raises(UsageError):
        shown(*argv)


def test_a_log_that_is_not_there_is_named(here: Node) -> None:
    """With the place where it was looked for."""
    paths, _ = here
    (paths.logs / "easytier.log").unlink()
    with pytest.raises(EdgelinkError, match=str(paths.logs)):
        shown("--easytier")


def test_a_file_is_followed_through_cuts_and_replacements(tmp_path: Path) -> None:
    """Whole lines only, from where it was read before."""
    file = tmp_path / "x.log"
    file.write_text("old\n")
    lines = logs._tail(file, len("old\n"), None)
    with file.open("a") as stream:
        stream.write("one\ntw")
        stream.flush()
        assert next(lines) == "one"
        stream.write("o\n")
    assert next(lines) == "two"
    file.write_text("cut\n")
    assert next(lines) == "cut"
    file.rename(tmp_path / "x.log.1")
    file.write_text("another file, and longer\n")
    assert next(lines) == "another file, and longer"
    lines.close()  # type: ignore[attr-defined]


def test_rays_logs_are_followed_as_their_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who could put a link there to what only root may read."""
    if os.geteuid() != 0:
        pytest.skip("another user's rights take root")
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        (Path(directory) / "tail").write_text("#!/bin/sh\nid -u; id -G\n")
        (Path(directory) / "tail").chmod(0o755)
        monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
        uid, gid = pwd.getpwnam("nobody")[2:4]
        assert list(logs._tail(Path("x.log"), 0, uid)) == [str(uid), str(gid)]


def test_what_was_logged_since_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of another process' is not believed."""
    before = structlog.get_config()
    log.configure(quiet=True)
    try:
        _, number = log.recent_after(0)
        structlog.get_logger().warning("logs.test", n=1)
        lines, now = log.recent_after(number)
        assert ([json.loads(text)["n"] for text in lines], now) == ([1], number + 1)
        assert log.recent_after(now) == ([], now)
        assert log.recent_after(now + 1000)[0] == log.recent()
    finally:
        structlog.configure(**before)

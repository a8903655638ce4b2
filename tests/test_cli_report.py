"""The bundle: what is in it, and above all what is not."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from registry_world import World

from edgelink.api import schema
from edgelink.api.client import DaemonNotRunningError
from edgelink.cli import report
from edgelink.cli.report import Others, command
from edgelink.config import Paths
from edgelink.errors import EdgelinkError, UsageError
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import Membership
from edgelink.telemetry import report as report_of_node
from edgelink.telemetry.report import collect, mask

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def node(tmp_path: Path) -> tuple[Paths, dict[str, str]]:
    """An enrolled node's directories, with each of its secrets written where it has no business to be."""
    paths = Paths(state=tmp_path / "state", runtime=tmp_path / "run")
    paths.logs.mkdir(parents=True)
    paths.runtime.mkdir()
    (tmp_path / "relay").mkdir()
    world = World(tmp_path / "relay")
    key, token = NodeKey.load_or_create(paths.node_key), world.token()
    membership: Membership = world.membership(key, token, world.enrol(key, token))
    membership.save(paths)
    paths.ray_user.write_text(f"{os.getuid()}\n")
    (paths.state / "ray_token").write_text("the-ray-token-of-this-test\n")
    (paths.runtime / "broker-admin.key").write_text("the-admin-password-of-this-test\n")
    secrets = {
        "network secret": membership.secrets.network_secret,
        "broker password": membership.secrets.broker_password,
        "node key": paths.node_key.read_text().strip(),
        "Ray token": "the-ray-token-of-this-test",
        "admin password": "the-admin-password-of-this-test",
        "enrolment token": token.encode(),
        "password in a line": "hunter2hunter2",
    }
    planted = "\n".join(f"somebody logged {secret}, of all things" for secret in list(secrets.values())[:-1])
    planted += "\nRAY_REDIS_PASSWORD=hunter2hunter2\n" + base64.b64encode(b"the-ray-token-of-this-test").decode()
    (paths.logs / "easytier.log").write_text(planted)
    (paths.state / "last-run.json").write_text(planted)
    (tmp_path / "edgelink.yaml").write_text(f"overlay: {{device: et0}}\nnetwork_secret: {secrets['network secret']}\n")
    ray_logs = tmp_path / "ray" / "sessions" / "session_latest" / "logs"
    ray_logs.mkdir(parents=True)
    (ray_logs / "raylet.out").write_text(planted)
    (ray_logs / "worker-1.out").write_text("the user's own words")
    (paths.recorder / "node").mkdir(parents=True)
    lines = [
        f'{{"at": "{NOW - timedelta(minutes=minutes):%Y-%m-%dT%H:%M:%S+00:00}", "n": {minutes}}}' for minutes in (90, 5)
    ]
    (paths.recorder / "node" / "flight.jsonl").write_text("\n".join(lines) + "\n")
    return paths, secrets


def forms(secret: str) -> set[str]:
    return {secret, base64.b64encode(secret.encode()).decode().rstrip("=")}


def test_no_secret_is_in_the_bundle(node: tuple[Paths, dict[str, str]], tmp_path: Path) -> None:
    """Planted in logs, configuration and Ray's logs, in the clear and in base64; the rest of the lines is there."""
    paths, secrets = node
    files = collect(
        paths,
        timedelta(hours=1),
        NOW,
        config_file=tmp_path / "edgelink.yaml",
        ray_temp=tmp_path / "ray",
        answers={"status.json": {"leaked": secrets["network secret"]}, "daemon.log": f"x {secrets['broker password']}"},
    )
    everything = "\n".join(files.values())
    found = [name for name, secret in secrets.items() for form in forms(secret) if form in everything]
    assert found == []
    assert files["logs/easytier.log"].count("somebody logged ***, of all things") == len(secrets) - 1
    assert files["ray/raylet.out"].count("***") >= len(secrets)
    assert "device: et0" in files["edgelink.yaml"]
    assert "network_secret: ***" in files["edgelink.yaml"]


def test_it_holds_the_last_hour_and_nothing_of_the_users_own(
    node: tuple[Paths, dict[str, str]], tmp_path: Path
) -> None:
    """The recorder is cut at the time asked for; workers' output stays where it is."""
    files = collect(node[0], timedelta(hours=1), NOW, ray_temp=tmp_path / "ray")
    assert '"n": 5' in files["flight-node.jsonl"]
    assert '"n": 90' not in files["flight-node.jsonl"]
    assert "the user's own words" not in "\n".join(files.values())
    begins = {"node": "2026-01-01T10:30:00+00:00"}
    assert json.loads(files["about.json"])["flight_recorder_begins"] == begins, "whether there is more to ask for"


@pytest.mark.parametrize("is_noted", [True, False])
def test_only_files_of_rays_user_are_read_as_rays_logs(
    node: tuple[Paths, dict[str, str]], tmp_path: Path, is_noted: bool
) -> None:
    """The report is made by root; anybody may have put links, pipes and other people's files where Ray logs."""
    logs = tmp_path / "ray" / "sessions" / "session_latest" / "logs"
    (tmp_path / "shadow").write_text("root:$6$hash")
    (logs / "raylet.err").symlink_to(tmp_path / "shadow")
    os.mkfifo(logs / "gcs_server.out")
    (logs / "gcs_server.err").write_text("true words")
    if not is_noted:
        node[0].ray_user.write_text(f"{os.getuid() + 1}\n")
    files = collect(node[0], timedelta(hours=1), NOW, ray_temp=tmp_path / "ray")
    expected = {"ray/raylet.out", "ray/gcs_server.err"} if is_noted else set()
    assert {name for name in files if name.startswith("ray/")} == expected


def test_a_file_in_place_of_rays_session_is_no_harm(node: tuple[Paths, dict[str, str]], tmp_path: Path) -> None:
    """Then there are no logs of Ray, and everything else."""
    (tmp_path / "ray2" / "sessions").mkdir(parents=True)
    (tmp_path / "ray2" / "sessions" / "session_latest").write_text("no directory")
    assert "about.json" in collect(node[0], timedelta(hours=1), NOW, ray_temp=tmp_path / "ray2")


def test_the_story_is_told_of_the_recorder(
    node: tuple[Paths, dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On the terminal, without secrets; no file is made. Without a record there is none."""
    paths, secrets = node
    monkeypatch.setenv("EDGELINK_STATE_DIR", str(paths.state))
    monkeypatch.setenv("EDGELINK_RUNTIME_DIR", str(paths.runtime))
    monkeypatch.chdir(tmp_path)
    now = datetime.now(UTC)
    change = {"what": "node", "node": "edge-1", "health": "away", "why": f"said {secrets['network secret']}"}
    lines = [
        {"at": (now - timedelta(hours=2)).isoformat(), "what": "nodes", "health": {"ok": ["edge-1", "cloud"]}},
        {"at": (now - timedelta(hours=1)).isoformat(), "since": (now - timedelta(hours=1)).isoformat()} | change,
    ]
    (paths.recorder / "node" / "flight.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = sorted(tmp_path.iterdir())
    done = CliRunner().invoke(command, ["--story"], standalone_mode=False)
    assert done.exception is None
    assert "edge-1 is away since then: said ***" in done.output
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(UsageError):
        command.main(["--story", "--json"], standalone_mode=False)
    shutil.rmtree(paths.recorder)
    with pytest.raises(EdgelinkError) as refused:
        command.main(["--story"], standalone_mode=False)
    assert refused.value.condition_reason == "NoLog"


def test_secrets_are_learnt_from_our_own_files_only(node: tuple[Paths, dict[str, str]], tmp_path: Path) -> None:
    """The broker's user owns a directory among ours: what lies there neither hides words nor keeps anybody waiting."""
    paths = node[0]
    paths.broker.mkdir()
    (paths.broker / "x.key").write_text("ordinary-words-of-this-test\n")
    os.mkfifo(paths.broker / "y.key")
    paths.ray_token_copy.parent.mkdir()
    (tmp_path / "elsewhere").write_text("other-words-of-this-test\n")
    paths.ray_token_copy.symlink_to(tmp_path / "elsewhere")
    (paths.logs / "ray.log").write_text("ordinary-words-of-this-test, other-words-of-this-test")
    files = collect(paths, timedelta(hours=1), NOW)
    assert files["logs/ray.log"] == "ordinary-words-of-this-test, other-words-of-this-test"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Authorization: Bearer abcdef.ghi", "Authorization: Bearer ***"),
        ('{"api_key": "abcdefgh", "port": 80}', '{"api_key": "***", "port": 80}'),
        ("the secret is out", "the secret is out"),
        ("EasyTier's password_hash=abcd", "EasyTier's password_hash=abcd"),
        ("network-secret = 'abcdefgh'", "network-secret = '***'"),
        ("HF_TOKEN=abcdefgh", "HF_TOKEN=***"),
        ("GITHUB_TOKEN=abcdefgh next", "GITHUB_TOKEN=*** next"),
        ("token: abcdefgh", "token: ***"),
        ('{"token": "abc def", "port": 80}', '{"token": "***", "port": 80}'),
        (r'{"line": "{\"token\": \"abcdefgh\", \"n\": 1}"}', r'{"line": "{\"token\": \"***\", \"n\": 1}"}'),
        ("aws_secret_access_key = abcd/efgh+", "aws_secret_access_key = ***"),
        ("access_key=abcdefgh", "access_key=***"),
        ("X-Api-Key: abcdefgh", "X-Api-Key: ***"),
        ("SECRET_KEY=abcdefgh123 next", "SECRET_KEY=*** next"),
        ("'SECRET_KEY': 'abcdefgh123'", "'SECRET_KEY': '***'"),
        ("DJANGO_SECRET_KEY: abcdefgh123", "DJANGO_SECRET_KEY: ***"),
        ("MYSQL_PWD=abcdefgh DB_PASS=ijklmnop", "MYSQL_PWD=*** DB_PASS=***"),
        ("AWS_ACCESS_KEY_ID=AKIAIOSFODNN7EXAMPLE", "AWS_ACCESS_KEY_ID=***"),
        ("HF_TOKEN: !!str abcdefgh", "HF_TOKEN: !!str ***"),
        ("mysql --password hunter22secret -h db", "mysql --password *** -h db"),
        ("x --hf-token abcdefgh12345", "x --hf-token ***"),
        ("['x', '--db_password', 'hunter22secret', 'y']", "['x', '--db_password', '***', 'y']"),
        ("--password --verbose", "--password --verbose"),
        ("Cookie: edgelink_session=1764138000.0123abcd; a=b", "Cookie: edgelink_session=*** a=b"),
        ("http://127.0.0.1:8270/#link=AbCdEfGh", "http://127.0.0.1:8270/#link=***"),
        ("password:\n  hunter22x", "password:\n  ***"),
        ("wrong password:\nconnection refused", "wrong password:\nconnection refused"),
        (
            "db:\n  - password: |\n      hunter22x\n\n      more\n    host: db\nuser: me",
            "db:\n  - password: |\n      ***\n    host: db\nuser: me",
        ),
        ("PWD=/home/robot OLDPWD=/tmp forward_pass=0.1234", "PWD=/home/robot OLDPWD=/tmp forward_pass=0.1234"),
        ("link=eth0 session=night tokenizer: bert", "link=eth0 session=night tokenizer: bert"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic ***"),
        ("git clone https://me:p@ss:word@host:80/x.git", "git clone https://me:***@host:80/x.git"),
        ("git clone https://ghp_abcdefghijklmnop1234@host/x", "git clone https://***@host/x"),
        ("tcp://192.0.2.1:11010, a@b", "tcp://192.0.2.1:11010, a@b"),
        ('{"max_tokens": 4096, "token_path": "/run/x"}', '{"max_tokens": 4096, "token_path": "/run/x"}'),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabcd==\n-----END RSA PRIVATE KEY-----\nbye",
            "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----\nbye",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\nabcd", "-----BEGIN PRIVATE KEY-----***"),
        ("hello there\nabcd\nefgh==\n-----END PRIVATE KEY-----", "hello there\n***-----END PRIVATE KEY-----"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, masked: str) -> None:
    """Also where nobody has told us of it; ordinary sentences stay readable."""
    assert mask(text) == masked


@pytest.mark.parametrize(
    ("document", "masked"),
    [
        ({"error": "wrong password: \n connection refused"}, {"error": "wrong password: \n *** refused"}),
        ({"error": "can't use password='abcd"}, {"error": "can't use password='***"}),
        ({"error": 'token="a\\bcd"e', "n": 1.5, "ok": True}, {"error": 'token="***"e', "n": 1.5, "ok": True}),
        ({"db_password": "a b, 'c'", "n": None}, {"db_password": "***", "n": None}),
        ({"secret": [{"of": "relay"}, 12345678, True, ""]}, {"secret": [{"of": "***"}, "***", True, ""]}),
        ({"name": "elt1_12345678", "elt1_abcdefgh": 1}, {"name": "***", "***": 1}),
        ({"argv": ["x", "--hf-token", "abc", "y"]}, {"argv": ["x", "--hf-token", "***", "y"]}),
        ({"yaml": "password: |\n  hunter22\n"}, {"yaml": "password: |\n    ***\n"}),
        ({"line": '{"token": "ab\\nc", "n": 1}'}, {"line": '{"token": "***", "n": 1}'}),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_json_is_masked_and_stays_json(document: dict[str, Any], masked: dict[str, Any], indent: int | None) -> None:
    """As a whole, or a line among others: whoever reads it by a program is not stopped by a secret."""
    assert json.loads(mask(json.dumps(document, indent=indent))) == masked
    before, line, after = mask(f"password:\n{json.dumps(document)}\n{{ no JSON, token=abcdefgh").split("\n")
    assert (before, after) == ("password:", "{ no JSON, token=***")
    assert json.loads(line) == masked


def test_no_search_holds_up_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads get their turn between two searches, so none is through hours of the flight recorder at once."""
    searched: list[int] = []
    masked_text = report_of_node._masked_text

    def counted(text: str) -> str:
        searched.append(len(text))
        return masked_text(text)

    monkeypatch.setattr(report_of_node, "_masked_text", counted)
    lines = [
        json.dumps({"at": "2026-01-01T12:00:00+00:00", "n": number, "why": "https://x" * 10}) for number in range(1000)
    ]
    assert mask("\n".join(lines)) == "\n".join(lines)
    assert max(searched) == len("https://x" * 10)


def test_the_command_works_without_a_daemon(
    node: tuple[Paths, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When everything is down, a report is needed most: with all there is, even. One file, for its owner only."""
    monkeypatch.setenv("EDGELINK_STATE_DIR", str(node[0].state))
    monkeypatch.setenv("EDGELINK_RUNTIME_DIR", str(node[0].runtime))
    output = tmp_path / "report.tar.gz"
    done = CliRunner().invoke(command, ["-o", str(output), "--since", "99999999d"], standalone_mode=False)
    assert done.exception is None
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    with tarfile.open(output) as archive:
        names = {Path(member.name).name for member in archive.getmembers()}
    assert {"about.json", "easytier.log", "status-node.txt"} <= names


@pytest.mark.parametrize("runs", [True, False])
def test_a_script_is_told_what_there_is_and_what_could_not_be_had(
    node: tuple[Paths, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    """Where the bundle is, whose files are in it, and whose are not; without a daemon, why it tells nothing."""
    monkeypatch.setenv("EDGELINK_STATE_DIR", str(node[0].state))
    monkeypatch.setenv("EDGELINK_RUNTIME_DIR", str(node[0].runtime))
    monkeypatch.chdir(tmp_path)

    def call(socket: Path, _method: str, path: str) -> object:
        if not runs or socket.stem == "bootstrap":
            raise DaemonNotRunningError(f"silent: {socket}")
        return {"/status": {"role": "head", "hostname": "cloud"}, "/paths": {}, "/log": {"lines": []}}[path]

    parts = [{"hostname": "edge-1", "files": {"about.json": "{}"}}, {"missing": ["edge-2", "relay"]}]
    monkeypatch.setattr(report, "call", call)
    monkeypatch.setattr(report, "refuse_elsewhere", lambda _paths: None)
    monkeypatch.setattr(report, "EventStream", lambda *_: iter(parts))
    asked = ["-o", "night.tar.gz", "--json", *(["--all"] if runs else [])]
    done = CliRunner().invoke(command, asked, standalone_mode=False)
    assert done.exception is None
    told = json.loads(done.stdout)
    schema.Report.model_validate(told)
    output = tmp_path / "night.tar.gz"
    with tarfile.open(output) as archive:
        assert told["files"] == len(archive.getmembers())
    assert (told["schema"], told["path"], told["bytes"]) == (1, str(output), output.stat().st_size)
    if runs:
        assert (told["nodes"], told["missing"]) == (["cloud", "edge-1"], ["edge-2", "relay"])
        assert told["daemon_error"] is None
        assert "no report from edge-2, relay" in done.stderr
    else:
        assert (told["nodes"], told["missing"]) == (["edge-1"], [])  # as which it is enrolled
        assert "silent: " in told["daemon_error"]


@pytest.mark.parametrize(("parts", "whole"), [([{"missing": []}], True), ([], False)])
def test_a_bundle_of_all_is_of_all_or_none(
    node: tuple[Paths, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parts: list[dict[str, Any]],
    whole: bool,
) -> None:
    """A daemon that dies meanwhile ends its answer as one that is done does. And no more than a week is asked for."""
    asked: list[dict[str, Any]] = []

    def stream(*arguments: Any) -> Iterator[dict[str, Any]]:
        asked.append(arguments[-1])
        yield {"hostname": "edge-1", "files": {}}
        yield from parts

    monkeypatch.setenv("EDGELINK_STATE_DIR", str(node[0].state))
    monkeypatch.setenv("EDGELINK_RUNTIME_DIR", str(node[0].runtime))
    monkeypatch.setattr(report, "refuse_elsewhere", lambda _paths: None)
    monkeypatch.setattr(report, "EventStream", stream)
    output = tmp_path / "night.tar.gz"
    argv = ["-o", str(output), "--all", "--since", "8d"]
    done = CliRunner().invoke(command, argv, standalone_mode=False)
    assert isinstance(done.exception, DaemonNotRunningError) != whole
    assert output.exists() == whole
    assert asked == [{"since_s": 7 * 86400.0}]


def test_the_bundle_holds_any_text_and_follows_no_link(
    node: tuple[Paths, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a character that a node sent costs that character; a link where the bundle is to be is refused."""
    monkeypatch.setenv("EDGELINK_STATE_DIR", str(node[0].state))
    monkeypatch.setenv("EDGELINK_RUNTIME_DIR", str(node[0].runtime))
    monkeypatch.setattr("edgelink.cli.report._of_others", lambda *_: Others({"edge-1/\ud800.log": "a\ud800b"}, [], []))
    output, link, target = tmp_path / "report.tar.gz", tmp_path / "link.tar.gz", tmp_path / "target"
    done = CliRunner().invoke(command, ["--all", "-o", str(output)], standalone_mode=False)
    assert done.exception is None
    with tarfile.open(output) as archive:
        (member,) = (member for member in archive.getmembers() if "/edge-1/" in member.name)
        file = archive.extractfile(member)
        assert file is not None
        assert file.read() == b"a?b"
    target.write_text("not to be touched")
    link.symlink_to(target)
    done = CliRunner().invoke(command, ["-o", str(link)], standalone_mode=False)
    assert isinstance(done.exception, UsageError)
    assert target.read_text() == "not to be touched"

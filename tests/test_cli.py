"""The command line: options, exit codes, and that help costs nothing."""

from __future__ import annotations

import base64
import errno
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from telling import Words

from edgelink.cli import lab, main, stop
from edgelink.cli.options import DURATION, KEY_VALUE, read_token, token_file_option
from edgelink.errors import ExitCode, UsageError
from edgelink.protocol.token import Token

pytestmark = pytest.mark.processes


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgelink.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("1h", 3600), ("2d", 172800), ("250ms", 0.25)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    """A bare number is seconds."""
    assert DURATION.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "h", "1 fortnight", "-5s", "1h30m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """No guessing."""
    with pytest.raises(click.BadParameter):
        DURATION.convert(text, None, None)


def test_labels_are_key_value() -> None:
    """The value may hold an equals sign; the key may not be empty."""
    assert KEY_VALUE.convert("a=b=c", None, None) == ("a", "b=c")
    with pytest.raises(click.BadParameter):
        KEY_VALUE.convert("=b", None, None)


def test_a_token_comes_from_one_place(tmp_path: Path) -> None:
    """Argument, file or stdin; not two of them."""
    file = tmp_path / "token"
    file.write_text("elt1_abc\n")
    assert read_token(None, str(file)) == "elt1_abc"
    assert read_token("elt1_x", None) == "elt1_x"
    assert read_token(None, None, required=False) is None
    with pytest.raises(click.UsageError):
        read_token("elt1_x", str(file))
    with pytest.raises(click.UsageError):
        read_token(None, None)


def test_a_token_that_is_typed_counts_more_than_the_one_that_a_container_has(tmp_path: Path) -> None:
    """Two that were typed are one too many."""
    (tmp_path / "token").write_text("elt1_of-the-image\n")

    @click.command()
    @click.argument("token", required=False)
    @token_file_option
    def join(token: str | None, token_file: str | None) -> None:
        click.echo(read_token(token, token_file))

    image = {"EDGELINK_TOKEN_FILE": str(tmp_path / "token")}
    assert CliRunner().invoke(join, [], env=image).output == "elt1_of-the-image\n"
    assert CliRunner().invoke(join, ["elt1_typed"], env=image).output == "elt1_typed\n"
    assert CliRunner().invoke(join, ["elt1_typed", "--token-file", "x"], env=image).exit_code == 2


def test_who_stops_join_is_told_that_the_token_is_still_good(tmp_path: Path, words: Words) -> None:
    """The same machine gets the same lease for it, whether the registry had answered or not."""
    (tmp_path / "edgelink.yaml").write_text("hostname: robot\noverlay: {kind: existing, device: lo}\n")
    places = {"EDGELINK_CONFIG": str(tmp_path / "edgelink.yaml"), "EDGELINK_STATE_DIR": str(tmp_path / "state")}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        token = Token("abcdefgh", "s" * 32, bytes(32), base64.b64encode(bytes(32)).decode(), "n" * 16, (address,))
        command = [sys.executable, "-m", "edgelink.cli.main", "join", token.encode()]
        process = subprocess.Popen(command, env={**os.environ, **places}, stderr=subprocess.PIPE, text=True)
        silent.settimeout(60)
        with silent.accept()[0]:  # it waits for an answer
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    words(said)


def test_stop_needs_no_configuration_without_mistakes(tmp_path: Path, words: Words) -> None:
    """What runs is ended all the same, and the mistake told: here there is nothing to end."""
    (tmp_path / "edgelink.yaml").write_text("overlay: {devise: et0}\n")
    own = {f"EDGELINK_{name}_DIR": str(tmp_path / name) for name in ("STATE", "RUNTIME")}
    stopped = CliRunner().invoke(stop.command, ["--config", str(tmp_path / "edgelink.yaml")], env=own)
    assert stopped.exit_code == 0, stopped.exception
    assert "overlay.devise" in stopped.stderr
    words(stopped.stdout)


def test_help_names_every_verb_and_imports_none_of_them() -> None:
    """`edgelink --help` is read while thinking: it has to be there at once. Verbs that only ask the daemon likewise."""
    code = (
        "import sys, contextlib, io\n"
        "from edgelink.cli.main import edgelink\n"
        "out = io.StringIO()\n"
        "with contextlib.redirect_stdout(out):\n"
        "    edgelink.main(['--help'], standalone_mode=False)\n"
        "assert all(verb in out.getvalue() for verb in edgelink.list_commands(None))\n"
        "heavy = {'pydantic', 'aiohttp', 'pyroute2', 'ray', 'torch', 'structlog'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "import edgelink.cli.nodes, edgelink.cli.status, edgelink.cli.wait, edgelink.cli.driver_environment\n"
        "heavy = {'pydantic', 'aiohttp', 'pyroute2', 'structlog'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_joining_imports_nothing_that_runs_a_daemon() -> None:
    """It is typed once a machine, and a board takes ten times as long to import as a desktop."""
    code = (
        "import sys, edgelink.cli.daemon, edgelink.member.join\n"
        "print([name for name in ('aiohttp', 'pyroute2', 'ray', 'torch') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "[]\n"


def test_no_verb_needs_what_the_daemon_does_not_install() -> None:
    """pipx, the bundle and the .deb bring neither numpy nor Ray: those are the user's interpreter's."""
    code = """
import importlib, pkgutil, sys
for name in ("numpy", "torch", "ray", "gymnasium", "zstandard", "lerobot", "mujoco"):
    sys.modules[name] = None
import edgelink.cli
for module in pkgutil.iter_modules(edgelink.cli.__path__):
    importlib.import_module(f"edgelink.cli.{module.name}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_every_verb_has_help() -> None:
    """No verb in the table that cannot be imported."""
    for verb in main.edgelink.list_commands(click.Context(main.edgelink)):
        if verb != "train":  # the trainer's own parser answers, in the interpreter that has torch
            result = CliRunner().invoke(main.edgelink, [verb, "--help"])
            assert result.exit_code == 0, (verb, result.exception)
            assert f"edgelink {verb} [OPTIONS]" in result.output


def test_what_was_mistyped_is_told_no_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also by click, whose own lines are as long as what they tell."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["edgelink", "doctor", "zzz"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == ExitCode.USAGE
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 5
    assert max(map(len, lines)) <= 80


GROUPS = ["access", "config", "debug", "lab", "registry", "robot", "service", "token"]


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_help_tells_each_command_on_one_line(group: str) -> None:
    """On a terminal of 80 columns: none is broken, cut or left out."""
    words = group.split()
    command = main.edgelink.get_command(click.Context(main.edgelink), group) if group else main.edgelink
    assert isinstance(command, click.Group)
    told = CliRunner().invoke(main.edgelink, [*words, "--help"], env={"COLUMNS": "80"}, terminal_width=80).output
    lines = told.partition("Show this message and exit.")[2].splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    known = {
        name: command.get_command(click.Context(command), name)
        for name in command.list_commands(click.Context(command))
    }
    assert listed == [name for name, one in known.items() if one and not one.hidden]
    assert [line for line in lines if len(line) > 80 or line.endswith("...")] == []


@pytest.mark.parametrize(
    ("typed", "meant"), [("trian", "train"), ("statsu", "status"), ("lab staus", "status"), ("token creat", "create")]
)
def test_a_mistyped_command_is_answered_with_the_one_that_was_meant(typed: str, meant: str) -> None:
    result = CliRunner().invoke(main.edgelink, typed.split())
    assert (result.exit_code, f"'{meant}'" in result.stderr) == (2, True)


def test_a_command_that_is_like_none_is_answered_with_all_of_its_group() -> None:
    stderr = CliRunner().invoke(main.edgelink, ["lab", "ls"]).stderr
    assert all(name in stderr for name in ("up", "down", "status", "exec"))


def test_the_relay_may_be_called_by_its_role() -> None:
    """As head and edge are."""
    context = click.Context(main.edgelink)
    assert main.edgelink.get_command(context, "relay") is main.edgelink.get_command(context, "bootstrap")


@pytest.mark.parametrize(
    ("name", "has_daemons", "node", "program"),
    [("lab", True, "cloud", "edgelink"), ("ux", True, "cloud", "edgelink"), ("ux", False, "relay", "bash")],
)
def test_what_a_lab_that_is_up_advises_runs_in_that_lab(
    name: str, node: str, program: str, *, has_daemons: bool
) -> None:
    words = lab.next_command(name, has_daemons=has_daemons).split()
    assert words[:3] == ["edgelink", "lab", "exec"]
    found = lab.exec_.make_context("exec", words[3:]).params
    assert (found["name"], found["node"], found["argv"][0]) == (name, node, program)


def test_unknown_verb_and_option_are_usage_errors() -> None:
    """Exit status 2, as everywhere."""
    assert run("no-such-verb").returncode == 2
    assert run("status", "--no-such-option").returncode == 2


def test_status_without_a_daemon_is_one_plain_error(tmp_path: Path) -> None:
    """Exit status 1 and what to start; no traceback."""
    result = run("status", env={"EDGELINK_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert result.returncode == 1
    assert result.stderr.endswith("\n  reason: DaemonNotRunning\n")
    assert "Traceback" not in result.stderr


def test_a_refused_file_is_not_a_defect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever forgot sudo is told which file it was, and to use sudo."""

    def refuse(**_options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/var/lib/edgelink")

    monkeypatch.setattr(main.edgelink, "main", refuse)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "/var/lib/edgelink: Permission denied" in said
    assert "sudo" in said
    assert "defect" not in said


@pytest.mark.parametrize(("arguments", "status"), [(["status"], 1), (["nonsense"], 2), (["version"], 0)])
def test_a_log_that_is_full_changes_no_exit_status(tmp_path: Path, arguments: list[str], status: int) -> None:
    """What it complains of is lost, and neither a traceback's status nor Python's 120 takes the place of its own."""
    environment = {**os.environ, "EDGELINK_RUNTIME_DIR": str(tmp_path)}
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "edgelink.cli.main", *arguments]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=full, env=environment, check=False)
    assert done.returncode == status


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_what_a_supervisor_has_closed_changes_no_exit_status(tmp_path: Path, closed: str) -> None:
    """Some start programs so; nor does a file that is opened then get what is printed."""
    shell = f'exec "$0" -m edgelink.cli.main "$@" {closed}'
    for argv, status in ((["version"], 0), (["status"], 1)):
        env = {"EDGELINK_RUNTIME_DIR": str(tmp_path), "PATH": os.environ["PATH"]}
        done = subprocess.run(
            ["sh", "-c", shell, sys.executable, *argv], capture_output=True, text=True, env=env, timeout=60, check=False
        )
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr


def test_a_script_without_its_first_line_is_no_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`edgelink exec` and `train` become a program, which the kernel may refuse."""
    from edgelink.cli import exec as exec_command
    from edgelink.cli import train

    script = tmp_path / "script"
    script.write_text("echo ran\n")
    script.chmod(0o755)
    monkeypatch.setattr(exec_command, "command_environment", dict)
    result = CliRunner().invoke(exec_command.command, ["--", str(script)])
    assert (result.exit_code, "cannot be run: Exec format error" in result.output) == (2, True)
    monkeypatch.setenv("EDGELINK_RAY_PYTHON", str(tmp_path / "gone"))
    result = CliRunner().invoke(train.command, [])
    assert isinstance(result.exception, UsageError)
    assert "ray.python" in result.exception.hint


def exec_here(environment: dict[str, str], *argv: str, env: dict[str, str]) -> str:
    """What `edgelink exec -- ARGV` prints, with a daemon that answers ``environment``, called with ``env``."""
    program = (
        "import sys\nfrom edgelink.cli import env, exec\n"
        f"env.call = lambda *_: {{'environment': {environment!r}}}\n"
        "exec.command.main(sys.argv[1:], standalone_mode=False)"
    )
    command = [sys.executable, "-c", program, "--", *argv]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=True).stdout


OF_DAEMON = {
    "PATH": "/opt/venv/bin:/usr/bin:/bin",
    "EDGELINK_RAY_PYTHON": "/opt/venv/bin/python",
    "no_proxy": "127.0.0.1,10.10.0.2",
}


def test_a_command_of_exec_has_the_signals_of_any_command() -> None:
    """Python ignores SIGPIPE: `yes | head` in a shell started so would complain, and some programs never end."""
    status = exec_here(OF_DAEMON, "cat", "/proc/self/status", env={**os.environ, "PATH": "/usr/bin:/bin"})
    ignored = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:"))
    assert ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1) == 0


def test_a_command_of_exec_keeps_what_the_caller_has() -> None:
    """Its own PATH behind the interpreter's directory, and its exceptions from the proxy beside ours."""
    caller = {"PATH": "/home/a/.local/bin:/opt/venv/bin:/usr/bin:/bin", "NO_PROXY": "corp.example,127.0.0.1"}
    shown = exec_here(OF_DAEMON, "env", env={**caller, "PYTHONPATH": os.pathsep.join(sys.path)}).splitlines()
    assert "PATH=/opt/venv/bin:/home/a/.local/bin:/usr/bin:/bin" in shown
    assert "no_proxy=corp.example,127.0.0.1,10.10.0.2" in shown
    assert "NO_PROXY=corp.example,127.0.0.1,10.10.0.2" in shown


def test_a_command_of_exec_begins_with_the_import_hook() -> None:
    """In front of the caller's own PYTHONPATH."""
    of_daemon = {**OF_DAEMON, "EDGELINK_IMPORT_HOOK": "/hook", "PYTHONPATH": "/hook"}
    caller = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(sys.path)}
    assert f"PYTHONPATH=/hook:{caller['PYTHONPATH']}" in exec_here(of_daemon, "env", env=caller).splitlines()


def test_a_token_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    with pytest.raises(click.UsageError, match="is no text"):
        read_token(None, str(tmp_path / "token"))


def test_a_reader_that_is_gone_is_no_defect() -> None:
    """`edgelink … | head`: it ends without a word."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as nobody:
        command = [sys.executable, "-m", "edgelink.cli.main", "version"]
        done = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_full_disk_is_not_a_defect() -> None:
    """Nor is it silence: what could not be written is named, and the exit status is not that of success."""
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "edgelink.cli.main", "version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode != 0
    assert "the output: No space left on device" in result.stderr
    assert "defect" not in result.stderr


def test_an_old_terminal_gets_what_it_can_show(tmp_path: Path) -> None:
    """A serial line, a locale that is not UTF-8: no check mark, and all the rest."""
    result = run(
        "doctor", "memory", env={**os.environ, "PYTHONIOENCODING": "latin-1", "EDGELINK_STATE_DIR": str(tmp_path)}
    )
    assert "unexpected" not in result.stderr
    assert " memory " in result.stdout


@pytest.mark.parametrize(("no_color", "is_coloured"), [("", True), ("1", False)])
def test_a_person_who_wants_no_colour_gets_none(tmp_path: Path, no_color: str, is_coloured: bool) -> None:
    """`NO_COLOR`, as https://no-color.org has it: whatever its value is, unless it is empty."""
    terminal, ours = os.openpty()
    with os.fdopen(ours, "wb", buffering=0) as shown:
        command = [sys.executable, "-m", "edgelink.cli.main", "doctor", "memory"]
        env = {**os.environ, "TERM": "xterm", "NO_COLOR": no_color, "EDGELINK_STATE_DIR": str(tmp_path)}
        subprocess.run(command, env=env, stdout=shown, stderr=subprocess.PIPE, timeout=60, check=False)
    told = b""
    with os.fdopen(terminal, "rb", buffering=0) as seen, suppress(OSError):  # EIO: nobody is at the other end any more
        while part := seen.read(4096):
            told += part
    assert b" memory " in told
    assert (b"\x1b[" in told) == is_coloured

"""``edgelink logs``: of the daemon here, of its EasyTier, of a node's Ray; secrets are masked as in a report."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click

from edgelink.api.client import DaemonNotRunningError, EventStream
from edgelink.api.find_node import find
from edgelink.cli.node_argument import NodeName, known_nodes
from edgelink.cli.options import AGO, config_option
from edgelink.cli.patience import call, saying
from edgelink.cli.ray_request import require_head
from edgelink.cli.status import daemons_here
from edgelink.clock import SystemClock
from edgelink.config import Paths, load_config
from edgelink.errors import ConfigError, EdgelinkError, ExitCode, UsageError
from edgelink.process.output import read_end
from edgelink.ray_cluster.interpreter import identity_arguments, user_of
from edgelink.ray_cluster.local_ray import noted_user_uid
from edgelink.ray_cluster.temp_dir import ray_log_directory, sessions_in
from edgelink.service import units as service_units
from edgelink.telemetry.report import RAY_LOGS, hide_secrets, mask
from edgelink.wording import printable

_LOOK_S = 0.5
_THIS_NODE = "."
_UNIT_DIRECTORIES = tuple(Path(at, "systemd/system") for at in ("/etc", "/run", "/usr/lib", "/lib"))
_MAX_BYTES = 4 << 20  # of a file
_NO_TIME = datetime.min.replace(tzinfo=UTC)
_OWN_FIELDS = ("timestamp", "level", "event", "component")


@click.command("logs")
@click.option("-f", "--follow", "is_following", is_flag=True, help="go on until Ctrl-C")
@click.option("--since", "since_s", type=AGO, help="of the daemon: not older than this, such as 1h")
@click.option("-n", "--lines", "count", type=click.IntRange(min=0), default=200, show_default=True, help="at most")
@click.option("--easytier", "is_easytiers", is_flag=True, help="what EasyTier on this machine says")
@click.option(
    "--ray",
    "ray_of",
    type=NodeName(),
    is_flag=False,
    flag_value=_THIS_NODE,
    metavar="[NODE]",
    help="raylet, GCS and agents of this node; on the head also of NODE, asked over the relay",
)
@click.option("--json", "as_json", is_flag=True, help="the daemon's lines as they are, JSON")
@config_option
def command(
    *,
    is_following: bool,
    since_s: float | None,
    count: int,
    is_easytiers: bool,
    ray_of: str | None,
    as_json: bool,
    config_path: Path | None,
) -> int:
    """The log of this machine's daemon: the journal's where it is a unit, else what it remembers (2000 lines).

    Of a daemon that has ended, and ran on a terminal: the file that it wrote. As root. Secrets are masked.

    Exit status 0, also when Ctrl-C ends --follow; 1: there is nothing to be read.
    """
    if is_easytiers and ray_of is not None:
        raise UsageError("--easytier and --ray are two logs", hint="ask for one at a time")
    of_files = is_easytiers or ray_of is not None
    if of_files and (since_s is not None or as_json):
        raise UsageError("--since and --json are for the daemon's log: these files are not EdgeLink's own")
    paths = Paths.from_environment()
    require_readable(paths)
    hide_secrets(paths)
    try:
        if is_easytiers:
            _show_files({"easytier.log": paths.logs / "easytier.log"}, None, count, is_following=is_following)
        elif ray_of is not None:
            _show_ray(paths, ray_of, count, config_path, is_following=is_following)
        else:
            is_empty = True
            for line in _daemon_lines(paths, since_s, count, is_following=is_following):
                click.echo(_told(line if as_json else _readable(mask(line))))
                is_empty = False
            if is_empty and count > 0 and not is_following:
                raise EdgelinkError(
                    "the daemon's log holds nothing" + ("" if since_s is None else " that is so new"),
                    hint="is it running, see `edgelink status`? `journalctl --list-boots` says how far back it goes",
                    reason="NoLog",
                )
    except KeyboardInterrupt:
        pass
    return ExitCode.OK


def require_readable(paths: Paths) -> None:
    if os.geteuid() != 0 and not os.access(paths.state, os.R_OK | os.X_OK):
        raise UsageError(f"{paths.state} cannot be read", hint="use sudo", reason="NotPrivileged")


# the daemon


def _daemon_lines(paths: Paths, since_s: float | None, count: int, *, is_following: bool) -> Iterator[str]:
    """Yield JSON lines, oldest first.

    They come from the daemons that answer and from the units of the others. Where there is neither, a daemon that ran
    on a terminal may have left a file.

    Raises:
        DaemonNotRunningError: there is nothing of all that.
    """
    has_journal = shutil.which("journalctl") is not None
    silent_units = _installed_units() if has_journal else []
    daemons: list[dict[str, Any]] = []
    try:
        daemons, _ = daemons_here(paths)
    except DaemonNotRunningError:
        written = [] if is_following or silent_units else _written(paths, since_s)
        if not silent_units and not written:
            raise
        yield from written[max(0, len(written) - count) :]
    units, sockets = [], []
    for daemon in daemons:
        unit = unit_of(daemon["pid"]) if has_journal else None
        if unit is not None:
            units.append(unit)
        else:
            sockets.append(paths.socket_of(daemon["role"]))
    answering = {service_units.unit_of(daemon["role"]) for daemon in daemons}
    units += [unit for unit in silent_units if unit not in answering]
    sources = [_journal(units, since_s, count, is_following=is_following)] if units else []
    sources += [_remembered(sockets, since_s, count, is_following=is_following)] if sockets else []
    if len(sources) == 1:
        yield from sources[0]
    elif is_following:
        yield from _as_they_come(sources)
    else:
        lines = sorted((line for source in sources for line in source), key=_moment_of)
        yield from lines[max(0, len(lines) - count) :]


def unit_of(pid: int, proc: Path = Path("/proc")) -> str | None:
    """EdgeLink's unit of systemd that a process belongs to, by its control group."""
    try:
        groups = (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return None
    names = (part for line in groups.splitlines() for part in line.rpartition(":")[2].split("/"))
    return next((name for name in names if name.startswith("edgelink-") and name.endswith(".service")), None)


def _installed_units() -> list[str]:
    units = map(service_units.unit_of, service_units.ROLES)
    return [unit for unit in units if any((directory / unit).exists() for directory in _UNIT_DIRECTORIES)]


def _journal(units: Sequence[str], since_s: float | None, count: int, *, is_following: bool) -> Iterator[str]:
    """Raises EdgelinkError: journalctl failed."""
    argv = ["journalctl", "--no-pager", "--all", "--output=json", f"--lines={count}"]  # --all: also what is long
    argv += [f"--unit={unit}" for unit in dict.fromkeys(units)]
    argv += [] if since_s is None else [f"--since=-{since_s:.0f}s"]
    argv += ["--follow"] if is_following else []
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace") as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                if (found := from_journal(line)) is not None:
                    yield found
            status = child.wait()
        finally:
            child.terminate()
    if status > 0:
        raise EdgelinkError(
            f"journalctl could not read the log of {', '.join(units)}: it ended with exit status {status}",
            hint="its own words are above; `edgelink report` holds what a daemon that runs remembers",
            reason="NoLog",
        )


def from_journal(line: str) -> str | None:
    """Of an entry of the journal the daemon's own JSON line; what systemd says of the unit, in the same form; pure."""
    try:
        entry = json.loads(line)
        message = entry["MESSAGE"]
        at = datetime.fromtimestamp(int(entry["__REALTIME_TIMESTAMP"]) / 1e6).astimezone()
    except (ValueError, KeyError, TypeError):
        return None
    if isinstance(message, list):  # bytes that are no text
        message = bytes(message).decode(errors="replace")
    if not isinstance(message, str):
        return None
    if message.startswith("{"):
        return message
    return json.dumps({"timestamp": at.isoformat(), "level": "info", "event": message})


def _remembered(sockets: list[Path], since_s: float | None, count: int, *, is_following: bool) -> Iterator[str]:
    clock = SystemClock()
    earliest = None if since_s is None else clock.now() - timedelta(seconds=since_s)
    after: dict[Path, int] = {}
    while True:
        lines: list[str] = []
        is_first = not after
        for socket in sockets:
            try:
                answer = call(socket, "GET", "/log", {"after": after.get(socket, 0)})
            except DaemonNotRunningError:
                if is_first:
                    raise
                continue  # it is started anew, or not: Ctrl-C
            lines += answer["lines"]
            after[socket] = answer["number"]
        lines = sorted((line for line in lines if _is_since(line, earliest)), key=_moment_of)
        yield from lines[max(0, len(lines) - count) :] if is_first else lines
        if not is_following:
            return
        clock.block(_LOOK_S)


def _written(paths: Paths, since_s: float | None) -> list[str]:
    """The lines that daemons wrote which ran on a terminal, and have ended."""
    earliest = None if since_s is None else SystemClock().now() - timedelta(seconds=since_s)
    ends = (read_end(paths.daemon_log(role), max_bytes=_MAX_BYTES) for role in ("relay", "head", "edge"))
    lines = (line for end in ends for line in end.decode(errors="replace").splitlines())
    return sorted((line for line in lines if _is_since(line, earliest)), key=_moment_of)


def _as_they_come(sources: Iterable[Iterator[str]]) -> Iterator[str]:
    """The lines of several logs that are followed; what is wrong with one of them is the end of all."""
    found: queue.Queue[str | Exception | None] = queue.Queue()

    def read(source: Iterator[str]) -> None:
        try:
            for line in source:
                found.put(line)
        except Exception as error:
            found.put(error)
        else:
            found.put(None)

    threads = [threading.Thread(target=read, args=(source,), daemon=True) for source in sources]
    for thread in threads:
        thread.start()
    left = len(threads)
    while left:
        line = found.get()
        if isinstance(line, Exception):
            raise line
        if line is None:
            left -= 1
        else:
            yield line


def _moment_of(line: str) -> datetime:
    """When it was said; what tells no time comes first."""
    try:
        return datetime.fromisoformat(json.loads(line)["timestamp"]).astimezone()
    except (ValueError, KeyError, TypeError):
        return _NO_TIME


def _is_since(line: str, earliest: datetime | None) -> bool:
    moment = _moment_of(line)
    return earliest is None or moment == _NO_TIME or moment >= earliest


def _readable(line: str) -> str:
    """``11-22 13:02:54 warning overlay.path_changed  node=edge-1 was=… now=…``; pure."""
    try:
        event = json.loads(line)
        at = datetime.fromisoformat(event["timestamp"]).astimezone()
    except (ValueError, KeyError, TypeError):
        return line
    more = " ".join(f"{key}={_value(value)}" for key, value in event.items() if key not in _OWN_FIELDS)
    return f"{at:%m-%d %H:%M:%S} {event.get('level', ''):<7} {event.get('event', '')}  {more}".rstrip()


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, str) or " " in value else value


def _told(text: str) -> str:
    """Without secrets, and without what would command the reader's terminal: other users and nodes write here, too."""
    return "\n".join(printable(line) for line in click.unstyle(mask(text)).splitlines())


# files


def _show_files(files: dict[str, Path], owner_uid: int | None, count: int, *, is_following: bool) -> None:
    """The end of each, under its name where there are several. Raises EdgelinkError: none is there."""
    begins = {name: path.stat().st_size if path.is_file() else 0 for name, path in files.items()}
    texts = {name: read_end(path, owner_uid=owner_uid, max_bytes=_MAX_BYTES) for name, path in files.items()}
    _show_texts({name: text.decode(errors="replace") for name, text in texts.items() if text}, count)
    if not any(texts.values()) and not is_following:
        where = ", ".join(sorted({str(path.parent) for path in files.values()}))
        raise EdgelinkError(
            f"no such log in {where}",
            hint="it has not been started yet, or it is not this node that runs it",
            reason="NoLog",
        )
    if is_following:
        labels = {name: f"{name}: " if len(files) > 1 else "" for name in files}
        for line in _as_they_come([_tail(files[each], begins[each], owner_uid, labels[each]) for each in files]):
            click.echo(_told(line))


def _tail(path: Path, begin: int, owner_uid: int | None, label: str = "") -> Iterator[str]:
    """Yield the lines that a file gets behind the byte ``begin``, also when it is cut, replaced, or yet to come.

    tail(1) runs as the file's owner, who could put a link to anything there. It ends with us.
    """
    argv = ["tail", f"--pid={os.getpid()}", f"--bytes=+{begin + 1}", "--follow=name", "--retry", "--", str(path)]
    owner = {} if owner_uid is None else identity_arguments(user_of(owner_uid))
    quiet: Any = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **owner}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, errors="replace", **quiet) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                yield label + line.rstrip("\n")
        finally:
            child.terminate()


def _show_texts(texts: dict[str, str], count: int) -> None:
    for name, text in texts.items():
        if len(texts) > 1:
            click.secho(f"==> {name} <==", bold=True)
        lines = _told(text).splitlines()  # before it is cut: a private key has several lines
        click.echo("".join(f"{line}\n" for line in (lines[-count:] if count else ())), nl=False)


def _show_ray(paths: Paths, wanted: str, count: int, config_path: Path | None, *, is_following: bool) -> None:
    status = call(paths.node_socket, "GET", "/status") if wanted != _THIS_NODE else {}
    if wanted == _THIS_NODE or wanted in _own_names(status):
        uid = noted_user_uid(paths)
        if uid is None:
            raise EdgelinkError("no Ray was started on this node yet", hint="`edgelink status` says what it waits for")
        directory = ray_log_directory(paths, ray_temp(config_path))
        _show_files({name: directory / name for name in RAY_LOGS}, uid, count, is_following=is_following)
        return
    require_head(status, "`edgelink logs --ray` of another node")
    hostname = find(wanted, known_nodes(paths))["hostname"]
    if is_following:
        raylet = sessions_in(ray_temp(config_path)) / "session_latest/logs/raylet.out"
        raise UsageError(
            "--follow is for the logs of this machine", hint=f"`edgelink exec {hostname} -- tail -F {raylet}`"
        )
    _show_texts(_ray_of_other(paths, hostname), count)


def _own_names(status: dict[str, Any]) -> set[str]:
    return {str(status[key]) for key in ("hostname", "overlay_ip", "node_rank") if status.get(key) is not None}


def _ray_of_other(paths: Paths, hostname: str) -> dict[str, str]:
    """What that node sends, sealed to the head. Raises EdgelinkError: it does not answer, or has no such logs."""
    ask = partial(EventStream, paths.node_socket, "POST", "/reports", {"since_s": 1.0, "hostname": hostname})
    for part in saying(f"waiting for {hostname} to send its logs", ask):
        if part.get("hostname") == hostname:
            found = {name.removeprefix("ray/"): text for name, text in part["files"].items() if name.startswith("ray/")}
            if not found:
                raise EdgelinkError(
                    f"{hostname} has no logs of Ray", hint="has its Ray ever been started?", reason="NoLog"
                )
            return found
    raise EdgelinkError(
        f"{hostname} did not answer",
        hint="a node answers by way of the relay's broker, once in half a minute; see `edgelink nodes`",
        reason="NoReport",
    )


def ray_temp(config_path: Path | None) -> Path | None:
    """Return the directory that the configuration names for Ray's sessions. None: it names none, or cannot be read."""
    try:
        return load_config(config_path).ray.temp_dir
    except ConfigError:
        return None

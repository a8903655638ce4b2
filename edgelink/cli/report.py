"""``edgelink report``: one file to hand to whoever helps, without secrets."""

from __future__ import annotations

import io
import json
import os
import platform
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from edgelink.api.client import DaemonError, DaemonNotRunningError, EventStream
from edgelink.api.json_version import VERSION
from edgelink.cli.driver_run import refuse_elsewhere
from edgelink.cli.layout import columns, say
from edgelink.cli.logs import ray_temp, require_readable
from edgelink.cli.options import AGO, FILE, config_option, json_option
from edgelink.cli.patience import call, saying
from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.config.paths import DEFAULT_CONFIG_FILE
from edgelink.errors import EdgelinkError, NotRecordedError, UsageError
from edgelink.files import write_named
from edgelink.protocol.membership import Membership
from edgelink.telemetry.recorder import noted
from edgelink.telemetry.report import collect, hide_secrets, mask
from edgelink.telemetry.story import KINDS, story
from edgelink.wording import printable

_HOST_CHARACTERS = 32  # so that the name of the file fits a terminal
_ASKED = {"status": "/status", "ways": "/paths"}


_HOUR_S, _NIGHT_S = 3600.0, 12 * 3600.0
_MOST_OF_OTHERS_S = 7 * 86400.0  # of what they recorded; nothing is kept for longer


class Others(NamedTuple):
    """What the other nodes sent: files by path, each node's in a directory of its own, and who did not answer."""

    files: dict[str, str]
    nodes: list[str]
    missing: list[str]


class Answers(NamedTuple):
    """What the daemons of this machine say, by file name; ``error``: why none does, empty where one does."""

    files: dict[str, Any]
    hostname: str | None
    error: str


@click.command("report")
@click.option("-o", "--output", type=FILE, help="the file to write")
@click.option("--since", "since_s", type=AGO, help="of the flight recorder: by default 1h, with --story 12h")
@click.option("--all", "is_all", is_flag=True, help="of all nodes; on the head")
@click.option("--story", "is_story", is_flag=True, help="tell the last night in ten lines; write no file")
@json_option
@config_option
def command(
    *, output: Path | None, since_s: float | None, is_all: bool, is_story: bool, as_json: bool, config_path: Path | None
) -> None:
    """Collect conditions, flight recorder, logs and versions of this node in one file.

    Secrets are masked. It works without a daemon, too. Look into the file before you hand it on: it holds hostnames and
    addresses.
    """
    if is_story and (output is not None or is_all or as_json):
        raise UsageError("--story prints text about this node, and goes with --since only")
    paths = Paths.from_environment()
    require_readable(paths)
    now = SystemClock().now()
    if is_story:
        for line in _stories(paths, now - timedelta(seconds=_NIGHT_S if since_s is None else since_s), now):
            click.echo(line)
        return
    since_s = _HOUR_S if since_s is None else since_s
    answers = _answers(paths)
    files = collect(
        paths,
        timedelta(seconds=since_s),
        now,
        config_file=config_path or Path(os.environ.get("EDGELINK_CONFIG", DEFAULT_CONFIG_FILE)),
        ray_temp=ray_temp(config_path),
        answers=answers.files,
    )
    others = _of_others(paths, since_s) if is_all else Others({}, [], [])
    files |= others.files
    name = f"edgelink-report-{platform.node().split('.')[0][:_HOST_CHARACTERS]}-{now:%Y%m%d-%H%M%S}"
    output = output or Path(f"{name}.tar.gz")
    _write(output, name, files)
    if as_json:
        told = {
            "schema": VERSION,
            "path": str(output.absolute()),
            "bytes": output.stat().st_size,
            "files": len(files),
            "nodes": [answers.hostname or _enrolled_as(paths) or platform.node(), *others.nodes],
            "missing": others.missing,
            "daemon_error": answers.error or None,
        }
        click.echo(json.dumps(told, indent=2))
        return
    click.echo(made_in_words(output, f"{len(files)} files, {output.stat().st_size // 1024} KiB", columns()))


def _stories(paths: Paths, since: datetime, now: datetime) -> Iterator[str]:
    """Of each daemon of this machine, secrets masked."""
    hide_secrets(paths)
    hostname = _enrolled_as(paths) or platform.node()
    recorders = sorted(each for each in paths.recorder.glob("*") if each.is_dir())
    if not recorders:
        raise EdgelinkError(
            "no daemon has recorded anything here", hint="`edgelink status` says what runs", reason="NoLog"
        )
    for recorder in recorders:
        entries = map(_masked, noted(recorder, since, KINDS))  # before a line is cut, and half a secret left
        yield from map(printable, story(entries, since, now, hostname))


def _masked(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: mask(value) if isinstance(value, str) else value for name, value in entry.items()}


def made_in_words(output: Path, what: str, width: int) -> str:
    """On a line of its own where both do not fit; a path is never broken: it is copied; pure."""
    line = f"{output}: {what}"
    return line if len(line) <= width else f"{output}:\n    {what}"


def _of_others(paths: Paths, since_s: float) -> Others:
    """As they come; who did not answer is named."""
    refuse_elsewhere(paths)
    found, is_whole = Others({}, [], []), False
    body = {"since_s": min(since_s, _MOST_OF_OTHERS_S)}
    ask = partial(EventStream, paths.node_socket, "POST", "/reports", body)
    for part in saying("waiting for the other nodes' reports", ask):
        if "missing" in part:
            is_whole = True
            found.missing.extend(part["missing"])
            found.files["missing.txt"] = "\n".join(part["missing"])
            if part["missing"]:
                say(f"no report from {', '.join(part['missing'])}")
        else:
            found.nodes.append(part["hostname"])
            found.files.update({f"{part['hostname']}/{name}": mask(text) for name, text in part["files"].items()})
    if not is_whole:
        raise DaemonNotRunningError(
            "the daemon ended before all nodes had answered", hint="again when it is back; without --all: this node's"
        )
    return found


def _enrolled_as(paths: Paths) -> str | None:
    with suppress(EdgelinkError):
        membership = Membership.load(paths)
        return membership.lease.hostname if membership else None
    return None


def _answers(paths: Paths) -> Answers:
    found: dict[str, Any] = {}
    hostnames, errors = [], []
    for socket in (paths.bootstrap_socket, paths.node_socket):
        try:
            for name, route in _ASKED.items():
                found[f"{name}-{socket.stem}.json"] = call(socket, "GET", route)
            found[f"daemon-{socket.stem}.log"] = "\n".join(call(socket, "GET", "/log")["lines"])
            hostnames.append(found[f"status-{socket.stem}.json"]["hostname"])
        except (DaemonError, DaemonNotRunningError) as error:
            found[f"status-{socket.stem}.txt"] = str(error)
            errors.append(str(error))
    return Answers(found, next(filter(None, hostnames), None), "" if hostnames else "; ".join(errors))


def _write(output: Path, name: str, files: Mapping[str, str]) -> None:
    """A gzipped tar, 0600. What a node says may hold anything, also what is no Unicode text."""
    if output.is_symlink():
        raise UsageError(f"{output}: is not a regular file", hint="name another file with -o")
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for path, text in sorted(files.items()):
            data = text.encode(errors="replace")
            member = tarfile.TarInfo(f"{name}/{path}".encode(errors="replace").decode())
            member.size, member.mode, member.mtime = len(data), 0o600, int(SystemClock().now().timestamp())
            archive.addfile(member, io.BytesIO(data))
    try:
        write_named(output, raw.getvalue())
    except NotRecordedError as error:
        raise UsageError(error.message, hint="name another file with -o") from error

"""``edgelink doctor``: named checks of this machine, each with its verdict, its figure and what to do."""

from __future__ import annotations

import asyncio
import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path

import click

from edgelink.api.client import DaemonError, DaemonNotRunningError
from edgelink.api.json_version import VERSION
from edgelink.cli.layout import UNLIMITED, columns
from edgelink.cli.node_argument import NodeName
from edgelink.cli.options import config_option, json_option
from edgelink.cli.patience import call, waiting_for
from edgelink.cli.status import daemons_here
from edgelink.config import Paths, load_config
from edgelink.config.paths import DEFAULT_CONFIG_FILE
from edgelink.doctor import TOPICS, Finding, Surroundings, Verdict, examine
from edgelink.doctor.check import Check, name_of, skipped
from edgelink.doctor.exposure import from_outside
from edgelink.doctor.inside import asked_ports, from_overlay, try_ports
from edgelink.errors import ExitCode
from edgelink.process import host_tcp
from edgelink.process.ports import listeners
from edgelink.wording import printable

_KNOCK_TIMEOUT_S = 120.0  # as many relays as there are, one after the other
_ANSWER_S = 2.0
_NAME_WIDTH = 22
_TOPIC_WIDTH = 8
_MOST_COLUMNS = 100
_OUTSIDE, _OVERLAY = "from-outside", "from-overlay"
_MARKS = {
    Verdict.OK: ("✓", "green"),
    Verdict.LIMITED: ("!", "yellow"),
    Verdict.FAILED: ("✗", "red"),
    Verdict.SKIPPED: ("-", None),
}
_COUNTED = (Verdict.FAILED, Verdict.LIMITED, Verdict.OK, Verdict.SKIPPED)


@click.command("doctor")
@click.argument("names", nargs=-1, metavar="[NAME]…")
@config_option
@json_option
@click.option("-v", "--verbose", "is_verbose", is_flag=True, help="list every check, with what was skipped and why")
@click.option(
    "--from-outside", "is_outside", is_flag=True, help="have a relay try which ports answer on the public side"
)
@click.option(
    "--from-overlay",
    "of_node",
    type=NodeName(),
    metavar="NODE",
    help="try which TCP ports of another node answer this one over the overlay",
)
@click.option(
    "--port", "ports", type=click.IntRange(1, 65535), multiple=True, help="try this one, too; may be repeated"
)
def command(
    *,
    names: tuple[str, ...],
    config_path: Path | None,
    as_json: bool,
    is_verbose: bool,
    is_outside: bool,
    of_node: str | None,
    ports: tuple[int, ...],
) -> int:
    """Check this machine, or only what is named (a check or a topic); changes nothing.

    With --from-outside, as root on a head or an edge, a relay of the network knocks at the address that this machine
    is seen from, once a minute at most. With --from-overlay this machine tries the ports of another node, and says
    what answers there beside what EdgeLink documents.

    Exit status 0: nothing failed (what holds less than it could is `limited`); 1: something did.
    """
    topics = _chosen(names)
    with waiting_for("checking this machine: some programs and other nodes are slow to answer"):
        surroundings = look_around(config_path)
        findings = examine(surroundings, [check for checks in topics.values() for check in checks])
    by_topic = {topic: {name_of(each): findings[name_of(each)] for each in checks} for topic, checks in topics.items()}
    if is_outside:
        by_topic.setdefault("exposure", {})[_OUTSIDE] = _look_from_outside(surroundings, ports)
    if of_node is not None:
        by_topic.setdefault("exposure", {})[_OVERLAY] = _look_over_overlay(surroundings, of_node, ports)
    is_failed = any(each.verdict is Verdict.FAILED for found in by_topic.values() for each in found.values())
    if as_json:
        rows = [
            {"check": name, "topic": topic, **asdict(finding)}
            for topic, found in by_topic.items()
            for name, finding in found.items()
        ]
        click.echo(json.dumps({"schema": VERSION, "ok": not is_failed, "checks": rows}, indent=2))
    else:
        _show(by_topic, shows_all=is_verbose or bool(names))
    return ExitCode.FAILED if is_failed else ExitCode.OK


def look_around(config_path: Path | None = None) -> Surroundings:
    """This machine as the checks see it.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    paths = Paths.from_environment()
    try:
        daemons, silent = daemons_here(paths, timeout_s=_ANSWER_S)
    except DaemonNotRunningError:
        daemons, silent = [], []
    return Surroundings(
        config=load_config(config_path),
        paths=paths,
        environ=dict(os.environ),
        daemons=daemons,
        silent=silent,
        proc_sys=host_tcp.PROC_SYS,
        root=Path("/"),
        config_file=config_path or Path(os.environ.get("EDGELINK_CONFIG") or DEFAULT_CONFIG_FILE),
    )


def _chosen(names: tuple[str, ...]) -> Mapping[str, tuple[Check, ...]]:
    """By topic, the checks with these names; all without any."""
    if not names:
        return TOPICS
    known = {name_of(check) for checks in TOPICS.values() for check in checks} | TOPICS.keys()
    if unknown := [name for name in names if name not in known]:
        near = get_close_matches(unknown[0], known)
        there_is = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(sorted(known))}"
        raise click.UsageError(f"no check {', '.join(unknown)}; {there_is}")
    chosen = {
        topic: tuple(check for check in checks if topic in names or name_of(check) in names)
        for topic, checks in TOPICS.items()
    }
    return {topic: checks for topic, checks in chosen.items() if checks}


def _look_from_outside(surroundings: Surroundings, ports: tuple[int, ...]) -> Finding:
    if not any(daemon["role"] in ("head", "edge") for daemon in surroundings.daemons):
        return skipped("no head or edge runs here; a relay is there to be reached")
    try:
        what, body = "waiting for a relay to knock at this machine", {"ports": list(ports)}
        found = call(surroundings.paths.node_socket, "POST", "/knock", body, timeout_s=_KNOCK_TIMEOUT_S, what=what)
    except DaemonError as error:
        if error.condition_reason == "NotKnocked":
            return skipped(error.message, error.hint)
        raise
    return from_outside(surroundings.config, found)


def _look_over_overlay(surroundings: Surroundings, of_node: str, ports: tuple[int, ...]) -> Finding:
    """Raises DaemonError, also when there is no such node."""
    roles = {daemon["role"] for daemon in surroundings.daemons}
    paths = surroundings.paths
    socket = paths.bootstrap_socket if roles == {"bootstrap"} else paths.node_socket
    node = call(socket, "POST", "/ping", {"node": of_node, "timeout_s": _ANSWER_S}, timeout_s=2 * _ANSWER_S)
    asked = asked_ports(surroundings.config, ports, {listener.port for listener in listeners()})
    with waiting_for(f"trying {len(asked)} ports of {of_node}"):
        tried = asyncio.run(try_ports(node["overlay_ip"], asked))
    return from_overlay(surroundings.config, node, tried, is_head_or_relay=not roles <= {"edge"})


def _show(by_topic: Mapping[str, Mapping[str, Finding]], *, shows_all: bool) -> None:
    """What is wrong first, then a line a topic, or with ``shows_all`` each check, and a line with the sums."""
    width = columns()
    width = width if width == UNLIMITED else min(width, _MOST_COLUMNS)
    everything = {name: finding for found in by_topic.values() for name, finding in found.items()}
    wrong = {
        name: finding
        for verdict in (Verdict.FAILED, Verdict.LIMITED)
        for name, finding in everything.items()
        if finding.verdict is verdict
    }
    if wrong:
        click.secho("what is wrong", bold=True)
        for name, finding in wrong.items():
            _show_one(name, finding, width)
    for topic, found in by_topic.items():
        rest = {name: finding for name, finding in found.items() if name not in wrong}
        asked = {name: finding for name, finding in rest.items() if shows_all or name in (_OUTSIDE, _OVERLAY)}
        if asked:
            click.secho(topic, bold=True)
            for name, finding in asked.items():
                _show_one(name, finding, width)
        if not shows_all and (well := [finding for finding in rest.values() if finding.verdict is Verdict.OK]):
            _show_well(topic, well, len(found) - len(rest), width)
    counts = {verdict: sum(f.verdict is verdict for f in everything.values()) for verdict in _COUNTED}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    click.echo(told if shows_all else f"{told}; `edgelink doctor --verbose` lists all")


def _show_well(topic: str, well: Sequence[Finding], wrong: int, width: int) -> None:
    """As many statements as fit into a line, and how many more there are."""
    mark, colour = _MARKS[Verdict.OK]
    left = width - _TOPIC_WIDTH - 3
    told: list[str] = []
    for finding in well:
        statement = printable(finding.message)
        if len(", ".join([*told, statement, f"and {len(well)} more"])) <= left:
            told.append(statement)
    others = [f"and {len(well) - len(told)} more"] if len(told) < len(well) else []
    text = ", ".join([*told, *others])
    if wrong or not told:
        text = f"{len(well)} of {len(well) + wrong} checks are well"
    click.echo(f"{click.style(mark, fg=colour)} {topic:<{_TOPIC_WIDTH}} {text}")


def _show_one(name: str, finding: Finding, width: int) -> None:
    mark, colour = _MARKS[finding.verdict]
    figure = f" ({finding.figure})" if finding.figure else ""
    indent = " " * (_NAME_WIDTH + 3)
    told = textwrap.wrap(printable(finding.message) + figure, width - len(indent), break_on_hyphens=False) or [""]
    if finding.remedy:
        told += textwrap.wrap(f"what to do: {printable(finding.remedy)}", width - len(indent), break_on_hyphens=False)
    click.echo(f"{click.style(mark, fg=colour)} {name:<{_NAME_WIDTH}} {told[0]}")
    for line in told[1:]:
        click.echo(f"{indent}{line}".rstrip())

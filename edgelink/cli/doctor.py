"""``edgelink doctor``: named checks of this machine, each with its verdict, its figure and what to do."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import click

from edgelink.api.client import DaemonError, DaemonNotRunningError, call
from edgelink.cli.options import config_option, json_option
from edgelink.cli.status import running_daemons
from edgelink.config import Paths, load_config
from edgelink.doctor import CHECKS, Finding, Surroundings, Verdict
from edgelink.doctor.check import name_of
from edgelink.doctor.exposure import from_outside, run_program
from edgelink.errors import ExitCode
from edgelink.process import host_tcp

_KNOCK_TIMEOUT_S = 120.0  # as many relays as there are, one after the other
_MARKS = {
    Verdict.OK: ("✓", "green"),
    Verdict.LIMITED: ("!", "yellow"),
    Verdict.FAILED: ("✗", "red"),
    Verdict.SKIPPED: ("-", None),
}


@click.command("doctor")
@config_option
@json_option
@click.option(
    "--from-outside", "is_outside", is_flag=True, help="Have a relay try which ports answer on the public side."
)
@click.option("--port", "ports", type=click.IntRange(1, 65535), multiple=True, help="Try this one, too (repeatable).")
def command(*, config_path: Path | None, as_json: bool, is_outside: bool, ports: tuple[int, ...]) -> int:
    """Check this machine; changes nothing.

    With --from-outside, as root on a head or an edge, a relay of the network knocks at the address that this machine
    is seen from, once a minute at most.

    Exit status 0: nothing failed (what holds less than it could is `limited`); 1: something did.
    """
    paths = Paths.from_environment()
    try:
        daemons = running_daemons(paths)
    except DaemonNotRunningError:
        daemons = []
    surroundings = Surroundings(
        config=load_config(config_path),
        paths=paths,
        environ=os.environ,
        daemons=daemons,
        proc_sys=host_tcp.PROC_SYS,
        root=Path("/"),
        run=run_program,
    )
    findings = {name_of(check): check(surroundings) for check in CHECKS}
    if is_outside:
        findings["from-outside"] = _look_from_outside(surroundings, ports)
    failed = any(finding.verdict is Verdict.FAILED for finding in findings.values())
    if as_json:
        checks = [{"check": name, **asdict(finding)} for name, finding in findings.items()]
        click.echo(json.dumps({"ok": not failed, "checks": checks}, indent=2))
    else:
        for name, finding in findings.items():
            _show(name, finding)
    return ExitCode.FAILED if failed else ExitCode.OK


def _look_from_outside(surroundings: Surroundings, ports: tuple[int, ...]) -> Finding:
    if not any(daemon["role"] in ("head", "edge") for daemon in surroundings.daemons):
        return Finding(Verdict.SKIPPED, "no head or edge runs here; a relay is there to be reached")
    try:
        found = call(
            surroundings.paths.node_socket, "POST", "/knock", {"ports": list(ports)}, timeout_s=_KNOCK_TIMEOUT_S
        )
    except DaemonError as error:
        if error.condition_reason == "NotKnocked":
            return Finding(Verdict.SKIPPED, error.message, remedy=error.hint)
        raise
    return from_outside(surroundings.config, found)


def _show(name: str, finding: Finding) -> None:
    mark, colour = _MARKS[finding.verdict]
    figure = f" ({finding.figure})" if finding.figure else ""
    click.echo(f"{click.style(mark, fg=colour)} {name:<20} {finding.message}{figure}")
    if finding.remedy:
        click.echo(f"  {'':<20} what to do: {finding.remedy}")

"""``edgelink service``: EdgeLink as a service of systemd."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgelink.api.json_version import VERSION
from edgelink.cli.layout import tell, told_as_json
from edgelink.cli.options import Group, config_option, json_option, timeout_option
from edgelink.errors import ExitCode

if TYPE_CHECKING:
    from edgelink.service.look import ServiceLook, UnitLook


class _Role(click.Choice[str]):
    """The roles as people call them; the relay's daemon and unit are named after its verb, too."""

    def __init__(self) -> None:
        super().__init__(("relay", "head", "edge", "bootstrap"))

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        role = super().convert(value, param, ctx)
        return "bootstrap" if role == "relay" else role


_role = click.argument("role", required=False, type=_Role())
_force = click.option("--force", is_flag=True, help="also files that were changed by hand")
_dry_run = click.option("--dry-run", is_flag=True, help="show each step, with the files' text; change nothing")


@click.group("service", cls=Group)
def command() -> None:
    """Run EdgeLink as a service of systemd: from boot on, restarted when it fails."""


@command.command("install")
@_role
@click.option("--now", is_flag=True, help="start it, too, and wait until this node is Ready")
@timeout_option("how long --now waits")
@_force
@_dry_run
@config_option
def install(
    *, role: str | None, now: bool, timeout_s: float, force: bool, dry_run: bool, config_path: Path | None
) -> None:
    """Install this machine's daemon as a service that starts at boot.

    ROLE is known where this machine is enrolled. Without a running systemd, as when an image is made, the files are
    written all the same. Doing it again changes nothing, but for what a newer EdgeLink writes in another way.
    """
    from edgelink.cli import service_steps

    machine = service_steps.this_machine()
    roles, steps = service_steps.installing(machine, role, config_path, force=force)
    if dry_run:
        service_steps.show(steps, now=roles if now else ())
        return
    service_steps.require_root()
    if now:
        service_steps.require_enrolled(roles)
        service_steps.require_startable(machine, roles)
    service_steps.apply(steps, machine, roles)
    if now:
        service_steps.start(machine, roles, timeout_s)
    elif machine.is_booted:
        units = " ".join(f"edgelink-{each}" for each in roles)
        click.echo(f"now run:  systemctl restart {units}", err=True)


@command.command("uninstall")
@_role
@click.option("--purge", is_flag=True, help="leave the network, too, and remove key, credentials and logs")
@click.option("--yes", is_flag=True, help="do not ask before --purge")
@_force
@_dry_run
@config_option
def uninstall(
    *, role: str | None, purge: bool, yes: bool, force: bool, dry_run: bool, config_path: Path | None
) -> None:
    """Stop this machine's daemon and remove its service.

    Ray and EasyTier end, too, and all that `service install` wrote is removed.
    The state in /var/lib/edgelink stays, and with it the machine's place in the network, unless --purge is given.
    Configuration and drop-ins stay in any case. Refused (75) while a run is in progress.
    """
    from edgelink.cli import service_steps

    service_steps.uninstall(role, config_path, purge=purge, yes=yes, force=force, dry_run=dry_run)


@command.command("status")
@json_option
@config_option
def status(*, as_json: bool, config_path: Path | None) -> int:
    """Show the state of EdgeLink's units and of their files.

    Exit status 0: installed and active; 1: not. Whether the node is Ready is told by `edgelink status`.
    """
    from edgelink.cli import service_steps

    seen = service_steps.looked(config_path)
    if not told_as_json({"schema": VERSION, **seen.to_dict()}, as_json=as_json):
        _show(seen)
    return ExitCode.OK if seen.is_well else ExitCode.FAILED


@command.command("check", hidden=True)
@config_option
def check(*, config_path: Path | None) -> None:
    """Check whether a daemon can use the configuration: `config check` of the unit's ExecReload.

    A daemon that runs is not replaced by one that could not start. Ray is not asked for: reloading is to be quick.
    """
    from edgelink.cli.config import usable

    usable(config_path)


_FILES = {
    "current": "as this EdgeLink writes it",
    "outdated": "of another EdgeLink or configuration: `edgelink service install` renews it",
    "changed": "changed by hand",
    "masked": "masked",
    "unknown": "not compared: that takes a configuration",
}


def _show(seen: ServiceLook) -> None:
    if not seen.units:
        click.echo("EdgeLink is not installed as a service: `edgelink service install`")
    for unit in seen.units:
        click.secho(f"{unit.unit}: {_state(unit, is_booted=seen.is_booted)}", bold=True)
        if unit.says:
            click.echo(f"  says     {unit.says}")
        click.echo(f"  at boot  {'started' if unit.enabled else 'not started'}")
        click.echo(f"  file     {_FILES[unit.file]}")
        if unit.restarts:
            click.echo(f"  restarts {unit.restarts} since its start")
    if seen.units and seen.is_booted:
        click.echo(f"edgelink-online.target: {'reached' if seen.online else 'not reached, or nothing asks for it'}")
    for path in seen.drop_ins:
        click.echo(f"drop-in: {path}")
    if seen.config_error:
        tell(f"configuration: {seen.config_error}; a daemon that starts or reloads now is refused")
    if seen.needs_reload:
        click.echo("a file was changed since systemd has read it: `systemctl daemon-reload`")


def _state(unit: UnitLook, *, is_booted: bool) -> str:
    if not is_booted:
        return "systemd does not run here"
    if unit.active == "failed":
        return f"failed ({unit.result}, status {unit.exit_status})"
    return f"{unit.active} ({unit.sub})"

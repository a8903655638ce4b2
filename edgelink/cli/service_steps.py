"""What `service` and `join --service` do to the machine."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from edgelink.cli.layout import say, tell
from edgelink.cli.patience import waiting_for
from edgelink.cli.status import running_daemons, who
from edgelink.cli.stopping import config_to_end_by
from edgelink.cli.wait import wait_ready
from edgelink.clock import SystemClock
from edgelink.config import Config, Paths, load_config
from edgelink.config.paths import DEFAULT_CONFIG_FILE
from edgelink.daemon.leave import forget_network, lease_of, refuse_during_run, refuse_to_leave, say_goodbye
from edgelink.daemon.leftovers import end_leftovers
from edgelink.errors import ConfigError, DeadlineError, MissingDependencyError, UsageError
from edgelink.process.service_manager import is_systemd_running
from edgelink.service.installation import (
    chosen_roles,
    drop_ins,
    installed_roles,
    roles_of,
    to_install,
    to_uninstall,
)
from edgelink.service.look import ServiceLook, look, main_pid, why_failed
from edgelink.service.steps import Machine, Remove, ServiceError, Step, do
from edgelink.service.units import UnitFile, config_file_of, files_for, own_program, unit_of, unit_path


def this_machine() -> Machine:
    return Machine(is_booted=is_systemd_running())


def require_root() -> None:
    """Raises MissingDependencyError, before anything is written."""
    if os.geteuid() != 0:
        raise MissingDependencyError("only root may install a service", hint="use sudo", reason="NotPrivileged")


def installing(
    machine: Machine, asked: str | None, config_path: Path | None, *, force: bool
) -> tuple[list[str], list[Step]]:
    """The roles, and what is still to be done for them.

    Raises:
        UsageError, ConfigError: see :func:`chosen_roles` and :func:`to_install`.
    """
    require_the_machines_own_node()
    roles = chosen_roles(asked, roles_of(Paths.from_environment()))
    files = {file.path: file for role in roles for file in _files(machine, role, config_path)}
    return roles, to_install(machine, roles, files.values(), force=force)


def apply(steps: list[Step], machine: Machine, roles: Sequence[str]) -> None:
    """Do them, and say what the machine has then. Raises NotRecordedError, ServiceError."""
    do(steps, machine)
    units = ", ".join(unit_of(role) for role in roles)
    tell(f"installed {units}, started at boot" if steps else f"{units}: installed already, nothing to do")
    program = own_program()
    owner = Path(program[0]).stat().st_uid
    if owner != 0:
        say(
            f"{program[0]} belongs to user {owner}, who can thereby do what root may: "
            "an environment in /opt that is root's own is safer"
        )


def show(steps: Sequence[Step], now: Sequence[str] = ()) -> None:
    """``--dry-run``."""
    for step in steps:
        click.echo(step.told())
    for role in now:
        click.echo(f"run systemctl restart {unit_of(role)}")
    if not steps and not now:
        click.echo("nothing to do")


def require_systemd() -> Machine:
    """Raises MissingDependencyError where nobody could start the service; before a token is used for it."""
    machine = this_machine()
    if not machine.is_booted:
        raise MissingDependencyError(
            "this machine does not run systemd, which would start EdgeLink's service",
            hint="start the daemon yourself: on the relay `edgelink relay --advertise HOST`; on head and edges "
            "`edgelink join TOKEN`, then `edgelink head` or `edgelink edge`",
            reason="NoSystemd",
        )
    return machine


def require_enrolled(roles: Sequence[str]) -> None:
    """Raises UsageError where a unit would be skipped, as there is nothing to run yet. A relay's start is its own."""
    paths = Paths.from_environment()
    waiting = [role for role in roles if role != "bootstrap" and not paths.membership.exists()]
    if waiting:
        raise UsageError(
            f"this machine is not enrolled yet, and {unit_of(waiting[0])} waits for that: nothing would be started",
            hint="`edgelink up TOKEN` enrols it, installs the service and starts it; an image gets the "
            f"unit by `edgelink service install {waiting[0]}` without --now",
            reason="NotEnrolled",
        )


def require_startable(machine: Machine, roles: Sequence[str]) -> None:
    """Refuse what would fail: no systemd, or a daemon that somebody has started by hand.

    Raises:
        MissingDependencyError, UsageError: which of them.
    """
    require_systemd()
    for daemon in running_daemons(Paths.from_environment()):
        ours = {main_pid(machine, role) for role in installed_roles(machine)}
        if daemon["pid"] not in ours and daemon["role"] in roles:
            raise UsageError(
                f"{who(daemon)} (pid {daemon['pid']}) runs already, and was not started by systemd",
                hint="`edgelink stop` ends it with its Ray and EasyTier; then again",
                reason="RunsByHand",
            )


def start(machine: Machine, roles: Sequence[str], timeout_s: float, verb: str = "restart") -> None:
    """(Re)start the roles' units and return when this node is Ready.

    Args:
        verb: systemctl's; ``start`` leaves a daemon alone that runs.

    Raises:
        DeadlineError: it is not within ``timeout_s``; the service goes on trying.
        ServiceError, ConfigError: its daemon has ended for good.
    """
    clock = SystemClock()
    began_s = clock.monotonic_s()

    def look_at_units() -> None:
        for role in roles:
            if why := why_failed(machine, role):
                _raise_failed(why, role)

    for role in roles:
        try:
            with waiting_for(f"systemd starts {unit_of(role)}"):
                machine.systemctl(verb, unit_of(role))
        except ServiceError:
            look_at_units()
            raise
    try:
        wait_ready(Paths.from_environment(), clock, timeout_s, look=look_at_units)
    except DeadlineError as error:
        raise DeadlineError(
            f"the service is installed and runs, but this node is {error.message}",
            hint="it goes on trying, nothing has to be done again; `edgelink status` shows what it waits for, "
            f"`journalctl -u {unit_of(roles[-1])}` what it did",
        ) from error
    click.echo(f"Ready after {clock.monotonic_s() - began_s:.1f} s")


def uninstall(
    role: str | None, config_path: Path | None, *, purge: bool, yes: bool, force: bool, dry_run: bool
) -> None:
    """See ``edgelink service uninstall``.

    Raises:
        UsageError, ConfigError, RunInProgressError: refused, and nothing was changed.
        ServiceError, ProcessStopError: something did not end.
    """
    if purge and role is not None:
        raise click.UsageError("--purge removes the state of the whole machine: give it without ROLE")
    require_the_machines_own_node()
    machine, paths, clock = this_machine(), Paths.from_environment(), SystemClock()
    steps = to_uninstall(machine, role, force=force)
    if dry_run:
        runtime = [Remove(paths.runtime)] if purge or _is_last(machine, role) else []
        show([*steps, *runtime, *([Remove(paths.state)] if purge else [])])
        return
    require_root()
    config = config_to_end_by(_config_file(machine, role or next(iter(installed_roles(machine)), None), config_path))
    is_member = purge and (paths.node_key.exists() or paths.registry_database.exists())
    if is_member:
        refuse_to_leave(config, paths, clock)
    elif steps:
        refuse_during_run(config, paths, clock)
    lease = lease_of(paths) if is_member else None
    if purge and not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("nobody can be asked here: give --yes")
        click.confirm(f"All of {paths.state} is removed, and with it this machine's key. Go on?", abort=True)
    is_last = _is_last(machine, role)
    with waiting_for("stopping this machine's daemon, Ray and EasyTier"):
        do(steps, machine)
    click.echo("the service is removed" if steps else _not_installed(machine, role))
    if is_last and (steps or purge):
        _end_what_is_left(config, paths, purge=purge)
    for path in drop_ins(machine):
        click.echo(f"left, for it is yours: {path}")
    if lease is not None:
        click.echo(
            f"{lease.hostname}'s lease is kept until the operator frees it: "
            f"`edgelink registry release {lease.hostname} --now` on the relay"
        )
    elif not purge and paths.state.exists():
        tell(f"left: {paths.state}, this machine's place in its network (--purge or `edgelink leave` removes it)")


def _not_installed(machine: Machine, role: str | None) -> str:
    others = installed_roles(machine)
    if role is None or not others:
        return "EdgeLink is not installed as a service"
    units = ", ".join(map(unit_of, others))
    return f"{unit_of(role)} is not installed, but {units}: `edgelink service uninstall {others[0]}` removes that"


def _end_what_is_left(config: Config, paths: Paths, *, purge: bool) -> None:
    """Of a daemon that has ended; one that a person runs goes on.

    Raises:
        UsageError: one does, and its state was to be removed.
    """
    if running_daemons(paths):
        if purge:
            raise UsageError(
                f"a daemon still runs here: {paths.state} was not removed",
                hint="`edgelink stop`, then again",
                reason="RunsByHand",
            )
        return
    if paths.state.exists():
        asyncio.run(end_leftovers(config, paths, SystemClock()))
    if purge:
        say_goodbye(paths)
        forget_network(paths)
        Remove(paths.state).do(Machine())
    Remove(paths.runtime).do(Machine())


def looked(config_path: Path | None) -> ServiceLook:
    """What is there of the service."""
    machine = this_machine()
    files: dict[str, list[UnitFile]] = {}
    config_error = None
    for role in installed_roles(machine):
        try:
            files[role] = _files(machine, role, config_path)
        except ConfigError as error:  # systemd's word is worth the more then
            config_error = str(error)
    return look(machine, files, config_error)


def _files(machine: Machine, role: str, config_path: Path | None) -> list[UnitFile]:
    named = _config_file(machine, role, config_path)
    return files_for(role, own_program(), load_config(named), None if named == DEFAULT_CONFIG_FILE else named)


def _config_file(machine: Machine, role: str | None, config_path: Path | None) -> Path | None:
    """The one that is named here; else that of the role's unit as it is installed, which nobody has to name again."""
    if named := config_path or os.environ.get("EDGELINK_CONFIG"):
        return Path(named).absolute()
    return config_file_of(machine.read(unit_path(role)) or "") if role is not None else None


def require_the_machines_own_node() -> None:
    """Raises UsageError where the variables say another place than the service's."""
    paths = Paths.from_environment()
    if (paths.state, paths.runtime) != (Paths.state, Paths.runtime):
        raise UsageError(
            f"the service is for the machine's one node, in {Paths.state}; "
            "EDGELINK_STATE_DIR or EDGELINK_RUNTIME_DIR says another place",
            hint="unset them",
            reason="OtherNode",
        )


def _is_last(machine: Machine, role: str | None) -> bool:
    return all(role in (None, each) for each in installed_roles(machine))


def _raise_failed(why: str, role: str) -> None:
    hint = f"`journalctl -u {unit_of(role)}` has all of it; once it is mended: `systemctl start {unit_of(role)}`"
    raise (ConfigError if "status 78)" in why else ServiceError)(why, hint=hint, reason="ServiceFailed")

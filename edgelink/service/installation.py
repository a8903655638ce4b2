"""Which steps put EdgeLink's service on a machine, and which take it away; nothing is changed here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from edgelink.config.paths import Paths
from edgelink.errors import ConfigError, UsageError
from edgelink.process.service_manager import ONLINE, WAITS_FOR_ONLINE
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Role
from edgelink.service.steps import Link, Machine, Remove, Step, Systemctl, Write
from edgelink.service.units import ROLES, UNITS, UnitFile, is_as_written, link_of, shared_paths, unit_of, unit_path

VERBS = {Role.RELAY: "bootstrap", Role.HEAD: "head", Role.EDGE: "edge"}
_RELOAD = Systemctl(("daemon-reload",))


def roles_of(paths: Paths) -> list[str]:
    """The verbs that this machine's state is for: two where relay and head share it, none before it is enrolled.

    Raises:
        RegistryError: the membership is damaged.
    """
    membership = Membership.load(paths)
    found = ["bootstrap"] if paths.registry_database.exists() else []
    if membership is not None:
        verb = VERBS[membership.lease.role]
        found += [verb] if verb not in found else []
    return found


def installed_roles(machine: Machine) -> list[str]:
    """Those whose unit is there, whoever wrote it."""
    return [role for role in ROLES if machine.read(unit_path(role)) is not None]


def chosen_roles(asked: str | None, known: list[str]) -> list[str]:
    """The roles to install: the one asked for, else those that the state is for.

    Raises:
        UsageError: neither says anything, or they contradict each other.
    """
    nodes = [role for role in known if role != "bootstrap"]
    if asked is None and not known:
        raise UsageError(
            "this machine is not enrolled yet, so its role is not known",
            hint="name it: `edgelink service install edge`, `head` or `relay`; or `edgelink up TOKEN`",
            reason="RoleUnknown",
        )
    if asked not in (None, "bootstrap") and nodes and asked not in nodes:
        raise UsageError(
            f"this machine is enrolled as {nodes[0]}, not as {asked}",
            hint=f"`edgelink service install {nodes[0]}`; or `edgelink leave` first, then a token for the other role",
            reason="OtherRole",
        )
    return [asked] if asked else known


def to_install(machine: Machine, roles: list[str], files: Iterable[UnitFile], *, force: bool) -> list[Step]:
    """What is still to be done so that ``files`` are there and the roles' units are started at boot.

    Raises:
        UsageError: the units of head and edge would be on one machine.
        ConfigError: a unit was changed by hand, or is masked; all of them are named.
    """
    others = [role for role in installed_roles(machine) if role != "bootstrap" and role not in roles]
    if others and any(role != "bootstrap" for role in roles):
        raise UsageError(
            f"{unit_of(others[0])} is installed: a machine is head or edge",
            hint=f"`edgelink service uninstall {others[0]}` first",
            reason="OtherRole",
        )
    steps: list[Step] = []
    refused = []
    for file in files:
        present = machine.read(file.path)
        if machine.is_masked(file.path):
            refused.append(f"{file.path} is masked")
        elif present is not None and present != file.text:
            if not is_as_written(present) and not force:
                refused.append(f"{file.path} was changed by hand")
            steps.append(Write(file.path, file.text))
        elif present is None:
            steps.append(Write(file.path, file.text))
    if refused:
        raise ConfigError(
            "; ".join(refused),
            hint="settings of your own belong into a drop-in (`systemctl edit UNIT`); --force overwrites what was "
            "changed, `systemctl unmask UNIT` takes a mask away",
            reason="UnitChanged",
        )
    if steps and machine.is_booted:
        steps.append(_RELOAD)
    for role in roles:
        link, target = link_of(role), unit_path(role)
        if not machine.path(link).is_symlink() or machine.path(link).readlink() != target:
            steps.append(Link(link, target))
    return steps


def to_uninstall(machine: Machine, asked: str | None, *, force: bool) -> list[Step]:
    """What is to be done so that nothing is left of the role's installation; of all of them by default.

    Raises:
        ConfigError: a unit was changed by hand.
    """
    present = installed_roles(machine)
    roles = [role for role in present if asked in (None, role)]
    paths = [unit_path(role) for role in roles]
    links = [link_of(role) for role in ROLES if asked in (None, role) and machine.path(link_of(role)).is_symlink()]
    is_last = roles == present
    if is_last:
        paths += [path for path in shared_paths() if machine.read(path) is not None]
    changed = [str(path) for path in paths if not is_as_written(machine.read(path) or "")]
    if changed and not force:
        raise ConfigError(
            f"changed by hand: {', '.join(changed)}", hint="--force removes it all the same", reason="UnitChanged"
        )
    units = [path.name for path in paths if path.name.startswith("edgelink-")]
    steps = [*_stopping(machine, units), *(Remove(path) for path in [*links, *paths])]
    if machine.is_booted and paths:
        steps.append(_RELOAD)
    return steps


def to_disable(machine: Machine) -> list[Step]:
    """What is to be done so that no installed role runs, nor is started at boot; the units stay."""
    roles = installed_roles(machine)
    units = [unit_of(role) for role in roles]
    units += [path.name for path in shared_paths() if machine.read(path) is not None and path.parent == UNITS]
    links = [link_of(role) for role in roles if machine.path(link_of(role)).is_symlink()]
    reload = [_RELOAD] if machine.is_booted and links else []
    return [*_stopping(machine, units), *map(Remove, links), *reload]


def _stopping(machine: Machine, units: list[str]) -> list[Step]:
    if not machine.is_booted or not units:
        return []
    # First what asks for the daemon's units; one that has failed is remembered until it is reset.
    order = sorted(units, key=[ONLINE, WAITS_FOR_ONLINE].__contains__, reverse=True)
    return [Systemctl(("stop", *order)), Systemctl(("reset-failed", *order), may_fail=True)]


def drop_ins(machine: Machine) -> list[Path]:
    """What an administrator has set beside our units; theirs to keep or to remove."""
    units = [unit_path(role) for role in ROLES] + [path for path in shared_paths() if path.name.startswith("edgelink-")]
    found = []
    for unit in units:
        directory = Path(f"{unit}.d")
        with_settings = machine.path(directory)
        if with_settings.is_dir():
            found += [directory / path.name for path in sorted(with_settings.glob("*.conf"))]
    return found

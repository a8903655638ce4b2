"""What systemd has of EdgeLink's service, and whether its files are as they should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgelink.process.service_manager import ONLINE
from edgelink.service.installation import drop_ins, installed_roles
from edgelink.service.steps import Machine
from edgelink.service.units import UnitFile, is_as_written, link_of, shared_paths, unit_of, unit_path

_PROPERTIES = ("ActiveState", "SubState", "StatusText", "NRestarts", "Result", "ExecMainStatus", "NeedDaemonReload")


@dataclass(frozen=True)
class UnitLook:
    """One daemon's unit.

    ``file``: ``current``, ``outdated`` (another EdgeLink's, or from another configuration), ``changed`` (by hand),
    ``masked``, or ``unknown``: neither of the last two, and compared with nothing. The rest is systemd's word, empty
    where it does not run.
    """

    unit: str
    file: str
    enabled: bool
    active: str = ""
    sub: str = ""
    says: str = ""
    restarts: int = 0
    result: str = ""
    exit_status: int = 0

    @property
    def is_well(self) -> bool:
        return self.active in ("active", "reloading")


@dataclass(frozen=True)
class ServiceLook:
    """The machine's service.

    ``online``: whether ``edgelink-online.target`` is reached. ``config_error``: why the configuration cannot be used.
    """

    is_booted: bool
    units: tuple[UnitLook, ...]
    online: bool
    drop_ins: tuple[str, ...]
    needs_reload: bool
    config_error: str | None = None

    @property
    def is_well(self) -> bool:
        return bool(self.units) and all(unit.is_well for unit in self.units)

    def to_dict(self) -> dict[str, Any]:
        """As ``edgelink service status --json`` prints it, but for the version of the schema."""
        return {"well": self.is_well, **asdict(self)}


def look(machine: Machine, wanted: Mapping[str, Sequence[UnitFile]], config_error: str | None = None) -> ServiceLook:
    """What is there of each installed role.

    Args:
        wanted: by role, what this EdgeLink would install; a role is missing where the configuration cannot be used.
        config_error: why that is.

    Raises:
        ServiceError: systemd runs, but does not answer.
    """
    units, needs_reload = [], False
    for role in installed_roles(machine):
        told = _properties(machine, unit_of(role)) if machine.is_booted else {}
        needs_reload = needs_reload or told.get("NeedDaemonReload") == "yes"
        units.append(
            UnitLook(
                unit=unit_of(role),
                file=_state_of_files(machine, unit_path(role), wanted.get(role)),
                enabled=machine.path(link_of(role)).is_symlink(),
                active=told.get("ActiveState", ""),
                sub=told.get("SubState", ""),
                says=told.get("StatusText", ""),
                restarts=int(told.get("NRestarts", 0)),
                result=told.get("Result", ""),
                exit_status=int(told.get("ExecMainStatus", 0)),
            )
        )
    is_online = machine.is_booted and _properties(machine, ONLINE).get("ActiveState") == "active"
    own = tuple(map(str, drop_ins(machine)))
    return ServiceLook(machine.is_booted, tuple(units), is_online, own, needs_reload, config_error)


def why_failed(machine: Machine, role: str) -> str:
    """Why the role's unit is not started again, with its last words; empty as long as systemd has hope."""
    unit = unit_of(role)
    told = _properties(machine, unit)
    if told.get("ActiveState") != "failed":
        return ""
    shown = machine.systemctl("status", "--no-pager", "--full", "--lines=5", "--output=cat", unit, good=(0, 3))
    words = shown.partition("\n\n")[2].strip()
    return f"{unit} failed ({told.get('Result')}, status {told.get('ExecMainStatus')}): {words or 'no output'}"


def main_pid(machine: Machine, role: str) -> int:
    """The daemon's, as systemd knows it; 0 while there is none."""
    return int(machine.systemctl("show", unit_of(role), "--property=MainPID", "--value") or 0)


def _state_of_files(machine: Machine, unit: Path, wanted: Sequence[UnitFile] | None) -> str:
    if machine.is_masked(unit):
        return "masked"
    present = {path: machine.read(path) for path in (unit, *shared_paths())}
    if any(text is not None and not is_as_written(text) for text in present.values()):
        return "changed"
    if wanted is None:
        return "unknown"
    return "current" if all(present[file.path] == file.text for file in wanted) else "outdated"


def _properties(machine: Machine, unit: str) -> dict[str, str]:
    answer = machine.systemctl("show", unit, f"--property={','.join(_PROPERTIES)}")
    return dict(line.split("=", 1) for line in answer.splitlines() if "=" in line)

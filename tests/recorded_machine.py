"""A machine on which a service is installed, without a systemd."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgelink.service.steps import Machine


@dataclass(frozen=True)
class RecordedMachine(Machine):
    """A root file system of the test's own; what systemd would be asked is written down, and answered from ``told``."""

    asked: list[tuple[str, ...]] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)

    def systemctl(self, *arguments: str, good: tuple[int, ...] = (0,)) -> str:
        self.asked.append(arguments)
        return self.told.get(arguments[1], "") if arguments[0] == "show" else ""


def tree(machine: Machine) -> dict[str, str]:
    """Every file and link below the machine's root."""
    return {
        str(path.relative_to(machine.root)): str(path.readlink()) if path.is_symlink() else path.read_text()
        for path in machine.root.rglob("*")
        if path.is_symlink() or path.is_file()
    }

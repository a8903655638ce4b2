"""The files that make EdgeLink a service, as they are to be on this machine; pure but for the templates.

Each carries a digest of itself: a file that somebody has changed since is known, and left alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from edgelink.config.models import Config
from edgelink.config.paths import Paths
from edgelink.process.service_manager import ONLINE, WAITS_FOR_ONLINE
from edgelink.ray_cluster.temp_dir import DEFAULT_DIRECTORY

UNITS = Path("/etc/systemd/system")
TMPFILES = Path("/etc/tmpfiles.d/edgelink.conf")
ROLES = ("bootstrap", "head", "edge")  # the verbs of the daemons
_ENABLED = UNITS / "multi-user.target.wants"
_DIGEST = "# As `edgelink service install` wrote it, sha256 "
_PARTS = {
    "bootstrap": ("relay", "registry, broker and overlay", "EasyTier and broker"),
    "head": ("head", "overlay, Ray head, runs", "Ray and EasyTier"),
    "edge": ("edge", "overlay, then Ray", "Ray and EasyTier"),
}


@dataclass(frozen=True)
class UnitFile:
    """``text`` is what is to be in ``path``."""

    path: Path
    text: str


def unit_of(role: str) -> str:
    """The unit's name of the daemon that ``edgelink ROLE`` runs."""
    return f"edgelink-{role}.service"


def unit_path(role: str) -> Path:
    return UNITS / unit_of(role)


def link_of(role: str) -> Path:
    """What has the unit started at boot."""
    return _ENABLED / unit_of(role)


def shared_paths() -> tuple[Path, ...]:
    """The files that all roles of a machine share."""
    return UNITS / WAITS_FOR_ONLINE, UNITS / ONLINE, TMPFILES


def files_for(role: str, program: tuple[str, ...], config: Config, config_file: Path | None = None) -> list[UnitFile]:
    """Everything that the role's service consists of.

    Args:
        program: this EdgeLink as a command, see :func:`own_program`.
        config_file: where it is not the default one.
    """
    description, parts, ended = _PARTS[role]
    # A relay's first start makes the network; a node has to be enrolled before there is anything to run.
    condition = "" if role == "bootstrap" else f"ConditionPathExists={Paths.state / 'membership.json'}\n"
    command = " ".join(map(quoted, program))
    sandbox = "none" if config.process.launcher == "session" else "relay" if role == "bootstrap" else "node"
    values = {
        "DESCRIPTION": description,
        "PARTS": parts,
        "ENDED": ended,
        "CONDITION": condition,
        "EXECUTABLE": program[0].replace("%", "%%"),
        "PROGRAM": command,
        "SANDBOX": _template(f"sandbox-{sandbox}.conf"),
        "ROLE": role,
        "OPTIONS": f" --config {quoted(str(config_file))}" if config_file else "",
        "RAY_TEMP": _one_word(str(config.ray.temp_dir or DEFAULT_DIRECTORY).replace("%", "%%")),  # see tmpfiles.d(5)
    }
    names = ("daemon.service", WAITS_FOR_ONLINE, ONLINE, "edgelink.conf")
    return [
        UnitFile(path, _signed(_rendered(name, values)))
        for name, path in zip(names, (unit_path(role), *shared_paths()), strict=True)
    ]


def config_file_of(unit: str) -> Path | None:
    """The configuration that the daemon of an installed unit is given, by the unit's text; None: the default one."""
    command = re.search(r"^ExecStart=(.*)", unit, re.MULTILINE)
    try:
        words = shlex.split(command[1]) if command else []
    except ValueError:  # somebody has changed it
        return None
    named = next((words[at + 1] for at, word in enumerate(words[:-1]) if word == "--config"), None)
    return Path(named.replace("%%", "%").replace("$$", "$")) if named else None


def is_as_written(text: str) -> bool:
    """Whether ``text`` is what some EdgeLink wrote, and nobody has changed since."""
    first, _, rest = text.partition("\n")
    return first == _DIGEST + _digest(rest)


def quoted(word: str) -> str:
    """``word`` as one word of an ``ExecStart=``, without its specifiers and variables; see systemd.service(5)."""
    return _one_word(word.replace("%", "%%").replace("$", "$$"))


def _one_word(word: str) -> str:
    if re.fullmatch(r"[\w@%+=:,./$-]+", word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def own_program(argv0: str | None = None) -> tuple[str, ...]:
    """This EdgeLink as a command with an absolute path: the one that was called, else that of this environment.

    A link is kept as it is: an upgrade by pipx or uv goes on behind it.
    """
    called = Path(os.path.abspath(shutil.which(argv0 or sys.argv[0]) or "/"))  # noqa: PTH100 - resolve() follows links
    for program in (called, Path(sys.prefix) / "bin/edgelink"):
        if program.name == "edgelink" and program.is_file() and os.access(program, os.X_OK):
            return (str(program),)
    return sys.executable, "-m", "edgelink.cli.main"


def _rendered(name: str, values: dict[str, str]) -> str:
    return re.sub(r"@([A-Z_]+)@", lambda match: values[match[1]], _template(name))


def _template(name: str) -> str:
    return resources.files("edgelink.service").joinpath("systemd", name).read_text()


def _signed(text: str) -> str:
    return f"{_DIGEST}{_digest(text)}\n{text}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

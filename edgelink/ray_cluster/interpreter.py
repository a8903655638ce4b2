"""The user's interpreter: which one has Ray, in which versions, and as whom its Ray runs.

Ray is not imported to find out: the interpreter reads its own package metadata, 0.1 s instead of 0.7 s.
Root does not run an interpreter that belongs to somebody else, it asks as the owner.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgelink.errors import ConfigError, MissingDependencyError
from edgelink.process.answer import AnswerTooLongError, answer_of, end
from edgelink.ray_cluster.versions import COMPARED_PACKAGES, Versions
from edgelink.timeouts import timeout

if TYPE_CHECKING:
    from edgelink.config import RayConfig

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MAX_ANSWER_BYTES = 4 * 1024 * 1024  # of one list of all nodes that Ray remembers, the dead included
TOO_LONG = "OutputTooLong"
TOO_LONG_HINT = "see what its sitecustomize, usercustomize or .pth files print: only the last line is its answer"
_TIMEOUT_S = 20.0
_OF_THE_DISTRIBUTION = (Path("/usr/bin"), Path("/bin"))
RAY_WANTED = "ray>=2.47"
_INSPECTION = """
import json, os, platform, sys, importlib.metadata as metadata
def version(name):
    try: return metadata.version(name)
    except metadata.PackageNotFoundError: return None
print(json.dumps([platform.python_version(), version("ray"), version("grpcio") is not None,
    [path for path in sys.path if path and os.path.isdir(path)],
    {name: found for name in COMPARED if (found := version(name))}]))
""".replace("COMPARED", repr(COMPARED_PACKAGES))


@dataclass(frozen=True)
class Interpreter:
    """``has_client``: Ray Client's packages are there, so Ray would open its port. ``package_paths``: its sys.path.

    ``packages``: see :class:`~edgelink.ray_cluster.versions.Versions`.
    """

    python: Path
    python_version: str
    ray_version: str
    owner_uid: int
    has_client: bool = False
    package_paths: tuple[Path, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def versions(self) -> Versions:
        return Versions(self.ray_version, self.python_version, self.packages)


@dataclass(frozen=True)
class RayUser:
    """Whom Ray runs as. ``groups`` open GPUs, cameras and serial ports to it."""

    uid: int
    gid: int
    name: str
    home: Path
    groups: tuple[int, ...] = ()


def how_to_install(python: Path, requirement: str) -> str:
    """Return the command that brings a package to ``python``. The distribution's own takes none (PEP 668)."""
    if python.parent in _OF_THE_DISTRIBUTION:
        return (
            f"it is the distribution's, which pip may not change: `{python} -m venv /opt/train`, "
            f"`/opt/train/bin/pip install '{requirement}'`, and `ray.python: /opt/train/bin/python`"
        )
    return f"`{python} -m pip install '{requirement}'`"


async def inspect_interpreter(
    python: Path | None, environ: Mapping[str, str] | None = None, asker: RayUser | None = None
) -> Interpreter:
    """The interpreter ``python``, or the first ``python3`` on PATH that has Ray; asked as ``asker`` or as its owner.

    Raises:
        ConfigError: ``python`` cannot be run.
        MissingDependencyError: it has no Ray, or none on PATH has.
    """
    if python is not None:
        if found := await _inspect(python, asker):
            return found
        raise MissingDependencyError(
            f"ray.python {python}: has no Ray",
            hint=f"{how_to_install(python, RAY_WANTED)}; the same versions on every node",
        )
    for candidate in _candidates(os.environ if environ is None else environ):
        try:
            found = await _inspect(candidate)
        except ConfigError:
            continue
        if found:
            return found
    raise MissingDependencyError(
        "no python3 on PATH has Ray",
        hint="set ray.python in the configuration to the interpreter that your training uses",
    )


def resolve_user(
    config: RayConfig, interpreter: Interpreter, environ: Mapping[str, str] | None = None, euid: int | None = None
) -> RayUser:
    """``ray.user``, else the owner of the interpreter, else SUDO_USER; root only with ``ray.allow_root``.

    Raises:
        ConfigError: no such user, or only root is left.
    """
    environ = os.environ if environ is None else environ
    euid = os.geteuid() if euid is None else euid
    user = _wanted_user(config, interpreter, environ)
    if user.uid == 0 and not config.allow_root:
        raise ConfigError(
            f"Ray would run as root: {interpreter.python} belongs to root and no other user is named",
            hint="set ray.user to the user whose training this is, or ray.allow_root: true to accept root",
            reason="RayAsRoot",
        )
    if euid not in (0, user.uid):
        raise ConfigError(
            f"Ray is to run as {user.name}, but EdgeLink itself runs as user id {euid} and cannot change that",
            hint="run EdgeLink as root, or set ray.user to its own user",
        )
    return user


def named_asker(config: RayConfig) -> RayUser | None:
    """As whom `ray.python` is asked where ``ray.user`` says it: that user may see more than root, whom a file server
    takes for nobody. Raises ConfigError."""
    return None if config.user is None else named_user("ray.user", config.user)


def user_of(uid: int) -> RayUser:
    """The account with ``uid``; one without an entry in the user database gets a home of /tmp."""
    try:
        return _to_user(pwd.getpwuid(uid))
    except KeyError:
        return RayUser(uid, uid, str(uid), Path("/tmp"))  # noqa: S108 (containers run as such users)


def _wanted_user(config: RayConfig, interpreter: Interpreter, environ: Mapping[str, str]) -> RayUser:
    if config.user is not None:
        return named_user("ray.user", config.user)
    if interpreter.owner_uid != 0 or config.allow_root or "SUDO_USER" not in environ:
        return user_of(interpreter.owner_uid)
    return named_user("SUDO_USER", environ["SUDO_USER"])


def named_user(source: str, name: str) -> RayUser:
    """The account ``name``, which ``source`` names. Raises ConfigError."""
    try:
        return _to_user(pwd.getpwnam(name))
    except (KeyError, ValueError):  # the latter of what can be nobody's name
        raise ConfigError(f"{source}: there is no user {name!r} on this machine") from None


def _to_user(entry: pwd.struct_passwd) -> RayUser:
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return RayUser(entry.pw_uid, entry.pw_gid, entry.pw_name, Path(entry.pw_dir), groups)


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    seen = set()
    for directory in environ.get("PATH", SYSTEM_PATH).split(":"):
        found = shutil.which("python3", path=directory) if directory else None
        if found and found not in seen:
            seen.add(found)
            yield Path(found)
    if sys.executable not in seen:  # an installation into the training's own environment
        yield Path(sys.executable)


async def _inspect(python: Path, asker: RayUser | None = None) -> Interpreter | None:
    """None when this interpreter has no Ray; ConfigError when it cannot be run."""
    try:
        owner_uid = _owner_of(python, asker)
        asker = asker or user_of(owner_uid if os.geteuid() == 0 else os.geteuid())
        process = await asyncio.create_subprocess_exec(
            python,
            "-c",
            _INSPECTION,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd="/",
            env={"PATH": SYSTEM_PATH, "HOME": str(asker.home)},
            start_new_session=True,
            **identity_arguments(asker),
        )
    except OSError as error:
        if asker is None and isinstance(error, PermissionError):
            raise ConfigError(
                f"ray.python {python}: we may not look there, as root may not on some file servers",
                hint="name the user whose it is in ray.user",
            ) from error
        who = f"the user {asker.name}" if asker else "its owner"
        raise ConfigError(
            f"ray.python {python}: cannot be run as {who}: {error.strerror or error}",
            hint=f"name an interpreter that {who} may run, or another user in ray.user",
        ) from error
    try:
        async with timeout(_TIMEOUT_S):
            output, complaint = await answer_of(process, MAX_ANSWER_BYTES)
    except (TimeoutError, AnswerTooLongError) as error:
        if isinstance(error, AnswerTooLongError):
            raise ConfigError(too_long(python), hint=TOO_LONG_HINT, reason=TOO_LONG) from None
        raise ConfigError(f"ray.python {python}: did not answer within {_TIMEOUT_S:g} s") from None
    finally:
        await end(process)
    if process.returncode != 0:
        words = (complaint.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise ConfigError(f"ray.python {python}: failed when asked for its versions: {words}")
    try:  # the last line: a sitecustomize may print what it likes before
        python_version, ray_version, has_client, package_paths, packages = json.loads(output.splitlines()[-1])
    except (ValueError, TypeError, IndexError):
        raise ConfigError(f"ray.python {python}: its answer is not understood: {output[:80]!r}") from None
    if ray_version is None:
        return None
    paths = tuple(map(Path, package_paths))
    return Interpreter(python, python_version, ray_version, owner_uid, has_client, paths, packages)


def _owner_of(python: Path, asker: RayUser | None) -> int:
    """Of a virtual environment's link, not of the system's python behind it; ``asker`` where only that one may look."""
    try:
        return python.lstat().st_uid
    except PermissionError:
        if asker is None:
            raise
        return asker.uid


def too_long(python: Path) -> str:
    """What is wrong with an interpreter that prints without end; a sitecustomize may print some lines."""
    return f"ray.python {python}: printed more than {MAX_ANSWER_BYTES >> 20} MiB when it was asked something"


def identity_arguments(user: RayUser) -> dict[str, Any]:
    """The arguments that make a child run as ``user``; none when we are that user already."""
    if os.geteuid() != 0:
        return {}
    return {"user": user.uid, "group": user.gid, "extra_groups": user.groups}

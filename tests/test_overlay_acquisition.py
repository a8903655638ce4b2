"""Getting EasyTier: found, downloaded from a local server that behaves and misbehaves, or said why not."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import socket
import stat
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

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
    """No EasyTier, cargo or proxy of the machine that runs the tests."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv(acquisition.CORE_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", acquisition.BASE_URL_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def program(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho easytier-core {version}\n")
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
    with pytest.raises(EasyTierNotFoundError, match="is not the pinned release") as caught:
        fetch_release("2.6.4", "x86_64", tmp_path, server)
    assert RELEASES["2.6.4", "x86_64"] in caught.value.message
    assert caught.value.hint
    assert leftovers(tmp_path) == []


def test_a_forged_release_is_not_built_around(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong hash ends the search: a build from source would hide it."""
    monkeypatch.setenv(acquisition.BASE_URL_VARIABLE, server)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(acquisition, "build_with_cargo", lambda *_: pytest.fail("built"))
    with pytest.raises(EasyTierNotFoundError, match="pinned"):
        acquire(tmp_path)


def test_a_download_that_is_cut_off_is_named(server: str, tmp_path: Path) -> None:
    """Fewer bytes than announced: said as such, to be tried again, nothing left."""
    global answer
    answer = (200, GOOD[:-10], len(GOOD))
    with pytest.raises(EasyTierNotFoundError, match="cut off after"):
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
    with reserved_port() as port, pytest.raises(EasyTierNotFoundError, match="cannot be downloaded") as caught:
        fetch_release("2.6.4", "x86_64", tmp_path, f"http://127.0.0.1:{port}")
    assert acquisition.BASE_URL_VARIABLE in caught.value.hint


def test_a_silent_network_is_given_up_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server (or a name lookup) that never answers costs the connect timeout, no more."""
    monkeypatch.setattr(acquisition, "_CONNECT_TIMEOUT_S", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(EasyTierNotFoundError, match=r"no connection within 0\.1 s"):
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
    with pytest.raises(EasyTierNotFoundError, match="no pinned release"):
        fetch_release("2.6.4", "riscv64", tmp_path)
    assert all(len(sha256) == 64 for sha256 in RELEASES.values())


def test_the_configured_core_wins_then_path_then_the_newest_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order in which EasyTier is looked for."""
    cache = tmp_path / "cache"
    program(cache / "easytier-2.0.3" / "bin" / "easytier-core", "2.0.3")
    newest = program(cache / "easytier-2.10.0" / "bin" / "easytier-core", "2.10.0")
    assert find_easytier(None, cache).core == newest

    on_path = program(tmp_path / "bin" / "easytier-core", "2.4.5")
    cli = program(tmp_path / "bin" / "easytier-cli", "2.4.5")
    assert find_easytier(None, cache) == acquisition.EasyTierBinary(on_path, cli, "2.4.5")

    monkeypatch.setenv(acquisition.CORE_VARIABLE, str(newest))
    assert find_easytier(None, cache).core == newest

    configured = program(tmp_path / "mine", "2.2.0")
    assert find_easytier(configured, cache) == acquisition.EasyTierBinary(configured, None, "2.2.0")


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


def test_without_network_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed download goes on to `cargo install … --version 2.0.3 --locked`, into the same cache."""
    monkeypatch.setenv(acquisition.BASE_URL_VARIABLE, "http://127.0.0.1:1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.defpath}")
    for name in ("protoc", "clang", "cc"):
        program(tmp_path / "bin" / name, "")
    definitions = tmp_path / "include/google/protobuf/timestamp.proto"
    definitions.parent.mkdir(parents=True)
    definitions.touch()
    cargo = program(tmp_path / "bin" / "cargo", "")
    cargo.write_text(
        f'#!/bin/sh\necho "$*" > {tmp_path}/args\n'
        'while [ "$1" != --root ]; do shift; done\nmkdir -p "$2/bin"\n'
        'printf "#!/bin/sh\\necho easytier-core 2.0.3\\n" > "$2/bin/easytier-core"; chmod +x "$2/bin/easytier-core"\n'
    )
    assert acquire(tmp_path / "cache").core == tmp_path / "cache" / "easytier-2.0.3" / "bin" / "easytier-core"
    assert (tmp_path / "args").read_text().startswith("install easytier --version 2.0.3 --locked --root ")


def test_without_network_and_cargo_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last resort missing is a clear error too."""
    monkeypatch.setenv(acquisition.BASE_URL_VARIABLE, "http://127.0.0.1:1")
    with pytest.raises(EasyTierNotFoundError, match="cargo is not installed"):
        acquire(tmp_path)


def test_packages_are_named_when_they_cannot_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a build needs is printed before, and is in the hint where it cannot be installed."""
    program(tmp_path / "bin" / "cargo", "")
    with pytest.raises(EasyTierNotFoundError, match="protobuf-compiler") as caught:
        acquisition.build_with_cargo(tmp_path)
    assert "apt-get install" in caught.value.hint
    assert "libclang-dev" in capsys.readouterr().err


def test_a_compiler_without_its_definitions_is_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Debian's protobuf-compiler alone lacks timestamp.proto, and the build fails minutes later."""
    for name in ("cargo", "clang", "cc", "protoc"):
        program(tmp_path / "bin" / name, "")
    with pytest.raises(EasyTierNotFoundError, match="libprotobuf-dev"):
        acquisition.build_with_cargo(tmp_path)
    definitions = tmp_path / "include/google/protobuf/timestamp.proto"
    definitions.parent.mkdir(parents=True)
    definitions.touch()
    (tmp_path / "bin" / "cargo").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(EasyTierNotFoundError, match="cargo install"):  # goes on to the build
        acquisition.build_with_cargo(tmp_path)

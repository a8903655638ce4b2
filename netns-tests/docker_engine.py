"""A Docker engine for one test file: its own data, in memory, and sockets, in a network namespace of the lab.

Images are built from a small Debian and from wheels that are fetched once, so that no build step needs a network; the
interpreter that has Ray and torch is this one, mounted read-only, as a person brings their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from machines import wait_until
from made_once import REPOSITORY, debian_root

from edgelink.api.client import DaemonNotRunningError, call
from edgelink.config import Paths
from edgelink.overlay.acquisition import EasyTierBinary, default_cache_dir

FILES = REPOSITORY / "docker"
BASE = "edgelink-test-base"
_CONTEXT = (".ci/system-packages", ".dockerignore", "LICENSE", "Makefile", "README.md")
_CONTEXT += ("docker", "edgelink", "pyproject.toml", "systemd")
_LOCK = "tests/requirements.lock"
_START_S = 120.0


def reason_to_skip() -> str | None:
    """Why no engine can run here; None where it may be tried."""
    for program in ("dockerd", "docker", "debootstrap", "nsenter"):
        if shutil.which(program) is None:
            return f"needs {program}: `make setup machine` installs it"
    if not _compose():
        return "needs docker compose or docker-compose: `make machine` installs it"
    if "overlay" not in Path("/proc/filesystems").read_text():
        return "needs a kernel with overlayfs"
    return None


class Engine:
    """``dockerd`` in the network namespace at ``namespace``; containers with the host's network are in there."""

    def __init__(self, namespace: Path) -> None:
        # Short: the path of containerd's socket has to fit into 107 characters.
        self.directory = Path(tempfile.mkdtemp(prefix="edgelink-docker-", dir="/var/tmp"))
        self.context = self.directory / "context"  # of builds, once there was one
        self._namespace = namespace
        self._log = self.directory / "dockerd.log"
        self._daemon: subprocess.Popen[bytes] | None = None
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "DOCKER_HOST": f"unix://{self.directory}/docker.sock",
            "DOCKER_BUILDKIT": "0",  # the classic builder needs no plugin, and asks nobody for one
        }

    def start(self) -> None:
        """Returns when it answers."""
        daemon = [
            *("dockerd", "--data-root", self.directory / "data", "--exec-root", self.directory / "run"),
            *("--pidfile", self.directory / "pid", "--host", self._env["DOCKER_HOST"]),
        ]
        with self._log.open("ab") as log:
            # Its own mounts stay its own, and are gone with it. It ends its containers and itself should we be killed.
            inside = ["nsenter", f"--net={self._namespace}", "unshare", "--mount", "--propagation", "private"]
            # So is the disk of images and containers: a real one takes half a minute to write and to remove them.
            disk = [
                "sh",
                "-c",
                'mkdir -p "$0" && mount -t tmpfs edgelink-test "$0" && exec "$@"',
                self.directory / "data",
            ]
            self._daemon = subprocess.Popen(
                [*inside, *disk, "setpriv", "--pdeathsig", "TERM", *daemon],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        def answers() -> bool:
            assert self._daemon is not None
            assert self._daemon.poll() is None, f"dockerd ended: {self._log.read_text()[-2000:]}"
            return self.docker("version", check=False).returncode == 0

        wait_until("dockerd answers", answers, _START_S)

    def close(self) -> None:
        """End the containers, the engine, and what it left on the disk."""
        if self._daemon is not None:
            with contextlib.suppress(subprocess.SubprocessError):
                ids = self.docker("ps", "--all", "--quiet", check=False).stdout.split()
                if ids:
                    self.docker("rm", "--force", *ids, check=False, timeout_s=60)
            self._daemon.terminate()
            try:
                self._daemon.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self._daemon.pid, signal.SIGKILL)  # with the containerd that it started
                self._daemon.wait()
        shutil.rmtree(self.directory)

    # -- commands

    def docker(self, *argv: str, check: bool = True, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        return self._run(["docker", *argv], check=check, timeout_s=timeout_s)

    def compose(
        self,
        *argv: str,
        files: list[Path],
        env: dict[str, str] | None = None,
        check: bool = True,
        timeout_s: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        options = [option for file in files for option in ("--file", str(file))]
        return self._run([*_compose(), *options, *argv], env=env, check=check, timeout_s=timeout_s)

    def _run(
        self, argv: list[str], *, env: dict[str, str] | None = None, check: bool, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            argv, env=self._env | (env or {}), capture_output=True, text=True, check=False, timeout=timeout_s
        )
        assert not check or result.returncode == 0, f"{argv}: {result.returncode}: {result.stdout}{result.stderr}"
        return result

    # -- images

    def build(self, easytier: EasyTierBinary) -> None:
        """Make the images from this checkout by the one command that there is for it, without a network."""
        with subprocess.Popen(["tar", "-C", debian_root(), "-c", "."], stdout=subprocess.PIPE) as archive:
            subprocess.run(
                ["docker", "import", "-", f"{BASE}-root"],
                stdin=archive.stdout,
                env=self._env,
                check=True,
                capture_output=True,
            )
        # The interpreter that is mounted may lie below /root, and Ray is not root.
        self._pipe(f"FROM {BASE}-root\nRUN chmod 755 /root\n", "docker", "build", "--tag", BASE, "-")
        context = self.context
        for name in (*_CONTEXT, _LOCK):
            source, target = REPOSITORY / name, context / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, target)
        shutil.copytree(_wheels(), context / "wheels")
        values = {"BASE": BASE, "PYTHON_PACKAGES": ""}
        if easytier.module is None:
            (context / "easytier").mkdir()
            for program in (easytier.core, easytier.cli):
                assert program is not None
                shutil.copy2(program, context / "easytier")
        else:
            values["EASYTIER"] = self._env["EDGELINK_EASYTIER"] = "wheel"  # the compose files' name for it
        given = " ".join(f"--build-arg {name}={value}" for name, value in values.items())
        command = ["make", "--directory", str(context), "images", f"IMAGE_OPTIONS=--network none {given}"]
        self._run(command, check=True, timeout_s=600)

    def import_nothing(self, name: str) -> None:
        """An image without files, for containers that mount what they need."""
        self._pipe("\0" * 10240, "docker", "import", "-", name)  # the end of an archive

    @contextlib.contextmanager
    def index(self, files: Path) -> Iterator[str]:
        """A package index of a folder for each project, which builds reach: its URL. It is plain HTTP."""
        inside = ("nsenter", f"--net={self._namespace}")
        look = [*inside, "ip", "-json", "address", "show", "docker0"]
        looked = json.loads(subprocess.run(look, capture_output=True, check=True).stdout)
        bridge = next(address["local"] for address in looked[0]["addr_info"] if address["family"] == "inet")
        server = subprocess.Popen(
            [*inside, sys.executable, "-u", "-m", "http.server", "0", "--bind", bridge, "--directory", files],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with server:
            try:
                assert server.stdout is not None
                port = re.search(r"port (\d+)", server.stdout.readline())
                assert port is not None, "it does not listen"
                yield f"http://{bridge}:{port[1]}/"
            finally:
                server.terminate()

    def _pipe(self, text: str, *argv: str) -> None:
        subprocess.run(argv, input=text, env=self._env, check=True, capture_output=True, text=True)

    # -- containers

    def inspect(self, container: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.docker("inspect", container).stdout)[0]
        return found

    def logs(self, container: str) -> str:
        answer = self.docker("logs", container)
        return answer.stdout + answer.stderr

    def health(self, container: str) -> str:
        return str(self.inspect(container)["State"]["Health"]["Status"])

    def status(self, container: str) -> dict[str, Any] | None:
        """What the node in it says of itself; None while it does not."""
        answer = self.docker("exec", container, "edgelink", "status", "--json", check=False)
        try:
            status: dict[str, Any] = json.loads(answer.stdout)["daemons"][0]
        except ValueError:
            return None
        return status

    def looked(self, container: str) -> dict[str, Any] | None:
        """The same, asked from outside: a loop that waits does not start an interpreter in there each time."""
        run = Path(f"/proc/{self.inspect(container)['State']['Pid']}/root") / Paths().runtime.relative_to("/")
        try:
            socket = next(path for path in (run / "node.sock", run / "bootstrap.sock") if path.exists())
            status: dict[str, Any] = call(socket, "GET", "/status")
        except (DaemonNotRunningError, StopIteration):
            return None
        return status

    def wait_ready(self, container: str, timeout_s: float = 120) -> dict[str, Any]:
        try:
            return wait_until(
                f"{container} is ready",
                lambda: self.looked(container),
                timeout_s,
                wanted=lambda status: status["ready"],
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs(container)[-4000:]}") from None

    def stop(self, container: str, grace_s: int = 45) -> tuple[int, float]:
        """``docker stop``: the container's exit status, and how many seconds it took."""
        started_s = time.monotonic()
        self.docker("stop", "--time", str(grace_s), container)
        return int(self.inspect(container)["State"]["ExitCode"]), time.monotonic() - started_s

    def override(self, name: str, services: dict[str, dict[str, Any]]) -> Path:
        """One more compose file."""
        file = self.directory / f"{name}.yaml"
        file.write_text(yaml.safe_dump({"services": services}))
        return file


def own_python() -> dict[str, Any]:
    """Of a compose service: the interpreter that runs this, with its packages, in place of the image's."""
    host = {Path(sys.prefix), Path(sys.base_prefix), *map(Path, filter(None, sys.path))}
    shared = sorted({path.resolve() for path in host if path.exists() and not path.is_relative_to("/usr")})
    mounts = [path for path in shared if not any(path.is_relative_to(other) for other in shared if other != path)]
    return {
        "environment": {"EDGELINK_RAY__PYTHON": sys.executable},
        "volumes": [f"{path}:{path}:ro" for path in mounts],
    }


def _compose() -> list[str]:
    """Version 2 where there is one."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else []


def _wheels() -> Path:
    """EdgeLink's dependencies in the locked versions, for Debian's Python; fetched on first use, into the cache."""
    lock = (REPOSITORY / _LOCK).read_text()
    pinned = [line.removesuffix(" \\") for line in lock.splitlines() if line[:1].isalnum()]
    key = zlib.crc32("\n".join([*pinned, (REPOSITORY / "pyproject.toml").read_text()]).encode())
    wheels = default_cache_dir() / f"wheels-{key}"
    if not wheels.exists():
        wheels.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".wheels-", dir=wheels.parent) as work:
            constraints = Path(work, "constraints.txt")
            constraints.write_text("\n".join(pinned))
            pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--constraint", constraints, "--wheel-dir"]
            needed = (f"{REPOSITORY}[easytier-wheel]", "hatchling")
            subprocess.run([*pip, f"{work}/wheels", *needed], check=True)
            for own in Path(work, "wheels").glob("edgelink-*"):
                own.unlink()
            with contextlib.suppress(OSError):  # somebody else was quicker
                Path(work, "wheels").rename(wheels)
    return wheels


def wheel(directory: Path, module: str, version: str, text: str) -> Path:
    """A wheel of one module."""
    info = f"{module}-{version}.dist-info"
    members = {
        f"{module}.py": text,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    file = directory / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in (*members, f"{info}/RECORD")))
    return file

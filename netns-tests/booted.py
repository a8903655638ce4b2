"""A lab node that is a whole machine: a booted systemd (systemd-nspawn) in the node's network namespace.

Its disk, in memory, is a copy of a small Debian; the interpreter, its packages and EasyTier are the host's, read-only.
State and configuration are the lab node's, so that they outlive a reboot; /run does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from machines import wait_until
from made_once import REPOSITORY, debian_root, made_once
from memory_disk import mount_disk, unmount_disk

from edgelink.api.client import DaemonNotRunningError, call
from edgelink.config import Config, Paths
from edgelink.lab import RELAY, Lab
from edgelink.lab.namespaces import netns_path
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.service.installation import to_install
from edgelink.service.steps import Machine, do
from edgelink.service.units import files_for

_PREFIX = Path("/opt/edgelink")
_ROBOT = 1000  # uid and gid of the user that Ray runs as
_BOOT_S = 120.0
# A cgroup hierarchy of its own kind, whatever the host has mounted; what is made in it is removed again.
_NSPAWN = """
mount --make-rprivate /
umount --recursive /sys/fs/cgroup 2>/dev/null
mount -t cgroup2 cgroup2 /sys/fs/cgroup || exit
cgroup=/sys/fs/cgroup/edgelink-$0
mkdir $cgroup && echo $$ >$cgroup/cgroup.procs || exit
systemd-nspawn "$@"
status=$?
echo $$ >/sys/fs/cgroup/cgroup.procs
find $cgroup -depth -type d -exec rmdir {} +
exit $status
"""


def reason_to_skip() -> str | None:
    """Why no systemd can be booted here; None where it can."""
    for program in ("systemd-nspawn", "debootstrap", "unshare"):
        if shutil.which(program) is None:
            return f"needs {program}: `make setup` installs it"
    if "cgroup2" not in Path("/proc/filesystems").read_text():
        return "needs a kernel with cgroup v2"
    script = "mount -t cgroup2 none /mnt && mkdir /mnt/edgelink-probe-$$ && rmdir /mnt/edgelink-probe-$$"
    probe = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False)
    return f"no cgroup can be made here: {probe.stderr.strip()}" if probe.returncode else None


class BootedNode:
    """``node`` of ``lab``, run by systemd; enrol it before, with the lab's own means."""

    def __init__(self, lab: Lab, node: str, easytier: EasyTierBinary) -> None:
        self.name = f"{lab.name}-{node}"
        self.root = lab.node_directory(node) / "root"
        self._lab = lab
        self._node = node
        self._easytier = easytier
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._leader = 0
        self._log = lab.node_directory(node) / "nspawn.log"

    # -- the machine

    def install(self, *roles: str, edgelink: Path | None = None, packages: Sequence[str] = ()) -> None:
        """Make its disk: root, a user for Ray, ``edgelink`` in /opt/edgelink, its service of these ``roles``.

        Args:
            edgelink: see :func:`installed_edgelink`; None: the machine has no EdgeLink.
            packages: of Debian, besides those that all these machines have.
        """
        mount_disk(self.root)
        subprocess.run(["cp", "-a", f"{debian_root(packages)}/.", self.root], check=True)
        etc = self.root / "etc"
        # Debian's own: once or twice a day, at a time drawn at each boot, they would change files.
        shutil.rmtree(etc / "systemd/system/timers.target.wants", ignore_errors=True)
        for name, line in (("passwd", "robot:x:{0}:{0}::/home/robot:/bin/sh"), ("group", "robot:x:{0}:")):
            with (etc / name).open("a") as file:
                file.write(line.format(_ROBOT) + "\n")
        (self.root / "home/robot").mkdir()
        os.chown(self.root / "home/robot", _ROBOT, _ROBOT)
        (self.root / "root").chmod(0o755)  # the interpreter may lie below
        (etc / "hostname").write_text(f"{self._node}\n")
        (etc / "hosts").write_text((self._lab.node_directory(self._node) / "hosts").read_text())
        if edgelink is not None:
            subprocess.run(["cp", "-a", edgelink, self.root / _PREFIX.relative_to("/")], check=True)
        image = Machine(self.root, is_booted=False)
        for role in roles:
            files = files_for(role, (f"{_PREFIX}/bin/edgelink",), Config())
            do(to_install(image, [role], files, force=False), image)

    def boot(self) -> None:
        """Returns when systemd answers; what it starts may still be starting."""
        netns = netns_path(self._lab.name, self._node)
        command = [
            "systemd-nspawn",
            *("--boot", "--quiet", "--keep-unit", "--register=no", "--settings=no", "--console=pipe"),
            *("--link-journal=no", "--resolv-conf=off", "--timezone=off", "--capability=all"),
            *(f"--directory={self.root}", f"--machine={self.name}", f"--network-namespace-path={netns}"),
            *self._binds(),
        ]
        with self._log.open("ab") as log:
            self._nspawn = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", _NSPAWN, self.name, *command[1:]],
                env={"PATH": os.environ["PATH"], "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until("systemd answers", self._answers, _BOOT_S)

    def _binds(self) -> list[str]:
        """What it sees of the host: the machine's own disk wins wherever both have it."""
        host = {Path(sys.prefix), Path(sys.base_prefix), REPOSITORY, *map(Path, filter(None, sys.path))}
        shared = sorted(path.resolve() for path in host if path.exists() and not path.is_relative_to("/usr"))
        binds = [f"--bind-ro={path}" for path in shared if not any(path.is_relative_to(p) for p in shared if p != path)]
        for program in (self._easytier.core, self._easytier.cli):
            assert program is not None
            link = self.root / "usr/local/bin" / program.name  # the wheel's programs find Python from where they are
            link.unlink(missing_ok=True)
            link.symlink_to(program)
            if not any(program.is_relative_to(path) for path in shared):
                binds.append(f"--bind-ro={program}")
        for path in (Paths().state, Path("/etc/edgelink")):
            binds.append(f"--bind={self._lab.host_path(self._node, path)}:{path}")
        binds += [f"--bind-ro={path}:{inside}" for path, inside in _host_packages().items()]
        return [*binds, "--bind=/dev/net/tun"]

    def _answers(self) -> bool:
        assert self._nspawn is not None
        assert self._nspawn.poll() is None, f"systemd-nspawn ended: {self._log.read_text()[-2000:]}"
        self._leader = _leader_below(self._nspawn.pid)
        return bool(self._leader) and self.run("systemctl", "show-environment").returncode == 0

    @property
    def is_booted(self) -> bool:
        return self._nspawn is not None and self._nspawn.poll() is None

    def shut_down(self) -> float:
        """As a person does it; returns how many seconds it took. ``boot`` may follow."""
        assert self._nspawn is not None
        started_s = time.monotonic()
        self.run("systemctl", "reboot", check=True)
        self._nspawn.wait(120)
        return time.monotonic() - started_s

    def remove(self) -> None:
        """Pull the plug, and throw the disk away."""
        self.pull_plug()
        if self.root.is_mount():
            unmount_disk(self.root)

    def pull_plug(self) -> None:
        """All its processes die at once, unasked. ``boot`` may follow."""
        if self._nspawn is None:
            return
        if self._nspawn.poll() is None and self._leader:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._leader, signal.SIGKILL)
        try:
            self._nspawn.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._nspawn.pid, signal.SIGKILL)
            self._nspawn.wait()
        with contextlib.suppress(OSError):
            Path("/run/systemd/nspawn/propagate", self.name).rmdir()

    # -- inside

    def run(self, *argv: str, check: bool = False, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command as root in it."""
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root")
        environ = [
            "env",
            "-i",
            "--chdir=/",
            "PATH=/opt/edgelink/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME=/root",
        ]
        result = subprocess.run(
            ["nsenter", f"--target={self._leader}", *spaces, "--", *environ, *argv],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        assert not check or result.returncode == 0, f"{argv}: {result.stdout}{result.stderr}\n{self.journal()}"
        return result

    def path(self, inside: Path) -> Path:
        """A path of it as the host sees it."""
        return Path(f"/proc/{self._leader}/root{inside}")

    def show(self, unit: str, name: str) -> str:
        """One property of a unit."""
        return self.run("systemctl", "show", unit, f"--property={name}", "--value", check=True).stdout.strip()

    def daemon_pid(self, unit: str) -> int:
        """Its pid in there; 0 when it does not run."""
        return int(self.show(unit, "MainPID"))

    def files(self) -> set[str]:
        """Every file and link on its disk, but for the log."""
        found = (path.relative_to(self.root) for path in self.root.rglob("*") if path.is_symlink() or not path.is_dir())
        return {str(path) for path in found if path.parts[:3] != ("var", "log", "journal")}

    def journal(self, unit: str | None = None) -> str:
        """The last of the log, of all or of one unit: of that enough for what is looked for in it."""
        which = ["--unit", unit, "--lines=600"] if unit else ["--lines=60"]
        return self.run("journalctl", "--no-pager", "--boot", "--output=cat", *which).stdout

    def status(self) -> dict[str, Any] | None:
        """What the node's daemon says of itself; None while none answers."""
        try:
            socket = Paths().bootstrap_socket if self._node == RELAY else Paths().node_socket
            answer: dict[str, Any] = call(self.path(socket), "GET", "/status")
        except DaemonNotRunningError:
            return None
        return answer

    def children(self) -> dict[str, int]:
        """The pids that outlive a daemon: EasyTier's and, but between two Rays, raylet's, on a head the GCS's."""
        status = self.status()
        assert status is not None
        try:
            record = json.loads(self.path(Paths().processes / "ray.json").read_text())
        except FileNotFoundError:
            record = {}
        of_ray = {name: record[name]["pid"] for name in ("raylet", "gcs") if record.get(name)}
        return {"easytier": status["easytier_pid"], **of_ray}

    def wait_ready(self, timeout_s: float = 120) -> dict[str, Any]:
        """The status of the node once it is ready."""

        try:
            return wait_until("the node is ready", self.status, timeout_s, wanted=lambda status: status["ready"])
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.journal()}") from None


def installed_edgelink(factory: pytest.TempPathFactory) -> Path:
    """EdgeLink's wheel as pip installs it in /opt/edgelink, but that the packages it needs are the host's: nothing is
    fetched. To be copied."""

    def make(directory: Path) -> None:
        at, uv = _virtual_environment(directory / "edgelink"), Path(sys.prefix) / "bin/uv"
        build = [uv, "build", "--quiet", "--wheel", "--offline"]  # what builds it is in uv's cache
        subprocess.run([*build, "--out-dir", directory, REPOSITORY], check=True)
        install = [uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--compile-bytecode"]
        (wheel,) = directory.glob("*.whl")
        subprocess.run([*install, "--python", at / "bin/python", wheel], check=True)
        program = at / "bin/edgelink"
        program.write_text(program.read_text().replace(str(at), str(_PREFIX)))

    return made_once(factory, "booted", make) / "edgelink"


def ray_with_its_dashboard(factory: pytest.TempPathFactory) -> Path:
    """An interpreter's directory, to be copied to anywhere on a machine: the host's Ray, and what its dashboard needs
    besides."""

    def make(directory: Path) -> None:
        at, uv = _virtual_environment(directory / "ray"), Path(sys.prefix) / "bin/uv"
        lock = Path(__file__).with_name("ray_dashboard.lock")
        install = [uv, "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--compile-bytecode"]
        subprocess.run([*install, "--python", at / "bin/python", "--requirements", lock], check=True)

    return made_once(factory, "ray-with-its-dashboard", make) / "ray"


def _virtual_environment(at: Path) -> Path:
    """One that has the host's packages, as a machine sees them."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", at], check=True)
    packages = next(at.glob("lib/python3*/site-packages"))
    (packages / "host.pth").write_text("\n".join(_host_packages().values()))
    return at


def _host_packages() -> dict[str, str]:
    """Where the host's packages are seen in a machine: a unit may have a /tmp of its own, and the host have them
    there."""
    found = [path for path in sys.path if path.endswith("site-packages")]
    return {path: f"/opt/host-packages/{number}" for number, path in enumerate(found)}


def _leader_below(pid: int) -> int:
    """The first process of the container: the grandchild of the script that runs nspawn; 0 while there is none."""
    try:
        for child in _children(pid):
            if _command(child) == "systemd-nspawn":
                return next((leader for leader in _children(child) if _command(leader) == "systemd"), 0)
    except OSError:
        pass
    return 0


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()

"""What goes into a bundle: the versions that the tests run with, and EasyTier for the machine that it is for."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgelink.cli import completion
from edgelink.errors import EasyTierNotFoundError

sys.path.insert(0, str(Path(__file__).parent.parent / ".ci/packages"))
import packages

pytestmark = pytest.mark.processes
_ROOT = Path(__file__).parent.parent
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def pinned(lock: Path) -> dict[str, str]:
    return dict(_PINNED.findall(lock.read_text()))


def test_the_daemons_lock_is_that_of_the_tests() -> None:
    """Whoever locks anew does both; all that EdgeLink itself asks for is in it, and neither Ray nor torch."""
    daemon, tests = pinned(packages.DAEMON_LOCK), pinned(_ROOT / "tests/requirements.lock")
    assert {name: version for name, version in daemon.items() if tests.get(name) != version} == {}
    asked = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split(r"[<>=~!\[ ]", requirement)[0] for requirement in asked} - daemon.keys() == set()
    assert not {"ray", "torch", "numpy"} & daemon.keys()


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_an_easytier_for_another_machine_is_refused(tmp_path: Path, machine: str, number: int) -> None:
    """Before it is on a robot."""
    given = tmp_path / "given"
    given.mkdir()
    for name in ("easytier-core", "easytier-cli"):
        (given / name).write_bytes(b"\x7fELF\2\1\1" + bytes(11) + number.to_bytes(2, "little") + bytes(44))
    packages.put_easytier(tmp_path / machine, machine, given)
    assert {file.name for file in (tmp_path / machine).iterdir()} == {"easytier-core", "easytier-cli", "LICENSE"}
    other = "aarch64" if machine == "x86_64" else "x86_64"
    with pytest.raises(SystemExit, match=f"is not for {other}.*--easytier"):
        packages.put_easytier(tmp_path / other, other, given)


_OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
_TOOLS = ("cat", "dirname", "grep", "install", "ln", "ls", "mkdir", "mktemp", "mv")
_TOOLS += ("readlink", "realpath", "rm", "sed", "sh", "sha256sum", "tr", "uname")
_PIP = """
import pathlib, sys
if pathlib.Path("{full}").exists():
    sys.exit("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device")
program = pathlib.Path(sys.prefix, "bin/edgelink")
program.write_text('#!/bin/sh\\n[ -z "$PYTHONHOME$PYTHONPATH" ] && . "$0.does"\\n')
does = program.with_suffix(".does")
does.exists() or does.write_text("echo 0.1.0\\n")
program.chmod(0o755)
"""


class Bundle:
    """The installer as it is, beside a pip and programs that stand in for real ones; ``tools`` is its PATH."""

    def __init__(self, root: Path) -> None:
        self.files, self.tools, self.full = root / "bundle", root / "tools", root / "disk-is-full"
        self.prefix, self.bin = root / "opt/edgelink", root / "bin"
        for directory in (self.tools, self.files / "wheels", self.files / "easytier"):
            directory.mkdir(parents=True)
        for name in _TOOLS:
            (self.tools / name).symlink_to(str(shutil.which(name)))
        shutil.copy(packages.HERE / "install", self.files)
        with zipfile.ZipFile(self.files / "wheels/pip-26.0-py3-none-any.whl", "w") as pip:
            pip.writestr("pip/__main__.py", _PIP.format(full=self.full))
        for name in ("wheels/edgelink-0.1.0-py3-none-any.whl", "easytier/easytier-core", "easytier/easytier-cli"):
            (self.files / name).touch()
        (self.files / "MACHINE").write_text(f"{platform.machine()}\n")
        self.made_for(_OWN)
        self.python("python3")

    def made_for(self, *versions: str) -> None:
        (self.files / "PYTHONS").write_text(f"{' '.join(versions)}\n")
        names = ("MACHINE", "PYTHONS")
        sums = [f"{hashlib.sha256((self.files / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
        (self.files / "SHA256SUMS").write_text("".join(sums))

    def python(self, name: str, version: str = _OWN, largest: int = 2**63 - 1, base: str = sys.base_prefix) -> Path:
        """An interpreter on PATH that says this of itself, and makes environments of the one that runs the tests."""
        told = f"{version.replace('.', ', ')}, 0"
        program = self.tools / name
        program.write_text(
            f'#!/bin/sh\n[ "$2" = -c ] || exec {sys.executable} "$@"\ncode=$3\nshift 3\n'
            f'exec {sys.executable} -I -c "import sys\n'
            f"sys.base_prefix = '{base}'\n"
            f'sys.maxsize, sys.version_info = {largest}, ({told})\n$code" "$@"\n'
        )
        program.chmod(0o755)
        return program

    def install(
        self, *options: str | Path, umask: int = 0o022, cwd: Path = Path("/"), **env: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.files / "install", *(options or ("--prefix", self.prefix, "--bin", self.bin))],
            env={"PATH": str(self.tools), **env},
            umask=umask,
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
        )

    def remove(self) -> subprocess.CompletedProcess[str]:
        return self.install("--remove", "--prefix", self.prefix, "--bin", self.bin)

    def environment_is_kept(self, **env: str) -> bool:
        """Whether one more installation, which has to succeed, leaves the environment as it is."""
        witness = self.prefix / "witness"
        witness.touch()
        done = self.install(**env)
        assert done.returncode == 0, done.stderr
        assert (self.bin / "edgelink").exists()
        return witness.exists()


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle(tmp_path)


def contents(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


@pytest.mark.parametrize("remove", [False, True], ids=["install", "remove"])
@pytest.mark.parametrize(
    "theirs", [["bin/python3.12", "lib/precious"], ["pyvenv.cfg", "bin/edgelink"], [".hidden"]], ids=lambda it: it[0]
)
def test_a_prefix_that_is_somebody_elses_is_refused(bundle: Bundle, theirs: list[str], remove: bool) -> None:
    """Such as /usr/local, or an environment that EdgeLink is in beside Ray: all in it would go."""
    for name in theirs:
        (bundle.prefix / name).parent.mkdir(parents=True, exist_ok=True)
        (bundle.prefix / name).touch()
    before = contents(bundle.prefix)
    done = bundle.remove() if remove else bundle.install()
    assert done.returncode == 1
    assert f"{bundle.prefix}: " in done.stderr
    assert f"--prefix {bundle.prefix}/edgelink" in done.stderr
    assert contents(bundle.prefix) == before
    assert not bundle.bin.exists()


@pytest.mark.parametrize("mark", [True, False], ids=["marked", "of-before-there-was-a-mark"])
def test_what_was_installed_is_upgraded_and_removed(bundle: Bundle, mark: bool) -> None:
    """Into a directory that was there, empty; once it is gone, that is said."""
    bundle.prefix.mkdir(parents=True)
    assert bundle.install().returncode == 0
    if not mark:
        (bundle.prefix / ".edgelink-bundle").unlink()
    assert bundle.environment_is_kept()
    if not mark:
        (bundle.prefix / ".edgelink-bundle").unlink()
    removed = bundle.remove()
    assert (removed.returncode, removed.stderr) == (0, "")
    assert not bundle.prefix.exists()
    assert list(bundle.bin.iterdir()) == []
    again = bundle.remove()
    assert again.returncode == 1
    assert f"{bundle.prefix}: " in again.stderr


def test_a_wrong_prefix_takes_nothing_of_an_installation_elsewhere(bundle: Bundle, tmp_path: Path) -> None:
    """Its commands, man pages and scripts lie in the directories that all share."""
    packages.put_completions(bundle.files / "completion")
    (bundle.files / "man1").mkdir()
    (bundle.files / "man1/edgelink.1").touch()
    assert bundle.install().returncode == 0
    before = contents(tmp_path)
    (tmp_path / "empty").mkdir()
    for wrong in ("no", "empty"):
        done = bundle.install("--remove", "--prefix", tmp_path / wrong, "--bin", bundle.bin)
        assert done.returncode == 1
        assert f"{tmp_path / wrong}: " in done.stderr
    assert contents(tmp_path) == before | {"empty"}
    other = tmp_path / "other"
    assert bundle.install("--prefix", other, "--bin", bundle.bin).returncode == 0
    assert bundle.install("--remove", "--prefix", other, "--bin", bundle.bin).returncode == 0
    assert contents(tmp_path) == before | {"empty"}


def test_a_bundle_leaves_what_the_deb_has_installed(bundle: Bundle, tmp_path: Path) -> None:
    """Its prefix is the same one: neither removed nor installed over."""
    package = ("--deb", "--prefix", bundle.prefix, "--bin", bundle.bin)
    assert bundle.install(*package).returncode == 0
    before = contents(tmp_path)
    for done in (bundle.remove(), bundle.install()):
        assert done.returncode == 1
        assert f"{bundle.prefix}: belongs to the package edgelink; nothing was changed. Use apt" in done.stderr
    assert contents(tmp_path) == before
    assert bundle.install(*package).returncode == 0
    for _ in range(2):  # also what somebody has removed by hand
        assert bundle.install("--remove", *package).returncode == 0
        assert not bundle.prefix.exists()
        assert list(bundle.bin.iterdir()) == []
        (bundle.bin / "edgelink").symlink_to(bundle.prefix / "bin/edgelink")


def test_the_deb_takes_the_place_of_a_bundle(bundle: Bundle, tmp_path: Path) -> None:
    """Whose pages and scripts would be found before its own; links would lead nowhere one day."""
    packages.put_completions(bundle.files / "completion")
    (bundle.files / "man1").mkdir()
    (bundle.files / "man1/edgelink.1").touch()
    assert bundle.install().returncode == 0
    for name in ("completion", "man1"):  # dpkg installs a .deb's
        shutil.rmtree(bundle.files / name)
    package = ("--deb", "--prefix", bundle.prefix, "--bin", tmp_path / "usr/bin")
    assert bundle.install(*package).returncode == 0
    assert list(bundle.bin.iterdir()) == []
    assert [path for path in (bundle.bin.parent / "share").rglob("*") if path.is_file()] == []
    assert (tmp_path / "usr/bin/edgelink").readlink() == bundle.prefix / "bin/edgelink"


def test_a_daemon_that_was_started_by_hand_is_stopped_with_its_program(bundle: Bundle) -> None:
    """And named; a daemon of another EdgeLink is none of ours."""
    assert bundle.install().returncode == 0
    (bundle.prefix / "bin/edgelink.does").write_text(f'echo "$@" >>"{bundle.files}/asked"\n')

    def daemon(python: Path | str) -> subprocess.Popen[bytes]:
        program = "read line # edgelink edge"
        started = subprocess.Popen([python, "-c", program], executable=str(shutil.which("sh")), stdin=subprocess.PIPE)
        while program.encode() not in Path(f"/proc/{started.pid}/cmdline").read_bytes():
            assert started.poll() is None  # for a moment after exec the kernel shows no arguments
        return started

    with daemon(bundle.prefix / "bin/python") as ours, daemon("/another/bin/python") as theirs:
        removed = bundle.remove()
        for each in (ours, theirs):
            each.kill()
    assert removed.returncode == 0
    assert f"started by hand (pid {ours.pid})" in removed.stderr
    assert (bundle.files / "asked").read_text() == "stop\n"
    assert not bundle.prefix.exists()


def test_what_was_installed_has_run_once(bundle: Bundle) -> None:
    """Whatever Python the caller's variables are about; what does not run is no success."""
    done = bundle.install(PYTHONHOME="/nowhere", PYTHONPATH="/nowhere")
    assert (done.returncode, done.stdout) == (0, f"EdgeLink 0.1.0 is in {bundle.prefix}\n")
    (bundle.prefix / "bin/edgelink.does").write_text("exit 3\n")
    failed = bundle.install()
    assert (failed.returncode, failed.stdout) == (1, "")
    assert f"{bundle.prefix}/bin/edgelink does not run, see above" in failed.stderr


COMPLETIONS = {
    "bash": "bash-completion/completions/edgelink",
    "zsh": "zsh/site-functions/_edgelink",
    "fish": "fish/vendor_completions.d/edgelink.fish",
}


def test_an_easytier_of_ones_own_stays(bundle: Bundle) -> None:
    """Also where PATH does not lead to it, as with sudo: it may be one's own build."""
    bundle.bin.mkdir()
    own = bundle.bin / "easytier-core"
    own.write_text("own")
    (bundle.bin / "easytier-cli").symlink_to("/nowhere")  # of a prefix that was removed by hand
    assert bundle.install().returncode == 0
    assert own.read_text() == "own"
    assert not own.is_symlink()
    assert (bundle.bin / "easytier-cli").exists()
    assert bundle.remove().returncode == 0
    assert own.read_text() == "own"


def test_each_shell_finds_its_completion_script(bundle: Bundle) -> None:
    """Beside the commands, where it looks below /usr/local; gone with them, and nothing else of the directory."""
    packages.put_completions(bundle.files / "completion")
    theirs = bundle.bin.parent / "share/bash-completion/completions/other"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    for umask in (0o022, 0o077):  # also again
        assert bundle.install(umask=umask).returncode == 0
    for shell, place in COMPLETIONS.items():
        installed = bundle.bin.parent / "share" / place
        printed = CliRunner().invoke(completion.command, [shell]).output
        assert installed.read_text().split() == printed.split()
        assert installed.stat().st_mode & 0o777 == 0o644
    assert bundle.remove().returncode == 0
    assert {path for path in (bundle.bin.parent / "share").rglob("*") if path.is_file()} == {theirs}


@pytest.mark.parametrize("options", [["--prefix"], ["--prefix", "--remove"], ["--bin", ""], ["--purge"]])
def test_an_option_that_cannot_be_meant_is_answered_by_the_usage(bundle: Bundle, options: list[str]) -> None:
    done = bundle.install(*options)
    assert done.returncode == 2
    assert "./install [--prefix /opt/edgelink]" in done.stderr


def test_a_relative_prefix_is_that_of_the_callers_directory(bundle: Bundle, tmp_path: Path) -> None:
    """What leads there is written from the root on, so that it leads there from anywhere."""
    assert bundle.install("--prefix", "opt/../opt/edgelink/", "--bin", "bin", cwd=tmp_path).returncode == 0
    assert (bundle.bin / "edgelink").readlink() == bundle.prefix / "bin/edgelink"
    assert bundle.remove().returncode == 0
    assert list(bundle.bin.iterdir()) == []


def test_an_installation_that_failed_is_finished_by_the_next(bundle: Bundle) -> None:
    """With pip's own words, and no advice that would not help."""
    bundle.full.touch()
    failed = bundle.install()
    assert failed.returncode == 1
    assert "No space left on device" in failed.stderr
    assert f"{bundle.prefix}: pip could not install EdgeLink, see above" in failed.stderr
    assert "PYTHON" not in failed.stderr
    bundle.full.unlink()
    assert bundle.environment_is_kept()


def test_ordinary_users_may_run_what_root_installs(bundle: Bundle) -> None:
    """Also where root's files are nobody else's by default."""
    assert bundle.install(umask=0o077).returncode == 0
    found = [bundle.bin, bundle.prefix, *(bundle.prefix / name for name in contents(bundle.prefix))]
    assert [path for path in found if path.stat().st_mode & 0o005 != 0o005 and path.is_dir()] == []
    assert [path for path in found if not path.stat().st_mode & 0o004] == []


@pytest.mark.parametrize(
    ("version", "largest", "why"),
    [(_OWN, 2**31 - 1, "has 32 bits"), ("3.99", 2**63 - 1, "is Python 3.99"), ("3.9", 2**63 - 1, "is Python 3.9")],
)
@pytest.mark.parametrize("named", [False, True], ids=["found", "named"])
def test_a_python_without_wheels_is_not_taken(
    bundle: Bundle, version: str, largest: int, why: str, named: bool
) -> None:
    """One of another version; or of 32 bits, as on some boards, where `uname -m` says nothing of the programs."""
    bundle.made_for("3.10", _OWN)
    other = bundle.python("other" if named else "python3", version, largest)
    done = bundle.install(**({"PYTHON": str(other)} if named else {}))
    assert done.returncode == 1
    assert (f"PYTHON={other} {why};" if named else f"none on PATH; python3 {why};") in done.stderr
    assert f"a 64-bit Python 3.10, {_OWN}, with venv" in done.stderr
    assert not bundle.prefix.exists()


def test_a_python_that_is_named_and_does_not_run_is_not_replaced_by_another(bundle: Bundle) -> None:
    """Also where an environment is there already, which stays."""
    assert bundle.install().returncode == 0
    before = contents(bundle.prefix)
    done = bundle.install(PYTHON="/no/such python")
    assert done.returncode == 1
    of_the_shell, told = done.stderr.splitlines()
    assert "/no/such python: " in of_the_shell
    assert told.startswith("PYTHON=/no/such python does not run as Python 3, see above; nothing was changed")
    assert contents(bundle.prefix) == before


def test_the_environment_is_made_anew_for_another_python(bundle: Bundle) -> None:
    """For one that is named; where the bundle has no wheels for that of the old one; and where that does not run."""
    own, other = bundle.python("my own python"), bundle.python("python3.99", "3.99")
    bundle.made_for(_OWN, "3.99")
    assert bundle.install(PYTHON=str(own)).returncode == 0
    assert bundle.environment_is_kept()
    assert bundle.environment_is_kept(PYTHON=str(own))
    assert not bundle.environment_is_kept(PYTHON=str(other))
    bundle.made_for("3.99")
    assert not bundle.environment_is_kept()
    bundle.made_for(_OWN)
    (bundle.prefix / "bin/python").unlink()
    assert not bundle.environment_is_kept()


def test_the_deb_keeps_to_the_systems_python(bundle: Bundle) -> None:
    """Another, such as a conda's, was the first on PATH once: the environment is made anew, and kept from then on."""
    package = ("--deb", "--prefix", bundle.prefix, "--bin", bundle.bin)
    assert bundle.install(*package).returncode == 0
    witness = bundle.prefix / "witness"
    witness.touch()
    assert bundle.install(*package).returncode == 0
    assert witness.exists()
    bundle.python("python3", base="/the/systems")
    assert bundle.install(*package).returncode == 0
    assert not witness.exists()


def test_the_package_looks_for_its_python_where_the_system_has_it() -> None:
    """Not where root's shell would find another one first."""
    script = (packages.HERE / "postinst").read_text()
    assert re.search(r"PATH=/usr/sbin:/usr/bin:/sbin:/bin \S+/install --deb ", script)
    assert "unset PYTHON\n" in script


def test_a_bundle_says_which_pythons_it_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of their age, among the files that are checked."""
    wheel = tmp_path / "edgelink-0.1.0-py3-none-any.whl"
    wheel.touch()
    monkeypatch.setattr(packages, "make_wheel", lambda dist: wheel)
    for name in ("download", "put_easytier", "put_manual", "put_completions"):
        monkeypatch.setattr(packages, name, lambda *_: None)
    archive = packages.make_bundle(tmp_path, "aarch64", tmp_path, ["3.11", "3.9", "3.10"])
    with tarfile.open(archive) as made:
        made.extractall(tmp_path / "made", filter="data")
    (unpacked,) = (tmp_path / "made").iterdir()
    assert (unpacked / "PYTHONS").read_text() == "3.9 3.10 3.11\n"
    assert "  PYTHONS\n" in (unpacked / "SHA256SUMS").read_text()


@pytest.mark.parametrize(
    ("machine", "reason", "name"),
    [
        ("x86_64", "DownloadFailed", "edgelink-0.1.0-linux-x86_64-easytier-wheel.tar.gz"),
        ("x86_64", "ReleaseNotTrusted", None),
        ("aarch64", "DownloadFailed", None),
    ],
)
def test_a_bundle_without_easytiers_release_has_the_wheel_and_says_so_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, reason: str, name: str | None
) -> None:
    """Only where the release could not be fetched, never in place of one that is another file; and there is a wheel."""

    def fails(*_arguments: object) -> None:
        raise EasyTierNotFoundError("not to be had", reason=reason)

    asked: list[Path] = []
    wheel = tmp_path / "edgelink-0.1.0-py3-none-any.whl"
    wheel.touch()
    monkeypatch.setattr("edgelink.overlay.acquisition.fetch_release", fails)
    monkeypatch.setattr(packages, "make_wheel", lambda dist: wheel)
    monkeypatch.setattr(packages, "download", lambda _to, _machine, _pythons, locks: asked.extend(locks))
    for part in ("put_manual", "put_completions"):
        monkeypatch.setattr(packages, part, lambda *_: None)
    if name is None:
        with pytest.raises(SystemExit):
            packages.make_bundle(tmp_path, machine, None, ["3.11"])
        return
    made = packages.make_bundle(tmp_path, machine, None, ["3.11"])
    assert made.name == name
    assert packages.EASYTIER_LOCK in asked


def test_an_easytier_out_of_a_wheel_is_linked_where_a_release_would_be(bundle: Bundle) -> None:
    """The edgelink wheel has its programs; an upgrade to a bundle with the release takes that."""
    shutil.rmtree(bundle.files / "easytier")
    (bundle.files / "easytier-wheel.lock").touch()
    assert bundle.install().returncode == 0
    programs = bundle.prefix / "share/edgelink/easytier-wheel"
    assert (bundle.bin / "easytier-core").readlink() == programs / "easytier-core"
    (bundle.files / "easytier-wheel.lock").unlink()
    (bundle.files / "easytier").mkdir()
    for name in ("easytier-core", "easytier-cli", "LICENSE"):
        (bundle.files / "easytier" / name).touch()
    assert bundle.install().returncode == 0
    assert (bundle.bin / "easytier-core").readlink() == bundle.prefix / "easytier/easytier-core"
    assert (bundle.prefix / "easytier/LICENSE").exists()
    assert bundle.remove().returncode == 0
    assert list(bundle.bin.iterdir()) == []


class Release:
    """A directory with a bundle that leaves a word when it is installed, and install.sh for it."""

    def __init__(self, root: Path) -> None:
        self.dist, self.tools, self.word = root / "dist", root / "tools", root / "installed"
        self.archive = self.dist / f"edgelink-0.1.0-linux-{platform.machine()}.tar.gz"
        content = root / self.archive.name.removesuffix(".tar.gz")
        for directory in (self.dist, self.tools, content):
            directory.mkdir()
        (content / "install").write_text(f"#!/bin/sh\necho done >{self.word}\n")
        (content / "install").chmod(0o755)
        with tarfile.open(self.archive, "w:gz") as archive:
            archive.add(content, content.name)
        for name in ("chmod", "cp", "gzip", "mktemp", "rm", "sh", "sha256sum", "tar", "uname"):
            (self.tools / name).symlink_to(str(shutil.which(name)))
        (self.tools / "python3").symlink_to(sys.executable)
        self.program("id", "echo 0")
        self.installer = packages.make_installer(self.dist, "0.1.0", "")

    def program(self, name: str, script: str) -> None:
        (self.tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.tools / name).chmod(0o755)

    def install(self, *options: str | Path) -> subprocess.CompletedProcess[str]:
        """As `curl … | sudo sh -s -- …` does it."""
        return subprocess.run(
            ["sh", "-s", "--", *map(str, options)],
            input=self.installer.read_text(),
            env={"PATH": str(self.tools)},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return Release(tmp_path)


def test_install_sh_installs_what_it_was_made_for(release: Release) -> None:
    """From a directory, and from a mirror, here by Python; half of it does nothing."""
    half = release.installer.read_text()
    release.installer.write_text(half[: half.index('main "$@"')])
    assert release.install("--from", release.dist).returncode == 0
    assert not release.word.exists()
    release.installer.write_text(half)

    assert release.install("--from", release.dist).returncode == 0
    assert release.word.read_text() == "done\n"
    release.word.unlink()
    with serving(release.dist) as address:
        done = release.install("--from", address)
    assert (done.returncode, release.word.exists()) == (0, True), done.stderr
    baked_in = packages.make_installer(release.dist, "0.1.0", str(release.dist))
    assert baked_in == release.installer
    assert release.install().returncode == 0


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """A web server of the directory; its address."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("mistake", "status"),
    [("changed", 1), ("gone", 78), ("not there", 75), ("no source", 2), ("option", 2), ("machine", 78), ("user", 78)],
)
def test_install_sh_refuses_before_anything_is_installed(release: Release, mistake: str, status: int) -> None:
    """With an exit status that says whether trying again helps."""
    options: list[str | Path] = ["--from", release.dist]
    if mistake == "changed":
        with release.archive.open("ab") as file:
            file.write(b"x")
    elif mistake == "gone":
        release.archive.unlink()
    elif mistake == "not there":
        options = ["--from", "http://127.0.0.1:1"]
    elif mistake == "no source":
        options = []
    elif mistake == "option":
        options += ["--form"]
    elif mistake == "machine":
        (release.tools / "uname").unlink()
        release.program("uname", "echo m68k")
    else:
        release.program("id", "echo 1000")
    refused = release.install(*options)
    assert refused.returncode == status, refused.stderr
    assert refused.stderr.strip()
    assert not release.word.exists()


def test_a_deb_depends_on_a_python_that_it_has_wheels_for() -> None:
    """Each clause has to hold: where Debian's own Python is older, or newer, one beside it."""
    beside = "python3.11 | python3.12 | python3.13"
    assert packages.depends(["3.11", "3.12", "3.13"]) == (
        f"python3 (>= 3.11) | {beside}, python3 (<< 3.14~) | {beside}"
    )


def test_packages_are_for_all_users_whatever_the_umask_of_their_maker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_wheel(dist: Path) -> Path:
        made = dist / "made.whl"
        made.touch()
        return made

    monkeypatch.setattr(packages, "make_wheel", make_wheel)
    monkeypatch.setattr(sys, "argv", ["packages.py", "wheel", "--dist", str(tmp_path)])
    before = os.umask(0o077)
    try:
        packages.main()
    finally:
        os.umask(before)
    assert (tmp_path / "made.whl").stat().st_mode & 0o777 == 0o644


def test_a_debs_size_counts_one_wheel_of_each_package_and_its_bytecode(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "easytier").mkdir()
    (tmp_path / "easytier/easytier-core").write_bytes(bytes(3 * 1024))
    for name, files in {
        "fast-1.0-cp311-cp311-linux_x86_64.whl": {"fast.so": 9 * 1024},
        "fast-1.0-cp312-cp312-linux_x86_64.whl": {"fast.so": 10 * 1024},
        "plain-2.0-py3-none-any.whl": {"plain.py": 1025, "data": 1},
        "pip-26.0-py3-none-any.whl": {"pip.py": 1024 * 1024},
    }.items():
        with zipfile.ZipFile(tmp_path / "wheels" / name, "w") as wheel:
            for file, size in files.items():
                wheel.writestr(file, bytes(size))
    assert packages.installed_size_of(tmp_path) == 10 + (2 * 2 + 1) + 3

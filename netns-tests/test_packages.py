"""What is installed, as it is installed: wheel and sdist, by uv and pipx; bundle and .deb without a network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_once import OWN_PYTHON, REPOSITORY, debian_root, packages
from memory_disk import disk

_LOCK = REPOSITORY / ".ci/packages/daemon.lock"
_CLUSTER = REPOSITORY / "docs/examples/cluster.yaml"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NO_NETWORK = ("unshare", "--net", "--")

pytestmark = pytest.mark.timeout(300)


def run(*command: str | Path, **variables: str) -> str:
    """What it says, with nothing of the tests' own interpreter in its environment."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EDGELINK_", "VIRTUAL"))}
    done = subprocess.run(
        list(map(str, command)),
        env={**env, "PATH": _PATH, **variables},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def uv() -> str:
    found = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    assert found is not None
    return found


def assert_works(edgelink: Path) -> None:
    """The command that was installed: versions, help, a plan; there is no Ray and no torch beside it."""
    told = json.loads(run(edgelink, "version", "--json"))
    assert told["edgelink"] == run(edgelink, "version").strip()
    assert Path(told["interpreter"]).parent == edgelink.resolve().parent
    assert re.search(r"^  relay +\w", run(edgelink, "--help"), re.M)
    with tempfile.NamedTemporaryFile("w") as nodes:
        json.dump([{"rank": rank, "ip": f"10.10.0.{rank + 2}"} for rank in range(3)], nodes)
        nodes.flush()
        assert "actor" in run(edgelink, "plan", _CLUSTER, "--nodes", nodes.name)
    packages = run(
        told["interpreter"], "-c", "import importlib.util as u; print([u.find_spec(n) for n in ('ray', 'torch')])"
    )
    assert packages.strip() == "[None, None]"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sdist, wheel, bundle and .deb; made for the Python of the tests."""
    return packages(tmp_path_factory)


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def sdist(dist: Path) -> Path:
    (found,) = (path for path in dist.glob("*.tar.gz") if "-linux-" not in path.name)
    return found


@pytest.fixture(scope="module")
def debian() -> Path:
    """The root of a small Debian; to be copied, not to be changed."""
    try:
        return debian_root()
    except subprocess.CalledProcessError:
        pytest.skip("no Debian root can be made here")


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    """Each file of the package that is in version control, whatever its kind; the units of ``systemd/`` lie beside the
    code that reads them."""
    command = ["git", "ls-files", "edgelink", "systemd"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()
    units = "edgelink/service/systemd"
    listed.remove(units)  # a link
    expected = {name.replace("systemd/", f"{units}/") if name.startswith("systemd/") else name for name in listed}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    data = {name for name in names if ".data/" in name}
    assert {name for name in names - data if ".dist-info/" not in name} == expected
    assert {name.partition(".data/data/")[2] for name in data} == {
        f"share/edgelink/easytier-wheel/{program}" for program in ("easytier-core", "easytier-cli")
    }


def test_the_page_for_maintainers_tells_where_each_file_goes(dist: Path) -> None:
    """All that `make packages` makes, and nothing that it does not."""
    page = (REPOSITORY / "docs/publishing.md").read_text()
    told = re.findall(r"`dist/(\S+)`", page.partition("\n\n## ")[0])
    assert [pattern for pattern in told if not list(dist.glob(pattern))] == []
    assert {file.name for pattern in told for file in dist.glob(pattern)} == {file.name for file in dist.iterdir()}


def test_the_wheel_of_the_sdist_is_that_of_the_checkout(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    """Byte by byte: what is built from either is the same."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    build = ("build", "--quiet", "--wheel", "--python", sys.executable)
    constraints = ("--build-constraints", REPOSITORY / ".ci/packages/build.lock", "--require-hashes")
    run(uv(), *build, *constraints, "--out-dir", tmp_path / "of-checkout", REPOSITORY)
    run(uv(), *build, *constraints, "--out-dir", tmp_path / "of-sdist", source)
    assert (tmp_path / "of-checkout" / wheel.name).read_bytes() == wheel.read_bytes()
    assert (tmp_path / "of-sdist" / wheel.name).read_bytes() == wheel.read_bytes()


def test_uv_tool_install(wheel: Path, tmp_path: Path) -> None:
    """With the locked versions."""
    where = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    run(uv(), "tool", "install", "--quiet", "--python", sys.executable, "--constraints", _LOCK, wheel, **where)
    assert_works(tmp_path / "bin/edgelink")


@pytest.mark.skipif(os.environ.get("EDGELINK_SOAK") != "1", reason="half a minute, as uv's: `make soak`")
def test_pipx_install(sdist: Path, tmp_path: Path) -> None:
    """From the sdist, as somebody does who has nothing else."""
    tools = tmp_path / "pipx/bin"
    run(uv(), "venv", "--quiet", "--seed", "--python", sys.executable, tools.parent)
    run(
        uv(),
        "pip",
        "install",
        "--quiet",
        "--python",
        tools / "python",
        "-r",
        REPOSITORY / "netns-tests/pipx.lock",
        "--require-hashes",
    )
    places = {"HOME": tmp_path / "home", "BIN_DIR": tmp_path / "bin", "MAN_DIR": tmp_path / "man"}
    where = {f"PIPX_{name}": str(path) for name, path in places.items()}
    run(tools / "pipx", "install", "--python", sys.executable, sdist, **where)
    assert_works(tmp_path / "bin/edgelink")
    run(tools / "pipx", "uninstall", "edgelink", **where)
    assert not (tmp_path / "bin/edgelink").is_symlink()


def test_a_bundle_is_installed_upgraded_and_removed_without_network(dist: Path, tmp_path: Path) -> None:
    """In a namespace that has not even a loopback device; a second time it is an upgrade."""
    (archive,) = dist.glob("*-linux-*.tar.gz")
    run("tar", "xzf", archive, "-C", tmp_path)
    (unpacked,) = tmp_path.iterdir()
    prefix, commands = tmp_path / "opt/edgelink", tmp_path / "bin"
    install = (*_NO_NETWORK, unpacked / "install", "--prefix", prefix, "--bin", commands)
    for _ in range(2):
        assert f"is in {prefix}" in run(*install, PYTHON=sys.executable)
        assert_works(commands / "edgelink")
        assert (tmp_path / "share/man/man1/edgelink-run.1").exists()
        assert (
            completed(tmp_path / "share/bash-completion/completions/edgelink", PATH=f"{commands}:{_PATH}") == "status"
        )
        told = json.loads(run(commands / "edgelink", "version", "--json", PATH=f"{commands}:/usr/bin:/bin"))
        assert told["easytier"]["core"] == str(commands / "easytier-core")
    run(*install, "--remove")
    assert not prefix.exists()
    assert list(commands.iterdir()) == []
    assert [path for path in (tmp_path / "share").rglob("*") if path.is_file()] == []


def completed(script: Path, *inside: str | Path, **variables: str) -> str:
    """What bash makes of `edgelink stat` and Tab."""
    words = f'. {script}; COMP_WORDS=(edgelink stat) COMP_CWORD=1; "$(complete -p edgelink | sed "s/.*-F //; s/ .*//")"'
    return run(*inside, "bash", "-c", f'{words} edgelink stat edgelink; echo "${{COMPREPLY[@]}}"', **variables).strip()


def test_a_bundle_that_is_damaged_or_of_another_machine_is_refused(dist: Path, tmp_path: Path) -> None:
    """Before anything is written, with what to do."""
    (archive,) = dist.glob("*-linux-*.tar.gz")
    run("tar", "xzf", archive, "-C", tmp_path)
    (unpacked,) = tmp_path.iterdir()
    command = [unpacked / "install", "--prefix", tmp_path / "prefix", "--bin", tmp_path / "bin"]
    with (unpacked / "easytier/easytier-core").open("ab") as file:
        file.write(b"x")
    damaged = subprocess.run(command, capture_output=True, text=True, check=False)
    (unpacked / "MACHINE").write_text("m68k\n")
    foreign = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (damaged.returncode, foreign.returncode) == (1, 1)
    assert "easytier/easytier-core: FAILED" in damaged.stdout + damaged.stderr
    assert "copy it again" in damaged.stderr
    assert "This bundle is for m68k" in foreign.stderr
    assert not (tmp_path / "prefix").exists()


@pytest.fixture
def small_debian(debian: Path, tmp_path: Path) -> Iterator[Path]:
    """The root of a machine; a key of a node is on it."""
    with disk(tmp_path / "root") as root:
        run("cp", "-a", f"{debian}/.", root)
        (root / "var/lib/edgelink").mkdir()
        (root / "var/lib/edgelink/node.key").write_text("a key\n")
        yield root


def test_a_deb_is_installed_upgraded_and_removed_without_network(
    dist: Path, small_debian: Path, tmp_path: Path
) -> None:
    """By apt, with the Python of a small Debian without pip and python3-venv; not over what is somebody else's. Another
    version, and this one again, leave its service alone; it goes with the package; state stays, also at a purge."""
    root = small_debian
    if not (root / "usr/bin" / f"python{OWN_PYTHON}").exists():
        pytest.skip(f"this machine's Debian has another Python than {OWN_PYTHON}, which the bundle is made for")
    (package,) = dist.glob("*.deb")
    shutil.copy(package, root)
    newer = as_version("99", package, tmp_path, root)
    inside = (*_NO_NETWORK, "chroot", root)
    theirs = root / "opt/edgelink/precious"
    theirs.parent.mkdir()
    theirs.touch()
    refused = subprocess.run(
        [*inside, "apt", "install", f"./{package.name}"],
        env={"PATH": _PATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode != 0
    assert "/opt/edgelink: " in refused.stdout + refused.stderr
    assert "dpkg --configure edgelink" in refused.stdout + refused.stderr
    run(*inside, "apt", "remove", "--yes", "edgelink")
    assert list(theirs.parent.iterdir()) == [theirs]
    theirs.unlink()

    run(*inside, "apt", "install", f"./{package.name}")
    told = json.loads(run(*inside, "edgelink", "version", "--json"))
    assert told["interpreter"] == "/opt/edgelink/bin/python"
    assert told["easytier"]["core"] == "/usr/bin/easytier-core"
    declared_kib = int(run(*inside, "dpkg-query", "--showformat=${Installed-Size}", "--show", "edgelink"))
    used = run(
        "du", "--apparent-size", "--summarize", "--block-size=1K", root / "opt/edgelink", root / "usr/share/edgelink"
    )
    used_kib = sum(int(line.split()[0]) for line in used.splitlines())
    assert declared_kib == pytest.approx(used_kib, rel=0.2)
    assert (root / "usr/share/man/man1/edgelink-run.1.gz").exists()
    assert completed(Path("/usr/share/bash-completion/completions/edgelink"), *inside) == "status"
    for name in ("zsh/vendor-completions/_edgelink", "fish/vendor_completions.d/edgelink.fish"):
        assert (root / "usr/share" / name).stat().st_mode & 0o777 == 0o644

    run(*inside, "edgelink", "service", "install", "edge")
    installed = units(root)
    assert {"edgelink-edge.service", "multi-user.target.wants/edgelink-edge.service"} <= installed
    for options, name, version in (((), newer, "99"), (("--allow-downgrades",), package.name, told["edgelink"])):
        run(*inside, "apt", "install", "--yes", *options, f"./{name}")
        assert run(*inside, "dpkg-query", "--showformat=${Version}", "--show", "edgelink") == version
        assert units(root) == installed
        run(*inside, "edgelink", "version")
    run(*inside, "apt", "purge", "--yes", "edgelink")
    assert units(root) == set()
    assert [path for place in ("opt", "usr/bin", "usr/share") for path in (root / place).rglob("*edgelink*")] == []
    assert not (root / "usr/bin/easytier-core").is_symlink()
    assert (root / "var/lib/edgelink/node.key").exists()


def as_version(version: str, package: Path, directory: Path, made_in: Path) -> str:
    """The name of the same package, as another version."""
    contents, made = directory / "contents", made_in / f"edgelink_{version}.deb"
    run("dpkg-deb", "--raw-extract", package, contents)
    control = contents / "DEBIAN/control"
    control.write_text(re.sub(r"^Version: .*", f"Version: {version}", control.read_text(), flags=re.MULTILINE))
    run("dpkg-deb", "-Znone", "--root-owner-group", "--build", contents, made)
    return made.name


def units(root: Path) -> set[str]:
    """What systemd has of EdgeLink in there."""
    directory = root / "etc/systemd/system"
    return {str(path.relative_to(directory)) for path in directory.rglob("*edgelink*")}


@pytest.mark.parametrize("refuses", [True, False], ids=["refused", "gone"])
def test_a_service_that_is_not_given_up_does_not_keep_the_package(
    dist: Path, small_debian: Path, tmp_path: Path, refuses: bool
) -> None:
    """Whether EdgeLink refuses or is broken: the unit is not started at boot any more, and named, also one that starts
    it by a link that another installer made; a unit of another EdgeLink on the machine is not touched."""
    root, prefix, system = small_debian, Path("/opt/edge.link+1"), small_debian / "etc/systemd/system"
    (archive,) = dist.glob("*-linux-*.tar.gz")
    run("tar", "xzf", archive, "-C", tmp_path, "--wildcards", "*/install")
    shutil.copy(next(tmp_path.glob("edgelink-*/install")), root / "install")
    program = root / prefix.relative_to("/") / "bin/edgelink"
    program.parent.mkdir(parents=True)
    (root / prefix.relative_to("/") / ".edgelink-bundle").touch()
    (root / "usr/local/bin/edgelink").symlink_to(prefix / "bin/edgelink")
    if refuses:
        program.write_text("#!/bin/sh\necho a run is in progress >&2; exit 75\n")
        program.chmod(0o755)
    for role, path in (
        ("edge", "/usr/local/bin/edgelink"),
        ("head", f'"{prefix}/bin/edgelink"'),
        ("bootstrap", "/opt/edge-linkk1/bin/edgelink"),
    ):
        unit = f"[Service]\nExecStart={path} {role}\n[Install]\nWantedBy=multi-user.target\n"
        (system / f"edgelink-{role}.service").write_text(unit)
        run("systemctl", f"--root={root}", "--quiet", "enable", f"edgelink-{role}.service")
    removed = subprocess.run(
        [*_NO_NETWORK, "chroot", root, "/install", "--remove", "--prefix", prefix, "--bin", "/usr/bin"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert removed.returncode == 0, removed.stderr
    assert all(f"left: /etc/systemd/system/edgelink-{role}.service" in removed.stderr for role in ("edge", "head"))
    assert not program.exists()
    services = {"edgelink-edge.service", "edgelink-head.service", "edgelink-bootstrap.service"}
    assert units(root) == services | {"multi-user.target.wants/edgelink-bootstrap.service"}

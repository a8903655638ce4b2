"""What this machine's kernel may lack, on the kernel that users have: Debian's own, in an emulated machine.

Its files are this machine's, and what it writes to them stays within it; the tests there are this checkout's.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from framework_python import FrameworkPython
from made_once import REPOSITORY

LOCK = Path(__file__).with_name("kernel.lock")
TESTS = REPOSITORY / "netns-tests"
NEEDED = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "modprobe": "kmod"}
HOLDS_BACK = "test_what_holds_packets_back_is_missed"  # the one that needs a kernel without netem
RUN_S = 1500.0  # emulated, everything takes ten times as long

pytestmark = [
    pytest.mark.timeout(RUN_S + 120),
    pytest.mark.skipif(os.environ.get("EDGELINK_SOAK") != "1", reason="boots an emulated machine: `make soak`"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="emulates x86_64"),
]
if missing := [package for program, package in NEEDED.items() if shutil.which(program) is None]:
    pytestmark.append(pytest.mark.skip(reason=f"needs {', '.join(missing)}: `make soak` installs it"))


@pytest.fixture(scope="module")
def virtme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where virtme-ng's commands are."""
    python = FrameworkPython(tmp_path_factory.mktemp("virtme") / "venv")
    python.install(LOCK)
    return python.python.parent


@pytest.fixture(scope="module")
def kernel() -> Path:
    found = subprocess.run([REPOSITORY / ".ci/debian-kernel"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.skip(f"no kernel of Debian's: {found.stderr.strip()}")
    return Path(found.stdout.strip())


def outcomes(virtme: Path, kernel: Path, out: Path, *tests: str) -> dict[str, str]:
    """Of pytest on ``kernel``, by test: "passed", "skipped", or what failed."""
    script = out / "run"
    script.write_text(
        f"cd {REPOSITORY} && {sys.executable} -m pytest -n 0 --timeout {RUN_S} --junitxml {out}/told.xml "
        f"{' '.join(tests)} >{out}/pytest.log 2>&1\n"
    )
    machine = ["--disable-kvm", "--cpus", "2", "--memory", "4G", "--user", "root", "--rwdir", str(out)]
    for written in (REPOSITORY, Path.home(), Path("/var")):
        machine += ["--overlay-rwdir", str(written)]
    vng = [virtme / "vng", "--verbose", "--run", kernel, *machine, "--exec", f"sh {script}"]
    path = f"{virtme}:{os.environ['PATH']}:/usr/sbin:/sbin"
    with (out / "console.log").open("wb") as console:
        subprocess.run(
            vng, env={**os.environ, "PATH": path}, cwd=out, stdin=subprocess.DEVNULL, stdout=console,
            stderr=subprocess.STDOUT, timeout=RUN_S, check=False,
        )  # fmt: skip
    told = out / "told.xml"
    assert told.exists(), (out / "console.log").read_text(errors="replace")[-3000:]
    cases = ElementTree.parse(told).iter("testcase")
    return {case.attrib["name"]: _outcome(case) for case in cases}


def _outcome(case: ElementTree.Element) -> str:
    for told in case:
        if told.tag == "skipped":
            return "skipped"
        if told.tag in ("failure", "error"):
            return told.text or told.tag
    return "passed"


def test_netem_makes_the_same_links(virtme: Path, kernel: Path, tmp_path: Path) -> None:
    """Length, jitter, loss, rate and queue as with what does without netem: by the same pings and streams."""
    found = outcomes(virtme, kernel, tmp_path, f"{TESTS}/test_wan.py")
    assert found.pop(HOLDS_BACK) == "skipped"
    assert found == dict.fromkeys(found, "passed")
    assert len(found) >= 6

"""A root without CAP_DAC_OVERRIDE runs drivers as Ray's user, or none; any other root as itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import os, sys
from pathlib import Path
from edgelink.cli.step_down import step_down
from edgelink.config.paths import Paths
step_down(Paths(state=Path(sys.argv[1])))
print(*os.getresuid(), os.environ.get("USER"))
"""
_HEAD = """
import sys
from edgelink.cli.step_down import require_root_may_drive
from edgelink.config import Config
require_root_may_drive(Config(ray={"user": sys.argv[1], "python": sys.executable, "allow_root": True}))
"""
_SHUT_OUT = ("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override", "--")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can step down")


def who_goes_on(state: Path, *before: str) -> str:
    argv = [*before, sys.executable, "-c", _PROGRAM, str(state)]
    return subprocess.run(argv, capture_output=True, text=True, check=True, env={"USER": "root"}).stdout


def test_a_root_who_may_not_enter_rays_files_goes_on_as_rays_user(tmp_path: Path) -> None:
    (tmp_path / "ray_user").write_text("65534\n")
    assert who_goes_on(tmp_path) == "0 0 0 root\n"
    assert who_goes_on(tmp_path, *_SHUT_OUT) == "65534 65534 65534 nobody\n"


@pytest.mark.parametrize("noted", ["0\n", None])
def test_where_ray_is_roots_or_was_never_started_root_goes_on(tmp_path: Path, noted: str | None) -> None:
    if noted is not None:
        (tmp_path / "ray_user").write_text(noted)
    assert who_goes_on(tmp_path, *_SHUT_OUT) == "0 0 0 root\n"


@pytest.mark.parametrize(
    ("user", "before", "words"),
    [("nobody", _SHUT_OUT, "edgelink run -- CMD"), ("root", _SHUT_OUT, ""), ("nobody", (), "")],
)
def test_a_head_for_one_command_is_refused_where_root_may_not_drive(
    user: str, before: tuple[str, ...], words: str
) -> None:
    """It has to stay root to end its daemon, so it cannot go on as Ray's user."""
    argv = [*before, sys.executable, "-c", _HEAD, user]
    found = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (found.returncode == 0, words in found.stderr) == (not words, True), found.stderr

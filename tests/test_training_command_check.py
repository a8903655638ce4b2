"""What of a command is looked for before the nodes are waited for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edgelink.errors import UsageError
from edgelink.training.command_check import check_command, hides_failure


@pytest.mark.parametrize(
    "command",
    [
        "python3 -m pkg.train",
        "python3 -c pass",
        "python3 -uc pass",
        "python3 -",
        "python3 -W ignore -u there.py nothere.txt",
        "python3",
        "bash -lc train",
        "bash -o pipefail there.py",
        "bash -s x",
        "edgelink --help",
        "edgelink train",
        "torchrun nothere.py",
    ],
)
def test_what_may_begin_is_let_pass(tmp_path: Path, command: str) -> None:
    """What only the program itself can know is its own to refuse."""
    (tmp_path / "there.py").touch()
    check_command(command.split(), tmp_path, ["train", "run"])


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("python3.11 ther.py", "did you mean there.py?"),
        ("python -W error ther.py", "did you mean there.py?"),
        ("sh sub/x.sh", "correct the path"),
        ("/usr/bin/edgelink trian", "`edgelink train`?"),
        ("edgelink zzz", "`edgelink --help`"),
    ],
)
def test_what_cannot_begin_is_refused_with_what_may_be_meant(tmp_path: Path, command: str, hint: str) -> None:
    (tmp_path / "there.py").touch()
    with pytest.raises(UsageError) as raised:
        check_command(command.split(), tmp_path, ["train", "run"])
    assert hint in raised.value.hint


def test_a_program_is_looked_for_where_the_path_is_known(tmp_path: Path) -> None:
    check_command(["nothere"], tmp_path, [])
    check_command([Path(sys.executable).name], tmp_path, [], str(Path(sys.executable).parent))
    with pytest.raises(UsageError):
        check_command(["nothere"], tmp_path, [], str(tmp_path))


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        ("python train.py 2>&1 | tee -a $LOG", "tee"),
        ('if true; then\n  eval "$CMD" |& tee log 2>&1\nfi\n# the end', "tee"),
        ("python train.py \\\n  steps=3 | grep -v noise", "grep"),
        ("python train.py | tee log\nexit ${PIPESTATUS[0]}", None),
        ("python train.py | tee log && echo done", None),
        ("prepare || tee log", None),
        ("date | tee log\npython train.py", None),
        ("python train.py # | tee log", None),
        ("", None),
    ],
)
def test_a_script_that_hides_its_failure_is_named(tmp_path: Path, end: str, cause: str | None) -> None:
    """With what to write, in a script and in `bash -c`; `pipefail` anywhere shows it again."""
    (tmp_path / "run.sh").write_text(f"#! /bin/bash\n{end}\n")
    for argv in (["bash", "run.sh", "x"], ["./run.sh"], ["bash", "-c", end]):
        told = hides_failure(argv, tmp_path)
        assert (told is not None and f"`| {cause}`" in told and "pipefail" in told) is (cause is not None), told
    assert hides_failure(["bash", "-o", "pipefail", "run.sh"], tmp_path) is None
    (tmp_path / "run.sh").write_text(f"#! /bin/bash\nset -euo pipefail\n{end}\n")
    assert hides_failure(["bash", "run.sh"], tmp_path) is None


def test_what_is_no_script_hides_nothing(tmp_path: Path) -> None:
    assert hides_failure(["python", "train.py"], tmp_path) is None
    assert hides_failure(["bash", "nothere.sh"], tmp_path) is None

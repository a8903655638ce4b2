"""The page of errors is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from reference_pages.errors import reasons

from edgelink.condition_table import KINDS

_ROOT = Path(__file__).parent.parent


def test_no_reason_that_is_written_out_is_missing() -> None:
    """Found in another way than the page is made: each `reason="…"` is an error's, or one of a condition alone."""
    files = [path for path in (_ROOT / "edgelink").rglob("*.py") if "trainer" not in path.parts]
    written = {name for path in files for name in re.findall(r'[(,\s]reason="([A-Z]\w+)"', path.read_text())}
    assert len(written) > 60
    conditions = {reason.name for kind in KINDS for reason in kind.reasons}
    assert written - reasons().keys() - conditions == set()
    assert len(written - reasons().keys()) < 5


def test_exit_status_and_another_try_are_those_of_the_class() -> None:
    """Also where a class inherits them, and where two classes share a reason."""
    assert (reasons()["TokenExpired"].exit_codes, reasons()["TokenExpired"].is_retryable) == ({1}, False)
    assert (reasons()["ResourcesTaken"].exit_codes, reasons()["ResourcesTaken"].is_retryable) == ({75}, True)
    assert reasons()["DaemonNotRunning"].exit_codes == {1, 75}
    assert reasons()["OutputTooLong"].exit_codes == {1, 78}  # by a constant


def test_messages_are_readable() -> None:
    """Joined, with one sign for what is filled in, and with what to do; a link to nothing is none."""
    said = dict(reasons()["MasterUnreachable"].said)
    ((message, hint),) = said
    assert message.startswith("MASTER_ADDR=…")
    assert hint.startswith("leave MASTER_ADDR out")
    assert "{" not in re.sub(r"`[^`]*`|\{\"[^}]*\}", "", message)

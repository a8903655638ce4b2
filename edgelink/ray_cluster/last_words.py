"""What raylet or GCS wrote before it ended: the lines that say why, out of logs that Ray's user owns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from edgelink.log import redact
from edgelink.process.output import read_end
from edgelink.wording import printable

_LINES = 3
_LINE_CHARACTERS = 300
# As in "[2026-11-21 11:52:05,604 C 15663 15663] (raylet) node_manager.cc:1: …": error, critical, fatal.
# Ray puts it before each failed check; the cause behind it would be cut off.
_PREAMBLE = re.compile(r" An unexpected system state has occurred\..*?(?=Check failed)")
_SEVERE = re.compile(r"\[[-\d]+ [:,\d]+ [ECF] ")


def output_files(pid: int) -> tuple[str, ...]:
    """The files that the process writes its standard output and error to."""
    found = []
    for descriptor in (1, 2):
        with suppress(OSError):
            end = Path("/proc") / str(pid) / "fd" / str(descriptor)
            if end.is_file() and (target := str(end.readlink())) not in found:
                found.append(target)
    return tuple(found)


def last_words(paths: Iterable[str], owner_uid: int) -> str:
    """The last errors in these files, else their last lines; redacted, printable, of bounded length.

    Only what ``owner_uid`` owns is read: the directory is that user's, who could put a link to anything there.
    """
    lines = [line for path in paths for line in _tail(Path(path), owner_uid)]
    severe = [_PREAMBLE.sub("", line) for line in lines if _SEVERE.match(line)]
    return printable(redact(" | ".join(line[:_LINE_CHARACTERS] for line in (severe or lines)[-_LINES:])))


def _tail(path: Path, owner_uid: int) -> list[str]:
    text = read_end(path, owner_uid=owner_uid).decode(errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("[state-dump]")]

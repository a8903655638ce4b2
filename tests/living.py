"""Processes to look at."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def living(environ: Mapping[str, str]) -> Iterator[int]:
    """The pid of a process that has been started with ``environ``, and nothing else; it ends with the block.

    It has spoken: for a moment after exec the kernel shows neither environment nor arguments of a process.
    """
    with subprocess.Popen(["/bin/cat"], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"\n"
            yield process.pid
        finally:
            process.kill()


def children() -> set[str]:
    """The pids of what this process's main thread has started, also of what has ended and nobody has asked about."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

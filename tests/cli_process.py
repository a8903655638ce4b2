"""A command of EdgeLink as a process of its own, against a daemon that the test plays."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path


async def start_edgelink(
    runtime: Path, *argv: str, cwd: Path | None = None, env: dict[str, str] | None = None
) -> asyncio.subprocess.Process:
    """``edgelink ARGV``; the daemon's socket is in ``runtime``, and ``env`` comes on top of our own environment."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "edgelink.cli.main", *argv),
        cwd=cwd,
        env={**os.environ, "EDGELINK_RUNTIME_DIR": str(runtime), **(env or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )

"""The head's watch of Ray's members outlives whatever its helper does."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from edgelink.clock import SystemClock
from edgelink.ray_cluster.membership import MembershipWatch, RayMember
from edgelink.testing import eventually

_ONE = (
    '[{"node_id": "a", "ip": "10.10.0.2", "rank": 0, "alive": true, "hostname": "h", '
    '"accelerator": "NO_ACCEL", "accelerator_count": 0}]'
)


async def helper(text: str) -> asyncio.subprocess.Process:
    """A helper that says ``text`` and stays."""
    program = f"import sys; print({text!r}, flush=True); sys.stdin.read()"
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1024
    )


class ShortClock(SystemClock):
    """Pauses are there, but nobody waits for them."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.01))


async def test_a_helper_that_fails_in_any_way_is_started_again() -> None:
    """Not startable, not understood, too long a line: none of it ends the daemon."""
    tries: list[str] = []
    seen: list[Sequence[RayMember]] = []

    async def start() -> asyncio.subprocess.Process | None:
        tries.append("")
        match len(tries):
            case 1:
                raise FileNotFoundError("the interpreter is being replaced")
            case 2:
                return await helper("['no list of nodes']")
            case 3:
                return await helper("x" * 5000)
            case _:
                return await helper(_ONE)

    watch = asyncio.create_task(MembershipWatch(start, seen.append, ShortClock()).run())
    await eventually(lambda: bool(seen))
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    assert [member.ip for member in seen[0]] == ["10.10.0.2"]
    assert len(tries) == 4

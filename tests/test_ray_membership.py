"""The head's watch of Ray's members outlives whatever its helper does; and who of them is known to be dead."""

from __future__ import annotations

import asyncio
import sys

from edgelink.clock import SystemClock
from edgelink.facts.facts import Facts
from edgelink.ray_cluster.ray_members import RAY_MEMBERS, MembershipWatch, RayMember, departed, known_dead
from edgelink.testing import eventually
from edgelink.testing.facts import GivenBoard

_ONE = (
    '[{"node_id": "a", "ip": "10.10.0.2", "rank": 0, "alive": true, "hostname": "h", '
    '"accelerator": "NO_ACCEL", "accelerator_count": 0, "cpus": 2.0}]'
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
    board = GivenBoard(Facts())
    put = board.claim(RAY_MEMBERS, "watch")

    async def start() -> asyncio.subprocess.Process | None:
        tries.append("")
        match len(tries):
            case 1:
                raise FileNotFoundError("the interpreter is being replaced")
            case 2:
                return await helper("['no list of nodes']")
            case 3:
                return await helper("x" * 500_000)
            case _:
                return await helper(_ONE)

    watch = asyncio.create_task(MembershipWatch(start, put, ShortClock(), lambda: False).run())
    await eventually(lambda: bool(board.facts.ray_members))
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    assert [member.ip for member in board.facts.ray_members] == ["10.10.0.2"]
    assert len(tries) == 4


async def test_what_was_listed_last_holds_while_only_the_gcs_is_away() -> None:
    """Its helper ends with it; a list of nobody would be told as the loss of all nodes."""
    board = GivenBoard(Facts())
    put = board.claim(RAY_MEMBERS, "watch")
    helpers: list[asyncio.subprocess.Process] = []
    is_away, later = True, asyncio.Event()

    async def start() -> asyncio.subprocess.Process | None:
        if len(helpers) == 2:
            later.set()
            return None
        helpers.append(await helper(_ONE))
        return helpers[-1]

    task = asyncio.create_task(MembershipWatch(start, put, ShortClock(), lambda: is_away).run())
    for number in (1, 2):
        await eventually(lambda count=number: len(helpers) == count)  # type: ignore[misc]
        await eventually(lambda: bool(board.facts.ray_members))
        helpers[-1].kill()
    await later.wait()
    assert all(facts.ray_members for facts in board.history)
    is_away = False
    await eventually(lambda: not board.facts.ray_members)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def member(ray_id: str, ip: str, rank: int | None, *, alive: bool = True) -> RayMember:
    return RayMember(ray_id, ip, rank, alive, "host")


def test_a_node_reports_its_own_death_and_nobody_elses() -> None:
    """The report counts for a Ray under the reporter's own address only; a dead row needs no burial."""
    members = [member("a", "10.10.0.3", 1), member("b", "10.10.0.4", 2), member("c", "10.10.0.5", 3, alive=False)]
    reported = {("10.10.0.3", "a"), ("10.10.0.3", "b"), ("10.10.0.5", "c")}
    assert known_dead(members, reported) == {"a"}


def test_of_two_with_one_address_and_rank_the_older_is_dead() -> None:
    """As the helper lists them, the newest first; Rays that somebody started by hand are none of ours."""
    members = [member("new", "10.10.0.3", 1), member("old", "10.10.0.3", 1), member("hand", "10.10.0.3", None)]
    assert known_dead([*members, member("hand too", "10.10.0.3", None)], set()) == {"old"}


def test_who_holds_no_rank_here_has_left() -> None:
    """Another address, or another rank than the cluster spec says; a Ray without a rank of ours is left alone."""
    members = [
        member("fits", "10.10.0.3", 1),
        member("released", "10.10.0.9", 2),
        member("old rank", "10.10.0.3", 2),
        member("by hand", "10.10.0.9", None),
        member("dead", "10.10.0.9", 2, alive=False),
    ]
    assert departed(members, [("10.10.0.2", 0), ("10.10.0.3", 1)]) == {"released", "old rank"}

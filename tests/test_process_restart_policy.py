"""The restart policy: at once after a healthy life, growing pauses otherwise, and when it is a crash loop."""

from __future__ import annotations

import pytest

from edgelink.process.restart_policy import RestartPolicy
from edgelink.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def policy(clock: FakeClock) -> RestartPolicy:
    return RestartPolicy(clock, first_s=1.0, cap_s=30.0)


async def test_the_first_end_is_followed_at_once(policy: RestartPolicy) -> None:
    """Whoever served and ended for the first time is back without a pause."""
    policy.note_end(served=True)
    assert policy.wait_s == 0
    assert not policy.is_crash_loop


async def test_pauses_grow_up_to_the_cap(policy: RestartPolicy, clock: FakeClock) -> None:
    """Each failed start waits longer, with jitter: at least half of its step, at most all of it."""
    for ceiling_s in (1, 2, 4, 8, 16, 30, 30):
        policy.note_end(served=False)
        assert ceiling_s / 2 <= policy.wait_s <= ceiling_s
        await clock.advance(policy.wait_s)
        assert policy.wait_s == 0


async def test_three_ends_in_a_row_are_a_crash_loop(policy: RestartPolicy, clock: FakeClock) -> None:
    """Short lives count as failed starts do; the third makes it one."""
    for served in (True, True, False):
        assert not policy.is_crash_loop
        await clock.advance(20)
        policy.note_end(served=served)
    assert policy.is_crash_loop
    assert policy.wait_s > 0


async def test_ends_far_apart_are_no_loop(policy: RestartPolicy, clock: FakeClock) -> None:
    """Three failures within an hour are not three in five minutes."""
    for _ in range(5):
        policy.note_end(served=False)
        await clock.advance(200)
    assert not policy.is_crash_loop


async def test_a_healthy_life_makes_good(policy: RestartPolicy, clock: FakeClock) -> None:
    """A minute of serving ends the loop and its pauses."""
    for _ in range(6):
        policy.note_end(served=False)
    await clock.advance(60)
    policy.note_end(served=True)
    assert (policy.is_crash_loop, policy.wait_s) == (False, 0)


async def test_forgiven_is_forgotten(policy: RestartPolicy) -> None:
    """Another configuration, another head: what was before says nothing."""
    for _ in range(6):
        policy.note_end(served=False)
    policy.forgive()
    assert (policy.is_crash_loop, policy.wait_s) == (False, 0)
    policy.note_end(served=False)
    assert policy.wait_s <= 1.0


async def test_a_busy_machine_is_no_crash_loop(policy: RestartPolicy, clock: FakeClock) -> None:
    """Its pauses are longer than those of a crash, grow to twice the longest of these, and start anew when forgiven."""
    pauses_s = []
    for _ in range(8):
        policy.note_too_busy()
        assert not policy.is_crash_loop
        pauses_s.append(policy.wait_s)
        await clock.advance(policy.wait_s)
    assert pauses_s[0] >= 5
    assert max(pauses_s) > 30
    policy.note_too_busy()
    policy.forgive()
    assert policy.wait_s == 0

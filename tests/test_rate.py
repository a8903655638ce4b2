"""How often something passes, and cookies that count for a moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgelink.cookies import Cookies
from edgelink.rate import RateLimit, exceeded
from edgelink.testing import FakeClock

BEGAN_S = 1e6  # of a machine that has run for days


@given(
    a_s=st.sampled_from([1 / 60, 1.0, 3.0, 50.0, 2000.0]),
    at_once=st.integers(1, 300),
    pauses_s=st.lists(st.floats(0, 400), max_size=20),
)
def test_never_more_than_a_burst_and_the_rate(a_s: float, at_once: int, pauses_s: list[float]) -> None:
    """At any moment since the beginning; and after a pause as much as the pause is worth."""
    limit, at_s, passed = RateLimit(a_s, at_once), BEGAN_S, 0
    for pause_s in [0.0, *pauses_s]:
        at_s += pause_s
        now = sum(limit.passes("key", at_s) for _ in range(at_once + 1))
        passed += now
        assert passed <= at_once + (at_s - BEGAN_S) * a_s + 1e-3
        assert now >= min(at_once, int(pause_s * a_s - 1e-3))
    assert limit.passes("another", at_s)


def test_who_has_to_wait_passes_after_that() -> None:
    limit = RateLimit(0.5, 1)
    assert limit.passes("key", BEGAN_S)
    wait_s = limit.wait_s("key", BEGAN_S + 0.5)
    assert wait_s == pytest.approx(1.5)
    assert not limit.passes("key", BEGAN_S + 1.9)
    assert limit.passes("key", BEGAN_S + 0.5 + wait_s)


def test_what_one_limit_drops_does_not_count_for_the_others() -> None:
    narrow, wide = RateLimit(1.0, 1), RateLimit(1.0, 3)
    limits = {"wide": (wide, "all"), "narrow": (narrow, "one")}
    assert [exceeded(limits, BEGAN_S) for _ in range(5)] == [None] + ["narrow"] * 4
    assert [exceeded({"wide": (wide, "all")}, BEGAN_S) for _ in range(3)] == [None, None, "wide"]


def test_keys_are_forgotten_and_those_that_ask_on_are_not() -> None:
    """A flood under ever new names takes a bounded memory; who is held back stays so for as long as it asks."""
    limit = RateLimit(1e-3, 1, most_keys=10)
    assert limit.passes("flooding", BEGAN_S)
    for number in range(1000):
        assert limit.passes(number, BEGAN_S)
        assert not limit.passes("flooding", BEGAN_S)
    assert len(limit) == 10
    assert limit.passes(0, BEGAN_S)


async def test_a_cookie_counts_for_its_name_and_for_one_to_two_periods() -> None:
    clock = FakeClock()
    cookies = Cookies(60.0, clock)
    given_now = cookies.of("node")
    assert cookies.counts(given_now, "node")
    assert not cookies.counts(given_now, "another")
    assert not Cookies(60.0, clock).counts(given_now, "node"), "of another daemon"
    assert not cookies.counts("", "node")
    await clock.advance(60.0)
    assert cookies.counts(given_now, "node")
    await clock.advance(60.0)
    assert not cookies.counts(given_now, "node")

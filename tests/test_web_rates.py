"""How much a link carries now, told from rounded totals."""

from __future__ import annotations

import pytest

from edgelink.api.web.rates import Rates, total_of


def noted(*said: tuple[float, str]) -> Rates:
    rates = Rates()
    for at_s, received in said:
        rates.note(at_s, [{"overlay_ip": "10.10.0.3", "received": received, "sent": ""}])
    return rates


@pytest.mark.parametrize(
    ("words", "carried", "step"),
    [("0 B", 0, 1), ("999 B", 999, 1), ("1.99 kB", 1990, 10), ("3 MB", 3e6, 1e4), ("1.20 GB", 1.2e9, 1e7)],
)
def test_easytiers_words_are_read(words: str, carried: float, step: float) -> None:
    """And to how many bytes they are right."""
    total = total_of(words, 7.0)
    assert total is not None
    assert total == (7.0, pytest.approx(carried), pytest.approx(step))


@pytest.mark.parametrize("words", ["", "-", "1.99", "many B", "1e3 kB"])
def test_other_words_are_no_total(words: str) -> None:
    """Another version of EasyTier may say it otherwise."""
    assert total_of(words, 7.0) is None
    assert noted((0, words), (10, words)).of("10.10.0.3", "received") is None


@pytest.mark.parametrize(
    ("said", "bytes_per_s", "is_less"),
    [
        ([(0, "1.00 MB"), (2, "2.00 MB")], 500_000, False),
        ([(0, "1.00 MB"), (50, "1.00 MB"), (60, "6.00 MB")], 500_000, False),  # of now, not of the minute
        ([(0, "5.00 GB"), (10, "5.01 GB"), (20, "5.01 GB"), (40, "5.02 GB")], 500_000, False),  # not 0, and not 2 MB/s
        ([(0, "5.00 GB"), (10, "5.00 GB"), (40, "5.00 GB")], 250_000, True),  # less than 10 MB in 40 s
        ([(0, "7.00 kB"), (40, "7.00 kB")], 0.25, True),
        ([(0, "9.00 GB"), (10, "1.00 MB"), (20, "2.00 MB")], 100_000, False),  # the link was made anew
        ([(0, "1.00 MB"), (500, "2.00 MB")], 2000, False),  # nobody looked for a while
        ([(0, "1.00 MB"), (500, "2.00 MB"), (510, "2.00 MB")], 1000, True),
    ],
)
def test_successive_totals_tell_a_rate(said: list[tuple[float, str]], bytes_per_s: float, is_less: bool) -> None:
    """As soon as they can, and no more than they can."""
    found = noted(*said).of("10.10.0.3", "received")
    assert found == {"bytes_per_s": pytest.approx(bytes_per_s, rel=0.01), "is_less": is_less}


def test_what_was_looked_at_once_has_no_rate() -> None:
    """Neither has a link that is no more, nor one that never was."""
    rates = noted((0, "1.00 MB"))
    assert rates.of("10.10.0.3", "received") is None
    rates.note(2, [])
    rates.note(4, [{"overlay_ip": "10.10.0.3", "received": "2.00 MB", "sent": None}])
    assert rates.of("10.10.0.3", "received") is None
    assert rates.of("10.10.0.4", "sent") is None

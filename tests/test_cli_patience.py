"""What is said where a daemon takes longer to answer than a person expects."""

from __future__ import annotations

import pytest

from edgelink.cli.patience import saying


class Stream:
    """Answers that a caller goes on with after it has read the first."""

    def __init__(self, *items: int) -> None:
        self._items = iter(items)
        self.is_closed = False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> int:
        return next(self._items)

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("items", [(), (1,), (1, 2, 3)])
def test_all_answers_come_through(items: tuple[int, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing is said where they come at once."""
    assert tuple(saying("asking", lambda: Stream(*items))) == items
    assert capsys.readouterr().err == ""


def test_who_stops_reading_goes_on_with_the_stream() -> None:
    """As a run does, whose lock is held by the request that was granted."""
    stream = Stream(1, 2, 3)
    for item in saying("asking", lambda: stream):
        if item == 2:
            break
    assert not stream.is_closed
    assert next(stream) == 3

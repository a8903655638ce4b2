"""What a node tells others of the ports that it answers."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from edgelink.overlay.openings import Opening, told

ONE, TWO = IPv4Address("10.10.0.2"), IPv4Address("10.10.0.3")


@pytest.mark.parametrize(
    ("opening", "words"),
    [
        (Opening("tcp", 22, 22), "tcp/22 from all"),
        (Opening("udp", 5000, 5010, frozenset({ONE})), "udp/5000-5010 from 10.10.0.2"),
        (Opening("tcp", 22, 22, frozenset({ONE, TWO})), "tcp/22 from 2 nodes"),
    ],
)
def test_an_opening_is_told_in_words(opening: Opening, words: str) -> None:
    assert told([opening], 1) == (words,)


def test_no_more_is_told_than_a_status_holds() -> None:
    """In order of the ports, whatever order they come in."""
    openings = frozenset(Opening("tcp", port, port) for port in (9, 10, 1, 2))
    assert told(openings, 4) == ("tcp/1 from all", "tcp/2 from all", "tcp/9 from all", "tcp/10 from all")
    assert told(openings, 3) == ("tcp/1 from all", "tcp/2 from all", "and 2 more")

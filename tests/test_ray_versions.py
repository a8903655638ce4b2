"""Which differences between a node and the head keep it out, and which are only told."""

from __future__ import annotations

import pytest

from edgelink.ray_cluster.versions import Versions, differences, refusal, warnings

HEAD = Versions("2.60.0", "3.11.7", {"torch": "2.5.1+cu124", "rlinf": "0.3.0"})


@pytest.mark.parametrize(
    ("node", "refused", "warned"),
    [
        (Versions("2.60.0", "3.11.2", {"torch": "2.5.1+cpu", "rlinf": "0.3.0"}), "", ()),
        (Versions("2.60.0", "3.10.12", dict(HEAD.packages or {})), "Python 3.10.12, head has 3.11.7", ()),
        (
            Versions("2.59.0", "3.12.1"),
            "Python 3.12.1, head has 3.11.7; Ray 2.59.0, head has 2.60.0",
            (),
        ),
        (
            Versions("2.60.0", "3.11.7", {"torch": "2.4.0"}),
            "",
            ("torch 2.4.0, head has 2.5.1+cu124", "no rlinf, head has 0.3.0"),
        ),
        (Versions(), "", ()),
    ],
)
def test_differences_are_named_with_both_sides(node: Versions, refused: str, warned: tuple[str, ...]) -> None:
    """Ray and Python keep a node out; torch and rlinf are told; a build of torch, and what is not known, is neither."""
    found = differences(node, HEAD)
    assert refusal(found) == refused
    assert warnings(found) == warned


def test_what_the_head_lacks_is_nobodys_fault() -> None:
    """An edge may have more than the head; and of a head that is not known nothing differs."""
    edge = Versions("2.60.0", "3.11.7", {"torch": "2.4.0", "rlinf": "0.2.0"})
    assert differences(edge, Versions("2.60.0", "3.11.7", {})) == []
    assert differences(edge, Versions()) == []

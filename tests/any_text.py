"""Text of whatever kind, for Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

_CHARACTERS = st.integers(0x20, 0x7E) | st.integers(0, 0xD7FF) | st.integers(0xE000, 0x10FFFF)


def any_text(max_size: int) -> st.SearchStrategy[str]:
    """What ``st.text`` gives; that makes a table of all of Unicode first, which takes seconds in each process."""
    return st.lists(_CHARACTERS.map(chr), max_size=max_size).map("".join)

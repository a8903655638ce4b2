"""The pages of docs/reference that are made from the code are those that it makes now."""

from __future__ import annotations

import pytest
from reference_pages.pages import PAGES, path_of


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    assert path_of(name).read_text() == PAGES[name](), "run: make reference"

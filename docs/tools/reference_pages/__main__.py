"""Write all pages anew."""

from __future__ import annotations

from edgelink.log import configure
from reference_pages.pages import PAGES, path_of

configure(quiet=True)
for name, render in PAGES.items():
    path_of(name).write_text(render())

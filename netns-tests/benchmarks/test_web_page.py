"""The head's web page with 500 nodes, in a real browser, against its bars: `make bench-web`."""

from __future__ import annotations

from pathlib import Path

import pytest
from figures import Figure, Figures
from web_browser import DESKTOP, Browser, chromium, missing_programs
from web_world import WebWorld, tell_of_trouble

NODES = 500
LOADS, EVENTS = 10, 20
FIRST_PAINT_BAR_MS, UPDATE_BAR_MS = 1000.0, 200.0

pytestmark = pytest.mark.timeout(300)


def test_a_page_of_500_nodes(figures: Figures, tmp_path: Path) -> None:
    """From the click on a link to all nodes drawn, nothing cached; from an event to its words on the page."""
    if missing := missing_programs():
        pytest.skip(f"needs {', '.join(missing)}")
    world = WebWorld(tmp_path, NODES)
    world.begin_run(400)
    tell_of_trouble(world)
    world.snapshot()
    world.start()
    try:
        with chromium() as browser:
            browser.size(*DESKTOP)
            browser.open(world.link())  # the browser itself has begun
            painted_ms = [load(browser, world) for _ in range(LOADS)]
            names = [row["node_id"] for row in world.rows.values() if row["health"] == "ok" and row["role"] == "edge"]
            updated_ms = [
                browser.seen_after_ms(f"{name} is away", lambda name=name: world.do(lambda: world.lose(name)))
                for name in names[-EVENTS:]
            ]
            assert browser.console() == []
    finally:
        world.close()
    figures.add(Figure(f"web page, {NODES} nodes: drawn after", "ms", painted_ms, bar="at most 1 s"))
    figures.add(Figure(f"web page, {NODES} nodes: an event is seen after", "ms", updated_ms, bar="at most 200 ms"))
    assert max(painted_ms) <= FIRST_PAINT_BAR_MS
    assert max(updated_ms) <= UPDATE_BAR_MS


def load(browser: Browser, world: WebWorld) -> float:
    browser.forget()
    return browser.open(world.link())

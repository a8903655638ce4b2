"""The head's web page with 500 nodes, in a real browser, against its bars: `make bench-web`."""

from __future__ import annotations

import sys
import time
from ipaddress import IPv4Address
from pathlib import Path
from statistics import median

import pytest
from figures import Figure, Figures
from web_browser import DESKTOP, Browser, chromium, missing_programs
from web_world import WebWorld, tell_of_trouble

from edgelink.conditions import Status
from edgelink.protocol.payloads import ConditionReport
from edgelink.telemetry.dashboard import _REST_S

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from head_world import EDGE_1, member
from test_telemetry_dashboard import RELAY, World

NODES = 500
LOADS, EVENTS = 10, 20
FIRST_PAINT_BAR_MS, UPDATE_BAR_MS, NOTICE_BAR_MS = 1000.0, 200.0, 100.0
TOLD = "OverlayUp", "RayMember", "Registered", "FirewallUp"

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
            names = [row["hostname"] for row in world.rows.values() if row["health"] == "ok" and row["role"] == "edge"]
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


def test_a_head_of_500_nodes_notices_in_time(figures: Figures, tmp_path: Path) -> None:
    """What the page above takes from pretended data, the head makes by looking: that leaves the page its time."""
    world = World(tmp_path)
    members, entries = [member("10.10.0.2", 0)], []
    for number in range(1, NODES + 1):
        address = f"10.10.{1 + number // 250}.{1 + number % 250}"
        letters = "".join(chr(ord("b") + int(digit)) for digit in str(number))
        about = {"node_id": letters.ljust(26, "a"), "hostname": f"arm-{number}", "preferred_rank": number}
        entries.append(EDGE_1.model_copy(update={**about, "overlay_ip": IPv4Address(address)}))
        members.append(member(address, number))
    world.enrol(RELAY, world.own, *entries)
    told = [ConditionReport(type=name, status=Status.TRUE, reason="R", message="as it should be") for name in TOLD]
    for entry in entries:
        world.tell(entry.node_id, *told)
    world.lists(members)
    world.dashboard.look()
    noticed_ms = []
    for gone in range(1, EVENTS + 1):
        world.tell(entries[-gone].node_id, *told, online=False)
        world.lists(members[:-gone])
        begun_s = time.perf_counter()
        world.dashboard.look()
        noticed_ms.append(1000 * (time.perf_counter() - begun_s + _REST_S))
        assert f"{entries[-gone].hostname} is away" in world.events
    figures.add(Figure(f"head, {NODES} nodes: noticed after", "ms", noticed_ms, bar="at most 100 ms"))
    assert median(noticed_ms) <= NOTICE_BAR_MS

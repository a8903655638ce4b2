"""The head's web page in a real browser, with 2, 14 and 500 nodes behind the real server.

`EDGELINK_SCREENSHOTS=1` writes the pictures of docs/how-to/dashboard.md anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from web_browser import DESKTOP, PHONE, Browser, chromium, missing_programs
from web_world import WebWorld, tell_of_trouble

from edgelink.api.web.model import TrafficSample
from edgelink.conditions import Status

PICTURES = Path(__file__).parent.parent / "docs" / "images"
MAKES_PICTURES = bool(os.environ.get("EDGELINK_SCREENSHOTS"))
GENEROUS_MS = 5000.0  # benchmarks/test_web_page.py holds the page against its bars

MakeWorld = Callable[[int], WebWorld]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if missing := missing_programs():
        pytest.skip(f"needs {', '.join(missing)}: `make machine` installs them")
    with chromium() as found:
        yield found


@pytest.fixture
def world(browser: Browser, tmp_path: Path) -> Iterator[MakeWorld]:
    """Makes worlds that the browser has not logged in to."""
    with ExitStack() as stack:

        def make(nodes: int) -> WebWorld:
            made = WebWorld(tmp_path, nodes)
            made.start()
            stack.callback(made.close)
            return made

        browser.forget()
        browser.size(*DESKTOP)
        browser.colours("light")
        browser.console()
        yield make
        browser.driver.get("about:blank")  # before its server goes: it would look for it


def troubled(world: WebWorld) -> None:
    world.begin_run(160)
    tell_of_trouble(world)


@pytest.mark.parametrize("nodes", [2, 500])
def test_it_is_drawn_at_once_and_fits_a_phone(world: MakeWorld, browser: Browser, nodes: int) -> None:
    """With every node in the list and on the map, nothing from elsewhere, nothing wrong in the console."""
    head = world(nodes)
    if nodes > 2:
        head.do(lambda: troubled(head))
    painted_ms = browser.open(head.link())
    print(f"{nodes} nodes: drawn after {painted_ms:.0f} ms")
    assert painted_ms < GENEROUS_MS
    assert browser.run("document.querySelectorAll('#node-list li').length") == nodes
    assert browser.run("document.querySelectorAll('.map .node').length") == nodes
    assert all(address.startswith(head.url) for address in browser.asked_for())
    for size in (DESKTOP, PHONE, (320, 640)):
        browser.size(*size)
        assert not browser.is_too_wide(), size
    assert browser.console() == []


def test_what_is_wrong_is_seen_first(world: MakeWorld, browser: Browser) -> None:
    """In the title, in a sentence, at the top of the page and of the list."""
    head = world(14)
    head.do(lambda: troubled(head))
    browser.open(head.link())
    assert browser.text("#verdict").endswith("2 of 14 machines need attention")
    assert browser.run("document.title") == "(2) cloud · EdgeLink"
    assert "RayVersionMismatch" in browser.text("#attention li:first-child")
    assert "ur5e-1" in browser.text("#node-list li:first-child")
    assert "train.py" in browser.text("#run")
    assert browser.text("#metric option:checked") == "return"
    curve = browser.run("document.querySelector('#curve .curve').getAttribute('d')")
    assert (curve.count("M"), curve.count("L")) == (1, 105), (
        "one line through the 106 updates of 160 that have a return"
    )
    assert "actor × 4 GPU 0–3" in browser.text("#placement li:first-child")


@pytest.mark.parametrize("nodes", [2, 500])
def test_an_event_is_on_the_page_at_once(world: MakeWorld, browser: Browser, nodes: int) -> None:
    """In the list of events, in the verdict, in the node's row."""
    head = world(nodes)
    browser.open(head.link())
    name = list(head.rows)[-1]
    took_ms = browser.seen_after_ms(f"{name} is away", lambda: head.do(lambda: head.lose(name)))
    print(f"{nodes} nodes: an event is seen after {took_ms:.0f} ms")
    assert took_ms < GENEROUS_MS
    assert "1 of" in browser.text("#verdict")
    assert f"offline: is {name}" in browser.text("#node-list li:first-child")
    assert browser.run(f"document.querySelector('.map [data-id={name}]').classList.contains('away')")
    assert browser.console() == []


def test_ways_round_trips_and_losses_are_told(world: MakeWorld, browser: Browser) -> None:
    """In a node's row and on the map, whose solid line from the head becomes a dashed one from the relay between."""
    head = world(60)
    near = {"health": "warning", "wrong": ["torch 2.4.0, head has 2.5.1"]}  # of so many, it has a label then

    def measured(rtt_ms: float, loss: float) -> None:
        head.measures["sim-4"] = {**head.measures["sim-4"], "rtt_ms": rtt_ms, "loss": loss}

    def is_direct() -> None:
        head.set_row("sim-4", path="direct", via=None, protocol="udp", **near)
        measured(7.44, 0.0)

    def is_relayed() -> None:
        head.set_row("sim-4", path="relayed", via="relay-2", protocol=None)
        measured(212.0, 0.025)

    head.do(is_direct)
    browser.open(head.link())
    row = browser.rows()["sim-4"]
    assert (row["rtt"], row["loss"], row["path"]) == ("7.4 ms", "", "direct, udp")
    assert browser.labels()["sim-4"] == "7.4 ms"
    assert browser.way("sim-4") == {"from": "cloud", "isDashed": False}

    head.do(is_relayed)
    browser.until("document.getElementById('events').textContent.includes('sim-4 is reached through relay-2')")
    row = browser.rows()["sim-4"]
    assert (row["rtt"], row["loss"], row["path"]) == ("212 ms", "2.5 % lost", "through relay-2")
    assert browser.labels()["sim-4"] == "212 ms, 2.5 % lost"
    assert browser.way("sim-4") == {"from": "relay-2", "isDashed": True}
    assert "212 ms" in browser.text("#figures"), "the slowest of all"
    assert browser.console() == []


def test_traffic_is_told_by_time_and_by_link(world: MakeWorld, browser: Browser) -> None:
    """A curve each way, in bits, with the value under the pointer; below it, each link that carried anything, the
    busiest first, eight at most."""
    head = world(14)
    carried = {"sim-1": ("1.20 GB", "3.00 MB"), "relay": ("900.00 kB", None), "agx-1": (None, "2.00 MB")}

    def carry() -> None:
        for name, measure in head.measures.items():
            received, sent = carried.get(name, (None, None))
            head.measures[name] = {**measure, "received": received, "sent": sent}
        sample = TrafficSample(
            n=head.history.next_n(),
            at=head.clock.now().isoformat(),
            received_bytes_per_s=2_500_000,
            sent_bytes_per_s=31_250,
        )
        head.history.traffic.append(sample)

    def carry_more() -> None:
        for number, name in enumerate(list(head.measures)[1:11], 1):
            head.measures[name] = {**head.measures[name], "received": f"{number}.00 GB", "sent": f"{number}.00 MB"}

    browser.open(head.link())
    head.do(carry)
    browser.until("document.querySelectorAll('#links tbody tr').length === 3")
    assert browser.run(_LINKS) == [
        ["sim-1", "1.20 GB", "3.00 MB"],
        ["agx-1", "–", "2.00 MB"],
        ["relay", "900.00 kB", "–"],
    ]
    for name in ("in", "out"):
        assert "L" in browser.run(f"document.querySelector('#traffic .curve.{name}').getAttribute('d')")
    browser.point_at("#traffic svg", 0.99)
    assert "received 20 Mbit/s" in browser.text("#traffic .tip")
    assert "sent 250 kbit/s" in browser.text("#traffic .tip")

    head.do(carry_more)
    browser.until("document.querySelectorAll('#links tbody tr').length === 8")
    assert browser.run(_LINKS)[0] == [list(head.measures)[10], "10.00 GB", "10.00 MB"]
    assert browser.console() == []


_LINKS = """
[...document.querySelectorAll("#links tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent))
""".strip()


def test_clicks_and_keys(world: MakeWorld, browser: Browser) -> None:
    """From what is wrong, the map, the list or an event to the node in full, and back; with the mouse or without."""
    head = world(14)
    head.do(lambda: troubled(head))
    browser.open(head.link())
    browser.click("#attention li:first-child button")
    assert "ur5e-1" in browser.text("#node-view h2")
    browser.until("document.querySelector('#node-view .conditions')")
    assert "RayVersionMismatch: Ray 2.52.1 here" in browser.text("#node-view .conditions")
    assert "RayJoined" in browser.text("#node-view .history li:first-child")
    assert browser.run("document.querySelector('#node-rtt .curve') !== null")
    browser.press(Keys.ESCAPE)
    assert browser.run("document.getElementById('node-view').hidden")

    browser.click(".map .dots [data-id=sim-1] .core")
    assert "sim-1" in browser.text("#node-view h2")
    head.do(lambda: head.set_condition("sim-1", "OverlayUp", Status.FALSE, "DeviceLost", "et0 is gone"))
    head.do(lambda: head.set_row("sim-1", health="trouble", wrong=["DeviceLost: et0 is gone"]))
    browser.until("document.querySelector('#node-view .history')?.textContent.includes('DeviceLost')")
    browser.click("#node-view .back")

    browser.click("#events button")
    assert browser.run("!document.getElementById('node-view').hidden")
    browser.press(Keys.ESCAPE)

    browser.click("[data-filter=wrong]")
    assert browser.run("document.querySelectorAll('#node-list li').length") == 4
    browser.click("[data-filter=all]")
    browser.find("#search").send_keys("site=lab-b")
    browser.until("document.querySelectorAll('#node-list li').length === 4")
    browser.press(Keys.TAB + Keys.TAB)
    browser.find("#node-list li button").send_keys(Keys.ENTER)
    assert browser.run("!document.getElementById('node-view').hidden")
    assert browser.console() == []


def test_the_page_comes_back_with_the_daemon(world: MakeWorld, browser: Browser) -> None:
    """It says that it is old while the daemon is away, logs in nobody anew, and shows what happened meanwhile."""
    head = world(14)
    browser.open(head.link())
    assert browser.text("#live") == "Live"
    head.stop()
    browser.until("document.getElementById('live').textContent === 'Reconnecting'")
    head.lose("agx-1")
    head.snapshot()
    head.start()
    browser.until("document.getElementById('live').textContent === 'Live'")
    browser.until("document.getElementById('verdict').textContent.includes('1 of 14')")
    assert all("ERR_CONNECTION_REFUSED" in message or "ERR_INCOMPLETE" in message for message in browser.console())


def test_a_phone_that_was_without_network_comes_back(world: MakeWorld, browser: Browser) -> None:
    """It says that what it shows is old; then, by itself and in the same session, it shows what it has missed."""
    head = world(14)
    browser.size(*PHONE)
    with browser.in_a_hurry(40000, 500):
        browser.open(head.link())
    with browser.without_network():
        with head.silent():
            browser.until("document.getElementById('live').textContent === 'Reconnecting'")
        head.do(lambda: head.lose("agx-1"))
        told = browser.until_console("ERR_INTERNET_DISCONNECTED")
        assert browser.text("#live") == "Reconnecting"
        assert browser.rows()["agx-1"]["health"] == "ok"
    browser.until("document.getElementById('live').textContent === 'Live'")
    browser.until("document.getElementById('verdict').textContent.includes('1 of 14')")
    assert browser.rows()["agx-1"]["health"] == "away"
    assert not browser.is_too_wide()
    told += browser.console()
    assert [line for line in told if "ERR_INTERNET_DISCONNECTED" not in line] == []


def test_a_silent_head_is_not_taken_for_a_live_one(world: MakeWorld, browser: Browser) -> None:
    """A laptop that slept, a way that is cut: the connection is there, and nothing comes. The page says so, and comes
    back by itself."""
    head = world(2)
    with browser.in_a_hurry(40000, 500):
        browser.open(head.link())
    with head.silent():
        browser.until("document.getElementById('live').textContent === 'Reconnecting'")
    browser.until("document.getElementById('live').textContent === 'Live'")
    assert browser.console() == []


def test_a_link_logs_in_once(world: MakeWorld, browser: Browser) -> None:
    """It is not in the address any more; a copy of it opens nothing; a session outlives a reload until it is ended."""
    head = world(2)
    link = head.link()
    browser.open(link)
    assert browser.run("location.href") == head.url
    browser.open(head.url)
    assert browser.console() == []
    browser.click("#log-out")
    browser.until("document.getElementById('live').textContent === 'Not logged in'")
    assert "sudo edgelink dashboard" in browser.text("#login")
    assert browser.console() == []
    assert browser.barriers() == []
    browser.driver.get("about:blank")
    browser.driver.get(link)
    browser.until("document.getElementById('login-title').textContent === 'This link does not work'")
    assert browser.run("document.getElementById('page').hidden")


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_it_can_be_used_by_everybody(world: MakeWorld, browser: Browser, colours: str) -> None:
    """axe finds nothing serious: contrast, names, roles, order; as a list, as one node, on a phone."""
    head = world(14)
    head.do(lambda: troubled(head))
    browser.colours(colours)
    browser.open(head.link())
    assert browser.barriers() == []
    browser.click("#attention li:first-child button")
    browser.until("document.querySelector('#node-view .conditions')")
    assert browser.barriers() == []
    browser.size(*PHONE)
    assert browser.barriers() == []
    assert not browser.is_too_wide()


def test_500_nodes_can_be_used_by_everybody(world: MakeWorld, browser: Browser) -> None:
    """Nor does axe find anything serious there, in the list and on the map."""
    head = world(500)
    head.do(lambda: troubled(head))
    browser.open(head.link())
    assert browser.barriers() == []


@pytest.mark.skipif(not MAKES_PICTURES, reason="EDGELINK_SCREENSHOTS=1 makes the documentation's pictures")
def test_pictures(world: MakeWorld, browser: Browser) -> None:
    """Small enough to be kept."""
    head = world(14)
    head.do(lambda: troubled(head))
    browser.size(1280, 900)
    browser.open(head.link())
    browser.screenshot(PICTURES / "dashboard.png", height=1310)
    browser.click("#attention li:first-child button")
    browser.until("document.querySelector('#node-view .conditions')")
    browser.size(*PHONE)
    browser.screenshot(PICTURES / "dashboard-node.png", selector="#nodes-panel")
    browser.press(Keys.ESCAPE)
    browser.run("scrollTo(0, 0)")
    browser.screenshot(PICTURES / "dashboard-phone.png", height=PHONE[1])
    large = world(500)
    large.do(lambda: troubled(large))
    browser.size(1280, 900)
    browser.colours("dark")
    browser.open(large.link())
    browser.screenshot(PICTURES / "dashboard-500.png", height=900)
    sizes = {file.name: file.stat().st_size for file in PICTURES.glob("dashboard*.png")}
    assert len(sizes) == 4
    assert max(sizes.values()) < 150_000, sizes

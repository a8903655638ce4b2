"""The head's web page in a real browser, with 2, 14 and 500 nodes behind the real server.

`EDGELINK_SCREENSHOTS=1` writes the pictures of docs/how-to/dashboard.md anew; they are made with the font Inter.
"""

from __future__ import annotations

import colorsys
import http.server
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from itertools import combinations
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.common.keys import Keys
from web_browser import DESKTOP, PHONE, Browser, chromium, missing_programs
from web_world import WebWorld, id_of, tell_of_trouble

from edgelink.api.web.model import Rate, TrafficSample
from edgelink.condition_table import declared
from edgelink.conditions import Status

PICTURES = Path(__file__).parent.parent / "docs" / "images"
MAKES_PICTURES = bool(os.environ.get("EDGELINK_SCREENSHOTS"))
GENEROUS_MS = 20000.0  # benchmarks/test_web_page.py holds the page against its bars

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
    assert all(part in browser.text("#verdict") for part in ("2 of 14 machines ", ", 1 has "))
    assert browser.run("document.title") == "(2) cloud · EdgeLink"
    assert browser.run("document.querySelectorAll('#attention-list li').length") == 2 + 1, "and these are the machines"
    assert "VersionMismatch" in browser.text("#attention li:first-child")
    assert "agx-3" in browser.text("#node-list li:first-child")
    assert "train.py" in browser.text("#run")
    assert browser.text("#metric option:checked") == "return"
    curve = browser.run("document.querySelector('#curve .curve').getAttribute('d')")
    assert (curve.count("M"), curve.count("L")) == (1, 105), (
        "one line through the 106 updates of 160 that have a return"
    )
    assert "actor × 4 GPU 0–3" in browser.text("#placement li:first-child")


def test_the_sentence_counts_whom_the_panel_names(world: MakeWorld, browser: Browser) -> None:
    """Who works with something to look at is named in both, and called broken in neither."""
    head = world(14)
    browser.open(head.link())
    assert browser.text("#verdict").endswith("All 14 machines work")
    assert not browser.find("#attention").is_displayed()
    head.do(lambda: head.set_row("sim-1", health="warning", wrong=["torch 2.4.0, head has 2.5.1"]))
    browser.until("document.getElementById('verdict').textContent.includes('All 14 machines work; 1 has ')")
    assert browser.text("#attention-list") == "!\nsim-1\ntorch 2.4.0, head has 2.5.1"
    for name in ("agx-1", "agx-2"):
        head.do(lambda name=name: head.set_row(name, health="warning", wrong=["torch 2.4.0, head has 2.5.1"]))
    head.do(lambda: head.lose("agx-2"))
    browser.until("/1 of 14 machines .*, 2 have /.test(document.getElementById('verdict').textContent)")
    assert browser.run("document.querySelectorAll('#attention-list li').length") == 3
    browser.click("[data-filter=wrong]")
    assert browser.run("document.querySelectorAll('#node-list li').length") == 3


@pytest.mark.parametrize("nodes", [4, 14])
def test_training_is_above_the_fold_while_it_runs(world: MakeWorld, browser: Browser, nodes: int) -> None:
    """With its step, total and time left; of a few nodes the map is folded, until somebody unfolds it."""
    head = world(nodes)
    browser.size(1400, 900)
    browser.open(head.link())
    is_open = "document.getElementById('map-fold').open"
    assert browser.run(is_open) == (nodes >= 8)
    head.do(lambda: head.begin_run(160))
    browser.until("document.querySelector('#curve .curve') !== null")
    assert browser.run("document.getElementById('curve').getBoundingClientRect().bottom") < 900
    figures = browser.text("#figures")
    assert "160 of 400" in figures
    assert "1 h 3 min" in figures
    if nodes < 8:
        browser.click("#map-fold summary")
        assert len(browser.labels()) == nodes
        head.do(lambda: head.lose("franka-1"))
        browser.until("document.getElementById('verdict').textContent.includes('does not work')")
        assert browser.run(is_open)
    assert browser.console() == []


def test_a_paused_node_is_yellow_everywhere(world: MakeWorld, browser: Browser) -> None:
    """With a countdown, an event and bands behind both curves; all work only once it answers again."""
    head = world(4)
    head.do(lambda: head.begin_run(160))
    browser.open(head.link())
    assert browser.text("#verdict").endswith("All 4 machines work")
    head.do(lambda: head.pause("franka-1", 20, given_up_in_s=270))
    browser.until("document.getElementById('verdict').textContent.includes('franka-1 is paused')")
    assert "no answer for 2" in browser.text("#countdown")
    assert browser.rows()["franka-1"]["health"] == "paused"
    assert "franka-1 is paused" in browser.text("#events li:first-child")
    assert "paused" in browser.run(f"document.querySelector('[data-id=\"{id_of('franka-1')}\"] .day').title")
    left = browser.text("#attention li:first-child")
    assert "given up in 4 min" in left
    browser.until(f"document.querySelector('#attention li').innerText !== {json.dumps(left)}")  # it counts down
    for chart in ("curve", "traffic"):
        assert browser.run(f"document.querySelectorAll('#{chart} .band.paused').length") == 1, chart
    assert browser.run("document.querySelector('#events li').dataset.during === 'paused'")
    head.do(lambda: head.mend("franka-1"))
    browser.until("document.getElementById('verdict').textContent.endsWith('All 4 machines work')")
    assert "franka-1 is back after" in browser.text("#events")
    assert browser.run("document.querySelectorAll('#traffic .band.paused').length") == 1, "it stays to be seen"
    assert browser.console() == []


def test_a_node_can_be_reached_by_what_is_copied(world: MakeWorld, browser: Browser) -> None:
    """By its name in the overlay."""
    browser.open(world(4).link())
    browser.click(f"#node-list [data-id='{id_of('franka-1')}']")
    assert "ssh franka-1.edgelink.internal" in browser.text("#node-view .commands")
    browser.click("#node-view .commands button")
    browser.until("document.querySelector('#node-view .commands button').textContent === 'Copied'")
    browser.press(Keys.ESCAPE)
    browser.find("#search").click()
    browser.find("#search").send_keys(Keys.CONTROL + "v")
    assert browser.run("document.getElementById('search').value") == "ssh franka-1.edgelink.internal"
    assert browser.console() == []


def test_events_are_for_people(world: MakeWorld, browser: Browser) -> None:
    """A path that flaps fills one line; a command is shown as one, without the marks around it."""
    head = world(14)

    def flap() -> None:
        head.history.events.clear()
        for number in range(6):
            path = ("relayed", "relay") if number % 2 else ("direct", None)
            head.set_row("sim-1", path=path[0], via=path[1])
        head.lose("sim-2")

    head.do(flap)
    browser.open(head.link())
    assert browser.run("document.querySelectorAll('#events li').length") == 2
    assert "changes)" in browser.text("#events li:last-child")
    assert "`" not in browser.text("#page")
    assert browser.text("#events li:first-child code") == "edgelink edge"
    assert re.search(r"UTC[+−]\d", browser.text("#zone"))


@pytest.mark.parametrize("nodes", [2, 500])
def test_an_event_is_on_the_page_at_once(world: MakeWorld, browser: Browser, nodes: int) -> None:
    """In the list of events, in the verdict, in the node's row."""
    head = world(nodes)
    browser.open(head.link())
    name = list(head.rows.values())[-1]["hostname"]
    took_ms = browser.seen_after_ms(f"{name} is away", lambda: head.do(lambda: head.lose(name)))
    print(f"{nodes} nodes: an event is seen after {took_ms:.0f} ms")
    assert took_ms < GENEROUS_MS
    assert "1 of" in browser.text("#verdict")
    assert f"offline: is {name}" in browser.text("#node-list li:first-child")
    assert browser.run(f"document.querySelector('.map [data-id=\"{id_of(name)}\"]').classList.contains('away')")
    row = browser.rows()[name]
    assert (row["rtt"], row["loss"]) == ("no answer", "")
    assert browser.console() == []


def test_ways_round_trips_and_losses_are_told(world: MakeWorld, browser: Browser) -> None:
    """In a node's row and on the map, whose solid line from the head becomes a dashed one from the relay between."""
    head = world(60)
    near = {"health": "warning", "wrong": ["torch 2.4.0, head has 2.5.1"]}  # of so many, it has a label then

    def is_direct() -> None:
        head.set_row("sim-4", path="direct", via=None, protocol="udp", **near)
        head.set_measure("sim-4", rtt_ms=7.44, loss=0.0)

    def is_relayed() -> None:
        head.set_row("sim-4", path="relayed", via="relay-2", protocol=None)
        head.set_measure("sim-4", rtt_ms=212.0, loss=0.075)

    head.do(is_direct)
    browser.open(head.link())
    row = browser.rows()["sim-4"]
    assert (row["rtt"], row["loss"], row["path"]) == ("7.4 ms", "", "direct, udp")
    assert browser.labels()["sim-4"] == "7.4 ms"
    assert browser.way(id_of("sim-4")) == {"from": id_of("cloud"), "isDashed": False}

    head.do(is_relayed)
    browser.until("document.getElementById('events').textContent.includes('sim-4 is reached through relay-2')")
    row = browser.rows()["sim-4"]
    assert (row["rtt"], row["loss"], row["path"]) == ("212 ms", "7.5 % lost", "through relay-2")
    assert browser.labels()["sim-4"] == "212 ms, 7.5 % lost"
    assert browser.way(id_of("sim-4")) == {"from": id_of("relay-2"), "isDashed": True}
    assert "212 ms" in browser.text("#figures"), "the slowest of all"
    assert browser.console() == []


def test_traffic_is_told_by_time_and_by_link(world: MakeWorld, browser: Browser) -> None:
    """A curve each way, in bits, with the value under the pointer; below it, each link that carried anything, how much
    now and how much in all, the busiest first, eight at most."""
    head = world(14)
    carried = {"sim-1": ("1.20 GB", "3.00 MB"), "relay": ("900.00 kB", None), "agx-1": (None, "2.00 MB")}
    now = {"sim-1": (400_000, False), "relay": (2_000, True)}

    def carry() -> None:
        for row in head.rows.values():
            received, sent = carried.get(row["hostname"], (None, None))
            rate = now.get(row["hostname"])
            received_now = None if rate is None else Rate(bytes_per_s=rate[0], is_less=rate[1])
            idle = None if sent is None else Rate(bytes_per_s=0.25, is_less=True)
            head.set_measure(row["hostname"], received=received, sent=sent, received_now=received_now, sent_now=idle)
        sample = TrafficSample(
            n=head.history.next_n(),
            at=head.clock.now().isoformat(),
            received_bytes_per_s=2_500_000,
            sent_bytes_per_s=31_250,
        )
        head.history.traffic.append(sample)

    def carry_more() -> None:
        for number, row in enumerate(list(head.rows.values())[1:11], 1):
            head.set_measure(row["hostname"], received=f"{number}.00 GB", sent=f"{number}.00 MB", sent_now=None)

    browser.open(head.link())
    head.do(carry)
    browser.until("document.querySelectorAll('#links tbody tr').length === 3")
    assert browser.run(_LINKS) == [
        ["sim-1", "3.2 Mbit/s", "1.20 GB", "< 1 kbit/s", "3.00 MB"],
        ["agx-1", "–", "–", "< 1 kbit/s", "2.00 MB"],
        ["relay", "< 16 kbit/s", "900.00 kB", "–", "–"],
    ]
    for name in ("in", "out"):
        assert "L" in browser.run(f"document.querySelector('#traffic .curve.{name}').getAttribute('d')")
    browser.point_at("#traffic svg", 0.99)
    assert "received 20 Mbit/s" in browser.text("#traffic .tip")
    assert "sent 250 kbit/s" in browser.text("#traffic .tip")

    head.do(carry_more)
    browser.until("document.querySelectorAll('#links tbody tr').length === 8")
    tenth = list(head.rows.values())[10]["hostname"]
    assert browser.run(_LINKS)[0] == [tenth, "–", "10.00 GB", "–", "10.00 MB"]
    assert browser.console() == []


_LINKS = """
[...document.querySelectorAll("#links tbody tr")].map(
  (row) => [...row.querySelectorAll("th, td span")].map((part) => part.textContent))
""".strip()


def test_every_node_that_needs_attention_is_named_on_the_map(world: MakeWorld, browser: Browser) -> None:
    """Also where a dozen are beside each other, and do not answer; no label lies on another, nor on a ring's figure."""
    head = world(500)
    gone = [f"{kind}-{number}" for number in range(30, 33) for kind in ("franka", "ur5e", "sim")]
    refused = [f"agx-{number}" for number in range(30, 33)]

    def fail() -> None:
        for name in gone:
            head.lose(name)
        for name in refused:
            head.set_row(name, health="trouble", wrong=["RayTooOld: 2.1 is installed"])

    head.do(fail)
    browser.open(head.link())
    assert browser.labels().keys() == {*gone, *refused, "cloud", "relay-1", "relay-2"}
    assert overlaps(browser.label_boxes()) == []


def test_every_node_of_a_few_is_named_on_a_phones_map(world: MakeWorld, browser: Browser) -> None:
    """Beside the others."""
    head = world(14)
    head.do(lambda: troubled(head))
    browser.size(*PHONE)
    browser.open(head.link())
    assert browser.labels().keys() == {row["hostname"] for row in head.rows.values()}
    boxes = browser.label_boxes()
    assert overlaps(boxes) == []
    assert all(box["left"] >= 0 and box["right"] <= PHONE[0] for box in boxes.values())


def overlaps(boxes: Mapping[str, Mapping[str, float]]) -> list[tuple[str, str]]:
    """Which of them lie on each other; what only touches does not."""
    return [
        (one, other)
        for (one, a), (other, b) in combinations(boxes.items(), 2)
        if min(a["right"], b["right"]) - max(a["left"], b["left"]) > 1
        and min(a["bottom"], b["bottom"]) - max(a["top"], b["top"]) > 1
    ]


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_components_have_colours_that_say_nothing_of_health(world: MakeWorld, browser: Browser, colours: str) -> None:
    """Six of them, each of another hue than works, look at it, and does not work; and their words can be read."""
    head = world(14)
    names = ["actor", "rollout", "env", "critic", "reward", "inference"]
    placed = [{"component": name, "processes": 1, "accelerators": ["0"]} for name in names]

    def place() -> None:
        troubled(head)
        head.set_row("cloud", placed=placed)

    head.do(place)
    browser.colours(colours)
    browser.open(head.link())
    found = browser.run(_COLOURS)
    assert len({tuple(chip["swatch"]) for chip in found["chips"]}) == len(names)
    for chip in found["chips"]:
        for health, colour in found["healths"].items():
            apart = abs(hue(chip["swatch"]) - hue(colour)) % 1
            assert min(apart, 1 - apart) > 1 / 12, (chip, health, colour)
        assert all(contrast(ink, chip["ground"]) >= 4.5 for ink in chip["inks"]), chip
        assert contrast(chip["swatch"], chip["ground"]) >= 3, chip


# As they are painted: a computed style may say it in another way.
_COLOURS = """
(() => {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const ink = (element) => rgb(getComputedStyle(element).color);
  const ground = (element, part) => rgb(getComputedStyle(element, part).backgroundColor);
  return {
    chips: [...document.querySelectorAll("#placement li:first-child .chip")].map((chip) => ({
      name: chip.textContent, ground: ground(chip), swatch: ground(chip, "::before"),
      inks: [chip, ...chip.children].map(ink),
    })),
    healths: Object.fromEntries(["ok", "warning", "trouble"].map(
      (health) => [health, ink(document.querySelector(`.badge.${health}`))])),
  };
})()
""".strip()


def hue(colour: Sequence[int]) -> float:
    """0 to 1, around."""
    return colorsys.rgb_to_hsv(*(channel / 255 for channel in colour))[0]


def contrast(one: Sequence[int], other: Sequence[int]) -> float:
    """As WCAG defines it: 1 to 21."""

    def light(colour: Sequence[int]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (each / 255 for each in colour)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    lights = sorted((light(one), light(other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def test_times_of_other_days_have_their_date(world: MakeWorld, browser: Browser) -> None:
    """In the events, and in what changed on a node."""
    head = world(14)
    before = head.clock.now() - timedelta(hours=30)

    def tell() -> None:
        head.history.events.clear()
        head.history.event(before, "info", "node", "sim-1 joined the network", node_id=id_of("sim-1"))
        head.history.event(head.clock.now(), "info", "run", "train.py was started, attempt 1")
        head.history.conditions.clear()
        head.set_condition("sim-1", "OverlayUp", Status.FALSE, "DeviceLost", "et0 was gone", before)

    head.do(tell)
    browser.open(head.link())
    day = browser.run(f"new Date('{before.isoformat()}').toLocaleDateString([], {{ day: 'numeric', month: 'short' }})")
    at = r"\d\d:\d\d:\d\d"
    assert re.fullmatch(at, browser.text("#events li:nth-child(2) time")), "the newest is first"
    assert re.fullmatch(f"{day} {at}", browser.text("#events li:nth-child(3) time"))
    browser.click("#events li:nth-child(3) button")
    browser.until("document.querySelector('#node-view .history')")
    assert re.fullmatch(f"{day} {at}", browser.text("#node-view .history time"))


def test_clicks_and_keys(world: MakeWorld, browser: Browser) -> None:
    """From what is wrong, the map, the list or an event to the node in full, and back; with the mouse or without."""
    head = world(14)
    head.do(lambda: troubled(head))
    browser.open(head.link())
    browser.click("#attention li:first-child button")
    assert "agx-3" in browser.text("#node-view h2")
    browser.until("document.querySelector('#node-view .conditions')")
    assert "VersionMismatch: /opt/train/bin/python has Ray 2.52.1" in browser.text("#node-view .conditions")
    assert "VersionMismatch" in browser.text("#node-view .history")
    assert "Ray has" not in browser.text("#node-view .facts"), "nothing: it was refused"
    assert browser.run("document.querySelector('#node-rtt .curve') !== null")
    browser.press(Keys.ESCAPE)
    assert browser.run("document.getElementById('node-view').hidden")

    browser.click(f".map .dots [data-id='{id_of('sim-1')}'] .core")
    assert "sim-1" in browser.text("#node-view h2")
    head.do(lambda: head.set_condition("sim-1", "OverlayUp", Status.FALSE, "DeviceLost", "et0 is gone"))
    head.do(lambda: head.set_row("sim-1", health="trouble", wrong=["DeviceLost: et0 is gone"]))
    browser.until("document.querySelector('#node-view .history')?.textContent.includes('DeviceLost')")
    browser.click("#node-view .back")

    browser.click("#events button")
    assert browser.run("!document.getElementById('node-view').hidden")
    browser.press(Keys.ESCAPE)

    browser.click("[data-filter=wrong]")
    assert browser.run("document.querySelectorAll('#node-list li').length") == 4, "these three and sim-1"
    browser.click("[data-filter=all]")
    browser.find("#search").send_keys("site=lab-b")
    browser.until("document.querySelectorAll('#node-list li').length === 4")
    browser.press(Keys.TAB + Keys.TAB)
    browser.find("#node-list li button").send_keys(Keys.ENTER)
    assert browser.run("!document.getElementById('node-view').hidden")
    assert browser.console() == []


# What Chromium says of a connection whose other end goes, by the moment in which it does.
CUT = r"net::ERR_(CONNECTION_REFUSED|CONNECTION_RESET|EMPTY_RESPONSE|INCOMPLETE)"


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
    assert [message for message in browser.console() if not re.search(CUT, message)] == []


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
    browser.driver.get(link)  # in the tab that asks for one: another fragment alone loads nothing
    browser.until("document.getElementById('login-title').textContent === 'This link does not work'")
    assert browser.run("document.getElementById('page').hidden")
    browser.driver.get(head.link())
    browser.until("document.getElementById('live').textContent === 'Live'")
    assert browser.run("location.href") == head.url


def test_a_link_survives_a_head_that_does_not_answer(world: MakeWorld, browser: Browser) -> None:
    """It was not used, so it stays in the address, and is tried again by itself; meanwhile the page says so."""
    head = world(14)
    link = head.link()
    with browser.without("/api/login"):
        browser.driver.get("about:blank")
        browser.driver.get(link)
        browser.until("!document.getElementById('notice').hidden")
        assert "The head does not answer." in browser.text("#notice")
        assert "Your link is kept." in browser.text("#notice")
        assert browser.run("location.href") == link
        assert browser.text("#live") == "Reconnecting"
    browser.until("document.getElementById('live').textContent === 'Live'")
    assert browser.run("location.href") == head.url
    assert browser.run("document.getElementById('notice').hidden")
    assert all("/api/login" in message for message in browser.console())

    with browser.without("/api/logout"):
        browser.click("#log-out")
        browser.until("document.getElementById('notice').textContent.includes('still be logged in')")
    browser.click("#log-out")
    browser.until("document.getElementById('live').textContent === 'Not logged in'")
    browser.console()


def test_a_page_too_many_says_so(world: MakeWorld, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not just that it reconnects, over nothing; and comes up once there is room."""
    head = world(14)
    with monkeypatch.context() as patch:
        patch.setattr("edgelink.api.web.page_server._MOST_FOLLOWERS", 0)
        browser.driver.get(head.link())
        browser.until("document.getElementById('notice').textContent.includes('pages of this head are open')")
        assert browser.run("document.getElementById('page').hidden")
    browser.until("document.getElementById('live').textContent === 'Live'")
    assert browser.run("document.getElementById('notice').hidden")
    assert all("503" in message for message in browser.console())


def test_rays_dashboard_does_not_get_our_cookie(world: MakeWorld, browser: Browser) -> None:
    """Cookies know no ports, but names: the link to it leads to the same machine under another one."""
    head = world(14)
    browser.open(head.link())
    asked: list[tuple[str, str]] = []

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.headers["Host"].partition(":")[0], self.headers.get("Cookie", "")))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    address = urlsplit(browser.run("document.getElementById('ray-dashboard').href"))
    assert (address.hostname, address.port) == ("localhost", 8265)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        for name in ("127.0.0.1", "localhost"):
            browser.driver.get(f"http://{name}:{other.server_address[1]}/")
        other.shutdown()
    assert {name for name, cookie in asked if head.page.cookie in cookie} == {"127.0.0.1"}, "why it is another name"
    assert "localhost" in {name for name, _ in asked}


@pytest.mark.parametrize("nodes", [14, 60, 500])
def test_the_pretended_world_is_one_that_could_be(tmp_path: Path, nodes: int) -> None:
    """What the pictures show contradicts neither EdgeLink nor itself."""
    with closing(WebWorld(tmp_path, nodes)) as head:
        troubled(head)
        head.snapshot()
    assert head.feed.newest is not None
    rows, measures = head.feed.newest["nodes"], head.feed.newest["measures"]
    assert {row["health"] for row in rows.values()} == {"ok", "warning", "trouble", "away"}
    for node_id, row in rows.items():
        assert row["node_id"] == node_id != row["hostname"]
        works, measure = row["health"] in ("ok", "warning"), measures[node_id]
        assert works or (row["cpus"], row["gpus"]) == (0, 0), "Ray does not list it"
        assert (row["health"] == "ok") == (row["wrong"] == [])
        if row["path"] != "self":
            assert (measure["rtt_ms"] is None) == (row["health"] == "away")
            assert head.history.rtts[node_id][-1][1] == measure["rtt_ms"]
        assert (measure["received"] is not None) == (measure["received_now"] is not None) == (row["path"] == "direct")
        told = {each.type: each for each in head.conditions[node_id]}
        for each in told.values():
            assert declared(each.type, each.reason), each
            assert each.since is not None
            assert each.type != "RayJoined" or (each.status is Status.TRUE) == works or row["health"] == "away"
        if (why := row["wrong"][:1]) and row["health"] == "trouble":
            assert why == [f"{told['RayJoined'].reason}: {told['RayJoined'].message}"]
            assert row["since"] is not None
            apart = told["RayJoined"].since - datetime.fromisoformat(row["since"])
            assert abs(apart) < timedelta(minutes=1)
            assert f"Ray {row['versions']['ray']} " in why[0]
            assert row["placed"] == [], "it came later than the run"
        for name, version in re.findall(r"^(torch) (\S+), head has", " ".join(row["wrong"])):
            assert row["versions"][name] == version
    newest = head.feed.newest["traffic"][-1]
    for name, now in (("received_bytes_per_s", "received_now"), ("sent_bytes_per_s", "sent_now")):
        links = sum(measure[now]["bytes_per_s"] for measure in measures.values() if measure[now])  # type: ignore[literal-required]
        assert newest[name] == pytest.approx(links, rel=0.01)  # type: ignore[literal-required]
    times = [event["at"] for event in head.feed.newest["events"]]
    assert times == sorted(times)


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


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        ("0", "10", [0, 5, 10]),
        ("-0.1", "0.1", [-0.1, 0, 0.1]),
        ("0.1", "0.1 + 2 ** -56", None),
        ("2e6", "2e6 + 1e-9", None),
        ("7", "7", [7]),
    ],
)
def test_a_chart_of_values_that_hardly_differ_has_few_ticks(
    world: MakeWorld, browser: Browser, low: str, high: str, found: list[float] | None
) -> None:
    """A mean of equal returns may differ in its last bit: the page once went on for ever."""
    browser.open(world(2).link())
    script = f"answer((await import('/charts.js')).ticks({low}, {high}, 2))"
    got = browser.driver.execute_async_script(f"(async (answer) => {{ {script} }})(arguments[0])")
    assert 1 <= len(got) <= 3
    assert got == sorted(set(got))
    assert found is None or got == pytest.approx(found)


@pytest.mark.skipif(not MAKES_PICTURES, reason="EDGELINK_SCREENSHOTS=1 makes the documentation's pictures")
def test_pictures(world: MakeWorld, browser: Browser) -> None:
    """Small enough to be kept."""
    head = world(14)

    def tell() -> None:
        head.begin_run(160)
        now = head.clock.now()
        head.pause("sim-1", 8, at=now - timedelta(minutes=29))
        head.mend("sim-1", now - timedelta(minutes=24))
        tell_of_trouble(head)
        head.pause("sim-2", 72)

    head.do(tell)
    browser.size(1280, 900)
    browser.open(head.link())
    browser.screenshot(PICTURES / "dashboard.png", height=1310)
    browser.screenshot(PICTURES / "dashboard-traffic.png", selector=".traffic-card, .events-card", margin=16)
    browser.click("#attention li:first-child button")
    browser.until("document.querySelector('#node-view .conditions')")
    browser.size(*PHONE)
    browser.screenshot(PICTURES / "dashboard-node.png", selector="#nodes-card", height=1240)
    browser.press(Keys.ESCAPE)
    browser.run("scrollTo(0, 0)")
    browser.screenshot(PICTURES / "dashboard-phone.png", height=PHONE[1])
    large = world(500)
    large.do(lambda: tell_of_trouble(large))
    browser.size(1280, 900)
    browser.colours("dark")
    browser.open(large.link())
    browser.screenshot(PICTURES / "dashboard-500.png", height=900)
    sizes = {file.name: file.stat().st_size for file in PICTURES.glob("dashboard*.png")}
    assert len(sizes) == 5
    assert max(sizes.values()) < 150_000, sizes

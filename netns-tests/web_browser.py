"""A real headless Chromium: loads a page as a person does, tells what its console said, and what axe finds.

`web_browser.py SOCKET` serves one to whoever connects there: on another machine of a lab, for example.
"""

from __future__ import annotations

import base64
import io
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, TypeVar

from axe_core_python.selenium import Axe
from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

DESKTOP, PHONE = (1440, 960), (390, 844)
T = TypeVar("T")

_PATIENCE_S = 60.0
_AXE_PATIENCE_S = 180.0  # 500 nodes are seconds of work, on a busy machine more
_ALIKE = 9  # of 765
# Whatever is asked for by name is not there, as on a machine without Internet.
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--lang=en-GB",
)
_ROWS = """
Object.fromEntries([...document.querySelectorAll("#node-list li")].map((row) => {
  const text = (name) => row.querySelector(name).textContent;
  const health = row.querySelector(".badge").classList[1];
  const figures = { rtt: text(".rtt"), loss: text(".loss"), path: text(".path") };
  return [text("strong"), { health, state: text(".state"), ...figures }];
}))
"""
_LABELS = """
Object.fromEntries([...document.querySelectorAll(".map .label[visibility=visible]")].map(
  (label) => [".name", ".figure"].map((part) => label.querySelector(part).textContent)))
"""
_LABEL_BOXES = """
Object.fromEntries(
  [...document.querySelectorAll(".map .label[visibility=visible], .figures-of-rings text")].map((label) => {
    const { left, top, right, bottom } = label.getBoundingClientRect();
    return [label.querySelector(".name")?.textContent ?? label.textContent, { left, top, right, bottom }];
  }))
"""
_PLACEMENT = """
Object.fromEntries([...document.querySelectorAll("#placement li")].map((machine) => {
  const chips = [...machine.querySelectorAll(".chip")];
  return [machine.querySelector("strong").textContent, chips.map((chip) => chip.textContent)];
}))
"""
_AROUND = """
(selector, margin) => {
  const boxes = [...document.querySelectorAll(selector)].map((each) => each.getBoundingClientRect());
  const [x, y] = [Math.min(...boxes.map((box) => box.left)), Math.min(...boxes.map((box) => box.top))];
  const [right, bottom] = [Math.max(...boxes.map((box) => box.right)), Math.max(...boxes.map((box) => box.bottom))];
  return { x: x - margin, y: y - margin + scrollY, width: right - x + 2 * margin, height: bottom - y + 2 * margin };
}
"""
# By where it begins and ends: the map's lines have no names.
_WAY = """
((id) => {
  const dots = [...document.querySelectorAll(".map .dots .node")];
  const place = (dot) => /translate\\((.+)\\)/.exec(dot.getAttribute("transform"))[1];
  const end = place(dots.find((dot) => dot.dataset.id === id));
  for (const line of document.querySelectorAll(".map .links path")) {
    const path = line.getAttribute("d");
    if (!path.endsWith(`L${end}`) && !path.endsWith(` ${end}`)) continue;
    const from = dots.find((dot) => path.startsWith(`M${place(dot)}L`) || path.startsWith(`M${place(dot)}Q`));
    return { from: from.dataset.id, isDashed: getComputedStyle(line).strokeDasharray !== "none" };
  }
  return null;
})
"""


def missing_programs() -> list[str]:
    return [program for program in ("chromium", "chromedriver") if shutil.which(program) is None]


def _whatever_is_drawn(act: Callable[[], T]) -> T:
    """With an element as it is now: the page may draw it anew between that it is found and that it is used."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return act()
        except StaleElementReferenceException:
            if time.monotonic() > deadline_s:
                raise


class Browser:
    """One window."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def size(self, width: int, height: int, *, scale: float = 1) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def colours(self, scheme: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def open(self, url: str) -> float:
        """Load it anew, and wait until the page is drawn: after how many milliseconds it was, from the click on."""
        self.driver.get("about:blank")  # another fragment alone would load nothing
        self.driver.get(url)
        return float(self.until("performance.getEntriesByName('edgelink-painted')[0]?.startTime"))

    @contextmanager
    def in_a_hurry(self, wait_ms: int, instead_ms: int) -> Iterator[None]:
        """Pages that are opened meanwhile wait so long instead, wherever they wait for so long."""
        script = (
            "const wait = window.setTimeout;"
            f"window.setTimeout = (f, ms, ...more) => wait(f, ms === {wait_ms} ? {instead_ms} : ms, ...more);"
        )
        added = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)

    @contextmanager
    def without(self, path: str) -> Iterator[None]:
        """As when the way to the head is cut just then: what is asked for there gets no answer."""
        self.driver.execute_cdp_cmd("Network.enable", {})
        self.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": [f"*{path}"]})
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})

    @contextmanager
    def without_network(self) -> Iterator[None]:
        """As where a phone has no reception: nothing new is asked of anybody. What is under way is left as it is."""
        self.driver.execute_cdp_cmd("Network.enable", {})
        self._set_network(is_there=False)
        try:
            yield
        finally:
            self._set_network(is_there=True)

    def _set_network(self, *, is_there: bool) -> None:
        unlimited = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": not is_there, **unlimited})

    def forget(self) -> None:
        """No cookies, nothing cached."""
        self.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        self.driver.execute_cdp_cmd("Network.clearBrowserCache", {})

    def run(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def until(self, script: str) -> Any:
        """The value of an expression, once it is true."""
        return WebDriverWait(self.driver, _PATIENCE_S, 0.05).until(lambda _: self.run(script), script)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def click(self, selector: str) -> None:
        """In the middle of the window: the page's head stays at its top."""

        def clicked() -> None:
            element = self.find(selector)
            self.driver.execute_script("arguments[0].scrollIntoView({ block: 'center', behavior: 'instant' })", element)
            element.click()

        _whatever_is_drawn(clicked)

    def point_at(self, selector: str, share: float) -> None:
        """With the mouse, so far from the left edge of an element to its right one."""
        element = self.find(selector)
        self.driver.execute_script("arguments[0].scrollIntoView({ block: 'center', behavior: 'instant' })", element)
        from_middle = round(element.rect["width"] * (share - 0.5))
        ActionChains(self.driver).move_to_element_with_offset(element, from_middle, 0).perform()

    def text(self, selector: str) -> str:
        return _whatever_is_drawn(lambda: self.find(selector).text)

    def rows(self) -> dict[str, dict[str, str]]:
        """What the list says of each node, by name: its health, state, round trip, loss and path."""
        return dict(self.run(_ROWS.strip()))

    def labels(self) -> dict[str, str]:
        """The figures beside the names that are on the map."""
        return dict(self.run(_LABELS.strip()))

    def label_boxes(self) -> dict[str, dict[str, float]]:
        """Where on the window the map's labels are, and the rings' figures."""
        return dict(self.run(_LABEL_BOXES.strip()))

    def placement(self) -> dict[str, list[str]]:
        """What runs on each machine, by name."""
        return dict(self.run(_PLACEMENT.strip()))

    def way(self, node_id: str) -> dict[str, Any] | None:
        """How the map draws the way to a node: ``from`` whom on, and whether it ``isDashed``; None without a line."""
        found: dict[str, Any] | None = self.run(f"{_WAY.strip()}('{node_id}')")
        return found

    def press(self, key: str) -> None:
        """In whatever has the focus."""
        self.driver.switch_to.active_element.send_keys(key)

    def console(self) -> list[str]:
        """What the console said since this was last asked."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def until_console(self, words: str) -> list[str]:
        """The same, once these words are in it."""
        said: list[str] = []

        def has_said(_: object) -> bool:
            said.extend(self.console())
            return any(words in message for message in said)

        WebDriverWait(self.driver, _PATIENCE_S, 0.05).until(has_said, words)
        return said

    def asked_for(self) -> list[str]:
        """The addresses of all that the page has loaded."""
        return list(self.run("performance.getEntriesByType('resource').map((each) => each.name)"))

    def barriers(self) -> list[str]:
        """What axe finds that is serious or critical."""
        found = Axe().run(self.driver)["violations"]
        return [
            f"{each['id']}: {node['html']} {node.get('failureSummary', '')}"
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]

    def is_too_wide(self) -> bool:
        return bool(self.run("document.documentElement.scrollWidth > innerWidth"))

    def seen_after_ms(self, text: str, do: Callable[[], None]) -> float:
        """How long it takes from ``do`` until ``text`` is on the page, on this machine's one clock."""
        self.driver.execute_script(
            """
            window.seenAt = null;
            const look = () => {
              if (window.seenAt === null && document.getElementById("page").textContent.includes(arguments[0]))
                requestAnimationFrame(() => { window.seenAt ??= Date.now(); });
            };
            new MutationObserver(look).observe(document.getElementById("page"),
              { subtree: true, childList: true, characterData: true });
            """,
            text,
        )
        begun_ms = time.time() * 1000
        do()
        return float(self.until("window.seenAt")) - begun_ms

    def screenshot(self, file: Path, *, selector: str = "html", height: int | None = None, margin: int = 0) -> None:
        """Of an element, or some and what is between them, ``height`` pixels of it, default all; in few colours, so
        that it is small."""
        box = self.run(f"({_AROUND.strip()})('{selector}', {margin})")
        clip = box | {"height": min(height or box["height"], box["height"]), "scale": 1}
        options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", options)
        file.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
        in_few_colours(picture).save(file, optimize=True)


def in_few_colours(picture: Image.Image) -> Image.Image:
    """256 that fill most of it stay as they are, of those that look alike one; the others, of the edges of letters,
    become the nearest. So a small dot keeps its colour, too."""
    counted = [colour for _, colour in sorted(picture.getcolors(1 << 24), reverse=True)]
    kept: list[Any] = []
    for colour in counted:
        if len(kept) < 256 and all(
            sum(abs(a - b) for a, b in zip(colour, each, strict=True)) > _ALIKE for each in kept
        ):
            kept.append(colour)
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for colour in kept for channel in colour])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Closed at the end, with all its processes."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=options)
    driver.set_script_timeout(_AXE_PATIENCE_S)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def serve(socket: Path) -> None:
    """Do what the first that connects there asks for, a method's name and its arguments at a time, until it goes."""
    with Listener(str(socket), "AF_UNIX") as listener, listener.accept() as caller, chromium() as browser:
        for name, arguments in iter(partial(_heard, caller), None):
            try:
                answer = True, getattr(browser, name)(*arguments)
            except Exception as error:  # for who has asked
                answer = False, f"{name}{arguments}: {error}"
            caller.send(answer)


def _heard(caller: Connection) -> Any:
    """What comes next; None where it has gone."""
    try:
        return caller.recv()
    except EOFError:
        return None


if __name__ == "__main__":
    serve(Path(sys.argv[1]))

"""The page's scripts without a browser, as far as they need none; in a browser: netns-tests/test_web_page.py."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

NODE = shutil.which("node")
DAY_MS = 86_400_000
# A tab in the background: the head is heard, and the browser asks for no frame.
HIDDEN_TAB = """
const snapshots = SNAPSHOTS;
const titles = [];
const elements = {};
const element = () => ({ dataset: {}, addEventListener() {} });
globalThis.document = { title: "EdgeLink", getElementById: (id) => (elements[id] ??= element()) };
globalThis.location = { hash: "" };
globalThis.addEventListener = () => {};
globalThis.requestAnimationFrame = () => {};
async function read() {
  titles.push(document.title);
  if (snapshots.length === 0) {
    console.log(JSON.stringify(titles));
    process.exit(0);
  }
  const [kind, content] = snapshots.shift();
  return { value: new TextEncoder().encode(`event: ${kind}\\ndata: ${JSON.stringify(content)}\\n\\n`), done: false };
}
globalThis.fetch = async () => ({
  ok: true, status: 200, json: async () => ({ logged_in: true }), body: { getReader: () => ({ read }) },
});
await import("./app.js");
"""

pytestmark = pytest.mark.skipif(NODE is None, reason="needs node")


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """The page's files, where node takes them for modules."""
    for file in resources.files("edgelink.api.web").joinpath("static").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "package.json").write_text('{"type": "module"}')
    return tmp_path


def answer_of(directory: Path, script: str) -> Any:
    (directory / "asked.js").write_text(script)
    assert NODE is not None
    ran = subprocess.run([NODE, "asked.js"], cwd=directory, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (0, 4 * DAY_MS, [0, DAY_MS, 2 * DAY_MS, 3 * DAY_MS, 4 * DAY_MS]),
        (60_000, 20_782 * DAY_MS, None),
        (0, 41 * DAY_MS, [0, 11 * DAY_MS, 22 * DAY_MS, 33 * DAY_MS]),
    ],
)
def test_a_chart_over_years_has_few_ticks(scripts: Path, low: int, high: int, found: list[int] | None) -> None:
    """A machine without a clock of its own begins in 1970, and learns what time it is later."""
    asked = f"timeTicks({low}, {high}, 4)"
    script = f'const {{ timeTicks }} = await import("./charts.js"); console.log(JSON.stringify({asked}))'
    got = answer_of(scripts, script)
    assert 2 <= len(got) <= 5
    assert all(low <= tick <= high for tick in got)
    assert found is None or got == found


def test_the_title_of_a_tab_that_nobody_looks_at_counts_who_is_in_trouble(scripts: Path) -> None:
    """It is what such a tab is kept open for."""
    nodes = {name: {"node_id": name, "health": "ok"} for name in ("cloud", "edge-1", "edge-2")}
    snapshot = {"head": {"hostname": "cloud"}, "nodes": nodes, "measures": {}}

    def becomes(**health: str) -> tuple[str, Any]:
        rows = {name.replace("_", "-"): {"node_id": name, "health": each} for name, each in health.items()}
        return "changes", {"nodes": {"set": rows, "gone": []}}

    heard = [("snapshot", snapshot), becomes(edge_1="trouble", edge_2="away"), becomes(edge_1="warning", edge_2="ok")]
    titles = answer_of(scripts, HIDDEN_TAB.replace("SNAPSHOTS", json.dumps(heard)))
    assert titles == ["EdgeLink", "cloud · EdgeLink", "(2) cloud · EdgeLink", "cloud · EdgeLink"]

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
COUNTDOWN = "no answer for 2 min 10 s, given up in 2 min 50 s"
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
  ok: true, status: 200, headers: new Map(),
  json: async () => ({ logged_in: true }), body: { getReader: () => ({ read }) },
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


def node_row(name: str, **values: Any) -> dict[str, Any]:
    return {"hostname": name, "health": "ok", "silent_since": None, "given_up_at": None} | values


def paused(name: str) -> dict[str, Any]:
    """Silent for 130 s, given up in 170 s, at 1000 s."""
    at = {"silent_since": "1970-01-01T00:14:30Z", "given_up_at": "1970-01-01T00:19:30Z"}
    return node_row(name, health="paused", **at)


@pytest.mark.parametrize(
    ("nodes", "kind", "text"),
    [
        (["ok"], "ok", "Nobody else is in the network yet"),
        (["ok", "ok", "ok"], "ok", "All 3 machines work"),
        (["ok", "ok", "warning"], "warning", "All 3 machines work; 1 has something to look at"),
        (["ok", "ok", "off"], "ok", "All 2 machines work; 1 is switched off"),
        (["ok", "off"], "ok", "No other machine is switched on; 1 is switched off"),
        (["ok", "ok", "coming"], "coming", "2 of 3 machines work; 1 is starting"),
        (["ok", "paused"], "paused", "n1 is paused"),
        (["paused", "paused", "ok"], "paused", "2 of 3 machines are paused"),
        (
            ["paused", "trouble", "away", "warning"],
            "trouble",
            "2 of 4 machines do not work, n0 is paused, 1 has something to look at",
        ),
    ],
)
def test_the_sentence_at_the_top(scripts: Path, nodes: list[str], kind: str, text: str) -> None:
    """It never says that all work while one is paused, away or still starting."""
    rows = {
        f"n{number}": paused(f"n{number}") if health == "paused" else node_row(f"n{number}", health=health)
        for number, health in enumerate(nodes)
    }
    asked = f"verdictOf({json.dumps(rows)}, {{ phase: 'Ready' }}, 1_000_000)"
    got = answer_of(
        scripts, f'const {{ verdictOf }} = await import("./summary.js"); console.log(JSON.stringify({asked}))'
    )
    assert got == {
        "kind": kind,
        "text": text,
        "more": COUNTDOWN if kind == "paused" and nodes.count("paused") == 1 else "",
    }


@pytest.mark.parametrize(
    ("run", "silent", "found"),
    [
        (None, False, ["Nodes ready", "CPUs", "GPUs", "Slowest round trip 23 ms", "Rides through 5 min"]),
        (
            {"step": 142, "total_steps": 400, "steps_per_s": 0.5},
            False,
            ["Step 142 of 400", "Time left 8 min 36 s", "Return 178", "Nodes ready", "Slowest round trip 23 ms"],
        ),
        (
            {"step": 142, "total_steps": None, "steps_per_s": 0.5},
            True,
            ["Step 142", "Time left –", "Return 178", "Nodes ready", "Longest silence 2 min 10 s"],
        ),
    ],
)
def test_the_figures_are_the_runs_while_one_is_on(
    scripts: Path, run: dict[str, Any] | None, silent: bool, found: list[str]
) -> None:
    """Step, total and time left; without a total there is no time left."""
    view = run and {"run_id": "r", "in_progress": True, "metric_names": ["loss", "return"], **run}
    state = {
        "head": {"alive": 2, "nodes": 3, "cpus": 4, "gpus": 0, "ride_through_s": 300},
        "nodes": {"a": paused("a") if silent else node_row("a")},
        "measures": {"a": {"rtt_ms": 23}},
        "run": view,
        "points": [{"run_id": "r", "values": {"return": 178}}, {"run_id": "r", "values": {"loss": 1}}],
    }
    asked = f"figuresOf({json.dumps(state)}, 1_000_000).map((each) => each.join(' '))"
    got = answer_of(
        scripts, f'const {{ figuresOf }} = await import("./summary.js"); console.log(JSON.stringify({asked}))'
    )
    told = [" ".join(each.split()) for each in got]
    assert len(told) == len(found)
    assert all(each.startswith(wanted) for each, wanted in zip(told, found, strict=True)), told


def test_a_bar_is_as_long_as_a_day(scripts: Path) -> None:
    """Its newest step is at its right edge; equal steps are one stretch, what nobody saw is empty."""
    bar = {"step": 1000, "marks": "oo p" + "o" * 10}
    script = f"""
    const {{ stretches, barText }} = await import("./bars.js");
    const bar = {json.dumps(bar)};
    console.log(JSON.stringify([stretches(bar), barText(bar), barText(undefined)]));
    """
    found, text, nothing = answer_of(scripts, script)
    assert [(each["kind"], each["first"], each["end"]) for each in found] == [
        (None, 0, 130),
        ("ok", 130, 132),
        (None, 132, 133),
        ("paused", 133, 134),
        ("ok", 134, 144),
    ]
    assert "paused about" in text
    assert nothing == "Not known yet."

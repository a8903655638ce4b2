"""The page's scripts without a browser, as far as they need none; in a browser: netns-tests/test_web_page.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from page_scripts import NODE, answer_of, put_scripts
from telling import Words

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
    put_scripts(tmp_path)
    return tmp_path


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
    ("nodes", "kind"),
    [
        (["ok"], "ok"),
        (["ok", "ok", "ok"], "ok"),
        (["ok", "ok", "warning"], "warning"),
        (["ok", "ok", "off"], "ok"),
        (["ok", "off"], "ok"),
        (["ok", "ok", "coming"], "coming"),
        (["ok", "paused"], "paused"),
        (["paused", "paused", "ok"], "paused"),
        (["paused", "trouble", "away", "warning"], "trouble"),
    ],
)
def test_the_sentence_at_the_top(scripts: Path, nodes: list[str], kind: str, words: Words) -> None:
    """It never says that all work while one is paused, away or still starting."""
    rows = {
        f"n{number}": paused(f"n{number}") if health == "paused" else node_row(f"n{number}", health=health)
        for number, health in enumerate(nodes)
    }
    asked = f"verdictOf({json.dumps(rows)}, {{ phase: 'Ready' }}, 1_000_000)"
    got = answer_of(
        scripts, f'const {{ verdictOf }} = await import("./summary.js"); console.log(JSON.stringify({asked}))'
    )
    assert got["kind"] == kind
    assert "All" not in got["text"] or {"ok", "warning", "off"}.issuperset(nodes)
    assert all((figure in got["more"]) == (nodes == ["ok", "paused"]) for figure in ("2 min 10 s", "2 min 50 s"))
    words.on("page", got["text"])
    words.on("page", got["more"])


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

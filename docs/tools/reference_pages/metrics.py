"""Make ``docs/reference/metrics.md`` from the table of metrics."""

from __future__ import annotations

from edgelink.api.metrics import ALL

_HEAD = """# Metrics

Each daemon serves metrics for Prometheus at `http://127.0.0.1:9747/metrics` (`metrics.port`; the relay's daemon at
9748, `metrics.relay_port`), and with `metrics.listen: overlay` on the overlay's address, too
([how](../how-to/look.md#prometheus)). Counters begin anew with each daemon, unless it says otherwise.

This page is generated (`make reference`).

| metric | kind | labels | meaning | whose daemon |
|---|---|---|---|---|
"""


def render() -> str:
    """The page."""
    rows = []
    for one in ALL:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        rows.append(f"| `{one.name}` | {one.kind} | {labels} | {one.meaning} | {one.where} |")
    return _HEAD + "\n".join(rows) + "\n"

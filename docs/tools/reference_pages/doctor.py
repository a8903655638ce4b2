"""Make ``docs/reference/doctor.md`` from the checks."""

from __future__ import annotations

import textwrap

from edgelink.doctor.busy import BUSY_PATIENCE_S
from edgelink.doctor.check import Check, name_of
from edgelink.doctor.examine import PATIENCE_S
from edgelink.doctor.table import CHECKS, TOPICS

_WIDTH = 118
_HEAD = f"""# What `edgelink doctor` checks

`edgelink doctor` asks {len(CHECKS)} questions about this machine, side by side, in some seconds. It changes nothing and
shows no secret. With `sudo` it sees more: what only root may look at is skipped else. `edgelink doctor NAME…` asks only
what is named, by check or by topic. What is wrong comes first, then a line for each topic. `-v` lists every check, and
why some were skipped.

Each answer has a verdict, the figure behind it where there is one, and what to do where something is to be done:

| verdict | what it means |
|---|---|
| `ok` | it is as it should be |
| `limited` | it works, but holds less than it could here |
| `failed` | something does not work, or will not; the exit status is 1 |
| `skipped` | nothing to judge: this machine's role does not need it, it is not known yet, or only root may look |

A check that does not answer within {PATIENCE_S:g} s has failed: something that it looks at hangs. While all
processors of the machine are busy it has {BUSY_PATIENCE_S:g} s.

`--json` prints `{{"ok": …, "checks": […]}}`; `ok` is whether none has failed. Each check has

| key | what it holds |
|---|---|
| `check`, `topic` | its name and its topic, as below; they stay as they are from version to version |
| `verdict` | one of the four above |
| `message` | what was found, for people |
| `figure` | the number behind it, with its unit; may be empty |
| `remedy` | what to do; empty where nothing is to be done |

`--from-outside` adds the check `from-outside`: a relay knocks at this machine's public side
([how](ports.md#from-outside)). `--from-overlay NODE` adds the check `from-overlay`: this machine tries which ports of
another node answer it over the overlay ([how](ports.md#from-the-overlay)).

This page is generated (`make reference`).
"""


def render() -> str:
    """The page."""
    lines = [_HEAD]
    for topic, checks in TOPICS.items():
        lines += [f"## {topic}", "", *map(_item, checks), ""]
    return "\n".join(lines)


def _item(check: Check) -> str:
    told = " ".join((check.__doc__ or "").split()).replace("``", "`")
    item = f"- **`{name_of(check)}`**: {told}"
    return textwrap.fill(item, _WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)

"""Make ``docs/reference/training.md`` from the fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgelink.training.trainer.options import SECTIONS, default_text
from edgelink.training.trainer.setting import number_text, open_fields

_HEAD = """# Settings of the built-in trainer

`edgelink train [--config FILE] [section.key=value …]`. FILE is YAML with the sections below; it may be the file that
has the `cluster:` section. What stands on the command line wins. Unknown keys and values out of bounds are refused,
all at once, before anything starts. `edgelink train --help` lists the other options.

This page is generated (`make reference`).
"""


def render() -> str:
    """The page."""
    lines = [_HEAD]
    for name, kind in SECTIONS.items():
        lines += [f"## {name}", "", "| key | default | meaning |", "|---|---|---|"]
        for key, (field, _) in open_fields(kind).items():
            default = default_text(field)
            shown = "" if default == "not set" else f"`{default}`"
            meaning = field.metadata["meaning"].replace("|", "\\|") + _bounds(field.metadata)
            lines.append(f"| `{name}.{key}` | {shown} | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def _bounds(metadata: Mapping[str, Any]) -> str:
    words = [
        f"{word} {number_text(metadata[key])}"
        for key, word in (("at_least", "at least"), ("above", "more than"), ("at_most", "at most"))
        if metadata[key] is not None
    ]
    return f" ({', '.join(words)})" if words else ""

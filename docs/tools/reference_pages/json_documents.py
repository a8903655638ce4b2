"""Make ``docs/reference/json.md`` from the models of what `--json` prints."""

from __future__ import annotations

from itertools import starmap
from typing import Any, get_args

from pydantic.fields import FieldInfo

from edgelink.api.json_version import VERSION
from edgelink.api.schema import DOCUMENTS, Document
from reference_pages.types_in_words import in_words

_HEAD = f"""# What `--json` prints

One JSON document, indented, or, of `ping`, `wait`, `logs` and everything with `--watch`, one a line. The version of
this schema is {VERSION} (`schema`); it grows when a key is taken away or means something else. Keys may come at any
time: read those that you know. Commands that are not here print what their own page says.

Where a command fails before it has something to tell, such as without a daemon, the [error](errors.md) is text on
stderr, as it is without `--json`, and nothing is on stdout.

This page is generated (`make reference`).
"""


def render() -> str:
    """The page."""
    lines = [_HEAD]
    for kind in all_types():
        title = kind.__name__ if kind not in DOCUMENTS else (kind.__doc__ or "").rstrip(".")
        lines += [f"## {title}", ""]
        if kind not in DOCUMENTS:
            lines += [str(kind.__doc__), ""]
        lines += ["| key | type | meaning |", "|---|---|---|", *starmap(_row, kind.model_fields.items()), ""]
    return "\n".join(lines)


def all_types() -> list[type[Document]]:
    """The documents, each followed by what it is made of."""
    found: dict[type[Document], None] = {}

    def add(kind: Any) -> None:
        if isinstance(kind, type) and issubclass(kind, Document) and kind not in found:
            found[kind] = None
            for field in kind.model_fields.values():
                add(field.annotation)
        for part in get_args(kind):
            add(part)

    for document in DOCUMENTS:
        add(document)
    return list(found)


def _row(name: str, field: FieldInfo) -> str:
    key = f"`{field.alias or name}`" + ("" if field.is_required() else " (not always)")
    meaning = next((each for each in field.metadata if isinstance(each, str)), "")
    return f"| {key} | {in_words(field.annotation)} | {meaning} |"

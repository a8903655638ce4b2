"""Make ``docs/reference/config.md`` from the models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from edgelink.config.models import Config

_HEAD = """# Configuration

`/etc/edgelink/edgelink.yaml`, or `--config FILE`, or `EDGELINK_CONFIG`. Everything has a default: a machine without
a file works. Unknown keys are errors, and so is a key that stands twice in one section. Each key is also an
environment variable, with two underscores between its parts: `EDGELINK_RAY__PORT=6380` is `ray.port`; a variable wins
over the file. A text is taken as it is typed there (`EDGELINK_RAY__USER=0123`), everything else is YAML
(`EDGELINK_RELAY__ADVERTISE='[203.0.113.10]'`). `edgelink config check` tells whether a daemon of this machine can use
it, and `edgelink config show` what is in effect.

State lies in `/var/lib/edgelink` (`EDGELINK_STATE_DIR`), what does not survive a reboot in `/run/edgelink`
(`EDGELINK_RUNTIME_DIR`).

This page is generated (`make reference`).
"""


def render() -> str:
    """The page."""
    lines = [_HEAD, "| key | default | meaning |", "|---|---|---|", *_rows(Config, "")]
    for name, field in Config.model_fields.items():
        if isinstance(field.default, BaseModel):
            section = type(field.default)
            doc = (section.__doc__ or "").partition("`` ")[2].replace("``", "`")
            doc = doc[:1].upper() + doc[1:]
            lines += ["", f"## {name}", "", doc, "", "| key | default | meaning |", "|---|---|---|"]
            lines += _rows(section, f"{name}.")
    return "\n".join(lines) + "\n"


def _rows(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            continue
        meaning = (field.description or "").replace("|", "\\|")
        yield f"| `{prefix}{name}` | {_default(field.default)} | {meaning} |"


def _default(value: Any) -> str:
    if value is None or value in ((), {}):
        return ""
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"

"""The table of generated pages: each with the function that makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from reference_pages import (
    command_line,
    conditions,
    config,
    doctor,
    errors,
    facts,
    json_documents,
    metrics,
    mqtt,
    training,
)

PAGES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "command-line": command_line.render,
        "conditions": conditions.render,
        "config": config.render,
        "doctor": doctor.render,
        "errors": errors.render,
        "facts": facts.render,
        "json": json_documents.render,
        "metrics": metrics.render,
        "mqtt": mqtt.render,
        "training": training.render,
    }
)


def path_of(name: str) -> Path:
    """Return where the page stands in the repository."""
    return Path(__file__).parents[2] / "reference" / f"{name}.md"

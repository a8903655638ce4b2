"""The configuration file of a Hydra program, by the words of its command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_NAME, _PATH = ("--config-name", "-cn"), ("--config-path", "-cp")
_OVERRIDE = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@-]*=")
_DEFAULT_PATH = "config"  # what RLinf's main modules have


@dataclass(frozen=True)
class HydraConfig:
    """A configuration file and the overrides of it."""

    file: Path
    overrides: tuple[str, ...]


def hydra_config(words: Sequence[str], directory: Path) -> HydraConfig | None:
    """Return the configuration of a program whose command line is ``words``.

    Args:
        directory: where the program runs.

    Returns:
        None: the words name no configuration that is there.
    """
    script = next((number for number, word in enumerate(words) if word.endswith(".py")), None)
    if script is None:
        return None
    arguments = words[script + 1 :]
    name = _value(arguments, _NAME)
    if name is None:
        return None
    path = directory / Path(words[script]).parent / (_value(arguments, _PATH) or _DEFAULT_PATH)
    file = path / (name if name.endswith(".yaml") else f"{name}.yaml")
    overrides = tuple(word for word in arguments if _OVERRIDE.match(word))
    return HydraConfig(file, overrides) if file.is_file() else None


def _value(arguments: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the last value of an option."""
    found = None
    for word, following in zip(arguments, [*arguments[1:], None], strict=True):
        option, separator, value = word.partition("=")
        if option in names:
            found = value if separator else following
    return found

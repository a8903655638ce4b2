"""No file of the product has over 400 lines, and no constructor over 8 parameters, but for the reasons given here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import edgelink

MAX_LINES, MAX_PARAMETERS = 400, 8
ROOT = Path(edgelink.__file__).parent

_TRAINER = "the trainer is to become an example of a third of its size"
LONG_FILES = {
    "api/schema.py": "every document that --json prints, one after the other",
    "config/models.py": "every key of the configuration, one after the other",
    "doctor/probes.py": "all that the checks touch, which is what their tests replace",
    "lab/lab.py": "one class: what a lab can do, a few lines for each",
    "member/registry_client.py": "one session from its begin to its end, and each kind of message in it",
    "overlay/congestion.py": "one subject, the kernel's routes with congctl, for nodes and for a relay",
    "overlay/overlay_keeper.py": "one part whose plan and actions are read side by side",
    "placement/sections.py": "every key of RLinf's cluster section, one after the other",
    "protocol/payloads.py": "all that travels, one payload after the other",
    "ray_cluster/exchange.py": "one file that is sent to the user's interpreter, and imports nothing of ours",
    "ray_cluster/head_reconciler.py": "one story, from an address to a Ray that all may join",
    "relay/authority.py": "all that the authority decides and signs",
    "relay/registry_service.py": "one session with the broker, and each kind of message in it",
    "telemetry/dashboard.py": "the page's routes, each with what it may show",
    "training/trainer/crew.py": _TRAINER,
    "training/trainer/robot/loop.py": _TRAINER,
    "training/trainer/run.py": _TRAINER,
    "training/trainer/training.py": _TRAINER,
}
_SESSION = "one parameter for each thing that a session with the broker carries"
LONG_CONSTRUCTORS = {
    "daemon/overlay_parts.py OverlayParts": "all that EasyTier depends on, at the one place where it is put together",
    "member/registry_client.py RegistryClient": _SESSION,
    "overlay/easytier_deaths.py EasyTierDeaths": _SESSION,
    "relay/registry_service.py RegistryService": _SESSION,
    "shield/exposure.py Exposure": "one parameter for each table that it keeps, and the machine",
    "training/trainer/training.py Training": _TRAINER,
}


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text()


def constructors(source: str) -> Iterator[tuple[str, int]]:
    """Each class with a constructor, and how many parameters that takes beside the object."""
    classes = [item for item in ast.walk(ast.parse(source)) if isinstance(item, ast.ClassDef)]
    for cls in classes:
        for function in cls.body:
            if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                taken = function.args
                yield cls.name, len(taken.posonlyargs) + len(taken.args) + len(taken.kwonlyargs) - 1


def test_no_file_is_long_without_a_reason() -> None:
    assert {name for name, text in sources() if text.count("\n") > MAX_LINES} == LONG_FILES.keys()


def test_no_constructor_takes_much_without_a_reason() -> None:
    found = {f"{name} {cls}" for name, text in sources() for cls, taken in constructors(text) if taken > MAX_PARAMETERS}
    assert found == LONG_CONSTRUCTORS.keys()

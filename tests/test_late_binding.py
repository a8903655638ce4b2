"""No new callable is put into an object after its construction; the wiring of today is listed, and the list shrinks."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
from late_binding import late_bindings, names_in, package_bindings

import edgelink

_ALLOWED = Path(__file__).with_name("late_bound_callables.txt")
# The lab is a script, the fakes are made to be set, and the training side has a redesign of its own.
_LEFT_OUT = ("testing", "lab", "training")


def test_late_bound_callables_become_fewer() -> None:
    allowed = Counter(line for line in _ALLOWED.read_text().splitlines() if line and not line.startswith("#"))
    found = Counter(package_bindings(Path(edgelink.__file__).parent, _LEFT_OUT))
    new, gone = sorted((found - allowed).elements()), sorted((allowed - found).elements())
    assert new == [], "give these callables to the constructor instead; a missing permission means no"
    assert gone == [], f"well done: take these lines out of {_ALLOWED.name}"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("a.told = self.tell", "a.told = …"),
        ("a.b.told = lambda: None", "a.b.told = …"),
        ("self.part.told = partial(print, 1)", "self.part.told = …"),
        ("self.part.slot = anything", "self.part.slot = …"),
        ("a.also['x'] = self.tell", "a.also['x'] = …"),
        ("a.also |= {'x': self.tell}", "a.also |= …"),
        ("a.more.append(self.tell)", "a.more.append(…)"),
        ("part = Part()\n  a.part = part", "a.part = …"),
        ("self.part = part = Part()\n  a.part = part", "a.part = …"),
        ("b = replace(a, use=self.tell)", "replace(…, use=…)"),
        ("self.told = lambda: True", "slot self.told"),
        ("self.told: Told | None = None", "slot self.told"),
        ("self.also: dict[str, Told] = {}", "slot self.also"),
    ],
)
def test_late_binding_is_found_in_each_form(body: str, found: str) -> None:
    assert f"Owner.work: {found}" in _found(f"class Owner:\n def work(self, a):\n  {body}\n def tell(self): ...")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class A:\n def bind(self, told: Told): self.told = told", "A.bind: keeps told"),
        ("class A:\n def watch(self, told: Told): self.all.append(told)", "A.watch: keeps told"),
        ("class A:\n def watch(self, told: Told): self.all.setdefault(1, []).append(told)", "A.watch: keeps told"),
        ("class A:\n def __init__(self, may: Callable[[], bool] = lambda: True): ...", "A.__init__: default may"),
        ("class A:\n def __init__(self, *, told: Told | None = None): ...", "A.__init__: default told"),
        ("@dataclass\nclass A:\n told: Told", "A: field told"),
    ],
)
def test_setters_open_defaults_and_fields_count(source: str, found: str) -> None:
    assert found in _found(source)


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n def __init__(self, told: Told): self.told = told",
        "class A:\n def work(self, b): b.count = self.count",
        "class A:\n def work(self, b): b.revoked = frozenset(b.all)",
        "class A:\n def work(self, key: str): self.all.append(key)",
        "def work(find: Callable[[], int]): return find()",
    ],
)
def test_what_is_given_to_a_constructor_or_is_data_does_not_count(source: str) -> None:
    assert _found(source) == []


def _found(source: str) -> list[str]:
    tree = ast.parse(f"Told = Callable[[], None]\nclass Known:\n slot_of = 1\n{_KNOWN}\n{source}")
    return [line for line in late_bindings(tree, names_in([tree])) if not line.startswith("Known")]


_KNOWN = " def __init__(self): self.slot: Told = print"

"""The facts of EdgeLink: names and types fit, each that is read has a writer, and the page says who they are."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from reference_pages.facts import boards, meanings
from registry_world import World

import edgelink
from edgelink.conditions import ConditionSet, Status
from edgelink.facts.board import OWN, Fact
from edgelink.facts.derive import Kept, Run, Told, applied, overlay_is_up, running
from edgelink.facts.facts import Facts
from edgelink.member.registry_client import Session
from edgelink.protocol.held_secret import HeldSecret
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.life import Admission
from edgelink.protocol.membership import Membership
from edgelink.testing import FakeClock
from edgelink.testing.facts import board_with

PAGE = Path(__file__).parents[1] / "docs/reference/facts.md"
TYPES = get_type_hints(Facts)


def declared_facts() -> Iterator[tuple[str, Fact[Any], Any]]:
    """Every name of a fact that a module declares, with the type of the fact."""
    for module in pkgutil.walk_packages(edgelink.__path__, "edgelink."):
        if module.name.startswith(("edgelink.training", "edgelink.easytier_wheel", "edgelink.ray_cluster.helper")):
            continue
        found = importlib.import_module(module.name)
        for name, hint in get_type_hints(found).items() if "Fact[" in str(found.__annotations__) else ():
            kind = get_args(hint)[0] if get_origin(hint) is not None and "Final" in str(hint) else hint
            if get_origin(kind) is Fact:
                yield f"{module.name}.{name}", getattr(found, name), get_args(kind)[0]


def test_every_fact_is_explained() -> None:
    assert list(meanings()) == [field.name for field in fields(Facts)]


def test_names_of_facts_have_the_types_of_the_facts() -> None:
    found = {fact.name: kind for _, fact, kind in declared_facts()}
    assert found == TYPES


@pytest.mark.parametrize("role", ["relay", "head", "edge", "additional relay"])
def test_what_a_part_reads_has_the_type_of_the_fact(role: str) -> None:
    for inputs in boards()[role].inputs():
        assert is_dataclass(inputs)
        hints = get_type_hints(inputs)
        assert {name: kind for name, kind in hints.items() if name != OWN} == {
            name: TYPES[name] for name in hints if name != OWN
        }, inputs


def test_at_its_start_a_daemon_may_nothing() -> None:
    facts = Facts()
    assert facts.admission == Admission(may_start=False, is_accepted=False)
    assert not facts.admission.may_report(1)
    assert not facts.tries_next_secret


@pytest.fixture
def member(tmp_path: Path) -> Membership:
    world, key = World(tmp_path), NodeKey.generate()
    token = world.token()
    return world.membership(key, token, world.enrol(key, token))


def test_what_runs_is_what_is_on_disk_but_for_what_comes_into_use_later(member: Membership) -> None:
    former = HeldSecret(0, "the former one")
    assert running(Kept(None, None, None)) is None
    assert running(Kept(member, None, None)) == member
    assert running(Kept(member, member.lease_envelope, None)) == member
    kept = running(Kept(member, None, former))
    assert kept is not None
    assert kept.held == former
    assert kept.lease == member.lease


def test_easytier_runs_on_the_next_secret_only_while_it_is_tried(member: Membership) -> None:
    held = member.held
    prepared = member.holding(HeldSecret(held.epoch, held.secret, held.epoch + 1, "the next one"))
    assert applied(Run(prepared, tries_next_secret=False)) == prepared
    tried = applied(Run(prepared, tries_next_secret=True))
    assert tried is not None
    assert tried.held.secret == "the next one"
    assert applied(Run(member, tries_next_secret=True)) == member, "there is no next one"
    assert applied(Run(None, tries_next_secret=True)) is None


@pytest.mark.parametrize(
    ("kind", "status", "is_up"),
    [
        ("OverlayUp", Status.TRUE, True),
        ("OverlayUp", Status.FALSE, False),
        ("OverlayUp", Status.UNKNOWN, False),
        ("Leased", Status.TRUE, False),
    ],
)
def test_the_overlay_is_up_when_its_condition_says_so(kind: str, status: Status, is_up: bool) -> None:
    conditions = ConditionSet(FakeClock(), ["OverlayUp", "Leased"])
    conditions.set(kind, status, "Because", "it is so")
    assert overlay_is_up(Told(conditions.now)) is is_up


@pytest.mark.parametrize(
    "facts",
    [
        {"session": Session(is_connected=True)},
        {"admission": Admission(is_accepted=True)},
    ],
)
def test_facts_that_cannot_be_together_are_refused_in_every_test(facts: dict[str, Any]) -> None:
    """A story that could not happen proves nothing."""
    with pytest.raises(AssertionError, match="and"):
        board_with(**facts)

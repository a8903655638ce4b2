"""The table of conditions, its page, and what the code sets: all three say the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from reference_pages.conditions import to_do
from reference_pages.errors import parse
from reference_pages.errors import reasons as errors_reasons

from edgelink import errors
from edgelink.condition_table import (
    COMMON,
    KINDS,
    REFUSED_ENROLMENT,
    Place,
    Weight,
    declared,
    informing,
    required,
    types_on,
    weight_of,
)
from edgelink.conditions import Status

_ROOT = Path(__file__).parent.parent
_CODE = _ROOT / "edgelink"
_WORD = re.compile(r"([A-Z][a-z]+)+")
# Files that make up reasons which another one sets; every such word in them is one.
_MADE_IN = {
    "OverlayUp": ("overlay/device.py",),
    "PeersReachable": ("overlay/diagnosis.py",),
    "Shielded": ("shield/exposure.py",),
    "RideThrough": ("ray_cluster/host_ride_through.py",),
    "Leased": ("relay/claim_desk.py",),
}
# Where a reason is not written out: it is an error's, or of a file above; tests see each that is set (`conftest.py`).
_BY_OTHERS = {
    "overlay/overlay_keeper.py: reason",
    "overlay/overlay_keeper.py: *problem",
    "ray_cluster/ray_reconciler.py: reason",
    "ray_cluster/drift.py: *verdict",
    "shield/exposure.py: failed[0][0].condition_reason",
    "shield/exposure.py: lacks[0][0]",
    "ray_cluster/host_ride_through.py: reason",
    "member/admission.py: answer.reason",
    "overlay/peers_words.py: found.reason",
}


@dataclass(frozen=True)
class Said:
    """What a place in the code sets; ``reason`` None: it is not written out there."""

    kind: str
    status: Status | None
    reason: str | None
    place: str


def test_every_reason_has_something_to_do() -> None:
    """In the table, or with the error of that name; and none is told twice of one condition."""
    for kind in KINDS:
        names = [reason.name for reason in kind.reasons]
        assert len(names) == len(set(names)), kind.name
        assert any(reason.status is Status.TRUE for reason in kind.reasons), kind.name
    every = [reason for kind in KINDS for reason in kind.reasons] + [*COMMON, *REFUSED_ENROLMENT]
    assert [reason.name for reason in every if not to_do(reason)] == []


def test_every_reason_that_code_sets_is_in_the_table() -> None:
    """Of that condition, and with that status."""
    found = [one for one in said() if one.reason is not None]
    assert len(found) > 70
    assert {one for one in found if not _is_declared(one)} == set()


def test_reasons_that_are_not_written_out_come_from_known_places() -> None:
    """A new one has to be thought of: it is an error's, or its file is one in which every word is looked at."""
    assert {one.place for one in said() if one.reason is None} == _BY_OTHERS


@pytest.mark.parametrize("kind", sorted(_MADE_IN))
def test_every_reason_that_is_made_up_elsewhere_is_in_the_table(kind: str) -> None:
    words = {word for file in _MADE_IN[kind] for word in _words_of(file)}
    assert len(words) > 1
    assert {word for word in words if declared(kind, word) is None} == set()


def test_every_reason_in_the_table_is_one_that_code_sets() -> None:
    """Nobody reads of a reason that never comes: it is set for that condition, made up for it, or an error's."""
    written = {(one.kind, one.reason) for one in said()}
    made = {(kind, word) for kind, files in _MADE_IN.items() for file in files for word in _words_of(file)}
    told = {(kind.name, reason.name) for kind in KINDS for reason in kind.reasons}
    assert {pair for pair in told - written - made if pair[1] not in errors_reasons()} == set()
    assert {reason.name for reason in COMMON} - errors_reasons().keys() == {"NotObserved"}


def test_why_an_enrolment_is_refused() -> None:
    """Each is an error's; what the registry says of tokens, of leases and of what is asked is there."""
    told = {reason.name for reason in REFUSED_ENROLMENT}
    assert told - errors_reasons().keys() == set()
    files = {f"`relay/{name}.py`" for name in ("enrol_checks", "tokens", "token_book", "allocator", "revocations")}
    raised = {
        name
        for name, reason in errors_reasons().items()
        if any(places & files for places in reason.said.values()) and not name.endswith("Unknown")
    }
    assert len(raised) > 6
    assert raised - told - _OF_OPERATORS == set()


_OF_OPERATORS = {"Usage"}


@pytest.mark.parametrize("place", Place)
def test_what_a_daemon_shows(place: Place) -> None:
    """What makes it ready comes in the order of its start; nothing is shown twice."""
    ready, shown = types_on(place, runs_easytier=True, answers_stun=True, has_ray=True)
    assert ready[0] == "Leased"
    assert [name for name in (kind.name for kind in KINDS) if name in ready] == [*ready]
    assert len({*ready, *shown}) == len(ready) + len(shown)
    assert {"StunServing"} & {*shown} == ({"StunServing"} if "relay" in place else set())
    assert ("RayJoined" in ready) == (place in (Place.HEAD, Place.EDGE))
    assert "StunServing" not in types_on(place, runs_easytier=True, answers_stun=False, has_ray=True)[1]


def test_a_relay_beside_an_overlay_that_is_there_already() -> None:
    """It carries nothing: its device is no reason for an alarm, and nothing of EasyTier is shown."""
    ready, shown = types_on(Place.RELAY, runs_easytier=False, answers_stun=True, has_ray=True)
    assert ready == ("Leased", "BrokerRunning", "RegistryConnected")
    assert shown == ("OverlayUp", "EchoAnswered", "SecretCurrent", "RideThrough", "StateRecorded")
    ready, shown = types_on(Place.HEAD, runs_easytier=False, answers_stun=True, has_ray=True)
    assert ready == ("Leased", "RegistryConnected", "OverlayUp", "PeersReachable", "RayJoined")
    assert "Shielded" in shown
    assert "AddressesUnique" not in shown


def _is_declared(one: Said) -> bool:
    known = declared(one.kind, one.reason or "")
    return known is not None and one.status in (None, known.status)


@cache
def said() -> frozenset[Said]:
    """Every place in the code that sets a condition."""
    trees = {
        path.relative_to(_CODE).as_posix(): parse(text)
        for path in sorted(_CODE.rglob("*.py"))
        if re.search(r"conditions\.set|condition: ClassVar|Diagnosis\(|is_not_so\(", text := path.read_text())
        and not path.relative_to(_CODE)
        .as_posix()
        .startswith(("condition_table/", "training/", "testing/", "conditions.py"))
    }
    classes = {item.name: item for tree in trees.values() for item in ast.walk(tree) if isinstance(item, ast.ClassDef)}
    texts = "\n".join(path.read_text() for path in _CODE.rglob("*.py"))
    constants = dict(re.findall(r'^([A-Z_]+) = "(\w+)"', texts, re.MULTILINE))
    return frozenset(
        one
        for file, tree in trees.items()
        for holder in [*(item for item in tree.body if isinstance(item, ast.ClassDef)), tree]
        for one in _of_holder(file, holder, classes, constants)
    )


def _of_holder(
    file: str, holder: ast.ClassDef | ast.Module, classes: dict[str, ast.ClassDef], constants: dict[str, str]
) -> Iterator[Said]:
    own = _own_kind(holder, classes) if isinstance(holder, ast.ClassDef) else _only_kind(holder, classes)
    for part in holder.body:
        if isinstance(holder, ast.Module) and isinstance(part, ast.ClassDef):
            continue
        local = _assigned(part)
        for call in (item for item in ast.walk(part) if isinstance(item, ast.Call)):
            found = _setting(call, own, constants)
            if found is None:
                continue
            kind, status, expression = found
            for word in _words(expression, local, constants):
                if isinstance(word, str):
                    yield Said(kind, status, word, "")
                else:
                    yield Said(kind, status, None, f"{file}: {ast.unparse(word)}")


_SAYS = {"is_so": Status.TRUE, "is_not_so": Status.FALSE, "is_unknown": Status.UNKNOWN}


def _setting(call: ast.Call, own: str, constants: dict[str, str]) -> tuple[str, Status | None, ast.expr] | None:
    """(condition, status, expression of the reason) of a call that sets one."""
    if isinstance(call.func, ast.Name) and call.func.id == "Verdict" and len(call.args) == 3:
        return own, _status(call.args[0]), call.args[1]
    if isinstance(call.func, ast.Name) and call.func.id == "Diagnosis":
        return "PeersReachable", Status.FALSE, call.args[0]
    if isinstance(call.func, ast.Name) and call.func.id in _SAYS and (kind := _named(call.args[0]) or own):
        return kind, _SAYS[call.func.id], call.args[1]
    if not isinstance(call.func, ast.Attribute):
        return None
    holder, name = ast.unparse(call.func.value), call.func.attr
    if holder == "self" and name in ("_down", "_wait") and own:
        return own, Status.FALSE, call.args[0]
    if not holder.endswith("conditions") or name not in ("set", "set_true", "set_false"):
        return None
    kind = ast.unparse(call.args[0])
    known = {"self.condition": own, **constants}
    of = str(call.args[0].value) if isinstance(call.args[0], ast.Constant) else known[kind]
    if name != "set":
        return of, Status.TRUE if name == "set_true" else Status.FALSE, call.args[1]
    if isinstance(call.args[1], ast.Starred):
        return of, None, call.args[1]
    return of, _status(call.args[1]), call.args[2]


def _status(node: ast.expr) -> Status | None:
    return Status[node.attr] if isinstance(node, ast.Attribute) and node.attr in Status.__members__ else None


def _named(node: ast.expr) -> str:
    """The condition that is named by its row of the table; "": it is not."""
    name = ast.unparse(node).removesuffix(".name")
    found = getattr(required, name, None) or getattr(informing, name, None)
    return found.name if found else ""


def _own_kind(item: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> str:
    """The condition that the class keeps, by itself or as its base says; "": none."""
    for statement in item.body:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == "condition" and statement.value:
            return _named(statement.value) or "Leased"
    names = [ast.unparse(base).partition("[")[0] for base in item.bases]
    bases = [classes[name] for name in names if name in classes]
    return next(filter(None, (_own_kind(base, classes) for base in bases)), "")


def _only_kind(tree: ast.Module, classes: dict[str, ast.ClassDef]) -> str:
    """Of functions beside a class: that of the class."""
    found = {_own_kind(item, classes) for item in tree.body if isinstance(item, ast.ClassDef)} - {""}
    return found.pop() if len(found) == 1 else ""


def _assigned(part: ast.stmt) -> dict[str, list[ast.expr]]:
    """What local names are given, as far as that is written out."""
    found: dict[str, list[ast.expr]] = {}
    for item in ast.walk(part):
        if isinstance(item, ast.Assign):
            for target in item.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                values = item.value.elts if isinstance(item.value, ast.Tuple) else [item.value]
                if isinstance(item.value, ast.IfExp) and isinstance(item.value.body, ast.Tuple):
                    values = item.value.body.elts
                if len(names) == len(values):
                    for name, value in zip(names, values, strict=True):
                        if isinstance(name, ast.Name):
                            found.setdefault(name.id, []).append(value)
    return found


def _words(node: ast.expr, local: dict[str, list[ast.expr]], constants: dict[str, str]) -> Iterator[str | ast.expr]:
    """What a reason may be; an expression: what that is cannot be told from here."""
    branches = [node.body, node.orelse] if isinstance(node, ast.IfExp) else []
    branches += node.values if isinstance(node, ast.BoolOp) else []
    branches += local.get(node.id, []) if isinstance(node, ast.Name) else []
    if branches:
        for branch in branches:
            yield from _words(branch, local, constants)
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.Name) and node.id in constants:
        yield constants[node.id]
    elif isinstance(node, ast.Attribute) and ast.unparse(node).endswith("Error.reason"):
        name = ast.unparse(node.value)
        yield _OTHER_ERRORS[name] if name in _OTHER_ERRORS else getattr(errors, name).reason
    else:
        yield node


_OTHER_ERRORS = {"ClonedNodeError": "ClonedNode"}  # of classes that are not among the errors of all


def _words_of(file: str) -> set[str]:
    """Every word like a reason that stands in the code of this file."""
    tree = parse((_CODE / file).read_text())
    texts = {item.value for item in ast.walk(tree) if isinstance(item, ast.Constant) and isinstance(item.value, str)}
    return {text for text in texts if _WORD.fullmatch(text)}


@pytest.mark.parametrize(
    ("kind", "status", "reason", "weight"),
    [
        ("Leased", "True", "Leased", Weight.WELL),
        ("DriverRunning", "False", "NoRun", Weight.IDLE),
        ("RayJoined", "False", "HeadNotSeen", Weight.COMES),
        ("RegistryConnected", "False", "RegistryUnavailable", Weight.WRONG),
        ("Leased", "Unknown", "NotObserved", Weight.COMES),
        ("Leased", "False", "OfANewerEdgeLink", Weight.WRONG),
        ("OfANewerEdgeLink", "True", "Fine", Weight.WELL),
    ],
)
def test_how_much_attention_a_condition_wants(kind: str, status: str, reason: str, weight: Weight) -> None:
    """Idle and coming are no faults; what only a newer EdgeLink knows is judged by its status."""
    assert weight_of(kind, status, reason) is weight

"""Find wiring that only shows while the program runs: callables put into objects after their construction, and slots
that wait for one.

Reads the syntax tree only. Names stand for types: a method is known by its name, unless a field has that name too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CONTAINER_CALLS = {"append", "add", "insert", "setdefault", "update"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Names:
    """What names mean in a package: ``aliases`` of Callable, ``callables`` that are never data, ``slots`` for one."""

    aliases: frozenset[str]
    callables: frozenset[str]
    slots: frozenset[str]


def names_in(trees: list[ast.Module]) -> Names:
    """Collect the callable names of all modules together."""
    aliases, functions, fields, slots = {"Callable"}, set(), set(), set()
    for tree in trees:
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    is_property = any("property" in ast.unparse(item) for item in node.decorator_list)
                    (fields if is_property else functions).add(node.name)
                case ast.AnnAssign(target=ast.Name(id=name)) | ast.AnnAssign(target=ast.Attribute(attr=name)):
                    fields.add(name)
                case ast.Assign(targets=[ast.Attribute(attr=name)]):
                    fields.add(name)
        for node in tree.body:
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and _mentions(node.value, aliases)
            ):
                aliases.add(node.targets[0].id)
    for tree in trees:
        for node in ast.walk(tree):
            match node:
                case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=annotation):
                    if _mentions(annotation, aliases):
                        slots.add(name)
    return Names(frozenset(aliases), frozenset(functions - fields), frozenset(slots))


def late_bindings(tree: ast.Module, names: Names) -> Iterator[str]:
    """Yield ``where: what`` for each late-bound callable and each slot that waits for one."""
    yield from _in_body(tree.body, "", names, is_class=False)


def package_bindings(package: Path, left_out: tuple[str, ...]) -> list[str]:
    """All of a package, but for the folders ``left_out``: ``file: where: what``, sorted; one line for each place."""
    files = [path for path in sorted(package.rglob("*.py")) if path.relative_to(package).parts[0] not in left_out]
    trees = {path: ast.parse(path.read_text()) for path in files}
    names = names_in(list(trees.values()))
    return sorted(
        f"{path.relative_to(package)}: {found}" for path, tree in trees.items() for found in late_bindings(tree, names)
    )


def _in_body(body: list[ast.stmt], where: str, names: Names, *, is_class: bool) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _in_body(statement.body, f"{where}{statement.name}.", names, is_class=True)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _in_function(statement, f"{where}{statement.name}", names)
        elif is_class and isinstance(statement, ast.AnnAssign):
            is_field = "ClassVar" not in ast.unparse(statement.annotation)
            if is_field and _mentions(statement.annotation, names.aliases):
                yield f"{where[:-1]}: field {ast.unparse(statement.target)}"


def _in_function(function: _Function, where: str, names: Names) -> Iterator[str]:
    yield from _open_defaults(function, where, names)
    if not function.name.startswith("__init__"):
        yield from _stored_parameters(function, where, names)
    objects = _made_here(function)
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    is_slot = isinstance(target, ast.Attribute) and target.attr in names.slots
                    if _is_anothers(target) and (is_slot or _is_callable(value, names, objects)):
                        yield f"{where}: {ast.unparse(target)} = …"
                    elif _is_own(target) and isinstance(value, ast.Lambda):
                        yield f"{where}: slot {ast.unparse(target)}"
            case ast.AnnAssign(target=target, value=value, annotation=annotation):
                is_slot = value is None or isinstance(value, ast.Lambda) or _is_empty(value)
                if _is_own(target) and _mentions(annotation, names.aliases) and is_slot:
                    yield f"{where}: slot {ast.unparse(target)}"
            case ast.AugAssign(target=target, value=ast.Dict(values=values)):
                if any(_is_callable(value, names, objects) for value in values) and isinstance(target, ast.Attribute):
                    yield f"{where}: {ast.unparse(target)} |= …"
            case ast.Call(func=ast.Attribute(attr=attr, value=ast.Attribute() as container), args=args):
                is_anothers = attr in _CONTAINER_CALLS and not _is_own(container)
                if is_anothers and any(_is_callable(value, names, {}) for value in args):
                    yield f"{where}: {ast.unparse(container)}.{attr}(…)"
            case ast.Call(func=ast.Name(id="replace"), args=[_], keywords=keywords):
                for keyword in keywords:
                    if _is_callable(keyword.value, names, {}):
                        yield f"{where}: replace(…, {keyword.arg}=…)"


def _open_defaults(function: _Function, where: str, names: Names) -> Iterator[str]:
    """Parameters that do nothing, or permit, where nobody gives a callable."""
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    pairs = [
        *zip(positional[::-1], spec.defaults[::-1], strict=False),
        *zip(spec.kwonlyargs, spec.kw_defaults, strict=True),
    ]
    for parameter, default in pairs:
        is_callable = parameter.annotation is not None and _mentions(parameter.annotation, names.aliases)
        if isinstance(default, ast.Lambda) or (is_callable and default is not None and _is_empty(default)):
            yield f"{where}: default {parameter.arg}"


def _stored_parameters(function: _Function, where: str, names: Names) -> Iterator[str]:
    """Setters: methods that keep a callable they are given, in whatever container of their object."""
    spec = function.args
    given = {
        item.arg
        for item in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)
        if item.annotation is not None and _mentions(item.annotation, names.aliases)
    }
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[target], value=value):
                kept = (
                    _used_names(value) & given
                    if _root(target) == "self" and not isinstance(target, ast.Name)
                    else set()
                )
            case ast.Call(func=ast.Attribute(attr=attr, value=container), args=args):
                is_kept = attr in _CONTAINER_CALLS and _root(container) == "self"
                kept = {name for value in args for name in _used_names(value)} & given if is_kept else set()
            case _:
                continue
        for name in sorted(kept):
            yield f"{where}: keeps {name}"


def _made_here(function: _Function) -> dict[str, str]:
    """Local variables that hold an object made in this function: name → class."""
    return {
        target.id: node.value.func.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id[:1].isupper()
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _is_callable(value: ast.expr, names: Names, objects: dict[str, str]) -> bool:
    match value:
        case ast.Lambda():
            return True
        case ast.Call(func=ast.Name(id="partial")):
            return True
        case ast.Name(id=name):
            return name in names.callables or name in objects
        case ast.Attribute(attr=attr):
            return attr in names.callables
        case ast.IfExp(body=body, orelse=orelse):
            return _is_callable(body, names, objects) or _is_callable(orelse, names, objects)
    return False


def _is_own(target: ast.expr) -> bool:
    return (
        isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")
    )


def _is_anothers(target: ast.expr) -> bool:
    """An attribute of another object than self, or an entry of a container in one."""
    if isinstance(target, ast.Subscript):
        return isinstance(target.value, ast.Attribute) and not _is_own(target.value)
    return isinstance(target, ast.Attribute) and not _is_own(target)


def _is_empty(value: ast.expr | None) -> bool:
    match value:
        case ast.Constant(value=None) | ast.Dict(keys=[]) | ast.List(elts=[]) | ast.Tuple(elts=[]):
            return True
    return False


def _mentions(annotation: ast.expr, aliases: set[str] | frozenset[str]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in aliases for node in ast.walk(annotation))


def _used_names(value: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}


def _root(target: ast.expr) -> str:
    while isinstance(target, ast.Attribute | ast.Subscript | ast.Call):
        target = target.func if isinstance(target, ast.Call) else target.value
    return target.id if isinstance(target, ast.Name) else ""

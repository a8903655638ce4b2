"""The file of ``edgelink run --apps``: programs on named nodes. What is wrong with it is found before they start."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from edgelink.config.load import line_of
from edgelink.config.mistakes import describe, key_of
from edgelink.config.models import Port
from edgelink.duration import parse_duration_s
from edgelink.errors import ConfigError
from edgelink.strict_yaml import Place, dotted, lines_of_keys, parse
from edgelink.yaml_mistakes import YamlMistakeError

FILES = "files"  # {files} in a text: where the files of the run lie on the node
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_REFERENCE = re.compile(r"\{([A-Za-z0-9_-]+)\.(host|port)\}|\{files\}")
_HINT = "the documentation's page Apps explains every key"
_LEAST_STUCK_S, _MOST_RETRIES = 5.0, 1000


def _several(value: object) -> object:
    return [value] if isinstance(value, str | int) and not isinstance(value, bool) else value


def _texts(value: object) -> object:
    """Numbers in a command are texts."""
    if not isinstance(value, list):
        return value
    return [str(each) if isinstance(each, int | float) and not isinstance(each, bool) else each for each in value]


def _seconds(value: object) -> object:
    return parse_duration_s(value) if isinstance(value, str) else value


def _below(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError("is no path below the folder of this file")
    return text


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class App(_Section):
    """One program on one node."""

    node: str = Field(description="the node that runs it, by its name in the network")
    python: Path | None = Field(None, description="the interpreter; `command` then holds its arguments")
    command: Annotated[tuple[str, ...], BeforeValidator(_texts)] = Field(min_length=1, description="what to run")
    listens: Annotated[tuple[Port, ...], BeforeValidator(_several)] = Field(
        (), description="TCP ports where it answers; the first one is `{NAME.port}`"
    )
    after: Annotated[tuple[str, ...], BeforeValidator(_several)] = Field(
        (), description="apps that have to answer on all their ports before this one starts"
    )
    restart: Literal["on-failure", "always", "never"] = Field("on-failure", description="when it is started again")
    ends_run: bool = Field(False, description="when it ends well, the run ends, and the other apps with it")
    cwd: str | None = Field(None, description="its directory; default: where the files of the run lie")
    env: Annotated[dict[str, str], Field(description="variables that it gets beside those of its node")] = {}

    @property
    def argv(self) -> tuple[str, ...]:
        """The whole command."""
        return self.command if self.python is None else (str(self.python), *self.command)


class AppsFile(_Section):
    """The whole file."""

    apps: dict[str, App] = Field(min_length=1, description="the programs, by name")
    files: Annotated[tuple[Annotated[str, AfterValidator(_below)], ...], BeforeValidator(_several)] = Field(
        (), description="files and folders beside this file that each node of an app gets"
    )
    retries: int = Field(3, ge=0, le=_MOST_RETRIES, description="how often an app is started again")
    stuck_after: Annotated[float, BeforeValidator(_seconds), Field(ge=_LEAST_STUCK_S)] | None = Field(
        None,
        description="no byte on an app's ports for so long while its nodes answer: it is stuck; default: not watched",
    )


@dataclass(frozen=True)
class Where:
    """A node that can run apps."""

    hostname: str
    overlay_ip: str
    is_here: bool


def read_apps_file(path: Path) -> AppsFile:
    """Return what the file says. Raises ConfigError, which names every mistake with its line."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {why}", hint="correct --apps") from error
    try:
        values = parse(text)
    except YamlMistakeError as error:
        raise ConfigError(f"{path}: {error}", hint=error.hint) from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: has no keys", hint=f"begin with `apps:`. {_HINT}")
    try:
        found = AppsFile.model_validate(values)
    except ValidationError as error:
        told = {key_of(item["loc"], values): item for item in error.errors()}
        mistakes = [(place, _described(item, place)) for place, item in told.items()]
    else:
        mistakes = list(_mistakes(found))
    if mistakes:
        lines = lines_of_keys(text)
        raise ConfigError(
            f"{path}: {'; '.join(_with_line(place, what, lines) for place, what in mistakes)}", hint=_HINT
        )
    for name in found.files:
        if not (path.parent / name).exists():
            raise ConfigError(f"{path}: files: there is no {path.parent / name}", hint="correct `files`")
    return found


def _with_line(place: Place, what: str, lines: Mapping[Place, int]) -> str:
    line = line_of(place, lines)
    return what if line is None else f"line {line}: {what}"


def _described(item: Any, place: Place) -> str:
    if item["type"] != "extra_forbidden":
        return describe(item, place, AppsFile)
    known = list((App if len(place) > 1 else AppsFile).model_fields)
    near = get_close_matches(str(place[-1]), known, n=1)
    return f"{dotted(place)}: unknown key; " + (f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}")


def _mistakes(file: AppsFile) -> Iterator[tuple[Place, str]]:
    """What does not go together."""
    ports: dict[tuple[str, int], str] = {}
    for name, app in file.apps.items():
        place: Place = ("apps", name)
        if _NAME.fullmatch(name) is None or name == FILES:
            yield place, f"apps.{name}: a name has 1 to 32 of a-z, 0-9 and, inside, dashes"
        for port in app.listens:
            if (other := ports.setdefault((app.node, port), name)) != name:
                yield place, f"apps.{name}.listens: {other} listens on {port} of {app.node}, too"
        for other in app.after:
            if other not in file.apps:
                yield (*place, "after"), f"apps.{name}.after: there is no app {other}{_near(other, file.apps)}"
            elif not file.apps[other].listens:
                yield (
                    (*place, "after"),
                    f"apps.{name}.after: {other} listens on no port, so nothing says when it is ready",
                )
        for text in (*app.argv, *app.env.values(), app.cwd or ""):
            for found in _REFERENCE.finditer(text):
                other, what = found.groups()
                if other is not None and other not in file.apps:
                    yield place, f"apps.{name}: {found[0]}: there is no app {other}{_near(other, file.apps)}"
                elif what == "port" and not file.apps[other].listens:
                    yield place, f"apps.{name}: {found[0]}: {other} listens on no port"
    try:
        order(file)
    except CycleError as error:
        yield ("apps",), f"apps: each of {' → '.join(error.args[1])} waits for the next one"


def _near(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def order(file: AppsFile) -> list[str]:
    """Return the names of the apps so that each comes behind those that it starts after. Raises CycleError."""
    known = {name: [other for other in app.after if other in file.apps] for name, app in file.apps.items()}
    return list(TopologicalSorter(known).static_order())


def check_nodes(path: Path, file: AppsFile, nodes: Mapping[str, Where]) -> None:
    """Raises ConfigError where an app is to run on a node that there is not."""
    unknown = [
        f"apps.{name}.node: there is no node {app.node}" for name, app in file.apps.items() if app.node not in nodes
    ]
    if unknown:
        raise ConfigError(f"{path}: {'; '.join(unknown)}", hint=f"nodes are: {', '.join(sorted(nodes))}")


def filled(text: str, file: AppsFile, nodes: Mapping[str, Where], files: str) -> str:
    """Return ``text`` with the addresses and ports of the apps that it names.

    Args:
        files: the directory of the run's files on the node that gets the text.
    """

    def value(found: re.Match[str]) -> str:
        other, what = found.groups()
        if other is None:
            return files
        app = file.apps[other]
        return nodes[app.node].overlay_ip if what == "host" else str(app.listens[0])

    return _REFERENCE.sub(value, text)

"""Cluster files of Hydra's style: composed by an interpreter that has hydra, else read as far as they go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgelink.cli.rlinf_program import InstalledRlinf, installed_rlinf, note_own_placement
from edgelink.cli.users_python import ask, interpreters
from edgelink.errors import PlacementError
from edgelink.placement import InvalidClusterError, Notice, RlinfRules, rlinf_rules
from edgelink.placement.cluster_file import YamlFile, read_yaml, section_of

_HELPER = Path(__file__).parent.parent / "training" / "compose_config.py"
_REFUSED = 4  # of the helper


@dataclass(frozen=True)
class ReadCluster:
    """A cluster section, what may be regretted of the way to it, and the whole configuration as far as it is known."""

    section: Mapping[str, Any]
    notices: tuple[Notice, ...]
    content: Any = None
    source: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)  # of ``source``; empty where the section was composed
    installed: InstalledRlinf | None = None

    @property
    def versions(self) -> Mapping[str, str | None]:
        """Return the arguments of ``rlinf_rules``."""
        return {} if self.installed is None else self.installed.versions

    @property
    def rules(self) -> RlinfRules:
        """The rules of the RLinf that is installed."""
        return rlinf_rules(**self.versions)

    @contextmanager
    def located(self) -> Iterator[None]:
        """Add file and lines to the problems that are found in the section meanwhile."""
        try:
            yield
        except InvalidClusterError as error:
            raise error.located(self.source, self.lines) from error


def read_cluster(
    path: Path, overrides: Sequence[str], python: Path | None, environment: Mapping[str, str] | None = None
) -> ReadCluster:
    """The cluster section of ``path``, composed where it has a ``defaults`` list or interpolations.

    Args:
        overrides: Hydra's, as on the command line of the training program.
        python: interpreter that has hydra; None: ``ray.python``, else the first that has it of this one and python3.
        environment: what the interpreter composes it with; None: our own.

    Raises:
        PlacementError: unreadable, no cluster section, it cannot be composed, or Hydra refuses it.
    """
    read = _read_cluster(path, overrides, python, environment)
    notices = (*read.notices, *note_own_placement(read.content))
    return replace(read, notices=notices, installed=installed_rlinf(python))


def _read_cluster(
    path: Path, overrides: Sequence[str], python: Path | None, environment: Mapping[str, str] | None
) -> ReadCluster:
    """Return the same without what is for the program to say."""
    file = read_yaml(path)
    defaults = file.content.get("defaults") if isinstance(file.content, Mapping) else None
    if not defaults and not overrides and "${" not in file.text:
        return _as_written(file, path)
    why_not = []
    for candidate in interpreters(python):
        composed, problem = _compose(candidate, path, overrides, environment)
        if composed is not None:
            section = section_of(composed["section"], str(path), {})
            return ReadCluster(section, file.notices, composed.get("content"), str(path))
        why_not.append(f"{candidate}: {problem}")
    reasons = "; ".join(why_not) or "no interpreter has hydra"
    if overrides:
        raise PlacementError(f"{path}: cannot be composed: {reasons}", hint=_FIX)
    try:
        own = _as_written(file, path)
    except PlacementError as error:
        if not defaults and not isinstance(error, InvalidClusterError):
            raise
        raise PlacementError(f"{path}: cannot be composed: {reasons}", hint=_FIX) from error
    if not defaults:
        return own
    unseen = ", ".join(_names(defaults))
    message = f"what {unseen} bring to the cluster section was not seen ({reasons})"
    return replace(own, notices=(*file.notices, Notice("defaults_not_composed", message, "defaults", _FIX)))


def _as_written(file: YamlFile, path: Path) -> ReadCluster:
    section = section_of(file.content, str(path), file.lines)
    return ReadCluster(section, file.notices, file.content, str(path), file.lines)


_FIX = "name an interpreter that has hydra with --python, and set the variables that the search path needs"


def _names(defaults: Any) -> list[str]:
    """Of Hydra's defaults list, for messages."""
    if not isinstance(defaults, list):
        return [str(defaults)]
    named = [
        ", ".join(f"{key}/{value}" for key, value in item.items()) if isinstance(item, Mapping) else str(item)
        for item in defaults
    ]
    return [name for name in named if name != "_self_"] or ["the defaults list"]


def _compose(
    python: Path, path: Path, overrides: Sequence[str], environment: Mapping[str, str] | None
) -> tuple[dict[str, Any] | None, str]:
    """Return the interpreter's answer, or None and why there is none.

    Raises:
        PlacementError: Hydra refuses the file.
    """
    status, answer = ask(python, _HELPER, [str(path.absolute()), *overrides], environment=environment)
    if status == 0 and "section" in answer:
        return answer, ""
    problem = str(answer.get("error", "gave no answer"))
    if status == _REFUSED:
        said = problem.partition("\n\n")[0]  # what follows is the search path, over many lines
        raise PlacementError(
            f"{path}: Hydra refuses it: {said}",
            hint="correct its defaults list, or add the file: the training program would end with the same words",
        )
    return None, problem

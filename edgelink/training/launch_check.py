"""What verl's and OpenRLHF's command lines ask of Ray, compared with what is free."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from edgelink.clock import SystemClock
from edgelink.errors import ConfigError, DeadlineError
from edgelink.frameworks.packages import packages_of
from edgelink.training import openrlhf, verl
from edgelink.training.command_words import module_of, shell_text
from edgelink.training.framework import OPENRLHF, VERL, Framework
from edgelink.training.resources import Demand, NodeResources, Shortage, shortage

_FREED_S = 15.0  # what a driver before this one had is free again some seconds after its end
_LOOK_S = 1.0

Say = Callable[[str], None]
RaysNodes = Callable[[], Sequence[NodeResources]]
"""What each node has now. Raises LookupError: Ray does not say."""


def check_launch(
    framework: Framework,
    argv: Sequence[str],
    program: str,
    environment: Mapping[str, str],
    nodes: RaysNodes,
    say: Say,
    *,
    compares: bool = True,
    is_reported: bool = False,
) -> tuple[Demand, ...]:
    """Refuse a driver of verl or OpenRLHF that would wait for ever for devices that nobody has.

    What a shell script or ``bash -c`` starts is for the shell to say: see :func:`check_started`.

    Args:
        program: what ``argv[0]`` is, as a path.
        environment: the driver's.
        say: what cannot be checked, and why, goes here.
        compares: False: what the command's options ask for is not compared with what the cluster has.
        is_reported: the program will report its words once it has started.

    Returns:
        What was compared.

    Raises:
        ConfigError: the cluster has too little, the command contradicts itself, or a package is too old.
        DeadlineError: the cluster has enough, but others hold it.
    """
    if framework not in (VERL, OPENRLHF) or not environment.get("RAY_ADDRESS"):
        return ()
    _check_versions(framework, _python(program, environment), environment, say)
    if not compares:
        return ()
    if (shell := shell_text(argv, Path.cwd())) is not None:
        if is_reported:
            say(f"what {shell.name} asks of Ray is compared with what the cluster has once its program starts")
        else:
            say(f"warning: what {shell.name} asks of Ray is not compared with what the cluster has")
        return ()
    demands = _asked(framework, argv, say)
    _compare(framework, demands, nodes, say)
    return tuple(demands)


def check_started(
    package: str,
    words: Sequence[str],
    python: str,
    environment: Mapping[str, str],
    nodes: RaysNodes,
    say: Say,
    *,
    compared: Sequence[Demand],
) -> None:
    """Refuse a program that has started, as :func:`check_launch` would have, had it known the words.

    Args:
        package: what the program imported: a framework, or ``ray`` if it submits a job.
        words: its command line, after the shell.
        python: the interpreter that runs it.
        environment: the driver's.
        compared: what was compared before the start.

    Raises:
        ConfigError, DeadlineError: as there.
    """
    for framework in (VERL, OPENRLHF):
        module = module_of(words, framework.modules)
        if package not in framework.modules and (module is None or package != "ray"):
            continue
        if module and framework.without_ray and framework.without_ray.match(module):
            continue
        if package != "ray":
            _check_versions(framework, python, environment, say)
        demands = _asked(framework, words, say)
        if tuple(demands) != tuple(compared):
            _compare(framework, demands, nodes, say)


def _check_versions(framework: Framework, python: str, environment: Mapping[str, str], say: Say) -> None:
    """Raises ConfigError: a package of the driver's interpreter is too old for OpenRLHF."""
    if framework is not OPENRLHF:
        return
    try:
        found = packages_of(python, tuple(openrlhf.MINIMUM), environment)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        say(f"warning: {python} does not tell which packages it has: {error}")
        return
    if refusal := openrlhf.too_old({name: package.version for name, package in found.items()}):
        minimums = ", ".join(f"{name}>={'.'.join(map(str, least))}" for name, least in openrlhf.MINIMUM.items())
        raise ConfigError(
            f"{python}: {refusal}",
            hint=f"pip install {minimums}; the same Ray on every node",
            reason="PackageTooOld",
        )


def _compare(framework: Framework, demands: Sequence[Demand], nodes: RaysNodes, say: Say) -> None:
    """Return once there is room for ``demands``; wait a little for what others hold."""
    clock = SystemClock()
    deadline_s, is_told = clock.monotonic_s() + _FREED_S, False
    while demands:
        try:
            has = nodes()
        except LookupError as error:
            say(f"warning: what the cluster has free is not known: {error}")
            return
        short = shortage(demands, has)
        if short is None:
            return
        if short.is_for_good or clock.monotonic_s() >= deadline_s:
            _refuse(framework, short, has)
        if not is_told:
            say(f"waiting {_FREED_S:g} s for what others hold: {short.message(has)}")
            is_told = True
        clock.block(_LOOK_S)


def _asked(framework: Framework, words: Sequence[str], say: Say) -> Sequence[Demand]:
    """Return what the words ask of Ray, and say which of them cannot be read."""
    of_framework = verl.asked(words) if framework is VERL else openrlhf.asked(words)
    if of_framework.unclear:
        say(f"warning: not compared with what the cluster has: {of_framework.unclear}")
    return of_framework.demands


def _refuse(framework: Framework, short: Shortage, has: Sequence[NodeResources]) -> None:
    message = f"{framework.name} would wait for ever: {short.message(has)}"
    if short.is_for_good:
        raise ConfigError(
            message,
            hint="lower the numbers on the command line, or add nodes: `edgelink nodes` shows what each has; "
            "--no-resource-check starts CMD all the same",
            reason="ResourcesMissing",
        )
    raise DeadlineError(
        message, hint="somebody else holds them: `edgelink exec -- ray status` shows who", reason="ResourcesTaken"
    )


def _python(program: str, environment: Mapping[str, str]) -> str:
    """The interpreter that the driver uses: the command's own, or the first that its shell would find."""
    if Path(program).name.startswith("python"):
        return program
    path = environment.get("PATH", "")
    return shutil.which("python3", path=path) or shutil.which("python", path=path) or "python3"

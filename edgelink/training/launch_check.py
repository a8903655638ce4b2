"""What verl's and OpenRLHF's command lines ask of Ray, compared with what is free, before the driver starts."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgelink.clock import SystemClock
from edgelink.errors import ConfigError, DeadlineError
from edgelink.training import openrlhf, verl
from edgelink.training.command_words import command_words, module_of
from edgelink.training.framework import OPENRLHF, VERL, Framework
from edgelink.training.resources import Demand, NodeResources, Shortage, has_in_words, shortage

_HELPER = Path(__file__).with_name("free_resources.py")
_ANSWER_S = 60.0  # 2 s as a rule; an interpreter on a busy machine or a slow disk needs more
_FREED_S = 15.0  # what a driver before this one had is free again some seconds after its end
_LOOK_S = 1.0

Say = Callable[[str], None]


def check_launch(
    framework: Framework,
    argv: Sequence[str],
    program: str,
    environment: Mapping[str, str],
    nodes: Sequence[Mapping[str, Any]],
    say: Say,
    *,
    compares: bool = True,
    is_reported: bool = False,
) -> tuple[Demand, ...]:
    """Refuse a driver of verl or OpenRLHF that would wait for ever for devices that nobody has.

    Args:
        program: what ``argv[0]`` is, as a path.
        environment: the driver's.
        nodes: as the head granted them, for their names.
        say: what cannot be checked, and why, goes here.
        compares: False: what the command's options ask for is not compared with what the cluster has.
        is_reported: the program will report its words once it has started, see :func:`check_started`.

    Returns:
        What was compared.

    Raises:
        ConfigError: the cluster has too little, the command contradicts itself, or a package is too old.
        DeadlineError: the cluster has enough, but others hold it.
    """
    if framework not in (VERL, OPENRLHF) or not environment.get("RAY_ADDRESS"):
        return ()
    words = command_words(argv, Path.cwd(), framework.modules)
    demands, unclear = _asked(framework, words) if compares else ((), "")
    if unclear and is_reported:
        say(f"not known before the program starts, and compared then: {unclear}")
    elif unclear:
        say(f"warning: not compared with what the cluster has: {unclear}")
    if demands or framework is OPENRLHF:
        _compare(framework, demands, _python(program, environment), environment, nodes, say)
    return tuple(demands)


def check_started(
    words: Sequence[str],
    package: str,
    python: str,
    environment: Mapping[str, str],
    nodes: Sequence[Mapping[str, Any]],
    say: Say,
    *,
    compared: Sequence[Demand],
) -> None:
    """Refuse a program that has started, as :func:`check_launch` would have, had it known the words.

    Args:
        words: its command line, after the shell.
        package: the framework that it imports.
        python: the interpreter that runs it.
        compared: what was compared before the start.

    Raises:
        ConfigError, DeadlineError: as there.
    """
    framework = next((each for each in (VERL, OPENRLHF) if package in each.modules), None)
    if framework is None or not environment.get("RAY_ADDRESS"):
        return
    module = module_of(words, framework.modules) or ""
    if framework.without_ray is not None and framework.without_ray.match(module):
        return
    demands, unclear = _asked(framework, words)
    if unclear:
        say(f"warning: not compared with what the cluster has: {unclear}")
    if demands and tuple(demands) != tuple(compared):
        _compare(framework, demands, python, environment, nodes, say)


def _compare(
    framework: Framework,
    demands: Sequence[Demand],
    python: str,
    environment: Mapping[str, str],
    nodes: Sequence[Mapping[str, Any]],
    say: Say,
) -> None:
    clock = SystemClock()
    deadline_s, is_told = clock.monotonic_s() + _FREED_S, False
    while True:
        try:
            answer = _ask(python, environment["RAY_ADDRESS"], environment)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            say(f"warning: what the cluster has free is not known: {error}")
            return
        if framework is OPENRLHF and (refusal := openrlhf.too_old(answer["versions"])):
            minimums = ", ".join(f"{name}>={'.'.join(map(str, least))}" for name, least in openrlhf.MINIMUM.items())
            raise ConfigError(
                f"{python}: {refusal}",
                hint=f"pip install {minimums}; the same Ray on every node",
                reason="PackageTooOld",
            )
        if not demands:
            return
        if answer["nodes"] is None:
            say(f"warning: what the cluster has free is not known: {answer.get('error')}")
            return
        has = named(answer["nodes"], nodes)
        short = shortage(demands, has)
        if short is None:
            _warn_of_cpus(framework, demands, has, say)
            return
        if short.is_for_good or clock.monotonic_s() >= deadline_s:
            _refuse(framework, short, has)
        if not is_told:
            say(f"waiting {_FREED_S:g} s for what others hold: {short.message(has)}")
            is_told = True
        clock.block(_LOOK_S)


def named(found: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]) -> list[NodeResources]:
    """What Ray said, with the names that people know the nodes by."""
    names = {node.get("overlay_ip"): node.get("hostname") for node in nodes}
    resources = [NodeResources(str(names.get(each["ip"]) or each["ip"]), each["total"], each["free"]) for each in found]
    return sorted(resources, key=lambda each: each.name)


def _asked(framework: Framework, words: Sequence[str]) -> tuple[Sequence[Demand], str]:
    if framework is VERL:
        of_verl = verl.asked(words)
        return of_verl.demands, ", ".join(of_verl.unclear)
    of_openrlhf = openrlhf.asked(words)
    return of_openrlhf.demands, of_openrlhf.unclear


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


def _warn_of_cpus(framework: Framework, demands: Sequence[Demand], has: Sequence[NodeResources], say: Say) -> None:
    """verl's bundles ask for CPUs, too, in numbers that differ between its versions."""
    if framework is not VERL or (short := shortage(verl.with_cpus(demands), has)) is None:
        return
    say(
        f"warning: verl 0.9 wants {verl.CPUS_A_DEVICE:g} CPUs beside each {short.device}, and waits for ever without: "
        f"{has_in_words(has, short.device, with_cpus=True)} (ray.num_cpus tells Ray of more)"
    )


def _python(program: str, environment: Mapping[str, str]) -> str:
    """The interpreter that the driver uses: the command's own, or the first that its shell would find."""
    if Path(program).name.startswith("python"):
        return program
    path = environment.get("PATH", "")
    return shutil.which("python3", path=path) or shutil.which("python", path=path) or "python3"


def _ask(python: str, address: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Raises OSError, SubprocessError, ValueError."""
    done = subprocess.run(
        [python, str(_HELPER), address],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_ANSWER_S,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1] if done.stdout else "")
    return answer

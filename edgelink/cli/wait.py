"""``edgelink wait``: until this node is ready, or the cluster has so many nodes or GPUs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from edgelink.api.client import SILENCE_S, DaemonNotRunningError, EventStream, call
from edgelink.cli.layout import say
from edgelink.cli.options import Parsed, json_option, timeout_option
from edgelink.cli.ray_request import require_head
from edgelink.cli.status import daemons_here, who
from edgelink.cli.waiting import WaitingList
from edgelink.clock import SystemClock
from edgelink.config.paths import Paths
from edgelink.duration import in_words
from edgelink.errors import DeadlineError

_LOOK_S = 0.5
_ANSWER_S = 5.0  # at least so long a daemon may take to answer, whatever time is left
_READY = "ready"
_GOALS = {"nodes": "nodes", "gpus": "GPUs", "cpus": "CPUs"}


def _goal(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if text == _READY:
        return _READY, 1
    if name not in _GOALS or not number.isdecimal() or int(number) < 1:
        raise ValueError(f"{text!r} is none of ready, nodes=N, gpus=N, cpus=N")
    return name, int(number)


@click.command("wait")
@click.option(
    "--for",
    "goals",
    type=Parsed("goal", _goal),
    multiple=True,
    default=(_READY,),
    show_default=True,
    help="ready: this machine's node is Ready; on the head nodes=N, gpus=N or cpus=N: so many are alive in Ray, the "
    "head among them; may be repeated",
)
@timeout_option(None, "10m")
@json_option
def command(*, goals: tuple[tuple[str, int], ...], timeout_s: float, as_json: bool) -> None:
    """Wait until this machine's node is Ready, or until the cluster is as large as --for says.

    A daemon that has yet to start is waited for, too. Exit status 0: the goal is reached; 75: the time is over, and the
    message names who is missing.
    """
    paths, clock = Paths.from_environment(), SystemClock()
    deadline_s = clock.monotonic_s() + timeout_s
    wanted = dict(goals)
    if wanted.pop(_READY, None):
        wait_ready(paths, clock, timeout_s, as_json=as_json, look=_look_at_nothing_else)
    if not wanted and as_json:
        click.echo(json.dumps({"event": "done"}))
    elif wanted:
        _wait_nodes(paths, clock, deadline_s, wanted, as_json=as_json)


def wait_ready(
    paths: Paths,
    clock: SystemClock,
    timeout_s: float,
    *,
    as_json: bool = False,
    look: Callable[[], None],
) -> None:
    """Return when this machine's daemons are Ready; says meanwhile what they wait for.

    Args:
        look: called at each look at them; what it raises ends the waiting.

    Raises:
        DeadlineError: they are not within ``timeout_s``.
    """
    said, before, deadline_s = set[str](), list[str](), clock.monotonic_s() + timeout_s
    while True:
        try:
            daemons, silent = daemons_here(paths, timeout_s=_patience_s(deadline_s - clock.monotonic_s()))
        except DaemonNotRunningError as error:
            daemons, told = [], [f"{error.message}: {error.hint}"]
        else:
            told = [*silent, *(_unmet(daemon) for daemon in daemons if not daemon["ready"])]
        if as_json and told != before:
            click.echo(json.dumps({"event": "waiting", "message": "; ".join(told)}))
        elif not as_json:
            first = [f"waiting until this machine is Ready (at most {in_words(timeout_s)})"] if told else []
            for line in [*first, *told]:
                if line not in said:
                    say(line)
            said.update(first, told)
        before = told
        look()
        if daemons and not told:
            return
        if clock.monotonic_s() >= deadline_s:
            raise DeadlineError(f"not ready after {timeout_s:g} s", hint="`edgelink status` says why, and what to do")
        clock.block(_LOOK_S)


def _look_at_nothing_else() -> None:
    """`edgelink wait` looks at the daemons alone."""


def _unmet(daemon: dict[str, Any]) -> str:
    """Why a daemon is not ready: the first condition that is not well, but of a head that is not there that it is."""
    conditions = daemon["conditions"]
    unmet = [one for one in conditions if one["status"] != "True"]
    cause = next((one for one in unmet if one["reason"] == "HeadNotSeen"), next(iter(unmet), None))
    why = f"{cause['message']} ({cause['type']}: {cause['reason']})" if cause else daemon["phase"]
    return f"{who(daemon)}: {why}"


def _wait_nodes(paths: Paths, clock: SystemClock, deadline_s: float, goals: dict[str, int], *, as_json: bool) -> None:
    what = " and ".join(f"{number} {_GOALS[name]}" for name, number in goals.items())
    with WaitingList(sys.stdout if as_json else sys.stderr, what=what, as_json=as_json) as waiting:
        while True:
            left_s = max(0.0, deadline_s - clock.monotonic_s())
            try:
                status = call(paths.node_socket, "GET", "/status", timeout_s=_patience_s(left_s))
                require_head(status, "`edgelink wait --for` nodes, gpus or cpus")
                body, patience_s = {"goals": goals, "timeout_s": left_s}, _patience_s(left_s + _ANSWER_S)
                for event in EventStream(paths.node_socket, "POST", "/wait", body, timeout_s=patience_s):
                    if event["event"] == "done":
                        if as_json:
                            click.echo(json.dumps(event))
                        return
                    waiting.show(event)
            except DaemonNotRunningError:
                if left_s <= 0:
                    raise DeadlineError(
                        "no head daemon answers on this machine",
                        hint="`sudo edgelink up` or `edgelink head` starts it on the head",
                        reason="DaemonNotRunning",
                    ) from None
            clock.block(_LOOK_S)


def _patience_s(left_s: float) -> float:
    """How long a daemon may be silent when so much time is left: one that hangs must not outlast ``--timeout``."""
    return min(SILENCE_S, max(left_s, _ANSWER_S))

"""The caller's side of a run (ADR 0009, ADR 0019): hold the request open, run the command, and again where asked to."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from edgelink.api.client import DaemonNotRunningError
from edgelink.cli.compose import ReadCluster, read_cluster
from edgelink.cli.driver_environment import EnvironmentWishes, driver_environment, say_what_is_dropped
from edgelink.cli.layout import say
from edgelink.cli.main import edgelink
from edgelink.cli.node_look import look_at_nodes
from edgelink.cli.options import RunWishes
from edgelink.cli.patience import call, waiting_for
from edgelink.cli.preflight import check_before_launch, trainer_options
from edgelink.cli.ray_watch import RayWatch, ray_watched
from edgelink.cli.run_directory import present_directory, run_directory
from edgelink.cli.run_metrics import MetricsTail
from edgelink.cli.run_request import RunRequest, back_off, may_pass
from edgelink.cli.started_programs import StartedPrograms
from edgelink.cli.status import who
from edgelink.cli.train import TRAINER
from edgelink.cli.waiting import WaitingList
from edgelink.clock import SystemClock
from edgelink.config.defaults import DEFAULT_RIDE_THROUGH_S
from edgelink.config.paths import Paths
from edgelink.errors import EdgelinkError, ExitCode, PlacementError, UsageError
from edgelink.files import write_atomic
from edgelink.launch.run_account import RunAccount
from edgelink.placement import InvalidClusterError, Notice, check_before_waiting
from edgelink.process.import_hook import HOOK
from edgelink.ray_cluster.ride_through import check_collectives
from edgelink.training.code_sync import check_code_sync, is_auto
from edgelink.training.command_check import check_command, find_program, hides_failure
from edgelink.training.driver import DriverControl, run_driver
from edgelink.training.framework import Framework, framework_of, with_cluster_file
from edgelink.training.grant_checks import check_grant, say_what_is_left
from edgelink.training.launch_check import check_launch
from edgelink.training.resources import Demand
from edgelink.training.run_record import RunRecord, program_of
from edgelink.training.supervision import Ended, decide, relaunch_backoff

_SETTLE_S = 10.0  # a driver may notice a dead node before the head daemon does
_NODES_BACK_S = 3600.0  # a relaunch waits at least so long for the nodes
_DAEMON_BACK_S = 600.0  # and so long for a daemon that is away or in trouble, each time
_LOOK_S = 0.5
_OPTIONS_S = 60.0  # a board that is busy imports numpy for seconds
_OVERRIDE = re.compile(r"(\+{0,2}|~)cluster[.=]")  # Hydra's grammar


def run_driver_here(
    paths: Paths,
    cluster: ReadCluster | None,
    argv: tuple[str, ...],
    wishes: RunWishes,
) -> int:
    """Run ``argv`` with the head daemon of this machine, and again as ``wishes`` say. Return the last exit status.

    Args:
        cluster: what :func:`read_cluster_file` gave.

    Raises:
        ConfigError: a time-out in the driver's environment disagrees with the network's ``ride_through``, or the code
            that it tells RLinf to carry cannot be carried.
        UsageError: this machine is not the head.
        DaemonError: the nodes were not there in time, or the run was refused.
        PreflightError: the nodes cannot talk to each other, or a path is missing.
    """
    head = refuse_elsewhere(paths)
    caller = wishes.environment.over(os.environ)
    check_collectives(caller, head.get("ride_through_s", DEFAULT_RIDE_THROUGH_S))
    detected = framework_of(wishes.environment.framework, argv, present_directory())
    if cluster is not None:
        detected = with_cluster_file(detected)
    variables = _variables(paths, detected.framework, wishes.environment)
    check_command(argv, present_directory(), verbs(), None if variables is None else _joined_path(variables))
    if (options := trainer_options(argv)) is not None and variables is not None:
        _check_trainer(options, variables)
    say(str(detected))
    if told := hides_failure(argv, present_directory()):
        say(f"warning: {told}")
    if detected.framework.syncs_code and not is_auto(caller):
        _check_code(caller)
    with run_directory() as directory:
        return _Run(paths, cluster, argv, directory, detected.framework, wishes).execute()


@dataclass
class _Run:
    """One run: its attempts, and the one open request that holds its lock."""

    paths: Paths
    cluster: ReadCluster | None
    argv: tuple[str, ...]
    directory: Path
    framework: Framework
    wishes: RunWishes

    def __post_init__(self) -> None:
        self._section = None if self.cluster is None else self.cluster.section
        self._rlinf = {} if self.cluster is None else dict(self.cluster.versions)
        self._content = None if self.cluster is None else self.cluster.content
        self._links = self.directory / "links.json"
        self._clock = SystemClock()
        self._looking = threading.Lock()
        self._attempts: list[Ended] = []
        self._request: RunRequest | None = None
        record = RunRecord(
            run_id=secrets.token_hex(8),
            command=program_of(self.argv),
            retries=self.wishes.supervision.retries,
            on_node_loss=self.wishes.supervision.on_node_loss.value,
        )
        self._account = RunAccount(record, self._clock)

    def execute(self) -> int:
        backoff = relaunch_backoff()
        try:
            while True:
                granted = self._claim()
                with ray_watched(granted, say) as ray:
                    self._attempts.append(self._attempt(granted, ray))
                decision = decide(self.wishes.supervision, self._attempts, backoff)
                ended = self._attempts[-1]
                self._tell_if(self._account.end(ended.exit_status, decision.why, lost=ended.lost))
                if decision.why:
                    say(decision.why)
                if not decision.relaunch:
                    return decision.exit_status
                self._clock.block(decision.delay_s)
        except KeyboardInterrupt:  # while CMD runs, Ctrl+C is its own
            say("stopped: CMD does not run, and nothing of this run does")
            raise
        finally:
            if self._request is not None:
                self._request.close()

    def _claim(self) -> dict[str, Any]:
        """Wait for the nodes and the grant. The request before, if there is one, is open until then."""
        is_first = not self._attempts
        gang = self.wishes.gang
        timeout_s = gang.timeout_s if is_first else max(gang.timeout_s, _NODES_BACK_S)
        body = {"cluster": self._section, "rlinf": self._rlinf, "nodes": gang.nodes, "timeout_s": timeout_s}
        nodes_deadline_s = self._clock.monotonic_s() + timeout_s
        daemon_deadline_s: float | None = None  # None: it serves us, as far as is known
        backoff, said = back_off(), set[str]()

        def show(event: dict[str, Any]) -> None:
            nonlocal daemon_deadline_s
            if self._clock.monotonic_s() < nodes_deadline_s:  # else one that fails each time is asked without end
                daemon_deadline_s = None
            waiting.show(event)

        while True:
            request = RunRequest(self.paths.node_socket, body, lambda: self._account.record, self._clock, say)
            try:
                with WaitingList(sys.stderr, as_json=gang.as_json) as waiting:
                    granted = request.wait_until_granted(show)
            except EdgelinkError as error:
                # Being upgraded or restarted, perhaps together with what ended the driver.
                now_s = self._clock.monotonic_s()
                if daemon_deadline_s is None:
                    daemon_deadline_s = now_s + _DAEMON_BACK_S
                if is_first or not may_pass(error) or now_s >= daemon_deadline_s:
                    raise
                if not isinstance(error, DaemonNotRunningError) and str(error) not in said:
                    said.add(str(error))
                    say(f"asking the head daemon again: {error}")
                self._clock.block(backoff.next_s())
                continue
            if self._request is not None:
                self._request.close()
            self._request = request
            return granted

    def _attempt(self, granted: dict[str, Any], ray: RayWatch) -> Ended:
        """Run the driver once."""
        assert self._request is not None
        number = len(self._attempts) + 1
        decided = driver_environment(granted, self.framework, self.wishes.environment)
        environment = decided.variables
        if number == 1:
            check_grant(granted, self.framework, environment)
            say_what_is_dropped(decided, say)
            say_what_is_left(granted, say)
            if self.framework.syncs_code and is_auto(environment):
                _check_code(environment)
        step = self.directory / f"step-{number}"
        metrics = self.directory / f"metrics-{number}.jsonl"
        environment |= {
            "EDGELINK_RUN_ID": self._account.record.run_id,
            "EDGELINK_ATTEMPT": str(number),
            "EDGELINK_STEP_FILE": str(step),
            "EDGELINK_METRICS_FILE": str(metrics),
        }
        if granted["placement"] is not None:
            file = self.directory / "placement.json"
            write_atomic(file, json.dumps(granted["placement"], indent=2))
            environment["EDGELINK_PLACEMENT"] = str(file)
            for notice in granted["placement"].get("notices", ()) if number == 1 else ():
                if notice["code"] != "interpreter_not_checked":  # it will be, see look_at_nodes
                    say(Notice(**notice).line)
        program = find_program(self.argv[0], _joined_path(environment))
        # A run that goes on after a loss is not checked again.
        compares, compared = number == 1 and not self.wishes.preflight.ignores_resources, tuple[Demand, ...]()
        if number == 1:
            compared = check_launch(
                self.framework,
                self.argv,
                program,
                environment,
                ray.nodes,
                say,
                compares=compares,
                is_reported=compares and bool(environment.get(HOOK)),
            )
            # First whether the nodes can be asked at all.
            socket = self.paths.node_socket
            links = check_before_launch(
                granted, environment, self.wishes.preflight, self._content, self.argv, socket, self._clock, say
            )
            if links is not None:
                write_atomic(self._links, json.dumps(links.to_dict()))
            look_at_nodes(granted, self._section, self.framework, environment, say)
        if self._links.exists():  # an attempt that follows goes on with what was measured before the first
            environment["EDGELINK_LINKS"] = str(self._links)
        self._account.begin()
        self._request.tell_record()
        control = DriverControl()
        started_s = self._clock.monotonic_s()
        tail = MetricsTail(metrics)
        look = partial(self._look, step, tail, ray)
        self._request.follow(granted["nodes"], self.wishes.supervision, control, look)
        node_socket = self.paths.node_socket
        started = StartedPrograms(environment, ray.nodes, compared, self._section, node_socket, control)
        reports = started.heard_at(self.directory / "started.sock") if compares else nullcontext(dict[str, str]())
        with reports as reporting:
            status = run_driver(
                [program, *self.argv[1:]], {**environment, **reporting}, present_directory(), control=control
            )
        look()
        if started.refusal is not None:
            self._tell_if(self._account.end(status, started.refusal.message))
            raise started.refusal
        ended_s, by_us = self._clock.monotonic_s(), control.ended_by_us
        if self.wishes.supervision.is_any and status != 0 and not control.ended_by_user:
            self._wait_for_facts()
        watch = self._request.nodes
        return Ended(
            exit_status=status,
            lived_s=ended_s - started_s,
            at_s=ended_s,
            by_us=by_us,
            by_user=control.ended_by_user,
            lost=watch.lost,
            troubled=watch.troubled(ended_s),
            step=_as_number(self._account.record.attempts[-1].step),
        )

    def _wait_for_facts(self) -> None:
        assert self._request is not None
        deadline_s = self._clock.monotonic_s() + _SETTLE_S
        with waiting_for("waiting for Ray to say whether a node was lost"):
            while not self._request.nodes.lost and self._clock.monotonic_s() < deadline_s:
                self._clock.block(_LOOK_S)

    def _look(self, step: Path, tail: MetricsTail, ray: RayWatch) -> None:
        """Note how far the driver is, what its steps were like, and what waits in Ray for room."""
        self._tell_if(self._account.note(waits_for=ray.waits_for))
        with suppress(OSError):
            self._tell_if(self._account.note(step=step.read_text(errors="replace").strip()[:64]))
        with suppress(OSError), self._looking:
            if (points := tail.new_points()) and self._request is not None:
                self._request.tell_metrics(self._account.record.run_id, points)

    def _tell_if(self, has_changed: bool) -> None:  # noqa: FBT001 - what the account answers
        """Tell the daemon of the account, if it has changed."""
        if has_changed and self._request is not None:
            self._request.tell_record()


def _check_code(environment: Mapping[str, str]) -> None:
    if warning := check_code_sync(environment, present_directory()):
        say(warning)


def read_cluster_file(path: Path | None, argv: Sequence[str] = (), python: Path | None = None) -> ReadCluster | None:
    """The cluster section as `edgelink plan FILE` reads it, and what it has to say of the way there; None without one.

    Args:
        argv: the command, whose overrides of the section (Hydra's, ``cluster.num_nodes=3``) count.
        python: interpreter that composes a file of Hydra's style; None: as `edgelink plan` finds one.

    Raises:
        PlacementError: unreadable, or what is wrong with the section whatever nodes there are.
    """
    if path is None:
        return None
    overrides = [word for word in argv if _OVERRIDE.match(word)]
    try:
        read = read_cluster(path, overrides, python)
    except InvalidClusterError:
        raise
    except PlacementError as error:
        if not overrides:
            raise
        read = read_cluster(path, (), python)
        say(f"warning: CMD overrides {', '.join(overrides)}, which was not resolved: {error}")
    for notice in read.notices:
        say(notice.line)
    with read.located():
        check_before_waiting(read.section, read.rules)
    return read


def _as_number(step: str | None) -> float | None:
    """None: it said nothing, or not in numbers."""
    try:
        return float(step or "")
    except ValueError:
        return None


def verbs() -> list[str]:
    """EdgeLink's own commands."""
    return edgelink.list_commands(click.Context(edgelink))


def _joined_path(environment: Mapping[str, str]) -> str:
    """The driver's search path, and after it the caller's own."""
    return f"{environment['PATH']}:{os.environ.get('PATH', '')}"


def _variables(paths: Paths, framework: Framework, wishes: EnvironmentWishes) -> dict[str, str] | None:
    """The driver's environment. None: the daemon does not know it yet."""
    try:
        granted = call(paths.node_socket, "GET", "/driver-environment")
    except EdgelinkError:
        return None
    return driver_environment(granted, framework, wishes).variables


def _check_trainer(options: Sequence[str], variables: Mapping[str, str]) -> None:
    """Have the built-in trainer read its options before anybody waits for nodes. Raises UsageError.

    An interpreter that cannot even do that is the run's to tell of.
    """
    command = [variables.get("EDGELINK_RAY_PYTHON", sys.executable), str(TRAINER), "check-options", *options]
    try:
        read = subprocess.run(
            command, env=dict(variables), capture_output=True, text=True, timeout=_OPTIONS_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return
    said = read.stderr.partition("edgelink train: error: ")[2].strip()
    if read.returncode == ExitCode.USAGE and said:  # Python has that status, too, where it may not read the file
        raise UsageError(f"edgelink train: {said}", hint="`edgelink train --help` lists its options and settings")


def refuse_elsewhere(paths: Paths) -> dict[str, Any]:
    """The head daemon's status. Training is launched on the head only; anywhere else, say where that is."""
    try:
        status: dict[str, Any] = call(paths.node_socket, "GET", "/status")
    except DaemonNotRunningError as error:
        raise UsageError(
            f"no head daemon runs on this machine ({paths.node_socket} does not answer)",
            hint="training is launched on the head only; there `sudo edgelink up` or `edgelink head` starts its daemon",
            reason="NotTheHead",
        ) from error
    if status["role"] != "head":
        head = status.get("head") or {}
        where = f"{head['hostname']} ({head['overlay_ip']})" if head else "not enrolled yet"
        raise UsageError(
            f"this machine is {who(status)}; training is launched on the head only",
            hint=f"run this on the head: {where}",
            reason="NotTheHead",
        )
    return status

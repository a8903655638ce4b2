"""Between the grant and the driver: can the nodes talk over the overlay, and is there what the run needs?"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from edgelink.api.client import call
from edgelink.cli.as_ray import as_ray
from edgelink.cli.daemon_threads import DaemonThreads
from edgelink.cli.patience import waiting_for
from edgelink.clock import Clock
from edgelink.errors import EdgelinkError
from edgelink.training.preflight import (
    Finding,
    PreflightError,
    Question,
    Seen,
    failed,
    judge,
    slow_links,
    without_gloo,
)
from edgelink.training.required_paths import NeededPath, asked_for, by_node, judge_paths, named_by_config
from edgelink.training.trainer.link_budget.links import Measured, measured
from edgelink.training.trainer.link_budget.traffic import Seats, talking_pairs

_HEARD_S = 20.0  # the daemon listens for 12 s at most
_LIMIT_S = 240.0  # whatever hangs, and however slow the boards are
# The program comes by stdin, before its question: Ray's user may not read this package.
_LOADER = "import sys; exec(compile(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())), 'exchange.py', 'exec'))"


@dataclass(frozen=True)
class PreflightWishes:
    """``--no-preflight``, ``--require-path`` and ``--no-resource-check``."""

    is_skipped: bool = False
    required_paths: tuple[tuple[str | None, str], ...] = ()
    ignores_resources: bool = False


def check_before_launch(
    granted: Mapping[str, Any],
    environment: Mapping[str, str],
    wishes: PreflightWishes,
    content: Any,
    argv: Sequence[str],
    daemon: Path,
    clock: Clock,
    say: Callable[[str], None],
) -> Measured | None:
    """Have the nodes of the run exchange packets over the overlay, as workers would, and look for the paths.

    Args:
        granted: the head daemon's answer to the run.
        environment: the driver's.
        content: the training's configuration, which may name paths, too; None: there is none.
        argv: the driver's command.
        daemon: its socket.

    Returns:
        The links between the nodes that the placement makes talk, where CMD is the built-in trainer.

    Raises:
        PreflightError: who cannot talk to whom, and the likely cause; or what is missing where.
        UsageError: ``--require-path`` names what is not in the cluster file.
    """
    nodes = {node["node_rank"]: node for node in granted["nodes"] if node.get("ray_node_id")}
    if 0 not in nodes:
        return None
    names = {rank: str(node["hostname"]) for rank, node in nodes.items()}
    placement = granted.get("placement")
    needed = asked_for(wishes.required_paths, names, placement)
    if not wishes.is_skipped and placement is not None:
        needed += named_by_config(content, names, placement, argv)
    placed = _placed(placement, nodes)
    talking = {rank for rank in nodes if rank == 0 or rank in placed}
    exchanges = not wishes.is_skipped and len(talking) > 1
    paths = by_node(needed)
    if not (exchanges or paths):
        return None
    # Whoever is looked at for paths only is one of the run's nodes, too.
    asked = [rank for rank in nodes if names[rank] in paths or (exchanges and rank in talking)]
    ips = {names[rank]: str(nodes[rank]["overlay_ip"]) for rank in asked}
    question = Question(ips, _device(granted, environment))
    seats = Seats.of(placement["placements"]) if exchanges and placement and is_trainer(argv) else None
    pairs = [pair for pair in talking_pairs(seats) if set(pair) <= set(asked)] if seats else []
    body = {
        "address": granted["environment"]["RAY_ADDRESS"],
        "nodes": [
            {"name": names[rank], "ip": ips[names[rank]], "ray_node_id": nodes[rank]["ray_node_id"]} for rank in asked
        ],
        "device": question.device,
        "exchange": exchanges,
        "paths": paths,
        "measure": [[names[a], names[b]] for a, b in pairs],
    }
    started_s = clock.monotonic_s()
    with waiting_for("preflight: the nodes exchange packets over the overlay"):
        seen = exchange(granted, question, body, daemon, say)
    _refuse(question, seen, needed, wishes, say)
    if exchanges:
        said = f"gloo reduced over {question.device or 'their devices'}" if seen.gloo else without_gloo(seen)
        count, took_s = len(asked), clock.monotonic_s() - started_s
        say(f"preflight: {count} nodes reach each other over the overlay; {said} ({took_s:.1f} s)")
    if not seen.measured:
        return None
    links, problems = measured(seen.measured, {name: rank for rank, name in names.items()})
    for problem in problems:
        say(f"warning: cannot be measured: {problem}")
    return links


def is_trainer(argv: Sequence[str]) -> bool:
    """Whether a command is the built-in trainer, which takes turns with what the links carry."""
    return trainer_options(argv) is not None


def trainer_options(argv: Sequence[str]) -> Sequence[str] | None:
    """Return the arguments of the built-in trainer. None: the command starts another program."""
    words = [Path(word).name for word in argv]
    if words[:2] == ["edgelink", "train"]:
        return argv[2:]
    return argv[4:] if words[1:4] == ["-m", "edgelink", "train"] else None


def _refuse(
    question: Question,
    seen: Seen,
    needed: Sequence[NeededPath],
    wishes: PreflightWishes,
    say: Callable[[str], None],
) -> None:
    findings = judge(question, seen)
    missing, told = judge_paths(needed, seen.paths)
    for line in told:
        say(f"warning: {line}")
    if slow := slow_links(question, seen):
        say(f"warning: {slow}")
    if findings or missing:
        raise failed([*findings, *missing], may_skip=bool(findings) and not wishes.is_skipped)


def nodes_that_talk(question: Question) -> list[dict[str, str]]:
    """As the exchange wants them; it finds their Ray node ids by their addresses."""
    return [{"name": name, "ip": ip} for name, ip in question.nodes.items()]


def _device(granted: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """What all workers are told; None: each node tells its own, as RLinf's do on a network with several names."""
    told = environment.get("RLINF_COMM_NET_DEVICES")
    if device := environment.get("GLOO_SOCKET_IFNAME"):
        return device
    is_own = granted.get("overlay") == "existing" and told == granted["environment"].get("RLINF_COMM_NET_DEVICES")
    return None if is_own else told


def _placed(placement: Mapping[str, Any] | None, everybody: Mapping[int, Any]) -> set[int]:
    """The ranks of the nodes on which workers are placed; without a placement any may be."""
    if placement is None:
        return set(everybody)
    return {process["node_rank"] for processes in placement["placements"].values() for process in processes}


def exchange(
    granted: Mapping[str, Any],
    question: Question,
    body: Mapping[str, Any],
    daemon: Path,
    say: Callable[[str], None],
) -> Seen:
    """What `ray_cluster/exchange.py` sees, run by Ray's interpreter; as Ray's user, where we are root."""
    files = resources.files("edgelink.ray_cluster")
    program = b"".join(files.joinpath(name).read_bytes() for name in ("link_meter.py", "exchange.py"))
    started = as_ray(granted, "-c", _LOADER)
    errors = os.fdopen(os.memfd_create("errors"), "rb")
    try:
        process: subprocess.Popen[bytes] = subprocess.Popen(
            **started, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    except OSError as error:
        python = started["env"]["EDGELINK_RAY_PYTHON"]
        raise PreflightError(f"cannot run {python}: {error.strerror}", hint="check ray.python") from error
    seen, heard = Seen(), list[Future[Any]]()
    timer = threading.Timer(_LIMIT_S, process.kill)
    timer.start()
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(f"{len(program)}\n".encode() + program + json.dumps(body).encode())
        for line in process.stdout:
            with suppress(ValueError):
                event = json.loads(line)
                seen.take(event)
                if event["event"] == "links" and judge(question, seen):
                    break  # nothing is gained by waiting for torch
                if event["event"] == "measuring":
                    pairs = ", ".join(" ↔ ".join(pair) for pair in event["pairs"])
                    say(f"measures {pairs}")
                if event["event"] == "waiting":
                    say(f"preflight: waits for a worker of Ray on {', '.join(event['nodes'])}")
                    # Whom the head's daemon hears meanwhile tells the direction of a block.
                    wanted = {"wanted": [question.nodes[name] for name in event["nodes"]]}
                    heard = [DaemonThreads().submit(call, daemon, "GET", "/heard", wanted, timeout_s=_HEARD_S)]
    finally:
        timer.cancel()
        process.kill()
        process.wait()
        errors.seek(0)
        complaints = errors.read().decode(errors="replace").strip().splitlines()
        errors.close()
    if seen.silent:
        with suppress(EdgelinkError):
            seen.heard = next((frozenset(each.result()["heard"]) for each in heard), None)
    elif not (seen.is_done or seen.links):
        why = complaints[-1].strip()[:300] if complaints else f"no answer within {_LIMIT_S:g} s"
        raise failed([Finding(f"the preflight ended early: {why}", "look at Ray on this machine")])
    return seen

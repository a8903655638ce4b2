"""EdgeLink in the lab, walked from end to end as a person would: bootstrap, tokens, join, head, edges, train.

Everything is done through the commands that people use; what is known of the nodes is asked of their daemons.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from edgelink.api.client import DaemonNotRunningError, call
from edgelink.clock import SystemClock
from edgelink.config.paths import Paths
from edgelink.errors import DeadlineError, LabError
from edgelink.lab.lab import Lab
from edgelink.lab.ray_slots import RaySlots
from edgelink.lab.topology import CLOUD, RELAY, edge_name

READY_TIMEOUT_S = 120.0
_LOOK_S = 0.1
_EXPECTED_S = 2.0  # how long people wait without a word
_TELL_S = 10.0  # and for the next one

_SILENT = {"message": "its daemon does not answer yet"}

Say = Callable[[str], None]


class Road:
    """One walk through a lab; ``stages_s`` says how long each stretch took."""

    def __init__(self, lab: Lab, clock: SystemClock, say: Say) -> None:
        self.lab = lab
        self.stages_s: dict[str, float] = {}
        self._clock = clock
        self._say = say
        self._slots = RaySlots(lab.directory.parent, clock, say)

    @contextmanager
    def stage(self, name: str) -> Any:
        """Time a stretch and say when it is done."""
        started_s = self._clock.monotonic_s()
        yield
        self.stages_s[name] = round(self._clock.monotonic_s() - started_s, 2)
        self._say(f"✓ {name:<10} {self.stages_s[name]:6.1f} s")

    def bring_up(self, edges: int, **lab_options: Any) -> None:
        """Build the lab and bring every node to Ready."""
        members = [CLOUD, *edge_names(edges)]
        with self.stage("lab"):
            self.lab.up(edges, **lab_options)
        with self.stage("relay"):
            self.lab.start(RELAY)
            self.wait_ready(RELAY)
        with self.stage("enrolment"):
            for name in members:
                self.enrol(name)
        with self.stage("head"):
            self.start(CLOUD)
        with self.stage("edges"):
            self.start(*members[1:])

    def start(self, *names: str) -> None:
        """Start these nodes, head or edges, and wait until each is ready.

        As many at once as the machine has slots for the start of a Ray (:class:`RaySlots`).
        """
        starting: dict[str, int] = {}
        try:
            for name in names:
                who = f"{name} of lab {self.lab.name}"
                while (slot := self._slots.take_free(who) if starting else self._slots.take(who)) is None:
                    self._finish(next(iter(starting)), starting)
                starting[name] = slot
                self.lab.start(name)
            for name in list(starting):
                self._finish(name, starting)
        finally:
            for slot in starting.values():
                os.close(slot)

    def _finish(self, name: str, starting: dict[str, int]) -> None:
        """Wait until ``name`` is ready, then free its slot."""
        self.wait_ready(name)
        os.close(starting.pop(name))

    def add_relay(self, name: str) -> None:
        """``edgelink relay --join`` on one more machine with a public address, until it is ready."""
        made = self.lab.exec(RELAY, ["edgelink", "token", "create", "--role", "relay"], capture=True, check=True)
        token = self.lab.host_path(name, Paths().runtime) / "token"
        token.touch(0o600)
        token.write_text(made.stdout)
        self.lab.start(name, ["--join", "--token-file", str(Paths().runtime / "token")])
        self.wait_ready(name)
        token.unlink()

    def enrol(self, name: str, *token_options: str) -> None:
        """``edgelink token create`` on the relay, ``edgelink join`` on the node; the token goes by stdin only."""
        role = "head" if name == CLOUD else "edge"
        made = self.lab.exec(
            RELAY, ["edgelink", "token", "create", "--role", role, *token_options], capture=True, check=True
        )
        self.lab.exec(name, ["edgelink", "join", "-"], stdin=made.stdout, capture=True, check=True)

    def status(self, name: str) -> dict[str, Any] | None:
        """What the node's daemon says of itself; None while it does not answer."""
        paths = Paths()
        socket = paths.bootstrap_socket if name.startswith(RELAY) else paths.node_socket
        try:
            answer: dict[str, Any] = call(self.lab.host_path(name, socket), "GET", "/status")
        except DaemonNotRunningError:
            return None
        return answer

    def wait_ready(self, name: str, timeout_s: float = READY_TIMEOUT_S) -> dict[str, Any]:
        """The status of the node's daemon once it is ready; what it waits for is said where that takes long.

        Raises:
            LabError: the daemon ended.
            DeadlineError: it was not ready in time; says at which condition it stands.
        """
        begun_s = self._clock.monotonic_s()
        deadline_s, tell_s, told = begun_s + timeout_s, begun_s + _EXPECTED_S, ""
        while True:
            status = self.status(name)
            if status is not None and status["ready"]:
                return status
            if self.lab.daemon(name) is None:
                words = self.lab.daemon_log(name).read_text(errors="replace").splitlines()[-5:]
                raise LabError(f"the daemon of lab node {name} ended: " + "\n".join(words))
            now_s = self._clock.monotonic_s()
            if now_s > deadline_s:
                raise DeadlineError(f"lab node {name} was not ready after {timeout_s:g} s: {'; '.join(_unmet(status))}")
            if now_s > tell_s:
                tell_s = now_s + _TELL_S
                first = next((one for one in _missing(status) if one["reason"] != "NotObserved"), _SILENT)
                if (message := first["message"]) != told:
                    self._say(f"  {name} waits: {message}")
                    told = message
            self._clock.block(_LOOK_S)

    def run(self, argv: list[str], *, cluster_file: Path, timeout: str = "3m") -> int:
        """``edgelink run`` on the cloud node, its output ours; the command's exit status."""
        with self.stage("training"):
            result = self.lab.exec(
                CLOUD, ["edgelink", "run", "--cluster", str(cluster_file), "--timeout", timeout, "--", *argv]
            )
        return result.returncode


def _unmet(status: dict[str, Any] | None) -> list[str]:
    """What keeps a node from being ready, in words; never empty."""
    return [f"{c['type']} {c['reason']}: {c['message']}" for c in _missing(status)] or [_SILENT["message"]]


def _missing(status: dict[str, Any] | None) -> list[dict[str, str]]:
    return [c for c in (status or {}).get("conditions", []) if c["status"] != "True"]


def edge_names(edges: int) -> list[str]:
    return [edge_name(number) for number in range(1, edges + 1)]


def demo_cluster(edges: int) -> dict[str, Any]:
    """The demo's cluster file: the learner in the cloud, a rollout and an env worker on each edge."""
    last = edges - 1
    return {
        "cluster": {
            "num_nodes": edges + 1,
            "node_groups": [
                {"label": "cloud", "node_ranks": "0"},
                {"label": "edge", "node_ranks": f"1-{edges}" if edges > 1 else "1"},
            ],
            "component_placement": {
                "actor": {"node_group": "cloud", "placement": "0"},
                "rollout": {"node_group": "edge", "placement": f"0-{last}" if last else "0"},
                "env": {"node_group": "edge", "placement": f"0-{last}" if last else "0"},
            },
        }
    }


def write_demo_cluster(path: Path, edges: int) -> Path:
    path.write_text(yaml.safe_dump(demo_cluster(edges), sort_keys=False))
    return path


def run_report(road: Road, trained: dict[str, Any], edges: int) -> dict[str, Any]:
    """What ``lab run --report`` writes: stages, and what nodes and workers reported of themselves.

    Nothing in it comes from the plan: addresses, ranks, Ray's node ids, pids and namespaces are as each worker found
    them; only the relay, which has no workers, is asked through its daemon.
    """
    seen = {node["hostname"]: node for node in trained["nodes"]}
    nodes = [_relay_row(road), *(_node_row(seen.get(name, {}), name) for name in [CLOUD, *edge_names(edges)])]
    return {
        "nodes": nodes,
        "placements": trained["workers"],
        "stages": road.stages_s,
        "return_before": trained["return_before"],
        "return_after": trained["return_after"],
        "training": {key: trained[key] for key in ("seed", "iterations", "seconds", "samples", "sample_share")},
    }


def _relay_row(road: Road) -> dict[str, Any]:
    status = road.status(RELAY) or {}
    return {"name": RELAY, "overlay_ip": status.get("overlay_ip"), "node_rank": None, "ray_node_id": None}


def _node_row(seen: dict[str, Any], name: str) -> dict[str, Any]:
    moved = {
        f"{direction}_bytes": _difference(seen.get(f"{direction}_bytes_after"), seen.get(f"{direction}_bytes_before"))
        for direction in ("rx", "tx")
    }
    return {"name": name, **{key: seen.get(key) for key in ("overlay_ip", "node_rank", "ray_node_id")}, **moved}


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def write_report(path: Path, report: dict[str, Any]) -> None:
    path.write_text(json.dumps(report, indent=2) + "\n")

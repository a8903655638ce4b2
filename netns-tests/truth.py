"""Whether the head's views tell the truth of each node, held against an observer that is no part of the product.

The observer is `ping`, from the head's machine to each member's overlay address: what Ray's connections get through.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from machines import overlay_ip

from edgelink.api.client import call
from edgelink.config.paths import Paths
from edgelink.errors import DeadlineError, EdgelinkError
from edgelink.lab import CLOUD, Lab

TOLERATED_S = 15.0  # so long a view may call a node well that nobody reaches
_PING_S = 0.5
_VIEW_S = 60.0
_REPLY = re.compile(r"^\[(\d+\.\d+)\] \d+ bytes from", re.MULTILINE)
_ALIVE = re.compile(r'^edgelink_ray_node_alive\{node="([^"]+)",node_rank="\d+"\} 1$', re.MULTILINE)


class Observer:
    """Pings the members of the head's cluster, twice a second, until the ``with`` block ends."""

    def __init__(self, lab: Lab, members: Iterable[str], directory: Path) -> None:
        self._lab = lab
        self._logs = {member: directory / f"ping-{member}" for member in members}
        self._pings: list[subprocess.Popen[bytes]] = []
        self._began_at = 0.0

    def __enter__(self) -> Observer:
        self._began_at = time.time()
        for member, log in self._logs.items():
            ping = ["ping", "-n", "-D", "-O", "-i", f"{_PING_S:g}", overlay_ip(self._lab, member)]
            self._pings.append(self._lab.popen(CLOUD, ping, log))
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for ping in self._pings:
            ping.kill()
            ping.wait()

    def replies_at(self, member: str) -> list[float]:
        """When the member answered, in Unix time, the beginning of the observation in front."""
        return [self._began_at, *map(float, _REPLY.findall(self._logs[member].read_text()))]

    def unreached(self) -> dict[str, float]:
        """Seconds since each member answered."""
        now_at = time.time()
        return {member: now_at - self.replies_at(member)[-1] for member in self._logs}


def state_of(lab: Lab, member: str) -> str | None:
    """How a member stands by the head's daemon; None while no daemon answers."""
    with suppress(EdgelinkError):
        rows = call(lab.host_path(CLOUD, Paths().node_socket), "GET", "/nodes")["nodes"]
        return next((str(row["state"]) for row in rows if row["hostname"] == member), None)
    return None


def called_well(lab: Lab, members: Iterable[str]) -> dict[str, set[str]]:
    """Whom each view of the head calls well, all of which is asked as a person or a script asks for it."""
    everybody = set(members)

    def says_all(*argv: str) -> set[str]:
        return everybody if _ask(lab, *argv).returncode == 0 else set()

    nodes = _ask(lab, "edgelink", "nodes", "--json")
    rows = json.loads(nodes.stdout)["nodes"] if nodes.returncode in (0, 1, 75) and nodes.stdout else []
    conditions = [one for daemon in _answer(lab, "status").get("daemons", ()) for one in daemon["conditions"]]
    metrics = _ask(lab, "curl", "-sS", "http://127.0.0.1:9747/metrics").stdout
    checks = _answer(lab, "doctor", "nodes-answer").get("checks", ())
    return {
        "nodes": {row["hostname"] for row in rows if row["ready"]},
        "nodes, exit status": everybody if nodes.returncode == 0 else set(),
        "status": everybody if any(c["reason"] == "AllAlive" for c in conditions) else set(),
        "wait": says_all("edgelink", "wait", "--for", f"nodes={len(rows) or 1}", "--timeout", "1s"),
        "metrics": set(_ALIVE.findall(metrics)),
        "page": {row["hostname"] for row in _page(lab).values() if row["health"] in ("ok", "warning")},
        "doctor": everybody if [check["verdict"] for check in checks] == ["ok"] else set(),
    }


def assert_told_truly(lab: Lab, observer: Observer) -> None:
    """Fail where a view calls a member well that the observer has not reached for 15 s, before and after the look."""
    missed = {member for member, seconds in observer.unreached().items() if seconds > TOLERATED_S}
    if not missed:
        return
    told = called_well(lab, observer.unreached())
    missed &= {member for member, seconds in observer.unreached().items() if seconds > TOLERATED_S}
    lies = {view: sorted(well & missed) for view, well in told.items() if well & missed}
    assert not lies, f"called well, and not reached for {TOLERATED_S:g} s: {lies}; last replies {observer.unreached()}"


def _ask(lab: Lab, *argv: str) -> subprocess.CompletedProcess[str]:
    try:
        return lab.exec(CLOUD, argv, capture=True, timeout_s=_VIEW_S)
    except DeadlineError:
        return subprocess.CompletedProcess(argv, 124, "", "")


def _page(lab: Lab) -> Mapping[str, Mapping[str, Any]]:
    """The rows of the head's web page, as it shows them to a browser that comes now; empty where it shows none."""
    page, _, secret = _answer(lab, "dashboard").get("url", "").partition("#link=")
    asked = (
        'jar=$(mktemp); curl -sS -c $jar --json "{\\"link\\": \\"$1\\"}" $0api/login >/dev/null;'
        "curl -sSN -b $jar --max-time 2 $0api/events | grep -m1 ^data:; rm $jar"
    )
    with suppress(json.JSONDecodeError):
        shown = _ask(lab, "sh", "-c", asked, page, secret).stdout.partition("data: ")[2]
        found: Mapping[str, Mapping[str, Any]] = json.loads(shown)["nodes"]
        return found
    return {}


def _answer(lab: Lab, *argv: str) -> Mapping[str, Any]:
    """What a command prints as JSON; empty where it prints none, as without a daemon."""
    with suppress(json.JSONDecodeError):
        found: Mapping[str, Any] = json.loads(_ask(lab, "edgelink", *argv, "--json").stdout)
        return found
    return {}

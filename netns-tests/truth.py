"""Whether the head's views tell the truth of each node, held against an observer that is no part of the product.

The observer is `ping`, from the head's machine to each member's overlay address: what Ray's connections get through.
Tests with the mark ``told_truly`` are held against it from their first to their last line.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from machines import overlay_ip

from edgelink.api.client import call
from edgelink.config.paths import Paths
from edgelink.errors import DeadlineError, EdgelinkError
from edgelink.lab import CLOUD, Lab
from edgelink.lab.processes import PinnedProcess
from edgelink.lab.topology import NodeKind

_PING_S = 0.5
TOLERATED_S = 10.0 + _PING_S  # so long a view may call a node well that nobody reaches
_REST_S = 4.0  # between two looks at all views, which cost seconds of processor time
_VIEW_S = 60.0
_REPLY = re.compile(r"^\[(\d+\.\d+)\] \d+ bytes from", re.MULTILINE)
_ALIVE = re.compile(r'^edgelink_ray_node_alive\{node="([^"]+)",node_rank="\d+"\} 1$', re.MULTILINE)


class Observer:
    """Pings the members of the head's cluster, twice a second, until the ``with`` block ends."""

    def __init__(self, lab: Lab, members: Iterable[str], directory: Path) -> None:
        self._lab = lab
        self._addresses = {member: overlay_ip(lab, member) for member in members}
        self._logs = {member: directory / f"ping-{lab.name}-{member}" for member in self._addresses}
        self._pings: dict[str, subprocess.Popen[bytes]] = {}
        self._began_at: dict[str, float] = {}

    def __enter__(self) -> Observer:
        self.go_on()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for ping in self._pings.values():
            ping.kill()
            ping.wait()

    def go_on(self) -> None:
        """Start each ping that does not run, as after a reboot of the machine."""
        for member, address in self._addresses.items():
            if member not in self._pings or self._pings[member].poll() is not None:
                self._began_at[member] = time.time()
                ping = ["ping", "-n", "-D", "-O", "-i", f"{_PING_S:g}", address]
                self._pings[member] = self._lab.popen(CLOUD, ping, self._logs[member])

    def replies_at(self, member: str) -> list[float]:
        """When the member answered, in Unix time."""
        return [float(at) for at in _REPLY.findall(self._logs[member].read_text())]

    def unreached(self) -> dict[str, float]:
        """Seconds since each member answered, or since its ping began."""
        now_at = time.time()
        return {
            member: now_at - max([began_at, *self.replies_at(member)[-1:]])
            for member, began_at in self._began_at.items()
        }


def state_of(lab: Lab, member: str) -> str | None:
    """How a member stands by the head's daemon; None while no daemon answers."""
    with suppress(EdgelinkError):
        rows = call(lab.host_path(CLOUD, Paths().node_socket), "GET", "/nodes")["nodes"]
        return next((str(row["state"]) for row in rows if row["hostname"] == member), None)
    return None


def called_well(lab: Lab, members: Iterable[str]) -> dict[str, set[str] | None]:
    """Whom each view of the head calls well, all of which is asked as a person or a script asks for it.

    None: the view has told nothing.
    """
    nodes = _ask(lab, "edgelink", "nodes", "--json")
    rows = json.loads(nodes.stdout)["nodes"] if nodes.returncode in (0, 1, 75) and nodes.stdout else None
    everybody = set(members) - {row["hostname"] for row in rows or () if row["state"] == "off"}

    def of_all(is_well: bool | None) -> set[str] | None:
        return None if is_well is None else everybody if is_well else set()

    waited = _ask(lab, "edgelink", "wait", "--for", f"nodes={len(rows or []) or 1}", "--timeout", "1s").returncode
    conditions = [one for daemon in _answer(lab, "status").get("daemons", ()) for one in daemon["conditions"]]
    metrics = _ask(lab, "curl", "-sS", "http://127.0.0.1:9747/metrics")
    checks = [check["verdict"] for check in _answer(lab, "doctor", "nodes-answer").get("checks", ())]
    page = _page(lab)
    return {
        "nodes": None if rows is None else {row["hostname"] for row in rows if row["ready"]},
        "nodes, exit status": of_all(None if rows is None else nodes.returncode == 0),
        "status": of_all(any(one["reason"] == "AllAlive" for one in conditions) if conditions else None),
        "wait": of_all(waited == 0 if waited in (0, 75) else None),
        "metrics": None if metrics.returncode else set(_ALIVE.findall(metrics.stdout)),
        "page": {row["hostname"] for row in page.values() if row["health"] in ("ok", "warning")} if page else None,
        "doctor": of_all(checks == ["ok"] if checks else None),
    }


@contextmanager
def assert_told_truly(labs: Callable[[], Iterable[Lab]], directory: Path) -> Iterator[None]:
    """Watch the labs that there are until the block ends, and fail where a view of their heads has lied meanwhile."""
    watches: dict[str, _Watch] = {}
    ended, failures = threading.Event(), list[str]()

    def watch() -> None:
        try:
            while not ended.wait(_PING_S):
                for lab in labs():
                    with suppress(EdgelinkError, OSError, AssertionError):  # it comes up, or a machine is rebooted
                        if lab.name not in watches:
                            watches[lab.name] = _Watch(lab, directory)
                        watches[lab.name].look()
        except Exception as error:  # no test passes because its observer has failed
            failures.append(f"the observer failed: {error!r}")

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for each in watches.values():
            failures += each.end()
        print("\n".join(failures))
    assert failures == []


class _Watch:
    """One lab's head and its observer."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        self._lab = lab
        self._edges = {node.name for node in lab.topology.nodes if node.kind is NodeKind.EDGE}
        self._began_at = time.time()
        self._observer = Observer(lab, self._edges, directory).__enter__()
        self._daemon: PinnedProcess | None = None
        self._daemon_since_s = 0.0
        self._look_at_s = 0.0
        self._lies: list[str] = []

    def look(self) -> None:
        """Ask all views where a member is not reached. Who has no daemon is not asked, and a new one has its time."""
        self._observer.go_on()
        now_s, daemon = time.monotonic(), self._lab.daemon(CLOUD)
        if daemon != self._daemon:
            self._daemon, self._daemon_since_s = daemon, now_s
        if daemon is None or now_s < self._look_at_s or not (missed := self._missed()):
            return
        told = called_well(self._lab, missed)
        time.sleep(2 * _PING_S)  # an answer that the head has heard is one that the observer hears by now
        missed &= self._missed()
        if self._lab.daemon(CLOUD) != daemon:
            return
        for view, well in told.items():
            if well is None:
                self._lies.append(f"{view}: tells nothing, and the head's daemon runs")
            elif lied := sorted(well & missed):
                self._lies.append(f"{view}: {lied} called well; not reached for s: {self._observer.unreached()}")
        self._look_at_s = time.monotonic() + _REST_S

    def end(self) -> list[str]:
        """Stop observing, and return what was not true."""
        self._observer.__exit__()
        is_over = time.time() - self._began_at > TOLERATED_S
        never = [f"{edge}: never reached" for edge in self._edges if is_over and not self._observer.replies_at(edge)]
        return [*never, *self._lies, *self._false_pauses()]

    def _missed(self) -> set[str]:
        """Whom nobody has reached for too long, while the same daemon ran.

        After a cut EasyTier may let one answer through and lose the node again; the observer's may be another second.
        """
        daemon_s, now_at = time.monotonic() - self._daemon_since_s, time.time()
        back = {event["node"] for event, at in self._events("runs.node_answers_again") if now_at - at < TOLERATED_S}
        unreached = self._observer.unreached()
        return {one for one, seconds in unreached.items() if min(seconds, daemon_s) > TOLERATED_S} - back

    def _events(self, name: str) -> Iterator[tuple[dict[str, Any], float]]:
        """Yield the events of that name in the head's log, with their Unix times."""
        for line in self._lab.daemon_log(CLOUD).read_text().splitlines():
            if f'"{name}"' in line:
                event = json.loads(line)
                yield event, datetime.fromisoformat(event["timestamp"]).timestamp()

    def _false_pauses(self) -> list[str]:
        """Who was called paused while the observer reached it."""
        found = []
        for event, at in self._events("runs.node_paused"):
            member = event["node"]
            if member not in self._edges or at - event["silent_s"] < self._began_at:
                continue
            replies = [reply for reply in self._observer.replies_at(member) if at - event["silent_s"] + 1 < reply < at]
            if len(replies) * _PING_S > event["silent_s"] / 2:
                found.append(f"{member} called paused at {at}, and reached {len(replies)} times meanwhile: {event}")
        return found


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
        "grep -m1 ^data: < <(curl -sN -b $jar --max-time 20 $0api/events 2>/dev/null); rm $jar"  # nor waits for curl
    )
    with suppress(json.JSONDecodeError):
        shown = _ask(lab, "bash", "-c", asked, page, secret).stdout.partition("data: ")[2]
        found: Mapping[str, Mapping[str, Any]] = json.loads(shown)["nodes"]
        return found
    return {}


def _answer(lab: Lab, *argv: str) -> Mapping[str, Any]:
    """What a command prints as JSON; empty where it prints none, as without a daemon."""
    with suppress(json.JSONDecodeError):
        found: Mapping[str, Any] = json.loads(_ask(lab, "edgelink", *argv, "--json").stdout)
        return found
    return {}

"""What a driver noticed of an outage: gaps, errors, lost nodes; read from the record of ``outage_driver.py``."""

from __future__ import annotations

import itertools
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machines import records_in, wait_until

from edgelink.lab import CLOUD, Lab

DRIVER = Path(__file__).with_name("outage_driver.py")
ACTORS = ("retried", "plain")
READY_S = 180.0


@dataclass(frozen=True)
class Seen:
    """From the last answer before a moment on, by actor: the longest gap, and what else there was."""

    gaps_s: dict[str, float]
    errors: list[str]
    lost_nodes: set[str]
    pids: dict[str, set[int]]

    @property
    def longest_gap_s(self) -> float:
        return max(self.gaps_s.values())


class OutageDriver:
    """The driver that runs; ``command`` is what starts it on the cloud node, up to the interpreter."""

    def __init__(self, lab: Lab, command: Sequence[str], directory: Path, env: dict[str, str] | None = None) -> None:
        self._record = directory / "record"
        self._log = directory / "driver.log"
        self._request = directory / "record.reduce"
        self._process: subprocess.Popen[bytes] = lab.popen(
            CLOUD, [*command, str(DRIVER), str(self._record)], self._log, env=env
        )
        self.nodes: set[str] = set()

    def wait_ready(self) -> None:
        ready = self.wait_for(lambda events: next((e for e in events if e["event"] == "ready"), None), READY_S)
        self.nodes = set(ready["nodes"])

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """What `edgelink run` and the driver have printed."""
        return self._log.read_text()

    def events(self) -> list[dict[str, Any]]:
        return records_in(self._record)

    def wait_for(self, find: Any, timeout_s: float) -> Any:
        """What ``find`` finds among the events, once it does."""

        def look() -> Any:
            assert self._process.poll() is None, self._log.read_text()
            return find(self.events())

        try:
            return wait_until("the driver's events", look, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; its output: {self._log.read_text()[-2000:]}") from None

    def wait_answers(self, after_s: float, timeout_s: float) -> bool:
        """Whether every actor has answered since ``after_s`` within ``timeout_s``."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            answered = {e["actor"] for e in self.events() if e["event"] == "answer" and e["at_s"] > after_s}
            if answered >= set(ACTORS):
                return True
            time.sleep(0.1)
        return False

    def seen(self, since_s: float) -> Seen:
        """What happened since ``since_s``; a gap that has not ended counts up to now."""
        events, now_s = self.events(), time.monotonic()
        gaps_s, pids = {}, {}
        for actor in ACTORS:
            answers = [e for e in events if e["event"] == "answer" and e["actor"] == actor]
            before = [e["at_s"] for e in answers if e["at_s"] <= since_s][-1:] or [since_s]
            times = [*before, *(e["at_s"] for e in answers if e["at_s"] > since_s), now_s]
            gaps_s[actor] = max(later - earlier for earlier, later in itertools.pairwise(times))
            pids[actor] = {e["pid"] for e in answers}
        return Seen(
            gaps_s=gaps_s,
            errors=[
                f"{e['actor']}: {e['kind']}: {e['message']}"
                for e in events
                if e["event"] == "error" and e["at_s"] > since_s
            ],
            lost_nodes={node for e in events if e["event"] == "nodes" for node in self.nodes - set(e["alive"])},
            pids=pids,
        )

    def start_reducing(self, mib: int) -> None:
        """Sum up tensors of so many MiB with gloo, one after the other; returns when the second one is under way."""
        self._request.write_text(str(mib))
        self.wait_for(lambda events: any(e["event"] == "reduced" for e in events), READY_S)

    def stop_reducing(self) -> None:
        self._request.unlink(missing_ok=True)

    def reduction_under_way(self, timeout_s: float = 120) -> int:
        """The number of an all-reduce that has begun and not ended."""

        def find(events: list[dict[str, Any]]) -> tuple[int] | None:
            last = [e for e in events if e["event"] in ("reduce", "reduced")][-1:]
            return (int(last[0]["number"]),) if last and last[0]["event"] == "reduce" else None

        (number,) = self.wait_for(find, timeout_s)
        return int(number)

    def reduction_ended(self, number: int, timeout_s: float) -> dict[str, Any]:
        """The event of its end; fails where there was an error instead."""

        def find(events: list[dict[str, Any]]) -> dict[str, Any] | None:
            assert not [e for e in events if e["event"] == "error" and e["actor"] == "gloo"]
            return next((e for e in events if e["event"] == "reduced" and e["number"] == number), None)

        found: dict[str, Any] = self.wait_for(find, timeout_s)
        return found

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

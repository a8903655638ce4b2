"""The lab's road: what is said while a node is waited for."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from edgelink.cli import lab, lab_run
from edgelink.clock import SystemClock
from edgelink.errors import DeadlineError
from edgelink.lab import Lab
from edgelink.lab.ray_slots import RaySlots
from edgelink.lab.road import Road
from edgelink.testing import FakeClock

BROKER = {"type": "BrokerUp", "status": "False", "reason": "MissingDependency", "message": "no user mosquitto"}
MEMBERS = {"type": "Members", "status": "Unknown", "reason": "NotAsked", "message": "the broker is not up"}
READY = {"type": "OverlayUp", "status": "True", "reason": "Up", "message": "et0 is up"}


def road(clock: FakeClock, said: list[str], *conditions: dict[str, str], ready_after_s: float) -> Road:
    class Walked(Road):
        def status(self, name: str) -> dict[str, Any] | None:
            return {"ready": clock.monotonic_s() > ready_after_s, "conditions": list(conditions)}

    fake = SimpleNamespace(daemon=lambda _name: object(), directory=Path("/nowhere/lab"))
    return Walked(cast("Lab", fake), cast("SystemClock", clock), said.append)


def test_a_node_that_is_quick_is_waited_for_without_a_word() -> None:
    said: list[str] = []
    assert road(FakeClock(), said, BROKER, ready_after_s=1.5).wait_ready("relay")["ready"]
    assert said == []


def test_what_a_node_waits_for_is_said_once_while_it_lasts() -> None:
    """From the third second on: it may be something that nobody but the user can change."""
    said: list[str] = []
    assert road(FakeClock(), said, READY, BROKER, MEMBERS, ready_after_s=2.5).wait_ready("relay")["ready"]
    assert said == ["  relay waits: no user mosquitto"]


def test_when_the_time_is_up_all_that_is_missing_is_named() -> None:
    with pytest.raises(
        DeadlineError, match=r"after 120 s: BrokerUp .*no user mosquitto; Members NotAsked: the broker is"
    ):
        road(FakeClock(), [], READY, BROKER, MEMBERS, ready_after_s=600).wait_ready("relay")


def test_no_more_nodes_start_at_once_than_there_are_slots(tmp_path: Path) -> None:
    """The next one starts when an earlier one is ready. A lab that has a slot never waits for another lab's."""
    clock, done = FakeClock(), list[str]()
    theirs = RaySlots(tmp_path, cast("SystemClock", clock), print)
    taken = []
    while (slot := theirs.take_free("cloud of lab theirs")) is not None:
        taken.append(slot)
    os.close(taken.pop())  # one is left for us

    class Walked(Road):
        def status(self, name: str) -> dict[str, Any] | None:
            done.append(f"{name} is ready")
            return {"ready": True, "conditions": []}

    fake = SimpleNamespace(
        name="ours",
        directory=tmp_path / "ours",
        daemon=lambda _name: object(),
        start=lambda name: done.append(f"{name} starts"),
    )
    Walked(cast("Lab", fake), cast("SystemClock", clock), print).start("cloud", "edge-1", "edge-2")
    assert done == [f"{node} {what}" for node in ("cloud", "edge-1", "edge-2") for what in ("starts", "is ready")]
    given_back = theirs.take_free("edge-1 of lab theirs")
    assert given_back is not None
    for each in (given_back, *taken):
        os.close(each)


def test_the_summary_fits_the_terminal_and_ends_with_what_to_do_next(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    node = {"name": "cloud", "overlay_ip": "10.10.0.2", "node_rank": 0, "ray_node_id": "932dc6f8ec18a0"}
    worker = {"component": "rollout", "process_rank": 0, "hostname": "edge-1", "device_address": "10.10.0.3"}
    report = {
        "nodes": [node],
        "placements": [{**worker, "pid": 23717, "network_namespace": "net:[4026532455]", "samples": 30720}],
        "stages": {"lab": 0.3, "relay": 1.2, "enrolment": 1.8, "head": 8.1, "edges": 6.8, "training": 37.4},
        "return_before": 21.8,
        "return_after": 500.0,
    }
    lab_run.show_summary(report)
    told = capsys.readouterr().out.splitlines()
    assert max(map(len, told)) <= 80
    assert told[-2].endswith("edgelink lab up")
    assert told[-1].endswith("tutorial")


def test_the_labs_state_fits_the_terminal_under_a_line_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"eth0": ["203.0.113.1"], "eth1": [f"198.51.100.{host}" for host in (1, 5, 9)]}
    rows = [{"node": "internet", "daemon_pid": None, "addresses": addresses, "wan": "rtt 80 ms"}]
    monkeypatch.setattr(lab, "_road", lambda _name: SimpleNamespace(lab=SimpleNamespace(status=lambda: rows)))
    told = CliRunner().invoke(lab.command, ["status"], env={"COLUMNS": "60"}).stdout
    assert max(map(len, told.splitlines())) <= 60
    assert told.split()[6:9] == ["internet", "-", "-"]
    assert told.split()[9:] == [*addresses["eth0"], *addresses["eth1"], "rtt", "80", "ms"]

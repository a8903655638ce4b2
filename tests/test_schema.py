"""What `--json` prints against what its page says."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import ValidationError

from edgelink import log
from edgelink.api import schema
from edgelink.cli import ping
from edgelink.config import Config, Paths
from edgelink.daemon.edge import Edge
from edgelink.daemon.head import Head
from edgelink.daemon.this_machine import ThisMachine
from edgelink.files import private_directory
from edgelink.overlay.path_watch import Way
from edgelink.protocol.payloads import Role
from edgelink.telemetry.others import KnownNode, together
from edgelink.testing import FakeClock
from edgelink.training.run_record import Attempt, RunRecord

WAY = Way("edge-1", IPv4Address("10.10.0.3"), "relayed", "relay", None, None).to_dict()


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("role", [Role.HEAD, Role.EDGE])
def test_the_status_of_a_node(role: Role, tmp_path: Path) -> None:
    """Head and edge, with a run and without; those of relays are tried in a real network."""
    paths = Paths(state=tmp_path / "state", runtime=tmp_path / "run")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    attempt = Attempt(number=1, started_at=at, lost_nodes=("edge-1",))
    private_directory(paths.state)
    (paths.state / "last-run.json").write_text(
        RunRecord(run_id="r", command="python", attempts=(attempt,)).model_dump_json()
    )
    node = (Head if role is Role.HEAD else Edge)(Config(), paths, FakeClock(), ThisMachine(), None)
    node.base.conditions.set_false("OverlayUp", "DeviceMissing", "no et0")
    assert (node.observation.status().get("run") is not None) == (role is Role.HEAD)
    daemon = {**node.observation.status(), "paths": [WAY]}
    document = as_json({"schema": 1, "ready": False, "daemons": [daemon], "silent": ["nobody answers"]})
    schema.Status.model_validate(document)
    del document["daemons"][0]["phase"]
    document["daemons"][0]["secret"] = "x"
    document["daemons"][0]["pid"] = "1"
    with pytest.raises(ValidationError) as refused:
        schema.Status.model_validate(document)
    assert {(error["loc"][-1], error["type"]) for error in refused.value.errors()} == {
        ("phase", "missing"),
        ("pid", "int_type"),
        ("secret", "extra_forbidden"),
    }


def test_pings() -> None:
    """Of a node that answers, and of one that nobody has seen."""
    known = [KnownNode("edge-1", "10.10.0.3", 1, "edge"), KnownNode("edge-2", "10.10.0.4")]
    for node, rtt_ms in zip(together(known, [WAY]), (12.5, None), strict=True):
        probe = {"event": "probe", "seq": 1, **node, "rtt_ms": rtt_ms, "bytes": 84}
        schema.Probe.model_validate(as_json(probe))
        summary = {"schema": 1, "event": "summary", **ping.summary([probe])}
        schema.PingSummary.model_validate(as_json(summary))


def test_a_line_of_the_log() -> None:
    """Beside fields of its own."""
    before = structlog.get_config()
    log.configure(quiet=True)
    try:
        log.get_logger("test").warning("schema.test", more=1)
    finally:
        structlog.configure(**before)
    assert schema.LogLine.model_validate(json.loads(log.recent()[-1])).model_extra == {"more": 1}

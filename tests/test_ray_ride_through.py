"""The condition RideThrough: what an outage costs this node, with the figure, and why not less."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from full_disk import Disk
from telling import Words

from edgelink.clock import SystemClock
from edgelink.conditions import Condition, ConditionSet
from edgelink.config import Config, HostConfig, Paths
from edgelink.process import host_tcp
from edgelink.ray_cluster.host_ride_through import RideThroughReconciler
from edgelink.testing.facts import board_with


class Host:
    """A pretended /proc/sys, and the node on it."""

    def __init__(self, directory: Path) -> None:
        self.proc_sys = directory / "sys"
        (self.proc_sys / "net/ipv4").mkdir(parents=True)
        for name, value in ((host_tcp.RTO_MAX, 120_000), (host_tcp.RETRIES2, 15), (host_tcp.SYN_RETRIES, 6)):
            (self.proc_sys / name).write_text(str(value))
        self.paths = Paths(state=directory / "state", runtime=directory / "run")
        self.conditions = ConditionSet(SystemClock(), [], ["RideThrough"])
        self.ride_through_s = 300

    def look(self, config: Config | None = None, *, is_heads: bool = False) -> Condition:
        RideThroughReconciler(
            config=config or Config(),
            paths=self.paths,
            conditions=self.conditions,
            clock=SystemClock(),
            is_heads=is_heads,
            board=board_with(ride_through_s=self.ride_through_s),
            proc_sys=self.proc_sys,
        ).apply()
        return self.conditions.get("RideThrough")

    @property
    def rto_max_ms(self) -> int:
        return int((self.proc_sys / host_tcp.RTO_MAX).read_text())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_full_where_the_kernel_lets_us(host: Host) -> None:
    """Said with both figures."""
    condition = host.look()
    assert (condition.status, condition.reason) == ("True", "Full")
    assert "up to 5 min" in condition.message
    assert "resume within 2 s" in condition.message
    assert host.rto_max_ms == 2000
    assert host.paths.host_tcp.exists()


def test_what_cannot_be_remembered_is_not_changed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk the daemon goes on, with the host's own values, and says so; it follows when there is room."""
    disk = Disk(monkeypatch)
    disk.is_full = True
    condition = host.look()
    assert (condition.status, condition.reason) == ("False", "NotRecorded")
    assert str(host.paths.host_tcp) in condition.message
    assert "No space left" in condition.message
    assert host.rto_max_ms == 120_000
    disk.is_full = False
    assert host.look().reason == "Full"


def test_the_heads_longer_value_is_followed(host: Host) -> None:
    """When the spec comes with another value than was assumed."""
    host.look()
    host.ride_through_s = 3600
    assert "up to 1 h" in host.look().message
    assert host_tcp.observe(host.proc_sys).gives_up_after_s > 3600


def test_the_heads_own_change_that_waits_for_a_run_is_no_disagreement(host: Host) -> None:
    """Until the run has ended the host keeps what Ray was started with."""
    waiting = Config(ride_through=60)
    assert "up to 5 min" in host.look(waiting, is_heads=True).message


def test_an_old_kernel_says_what_holds_instead(host: Host, words: Words) -> None:
    """Nodes survive; the gap doubles, and the figure is named."""
    (host.proc_sys / host_tcp.RTO_MAX).unlink()
    condition = host.look()
    assert (condition.status, condition.reason) == ("False", "KernelLacksRtoCap")
    assert "120 s" in condition.message
    words(condition.message, KERNEL=os.uname().release)


def test_declined_changes_nothing_and_puts_back(host: Host) -> None:
    """`host.tcp: leave` also undoes what was changed before it was said."""
    host.look()
    condition = host.look(Config(host=HostConfig(tcp="leave")))
    assert (condition.status, condition.reason) == ("False", "Declined")
    assert host.rto_max_ms == 120_000
    assert not host.paths.host_tcp.exists()


def test_declined_but_good_already_is_full(host: Host) -> None:
    """An admin who set it has what is to be had."""
    (host.proc_sys / host_tcp.RTO_MAX).write_text("1900")
    (host.proc_sys / host_tcp.RETRIES2).write_text("255")
    (host.proc_sys / host_tcp.SYN_RETRIES).write_text("100")
    assert host.look(Config(host=HostConfig(tcp="leave"))).reason == "Full"


def test_the_machine_gets_bbr_where_it_is_configured(host: Host) -> None:
    control = host.proc_sys / host_tcp.CONGESTION
    control.write_text("cubic\n")
    host.look()
    assert control.read_text().strip() == "cubic"
    host.look(Config(host=HostConfig(tcp_congestion="bbr")))
    assert control.read_text().strip() == "bbr"


def test_what_has_nothing_to_do_with_outages_is_told_beside(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that refuses a congestion control rides through outages as well as any."""
    (host.proc_sys / host_tcp.CONGESTION).write_text("cubic\n")
    set_it = host_tcp._set

    def refuse(path: Path, value: int | str) -> str | None:
        return "tcp_congestion_control: no such algorithm" if value == "bbr" else set_it(path, value)

    monkeypatch.setattr(host_tcp, "_set", refuse)
    condition = host.look(Config(host=HostConfig(tcp_congestion="bbr")))
    assert (condition.status, condition.reason) == ("True", "Full")
    assert "no such algorithm" in condition.message


def test_read_only_is_told_with_the_cause(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container."""

    def refuse(_path: Path, _value: int) -> str:
        return "/proc/sys: Read-only file system"

    monkeypatch.setattr(host_tcp, "_set", refuse)
    condition = host.look()
    assert condition.reason == "SysctlReadOnly"
    assert "Read-only file system" in condition.message
    assert "120 s at most" in condition.message


def test_a_disagreement_is_shown_where_ray_runs_already(host: Host) -> None:
    """RayJoined refuses who has not joined; who has is told here."""
    condition = host.look(Config(ride_through=60))
    assert (condition.status, condition.reason) == ("False", "RideThroughDisagrees")
    assert host.rto_max_ms == 120_000

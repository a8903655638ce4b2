"""The kernel's TCP patience: derived, set, remembered, put back; on a pretended /proc/sys."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from full_disk import Disk
from hypothesis import given
from hypothesis import strategies as st

from edgelink.errors import NotRecordedError
from edgelink.process import host_tcp
from edgelink.process.host_tcp import TcpValues, adjust, gives_up_after_s, observe, restore, wanted
from edgelink.ray_cluster.ride_through import patience_s

DEFAULTS = TcpValues(rto_max_ms=120_000, retries2=15, syn_retries=6, mtu_probing=0, congestion="cubic")
OLD_KERNEL = TcpValues(rto_max_ms=None, retries2=15, syn_retries=6)
NAMES = {
    host_tcp.RTO_MAX: "rto_max_ms",
    host_tcp.RETRIES2: "retries2",
    host_tcp.SYN_RETRIES: "syn_retries",
    host_tcp.MTU_PROBING: "mtu_probing",
    host_tcp.CONGESTION: "congestion",
}


def make(directory: Path, values: TcpValues) -> Path:
    for name, field in NAMES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if (value := getattr(values, field)) is not None:
            path.write_text(f"{value}\n")
    return directory


@pytest.fixture
def proc_sys(tmp_path: Path) -> Path:
    return make(tmp_path / "sys", DEFAULTS)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "state/host_tcp.json"


@pytest.mark.parametrize(("pause_s", "retries", "seconds"), [(120, 15, 924.6), (2, 15, 27.0), (2, 255, 507.0)])
def test_the_kernels_arithmetic(pause_s: float, retries: int, seconds: float) -> None:
    """924.6 s is what Linux documents for its defaults; with the cap alone, 27.5 s were measured."""
    assert gives_up_after_s(pause_s, retries) == pytest.approx(seconds)


values = st.builds(
    TcpValues,
    rto_max_ms=st.none() | st.integers(1000, 120_000),
    retries2=st.integers(0, 255),
    syn_retries=st.integers(1, 127),
)


@given(values, st.integers(30, 3600))
def test_connections_outlive_the_outage_and_resume_soon(found: TcpValues, ride_through_s: int) -> None:
    """Whatever was there. Within the kernel's own bounds, and never less patient with retries than before."""
    patience = patience_s(ride_through_s)
    target = wanted(found, patience)
    assert target.gives_up_after_s >= patience
    assert found.retries2 <= target.retries2 <= 255
    assert found.syn_retries <= target.syn_retries <= 127
    assert (target.rto_max_ms is None) == (found.rto_max_ms is None)
    if target.rto_max_ms is not None:
        assert 1000 <= target.rto_max_ms <= 120_000
        if ride_through_s <= 300:
            assert target.resumes_after_s(ride_through_s) <= 2


@given(values, st.integers(30, 3600))
def test_what_is_good_already_is_left(found: TcpValues, ride_through_s: int) -> None:
    """Asking twice changes nothing, and an admin's shorter cap stays where it can last."""
    patience = patience_s(ride_through_s)
    target = wanted(found, patience)
    assert wanted(target, patience) == target
    if (
        found.rto_max_ms is not None
        and found.rto_max_ms <= 2000
        and gives_up_after_s(found.rto_max_ms / 1000, 255) >= patience
    ):
        assert target.rto_max_ms == found.rto_max_ms


def test_the_gap_without_the_cap_is_the_outage_itself() -> None:
    """Doubling intervals: the next try is as late as the outage was long, 120 s at most."""
    assert OLD_KERNEL.resumes_after_s(30) == 30
    assert OLD_KERNEL.resumes_after_s(300) == 120


def test_set_remembered_and_put_back(proc_sys: Path, record: Path) -> None:
    """The record is private, and there before the change; afterwards nothing is left."""
    done = adjust(record, 450, proc_sys=proc_sys)
    assert done.error is None
    assert done.now == done.wanted == observe(proc_sys)
    assert done.found == DEFAULTS
    assert done.now.rto_max_ms == 2000
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert restore(record, proc_sys=proc_sys) == DEFAULTS
    assert not record.exists()
    assert restore(record, proc_sys=proc_sys) is None


@pytest.mark.parametrize(("found", "left"), [(0, 1), (1, 1), (2, 2)])
def test_tcp_probes_for_what_a_path_carries(proc_sys: Path, record: Path, found: int, left: int) -> None:
    """Who probes more already goes on doing so."""
    (proc_sys / host_tcp.MTU_PROBING).write_text(f"{found}\n")
    assert adjust(record, 450, proc_sys=proc_sys).now.mtu_probing == left
    restore(record, proc_sys=proc_sys)
    assert observe(proc_sys).mtu_probing == found


def test_the_hosts_congestion_control_changes_on_request_only(proc_sys: Path, record: Path) -> None:
    """And goes back when the request does, or at the end, unless somebody else has chosen meanwhile."""
    assert adjust(record, 450, proc_sys=proc_sys).now.congestion == "cubic"
    assert adjust(record, 450, congestion="bbr", proc_sys=proc_sys).now.congestion == "bbr"
    assert adjust(record, 450, proc_sys=proc_sys).now.congestion == "cubic"
    adjust(record, 450, congestion="bbr", proc_sys=proc_sys)
    assert restore(record, proc_sys=proc_sys) == DEFAULTS
    adjust(record, 450, congestion="bbr", proc_sys=proc_sys)
    (proc_sys / host_tcp.CONGESTION).write_text("reno\n")
    restore(record, proc_sys=proc_sys)
    assert observe(proc_sys).congestion == "reno"


def test_twice_is_once(proc_sys: Path, record: Path) -> None:
    """A second daemon start, or another length, does not take our own values for what was there."""
    adjust(record, 450, proc_sys=proc_sys)
    adjust(record, 450, proc_sys=proc_sys)
    longer = adjust(record, 3750, proc_sys=proc_sys)
    assert longer.found == DEFAULTS
    assert longer.now.gives_up_after_s >= 3750
    back = adjust(record, 450, proc_sys=proc_sys)
    assert back.now.rto_max_ms == 2000
    assert restore(record, proc_sys=proc_sys) == DEFAULTS


def test_after_a_reboot_it_is_set_again(proc_sys: Path, record: Path) -> None:
    """The record outlives the values."""
    adjust(record, 450, proc_sys=proc_sys)
    make(proc_sys, DEFAULTS)
    assert adjust(record, 450, proc_sys=proc_sys).now.rto_max_ms == 2000
    assert restore(record, proc_sys=proc_sys) == DEFAULTS


def test_what_somebody_else_set_since_stays(proc_sys: Path, record: Path) -> None:
    """Putting back is for our own values only."""
    adjust(record, 450, proc_sys=proc_sys)
    (proc_sys / host_tcp.RETRIES2).write_text("250\n")
    now = restore(record, proc_sys=proc_sys)
    assert now is not None
    assert (now.rto_max_ms, now.retries2) == (120_000, 250)


def test_death_before_the_change_forgets_nothing(proc_sys: Path, record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded, and not set yet: the values of the time before are ours as well, not the host's."""
    adjust(record, 450, proc_sys=proc_sys)

    def die(_path: Path, _value: int) -> str | None:
        raise SystemExit

    with monkeypatch.context() as dying, pytest.raises(SystemExit):
        dying.setattr(host_tcp, "_set", die)
        adjust(record, 3750, proc_sys=proc_sys)
    assert adjust(record, 450, proc_sys=proc_sys).found == DEFAULTS
    assert restore(record, proc_sys=proc_sys) == DEFAULTS


def test_what_was_there_first_outlives_every_other_change(proc_sys: Path, record: Path) -> None:
    """Somebody else's value that had to be changed, too, is not what leaving puts back."""
    adjust(record, 450, proc_sys=proc_sys)
    (proc_sys / host_tcp.RETRIES2).write_text("20\n")
    adjust(record, 3750, proc_sys=proc_sys)
    assert restore(record, proc_sys=proc_sys) == DEFAULTS


def test_what_somebody_else_set_well_does_not_become_ours(proc_sys: Path, record: Path) -> None:
    """It is left while it is good enough, and after us, too."""
    adjust(record, 450, proc_sys=proc_sys)
    (proc_sys / host_tcp.RETRIES2).write_text("250\n")
    for _ in range(2):
        assert adjust(record, 450, proc_sys=proc_sys).now.retries2 == 250
    now = restore(record, proc_sys=proc_sys)
    assert now is not None
    assert (now.rto_max_ms, now.retries2) == (120_000, 250)


def test_two_daemons_change_one_after_the_other(proc_sys: Path, record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relay and head on one machine share the record: neither may read it while the other is between it and /proc."""
    locked = []

    def look(_path: Path, _value: int) -> str | None:
        descriptor = os.open(record.parent, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            locked.append(record.exists())
        finally:
            os.close(descriptor)
        return None

    monkeypatch.setattr(host_tcp, "_set", look)
    adjust(record, 450, proc_sys=proc_sys)
    assert locked == [True] * 4  # the three of patience, and probing


def test_a_record_of_a_former_boot_does_not_count(proc_sys: Path, record: Path) -> None:
    """A boot has made the settings the host's own again, with what its configuration says now."""
    adjust(record, 450, proc_sys=proc_sys)
    entries = json.loads(record.read_text())
    record.write_text(json.dumps({name: {**entry, "boot_id": "another"} for name, entry in entries.items()}))
    configured = replace(DEFAULTS, retries2=12)
    make(proc_sys, configured)
    adjust(record, 450, proc_sys=proc_sys)
    assert restore(record, proc_sys=proc_sys) == configured


def test_what_cannot_be_put_back_is_not_forgotten(
    proc_sys: Path, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where /proc has become read-only meanwhile."""
    adjust(record, 450, proc_sys=proc_sys)
    with monkeypatch.context() as refusing:
        refusing.setattr(host_tcp, "_set", lambda _path, _value: "read-only")
        restore(record, proc_sys=proc_sys)
    assert restore(record, proc_sys=proc_sys) == DEFAULTS


def test_a_full_disk_changes_nothing(proc_sys: Path, record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there is on disk before it is changed, or it is not changed."""

    Disk(monkeypatch).is_full = True
    with pytest.raises(NotRecordedError, match="No space left"):
        adjust(record, 450, proc_sys=proc_sys)
    assert observe(proc_sys) == DEFAULTS


def test_a_kernel_without_the_cap(tmp_path: Path, record: Path) -> None:
    """Its own patience of 924 s is enough for 5 minutes: nothing is changed, nothing recorded."""
    proc_sys = make(tmp_path / "old", OLD_KERNEL)
    done = adjust(record, 450, proc_sys=proc_sys)
    assert done.now == done.wanted == OLD_KERNEL
    assert not record.exists()
    assert adjust(record, 3750, proc_sys=proc_sys).now.gives_up_after_s >= 3750


def test_a_read_only_proc_sys_is_told(proc_sys: Path, record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container: no exception, the reason, and the values as they are."""

    def refuse(_path: Path, _text: str) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    done = adjust(record, 450, proc_sys=proc_sys)
    assert done.error is not None
    assert "Read-only file system" in done.error
    assert done.now == DEFAULTS
    assert done.wanted != done.now

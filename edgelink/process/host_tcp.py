"""The kernel's TCP patience in this network namespace: adjusted, remembered, put back.

A connection whose path is gone is retried at doubling intervals, 120 s at most: after an outage of 30 s the next try
comes up to 30 s late. ``tcp_rto_max_ms`` (Linux 6.15) caps the interval. The cap alone also shortens the time after
which TCP gives up, which is counted in retries, so that those have to be raised with it.

All three are read when a socket is made or when it gives up: set them before there are sockets.

Beside them, ``tcp_mtu_probing``: an uplink that carries less than its device says, and drops the ICMP that would tell,
lets no full segment through. With 1 the kernel finds the size that gets through once a connection stands still. And,
where the configuration asks for it, ``tcp_congestion_control``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edgelink.config.defaults import LONGEST_RTO_MS
from edgelink.errors import NotRecordedError
from edgelink.files import AT_ONCE, locked_directory, private_directory, write_atomic
from edgelink.log import get_logger
from edgelink.process import procfs

PROC_SYS = Path("/proc/sys")
RTO_MAX = "net/ipv4/tcp_rto_max_ms"
RETRIES2 = "net/ipv4/tcp_retries2"
SYN_RETRIES = "net/ipv4/tcp_syn_retries"
MTU_PROBING = "net/ipv4/tcp_mtu_probing"
CONGESTION = "net/ipv4/tcp_congestion_control"
_FIELDS = {  # of TcpValues
    RTO_MAX: "rto_max_ms",
    RETRIES2: "retries2",
    SYN_RETRIES: "syn_retries",
    MTU_PROBING: "mtu_probing",
    CONGESTION: "congestion",
}

_RTO_MAX_MS = 2_000  # shorter tries are many packets for nothing
_RTO_MIN_MS = 200
_MOST_RETRIES2 = 255
_MOST_SYN_RETRIES = 127
_log = get_logger("host")


@dataclass(frozen=True)
class TcpValues:
    """Each that may be None is so where the kernel has no such setting."""

    rto_max_ms: int | None
    retries2: int
    syn_retries: int
    mtu_probing: int | None = None
    congestion: str | None = None

    @property
    def patience(self) -> tuple[int | None, int, int]:
        """What decides how outages are ridden through."""
        return self.rto_max_ms, self.retries2, self.syn_retries

    @property
    def longest_pause_s(self) -> float:
        """Between two tries of a connection whose path is gone: what it resumes late, at most."""
        return (LONGEST_RTO_MS if self.rto_max_ms is None else self.rto_max_ms) / 1000

    @property
    def gives_up_after_s(self) -> float:
        """How long a connection lives while nothing gets through."""
        return gives_up_after_s(self.longest_pause_s, self.retries2)

    def resumes_after_s(self, outage_s: float) -> float:
        """How long after the end of an outage a connection may stay silent."""
        return min(outage_s, self.longest_pause_s)


@dataclass(frozen=True)
class Adjustment:
    """``found``: before anything of ours; ``wanted``: what ought to be; ``now``: what is; ``error``: why not more."""

    found: TcpValues
    wanted: TcpValues
    now: TcpValues
    error: str | None = None


@dataclass(frozen=True)
class _Change:
    """Of one setting. ``old``: before anything of ours; ``ours``: what we set, or were about to, the newest last.

    All of ``ours`` count: who dies between recording and setting leaves the one before the newest behind.
    """

    old: int | str
    ours: tuple[int | str, ...] = ()

    def is_ours(self, value: int | str) -> bool:
        return value in self.ours

    def to(self, new: int | str) -> _Change:
        return replace(self, ours=(*(value for value in self.ours if value != new), new))


def gives_up_after_s(longest_pause_s: float, retries: int) -> float:
    """As Linux counts it (``tcp_model_timeout``)."""
    doublings = int(math.log2(longest_pause_s * 1000 // _RTO_MIN_MS))
    doubled_s = ((2 << min(retries, doublings)) - 1) * _RTO_MIN_MS / 1000
    return doubled_s + max(0, retries - doublings) * longest_pause_s


def wanted(found: TcpValues, patience_s: float, congestion: str | None = None) -> TcpValues:
    """The values with which connections live for ``patience_s`` and resume soon; what is better already stays; pure.

    ``congestion``: the host's default congestion control is to be this one.
    """
    rto_max_ms = found.rto_max_ms
    if rto_max_ms is not None and not (rto_max_ms <= _RTO_MAX_MS and _can_last(rto_max_ms, patience_s)):
        rto_max_ms = next(ms for ms in range(_RTO_MAX_MS, LONGEST_RTO_MS + 1, 1000) if _can_last(ms, patience_s))
    capped = replace(found, rto_max_ms=rto_max_ms)
    retries2 = next(n for n in range(_MOST_RETRIES2 + 1) if gives_up_after_s(capped.longest_pause_s, n) >= patience_s)
    # So that who is connecting during an outage is not turned away sooner than before.
    connects_for_s = _connects_for_s(found.longest_pause_s, found.syn_retries)
    syn_retries = found.syn_retries
    while syn_retries < _MOST_SYN_RETRIES and _connects_for_s(capped.longest_pause_s, syn_retries) < connects_for_s:
        syn_retries += 1
    return replace(
        capped,
        retries2=max(found.retries2, retries2),
        syn_retries=syn_retries,
        mtu_probing=None if found.mtu_probing is None else found.mtu_probing or 1,
        congestion=congestion or found.congestion,
    )


def observe(proc_sys: Path = PROC_SYS) -> TcpValues:
    """What this process's network namespace has now."""
    return _from_names({name: _look(proc_sys / name) for name in _FIELDS})


def adjust(record: Path, patience_s: float, *, congestion: str | None = None, proc_sys: Path = PROC_SYS) -> Adjustment:
    """Have connections live for ``patience_s`` and resume soon. What was there goes to ``record`` first. Idempotent.

    A setting that somebody else changed after us is judged as it is then; what was there before anything of ours stays
    in ``record`` until it is put back.

    Raises:
        NotRecordedError: what was there cannot be recorded; then nothing is changed.
    """
    # Relay and head on one machine have one record.
    with locked_directory(private_directory(record.parent)):
        now = observe(proc_sys)
        values = {name: value for name, value in _by_name(now).items() if value is not None}
        changes = _changes(record)
        found = {
            name: changes[name].old if name in changes and changes[name].is_ours(v) else v for name, v in values.items()
        }
        baseline = _from_names(found)
        target = wanted(baseline, patience_s, congestion)
        wanted_values = {name: value for name, value in _by_name(target).items() if value is not None}
        for name, new in wanted_values.items():
            if new != values[name]:
                changes[name] = changes.get(name, _Change(values[name])).to(new)
        _write_record(record, changes)
        error = None
        for name, value in wanted_values.items():
            if value != values[name]:
                error = _set(proc_sys / name, value) or error
        after = observe(proc_sys)
        is_back = {name for name, value in _by_name(after).items() if name in changes and changes[name].old == value}
        with suppress(NotRecordedError):  # what is recorded too much does no harm
            _write_record(record, {name: change for name, change in changes.items() if name not in is_back})
    if after != now:
        _log.info("host.tcp_adjusted", before=asdict(now), after=asdict(after))
    return Adjustment(baseline, target, after, error)


def restore(record: Path, *, proc_sys: Path = PROC_SYS) -> TcpValues | None:
    """Put back what was there before :func:`adjust`, except what somebody else has changed since. Idempotent.

    What cannot be put back stays in ``record``.

    Raises:
        NotRecordedError: the record cannot be changed; it says more than is left to do.

    Returns:
        What there is now; None where nothing had been changed.
    """
    if not record.exists():
        return None
    with locked_directory(private_directory(record.parent)):
        changes = _changes(record)
        left = {}
        for name, change in changes.items():
            path = proc_sys / name
            now_there = _look(path)
            if now_there is not None and change.is_ours(now_there) and _set(path, change.old) is not None:
                left[name] = change
        _write_record(record, left)
    if not changes:
        return None
    now = observe(proc_sys)
    _log.info("host.tcp_restored", now=asdict(now))
    return now


def _can_last(rto_max_ms: int, patience_s: float) -> bool:
    return gives_up_after_s(rto_max_ms / 1000, _MOST_RETRIES2) >= patience_s


def _connects_for_s(longest_pause_s: float, retries: int) -> float:
    return sum(min(2.0**n, longest_pause_s) for n in range(retries + 1))


def _by_name(values: TcpValues) -> dict[str, int | str | None]:
    return {name: getattr(values, field) for name, field in _FIELDS.items()}


def _from_names(values: Mapping[str, Any]) -> TcpValues:
    fields: dict[str, Any] = {field: values.get(name) for name, field in _FIELDS.items()}
    return TcpValues(**fields)


def _changes(record: Path) -> dict[str, _Change]:
    """The settings that we changed since this machine was booted: a boot makes them the host's own again."""
    boot_id = procfs.boot_id()
    changes = {}
    try:
        for name, entry in json.loads(record.read_text()).items():
            if entry.get("boot_id", boot_id) == boot_id:
                ours = (*entry.get("ours", ()), entry["new"])
                kind = str if name == CONGESTION else int
                changes[str(name)] = _Change(kind(entry["old"]), tuple(dict.fromkeys(map(kind, ours))))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return changes


def _write_record(record: Path, changes: dict[str, _Change]) -> None:
    if not changes:
        AT_ONCE.remove(record)
    elif changes != _changes(record):
        boot_id = procfs.boot_id()
        entries = {
            name: {"old": change.old, "new": change.ours[-1], "ours": change.ours, "boot_id": boot_id}
            for name, change in changes.items()
        }
        write_atomic(record, json.dumps(entries))


def _look(path: Path) -> int | str | None:
    """None where the kernel has no such setting."""
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return None
    return text if path.name == CONGESTION.rpartition("/")[2] else int(text)


def _set(path: Path, value: int | str) -> str | None:
    """None, or why it cannot be set."""
    try:
        path.write_text(str(value))
    except OSError as error:
        return f"{path}: {error.strerror}"
    return None

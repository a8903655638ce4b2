"""A robot's figures, for its tick file, for people, and for the run's report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgelink.training.trainer.robot.deadman import Cause, State, silent_after_ns
from edgelink.training.trainer.robot.realtime import NS, now_ns
from edgelink.training.trainer.robot.shared import SharedBlock, Words

STOPPING, STALLED, SILENT, DEAD = "stopping", "stalled", "silent", "dead"  # instead of a state that is the last one
_COUNTS = (
    "ticks", "missed", "stalls", "holds", "stops", "resumes", "clamped_box", "clamped_rate", "clamped_workspace",
    "not_numbers", "bad_checksums", "policy_version", "stop_fails",
)  # fmt: skip


def condition(words: Words, watchdog_s: float) -> str:
    """The robot's state in a word, or why nobody knows it: its code or its process does not come back."""
    if words.stopping_since_ns:
        return STOPPING
    busy_since_ns, now = words.busy_since_ns, now_ns()
    if not words.leaving:
        if busy_since_ns and now - busy_since_ns > watchdog_s * NS:
            return STALLED
        if words.heartbeat_ns and now - words.heartbeat_ns > silent_after_ns(watchdog_s):
            return SILENT
    return State(words.state).name.lower()


def figures(block: SharedBlock, hello: Mapping[str, Any], watchdog_s: float) -> dict[str, Any]:
    """Of this moment."""
    words, now = block.words, now_ns()
    return {
        "state": condition(words, watchdog_s),
        "cause": Cause(words.cause).name.lower(),
        "hindered_by": Cause(words.hindrance).name.lower(),
        **{name: getattr(words, name) for name in _COUNTS},
        "newest_policy_version": words.weights_version,  # that has arrived; the robot acts by it once it is copied
        "rate_hz": hello["rate_hz"],
        "rigs": hello["rigs"],
        "notes": hello["notes"],
        "steps": words.rows,
        "link_age_s": _age_s(words.link_ns, now),
        "link_rtt_ms": round(words.link_rtt_us / 1000, 3),
        "policy_age_s": _age_s(words.policy_ns, now),
        "policy_confirmed_age_s": _age_s(words.policy_confirmed_ns, now),  # as the deadman has it
        "heartbeat_age_s": _age_s(words.heartbeat_ns, now),
        "stopping_for_s": _age_s(words.stopping_since_ns, now),
        "lateness_p50_us": block.lateness_us(0.5),
        "lateness_p99_us": block.lateness_us(0.99),
        "later_than_2_ms": block.later_than(2000),
        "lateness_max_us": round(words.max_lateness_ns / 1000),
        "busy_max_us": round(words.max_busy_ns / 1000),
    }


def _age_s(stamp_ns: int, now: int) -> float | None:
    return round((now - stamp_ns) / NS, 3) if stamp_ns else None

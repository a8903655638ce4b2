"""One knob: whatever gives up by the clock waits longer than the outage that is to be ridden through."""

from __future__ import annotations

import importlib.util
import mmap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgelink.config import load_config
from edgelink.errors import ConfigError
from edgelink.ray_cluster.ride_through import buried_after_s, check_collectives, patience_s, ray_settings

lengths = st.integers(30, 3600)


@given(lengths)
def test_everything_waits_longer_than_the_outage(ride_through_s: int) -> None:
    """By half a minute at least, and by TCP's late retry on a kernel without the cap; in Ray's own units."""
    settings = ray_settings(ride_through_s)
    late_s = min(ride_through_s, 120)
    units = {"_ms": 0.001, "_MS": 0.001, "_milliseconds": 0.001, "_s": 1, "_seconds": 1, "_SEC": 1}
    give_ups = {
        name: int(value) * next(unit for suffix, unit in units.items() if name.endswith(suffix))
        for name, value in settings.items()
        if not name.startswith("RAY_health_check_")
    }
    assert len(give_ups) >= 7
    for name, give_up_s in give_ups.items():
        assert give_up_s >= ride_through_s + late_s + 30, name
    period_s, checks = (
        int(settings["RAY_health_check_period_ms"]) / 1000,
        int(settings["RAY_health_check_failure_threshold"]),
    )
    assert period_s * checks >= ride_through_s + late_s + 30  # a check of an unreachable address fails at once
    assert patience_s(ride_through_s) >= ride_through_s + late_s + 30


@given(lengths)
def test_a_silent_death_is_noticed_in_the_end(ride_through_s: int) -> None:
    """Between the promise and a bound that people can plan with."""
    at_once_s, silent_s = buried_after_s(ride_through_s)
    assert ride_through_s < at_once_s <= silent_s <= 3 * ride_through_s + 225


@given(lengths, lengths)
def test_more_patience_for_longer_outages(one_s: int, other_s: int) -> None:
    """No setting shrinks when the knob grows."""
    shorter, longer = (ray_settings(value) for value in sorted((one_s, other_s)))
    assert shorter.keys() == longer.keys()
    assert all(int(shorter[name]) <= int(longer[name]) for name in shorter)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray's binaries, which know its settings")
def test_ray_knows_the_settings() -> None:
    """A name that Ray does not know would be ignored without a word."""
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    raylet = Path(spec.origin).parent / "core/src/ray/raylet/raylet"
    with raylet.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as binary:
        unknown = [
            name
            for name in ray_settings(300)
            if name.startswith("RAY_") and binary.find(name.removeprefix("RAY_").encode()) < 0
        ]
    assert unknown == []


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("5m", 300), ("1h", 3600), ("90", 90), ("1.5m", 90)])
def test_the_knob_is_a_duration(text: str, seconds: int) -> None:
    """As on the command line."""
    assert load_config(None, {"EDGELINK_RIDE_THROUGH": text}).ride_through_s == seconds


@pytest.mark.parametrize("text", ["29s", "61m", "0", "-5m", "soon", "[]"])
def test_the_knob_has_bounds(text: str) -> None:
    """What is out of bounds is refused with the key's name."""
    with pytest.raises(ConfigError, match="ride_through"):
        load_config(None, {"EDGELINK_RIDE_THROUGH": text})


def test_five_minutes_unless_told_otherwise() -> None:
    """And a node that sets nothing follows the head."""
    config = load_config(None, {})
    assert config.ride_through_s == 300
    assert config.ride_through is None


@pytest.mark.parametrize(
    "environ",
    [{}, {"RLINF_TIMEOUT": "180"}, {"RLINF_TIMEOUT": "8"}, {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "450"}],
)
def test_patient_collectives_are_left_alone(environ: dict[str, str]) -> None:
    """The caller's own value counts when it is long enough."""
    check_collectives(environ, 300)


@pytest.mark.parametrize(
    ("environ", "reason", "words"),
    [
        ({"RLINF_TIMEOUT": "5"}, "RideThroughDisagrees", ["RLINF_TIMEOUT=5 (minutes)", "5 min", "set it to 8 or more"]),
        (
            {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "100"},
            "RideThroughDisagrees",
            ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=100 (seconds)", "5 min"],
        ),
        ({"RLINF_TIMEOUT": "3h"}, "ConfigInvalid", ["RLINF_TIMEOUT=3h", "whole number of minutes"]),
    ],
)
def test_impatient_collectives_are_refused(environ: dict[str, str], reason: str, words: list[str]) -> None:
    """Both sides of the disagreement are named, and what to set."""
    with pytest.raises(ConfigError) as caught:
        check_collectives(environ, 300)
    assert caught.value.condition_reason == reason
    for word in words:
        assert word in str(caught.value)

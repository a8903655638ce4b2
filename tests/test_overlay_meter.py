"""Whether the uplink costs by the byte: the configuration's word, else NetworkManager's."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgelink.overlay.meter import Meter


def busctl(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = directory / "busctl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("script", "is_metered"),
    [
        ("echo 'u 1'", True),
        ("echo 'u 3'", True),
        ("echo 'u 0'", False),
        ("echo 'u 2'", False),
        ("echo 'u 4'", False),
        ("echo 'Call failed: Unit not found' >&2; exit 1", False),
        ("echo 'u 1'; exit 1", False),
        ("yes", False),
    ],
)
async def test_networkmanagers_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, *, is_metered: bool
) -> None:
    """NM_METERED: 1 yes, 3 guessed yes."""
    busctl(tmp_path, script, monkeypatch)
    meter = Meter(configured=None, on_change=lambda: None)
    await meter.look()
    assert meter.is_metered == is_metered


async def test_without_busctl_nothing_is_metered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    meter = Meter(configured=None, on_change=lambda: None)
    await meter.look()
    assert not meter.is_metered


@pytest.mark.parametrize("configured", [True, False])
async def test_the_configuration_decides_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, configured: bool
) -> None:
    busctl(tmp_path, f"touch {tmp_path}/asked; echo 'u {2 if configured else 1}'", monkeypatch)
    meter = Meter(configured=configured, on_change=lambda: None)
    await meter.look()
    assert meter.is_metered == configured
    assert not (tmp_path / "asked").exists()


async def test_a_change_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    busctl(tmp_path, "echo 'u 1'", monkeypatch)
    meter = Meter(configured=None, on_change=lambda: told.append(meter.is_metered))
    await meter.look()
    await meter.look()
    busctl(tmp_path, "echo 'u 2'", monkeypatch)
    await meter.look()
    assert told == [True, False]

"""Whether the uplink costs by the byte: the configuration's word, else NetworkManager's."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from edgelink.overlay.meter import Meter
from edgelink.testing.facts import board_with


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
    board = board_with()
    meter = Meter(board=board, configured=None)
    await meter.look()
    assert board.facts.is_metered == is_metered


async def test_without_busctl_nothing_is_metered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    board = board_with()
    meter = Meter(board=board, configured=None)
    await meter.look()
    assert not board.facts.is_metered


@pytest.mark.parametrize("configured", [True, False])
async def test_the_configuration_decides_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, configured: bool
) -> None:
    busctl(tmp_path, f"touch {tmp_path}/asked; echo 'u {2 if configured else 1}'", monkeypatch)
    board = board_with()
    meter = Meter(board=board, configured=configured)
    await meter.look()
    assert board.facts.is_metered == configured
    assert not (tmp_path / "asked").exists()


async def test_a_change_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = board_with()
    busctl(tmp_path, "echo 'u 1'", monkeypatch)
    meter = Meter(board=board, configured=None)
    before = len(board.history)
    await meter.look()
    await meter.look()
    busctl(tmp_path, "echo 'u 2'", monkeypatch)
    await meter.look()
    told = [facts.is_metered for facts in board.history[before:]]
    assert [value for value, _ in groupby(told)] == [True, False]

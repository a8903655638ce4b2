"""Running nft: what it may do to whoever waits for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgelink.overlay import nft
from edgelink.overlay.nft import FirewallError, Table
from edgelink.testing import eventually


async def test_a_refused_element_is_an_error_that_names_the_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody flushed the ruleset: nothing was added, and whoever waits for it has to know."""
    refusing = tmp_path / "nft"
    refusing.write_text(f"#!/bin/sh\ncat >{tmp_path}/script\necho 'No such file or directory' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(FirewallError, match="inet mine: dead could not be added to: No such file") as caught:
        await Table("mine", "").add_elements("dead", ["192.0.2.1 . 7 . 8", "192.0.2.2 . 7 . 8"])
    assert caught.value.retryable
    assert (tmp_path / "script").read_text() == "add element inet mine dead { 192.0.2.1 . 7 . 8, 192.0.2.2 . 7 . 8 }\n"


async def test_an_nft_that_hangs_is_ended_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's lock held by somebody else: an error after the time-out, and no process left behind."""
    hanging = tmp_path / "nft"
    hanging.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid\nexec sleep 600\n")
    hanging.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(nft, "_TIMEOUT_S", 0.5)
    with pytest.raises(FirewallError, match="nft list table inet mine: no answer within") as caught:
        await Table("mine", "").apply()
    assert caught.value.retryable
    pid = int((tmp_path / "pid").read_text())
    await eventually(lambda: not Path(f"/proc/{pid}").exists())

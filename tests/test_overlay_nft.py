"""Running nft: what it may do to whoever waits for it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from living import children
from telling import refuses

from edgelink.overlay import nft
from edgelink.overlay.nft import FirewallError, Table
from edgelink.process import answer
from edgelink.testing import eventually


async def test_a_refused_element_is_an_error_that_names_the_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody flushed the ruleset: nothing was added, and whoever waits for it has to know."""
    refusing = tmp_path / "nft"
    refusing.write_text(f"#!/bin/sh\ncat >{tmp_path}/script\necho 'No such file or directory' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with refuses(FirewallError, "inet mine: dead", "No such file") as caught:
        await Table("mine", "").add_elements("dead", ["192.0.2.1 . 7 . 8", "192.0.2.2 . 7 . 8"])
    assert caught.value.retryable
    assert (tmp_path / "script").read_text() == "add element inet mine dead { 192.0.2.1 . 7 . 8, 192.0.2.2 . 7 . 8 }\n"


async def test_a_table_is_made_without_elements_that_the_kernel_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of another version of the set, say. A table that closes ports comes before what a set remembers."""
    listing = "\tset asked { # handle 1\n\t\telements = { 10.10.0.4 . 53 . 5001 expires 9s }\n\t}\n"
    (tmp_path / "listing").write_text(listing)
    picky = tmp_path / "nft"
    picky.write_text(
        f"#!/bin/sh\nif [ $1 = -a ]; then exec cat {tmp_path}/listing; fi\n"
        f"cat >>{tmp_path}/script; ! tail -n 1 {tmp_path}/script | grep 'add element'\n"
    )
    picky.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    chains = f'  set asked {{\n  }}\n  chain input {{\n    drop comment "{nft.MARK}"\n  }}\n'
    table = Table("mine", chains, kept=("asked", "gone"))
    assert (await table.apply()).is_made
    added = "add element inet mine asked { 10.10.0.4 . 53 . 5001 expires 9s }\n"
    assert (tmp_path / "script").read_text() == table.script + added + table.script


async def test_an_nft_that_cannot_be_run_is_an_error_of_the_firewall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nft").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    with refuses(FirewallError, "nft: ", "Permission denied") as caught:
        await Table("mine", "").apply()
    assert caught.value.retryable


async def test_an_nft_that_hangs_is_ended_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's lock held by somebody else: an error after the time-out, and no process left behind."""
    hanging = tmp_path / "nft"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(nft, "_TIMEOUT_S", 0.2)
    before = children()
    with refuses(FirewallError, "nft -a list table inet mine: ", "0.2 s") as caught:
        await Table("mine", "").apply()
    assert caught.value.retryable
    await eventually(lambda: children() <= before)


async def test_an_nft_has_ended_when_whoever_waited_for_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that stops removes its table: one that is still being made would come after that, and stay."""
    hanging = tmp_path / "nft"
    hanging.write_text(
        f"#!/bin/sh\necho $$ >{tmp_path}/pid.new\nmv {tmp_path}/pid.new {tmp_path}/pid\nexec sleep 600\n"
    )
    hanging.chmod(0o755)
    monkeypatch.setattr(answer, "_FAREWELL_S", 60)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    applying = asyncio.ensure_future(Table("mine", "").apply())
    await eventually((tmp_path / "pid").exists)
    applying.cancel()
    await asyncio.wait([applying])
    assert applying.cancelled()
    assert not (Path("/proc") / (tmp_path / "pid").read_text().strip()).exists()


LO = 'iifname "lo" accept comment "{mark}" # handle 2'
FOREIGN = 'iifname "eth0" accept # handle 9'
DROP = 'tcp dport { 6379, 8265,\n\t\t\t     20001-20007 } counter packets 3 bytes 180 drop comment "{mark}" # handle 3'


@pytest.mark.parametrize(
    ("rules", "is_whole"),
    [
        ([LO, DROP], True),
        ([DROP], False),
        ([FOREIGN, LO, DROP], False),
        ([FOREIGN, DROP], False),
        ([LO.replace("{mark}", "another"), DROP], False),
    ],
)
async def test_a_table_with_one_rule_more_or_less_is_not_the_wanted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: list[str], is_whole: bool
) -> None:
    """Loopback that is shut cuts Ray off from itself, a foreign accept opens it; a rule may go over several lines."""
    table = Table("mine", f'chain input {{\nlo comment "{nft.MARK}"\ndrop comment "{nft.MARK}"\n}}\n')
    lines = "".join(f"\t\t{rule}\n".replace("{mark}", table.mark) for rule in rules)
    head = "table inet mine { # handle 2\n\tset some { # handle 7\n\t}\n\tchain input { # handle 1\n"
    (tmp_path / "listing").write_text(f"{head}{lines}\t}}\n}}\n")
    stand_in = tmp_path / "nft"
    stand_in.write_text(f"#!/bin/sh\ncat {tmp_path}/listing\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert (await table.apply()).is_made is not is_whole

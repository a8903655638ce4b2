"""Relays that come and go while EasyTier runs: it is told of them, and restarted only where there is nothing to cut."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest

from edgelink.conditions import Condition, ConditionSet
from edgelink.errors import OverlayError
from edgelink.overlay import dialled
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.dialled import DialledReconciler
from edgelink.overlay.status import Peer
from edgelink.process import Identity
from edgelink.testing import FakeClock
from edgelink.testing.overlay import FakeProcess

FIRST, SECOND = "tcp://203.0.113.1:11010", "tcp://198.51.100.7:11010"
SPEC = OverlaySpec(
    hostname="edge-1",
    network_name="net",
    network_secret="top-secret-0123456789",
    overlay_ip=IPv4Interface("10.10.0.7/24"),
    peers=(FIRST,),
    listeners=(),
    device="et0",
    mtu=1380,
    rpc_port=15888,
    instance_id="0b0e6b0e-2d3b-4b4e-9a53-0d7c6a6f0007",
)


class EasyTier:
    """A running core, asked and told through the functions that the reconciler uses."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dials = [FIRST]
        self.told: list[tuple[str, str]] = []
        self.is_deaf = False
        self.neighbours = [Peer(None, "relay", "p2p", 1.0, "tcp", "2.6.4")]
        self.restarts: list[str] = []
        self.is_cut_off = False
        self.config = directory / "easytier.toml"
        self.config.write_text(f'[[peer]]\nuri = "{FIRST}"\n')
        self.process = FakeProcess(Identity(77, 1, "boot", "hash"))
        self.process.adopt()
        self.conditions = ConditionSet(FakeClock(), ["OverlayUp"], ["RelaysDialled"])
        self.conditions.set_true("OverlayUp", "Up", "up")
        self.spec = SPEC
        fakes = {"connectors": self._connectors, "change_connector": self._change, "peers": self._peers}
        for name, fake in fakes.items():
            monkeypatch.setattr(dialled, name, fake)

    def reconciler(self) -> DialledReconciler:
        return DialledReconciler(
            spec=lambda: self.spec,
            binary=lambda: EasyTierBinary(Path("/opt/easytier-core"), None, "2.6.4"),
            config_path=self.config,
            process=self.process,
            conditions=self.conditions,
            is_cut_off=lambda: self.is_cut_off,
            start_anew=self.restarts.append,
        )

    def want(self, *urls: str) -> None:
        self.spec = replace(self.spec, peers=urls)

    @property
    def condition(self) -> Condition:
        return self.conditions.get("RelaysDialled")

    async def _connectors(self, *_: Any) -> list[str]:
        if self.is_deaf:
            raise OverlayError("no easytier-cli beside it")
        return self.dials

    async def _change(self, _binary: Any, _port: int, action: str, url: str) -> None:
        if self.is_deaf:
            raise OverlayError("refused")
        self.told.append((action, url))
        self.dials = [*self.dials, url] if action == "add" else [known for known in self.dials if known != url]

    async def _peers(self, *_: Any) -> list[Peer]:
        return [Peer(None, "me", "Local", None, "", "2.6.4"), *self.neighbours]


@pytest.fixture
def easytier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EasyTier:
    return EasyTier(tmp_path, monkeypatch)


async def test_what_it_was_started_with_needs_no_telling(easytier: EasyTier) -> None:
    """The usual case asks nothing of EasyTier."""
    easytier.is_deaf = True
    await easytier.reconciler().reconcile()
    assert easytier.condition.reason == "AllDialled"
    assert easytier.told == []


async def test_relays_are_added_and_removed_as_it_runs(easytier: EasyTier) -> None:
    """Once each; a daemon that is restarted finds them there."""
    reconciler = easytier.reconciler()
    easytier.want(FIRST, SECOND)
    for _ in range(3):
        await reconciler.reconcile()
    assert easytier.told == [("add", SECOND)]
    await easytier.reconciler().reconcile()
    assert easytier.told == [("add", SECOND)]
    easytier.want(SECOND)
    await reconciler.reconcile()
    assert easytier.told[1:] == [("remove", FIRST)]
    assert easytier.condition.reason == "AllDialled"
    assert easytier.restarts == []


async def test_one_that_cannot_be_told_is_left_alone_while_anybody_answers(easytier: EasyTier) -> None:
    """It is named; a restart comes when nobody answers and EasyTier itself sees nobody."""
    easytier.is_deaf = True
    reconciler = easytier.reconciler()
    easytier.want(FIRST, SECOND)
    await reconciler.reconcile()
    assert easytier.condition.reason == "NotDialledYet"
    assert SECOND in easytier.condition.message
    assert FIRST not in easytier.condition.message
    easytier.is_cut_off = True
    await reconciler.reconcile()
    assert easytier.restarts == [], "it still has a neighbour"
    easytier.neighbours = []
    await reconciler.reconcile()
    assert len(easytier.restarts) == 1
    assert SECOND in easytier.restarts[0]
    easytier.config.write_text(f'[[peer]]\nuri = "{FIRST}"\n[[peer]]\nuri = "{SECOND}"\n')  # as the new start writes it
    await reconciler.reconcile()
    assert easytier.condition.reason == "AllDialled"


async def test_nothing_is_asked_of_an_overlay_that_is_down(easytier: EasyTier) -> None:
    easytier.want(FIRST, SECOND)
    easytier.conditions.set_false("OverlayUp", "DeviceMissing", "no device")
    await easytier.reconciler().reconcile()
    assert easytier.condition.reason == "OverlayDown"
    assert easytier.told == []

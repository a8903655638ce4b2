"""Relays that come and go while EasyTier runs: it is told of them, and restarted only where there is nothing to cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from overlay_world import SPEC

from edgelink.conditions import Condition, ConditionSet
from edgelink.errors import OverlayError
from edgelink.facts.board import Board
from edgelink.facts.facts import Facts
from edgelink.facts.part import Action
from edgelink.overlay import dialled
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.dialled import BringInStep, Forget, Inputs, LookAround, Looked, RelaysDialled, StartAnew, Wanted
from edgelink.overlay.status import Peer
from edgelink.testing import FakeClock
from edgelink.testing.facts import give, settle

FIRST, SECOND = "tcp://203.0.113.1:11010", "tcp://198.51.100.7:11010"


class EasyTier:
    """A running core, asked and told through the functions that the part uses."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dials = [FIRST]
        self.told: list[tuple[str, str]] = []
        self.is_deaf = False
        self.neighbours = [Peer(None, "relay", "p2p", 1.0, "tcp", "2.6.4")]
        self.config = directory / "easytier.toml"
        self.config.write_text(f'[[peer]]\nuri = "{FIRST}"\n')
        self.clock = FakeClock()
        self.conditions = ConditionSet(self.clock, [], ["RelaysDialled"])
        self.daemon()
        fakes = {"connectors": self._connectors, "change_connector": self._change, "peers": self._peers}
        for name, fake in fakes.items():
            monkeypatch.setattr(dialled, name, fake)

    def daemon(self) -> None:
        """A new life of the daemon, which finds EasyTier running."""
        self.board = Board(Facts())
        self.given(overlay_spec=replace(SPEC, peers=(FIRST,)), overlay_is_up=True)
        self.part = RelaysDialled(
            board=self.board,
            binary=lambda: EasyTierBinary(Path("/opt/easytier-core"), None, "2.6.4"),
            config_path=self.config,
            clock=self.clock,
        )

    def given(self, **facts: Any) -> None:
        give(self.board, **facts)

    async def settle(self) -> float:
        """Have the part decide and act until there is nothing to do; when it looks again, in seconds."""
        return await settle(self.part, self.board, self.conditions, self.clock)

    def want(self, *urls: str) -> None:
        self.given(overlay_spec=replace(SPEC, peers=urls))

    @property
    def wishes(self) -> int:
        return self.board.facts.restart_for_relays.count

    @property
    def condition(self) -> Condition:
        return self.conditions.get("RelaysDialled")

    async def _connectors(self, *_: Any) -> list[str]:
        if self.is_deaf:
            raise OverlayError("no easytier-cli")
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
    await easytier.settle()
    assert easytier.condition.reason == "AllDialled"
    assert easytier.told == []


async def test_relays_are_added_and_removed_as_it_runs(easytier: EasyTier) -> None:
    """Once each; a daemon that is restarted finds them there."""
    easytier.want(FIRST, SECOND)
    for _ in range(3):
        await easytier.settle()
    assert easytier.told == [("add", SECOND)]
    easytier.daemon()
    easytier.want(FIRST, SECOND)
    await easytier.settle()
    assert easytier.told == [("add", SECOND)]
    easytier.want(SECOND)
    await easytier.settle()
    assert easytier.told[1:] == [("remove", FIRST)]
    assert easytier.condition.reason == "AllDialled"
    assert easytier.wishes == 0


async def test_one_that_cannot_be_told_is_left_alone_while_anybody_answers(easytier: EasyTier) -> None:
    """It is named; a restart comes when nobody answers and EasyTier itself sees nobody."""
    easytier.is_deaf = True
    easytier.want(FIRST, SECOND)
    await easytier.settle()
    assert easytier.condition.reason == "NotDialledYet"
    assert SECOND in easytier.condition.message
    assert FIRST not in easytier.condition.message
    easytier.given(nobody_answers=True)
    again_s = await easytier.settle()
    assert (easytier.wishes, again_s) == (0, 1.0), "it still has a neighbour"
    easytier.neighbours = []
    await easytier.clock.advance(again_s)
    await easytier.settle()
    assert easytier.wishes == 1
    assert SECOND in easytier.board.facts.restart_for_relays.why
    easytier.config.write_text(f'[[peer]]\nuri = "{FIRST}"\n[[peer]]\nuri = "{SECOND}"\n')  # as the new start writes it
    easytier.given(easytier_ends=1)
    await easytier.settle()
    assert easytier.condition.reason == "AllDialled"


async def test_one_that_could_not_be_told_is_told_half_a_minute_later(easytier: EasyTier) -> None:
    """Somebody may have put back its easytier-cli."""
    easytier.is_deaf = True
    easytier.want(FIRST, SECOND)
    again_s = await easytier.settle()
    easytier.is_deaf = False
    await easytier.settle()
    assert easytier.condition.reason == "NotDialledYet"
    await easytier.clock.advance(again_s)
    await easytier.settle()
    assert (again_s, easytier.told) == (30.0, [("add", SECOND)])
    assert easytier.condition.reason == "AllDialled"


async def test_a_try_at_an_easytier_that_has_just_ended_says_nothing_of_the_next_one(easytier: EasyTier) -> None:
    """Its end is known before the device is missed: the next one, which starts with all relays, is left alone."""
    easytier.want(FIRST, SECOND)
    await easytier.settle()
    assert easytier.condition.reason == "AllDialled"
    easytier.is_deaf, easytier.neighbours = True, []
    easytier.given(easytier_ends=1)
    await easytier.settle()
    easytier.given(overlay_is_up=False)
    await easytier.settle()
    easytier.is_deaf = False
    easytier.config.write_text(f'[[peer]]\nuri = "{FIRST}"\n[[peer]]\nuri = "{SECOND}"\n')  # as the new start writes it
    easytier.given(overlay_is_up=True, nobody_answers=True)
    await easytier.settle()
    assert easytier.condition.reason == "AllDialled"
    assert easytier.wishes == 0


async def test_a_silence_after_a_change_of_the_secret_is_none(easytier: EasyTier) -> None:
    """The others are being started anew, too: for five seconds."""
    easytier.is_deaf, easytier.neighbours = True, []
    easytier.want(FIRST, SECOND)
    easytier.given(nobody_answers=True, secret_changed_s=easytier.clock.monotonic_s())
    again_s = await easytier.settle()
    assert (easytier.wishes, again_s) == (0, 5.0)
    await easytier.clock.advance(again_s)
    await easytier.settle()
    assert easytier.wishes == 1


NOW_S = 1000.0
BOTH = Wanted(easytier_ends=2, urls=(FIRST, SECOND))
TOLD = Looked(BOTH, at_s=990.0)
MISSING = Looked(BOTH, at_s=990.0, missing=(SECOND,), version="2.6.4")
SILENT = Inputs(replace(SPEC, peers=BOTH.urls), True, 2, nobody_answers=True, secret_changed_s=None, own=MISSING)
TELL, ASK = BringInStep(BOTH, SPEC.rpc_port), LookAround(SPEC.rpc_port)
RESTART = StartAnew(f"nobody answers, and it does not dial {SECOND} yet")


@pytest.mark.parametrize(
    ("now", "does", "again_s"),
    [
        (replace(SILENT, own=Looked()), TELL, None),
        (replace(SILENT, own=replace(TOLD, done=replace(BOTH, easytier_ends=1))), TELL, None),
        (replace(SILENT, own=replace(TOLD, done=replace(BOTH, urls=(FIRST,)))), TELL, None),
        (replace(SILENT, own=replace(MISSING, at_s=970.0)), TELL, None),
        (replace(SILENT, own=TOLD), None, 30.0),
        (replace(SILENT, nobody_answers=False), None, 20.0),
        (replace(SILENT, secret_changed_s=999.0), None, 4.0),
        (replace(SILENT, secret_changed_s=995.0), ASK, None),
        (replace(SILENT, own=replace(MISSING, listed_at_s=999.5, lists_others=True)), None, 0.5),
        (replace(SILENT, own=replace(MISSING, listed_at_s=999.0, lists_others=True)), ASK, None),
        (replace(SILENT, own=replace(MISSING, listed_at_s=999.5, lists_others=False)), RESTART, None),
        (replace(SILENT, own=replace(MISSING, listed_at_s=999.5, has_wished=True)), None, 20.0),
        (replace(SILENT, overlay_is_up=False), Forget(), 30.0),
        (replace(SILENT, overlay_is_up=False, own=Looked()), None, 30.0),
        (replace(SILENT, overlay_spec=None), Forget(), 30.0),
    ],
    ids=[
        "a new daemon",
        "another EasyTier",
        "another relay",
        "half a minute after a try",
        "all are dialled",
        "somebody answers",
        "the secret has just changed",
        "the secret has changed",
        "it had a neighbour",
        "it had one a second ago",
        "it is alone",
        "a restart is wished",
        "no device",
        "no device for long",
        "no lease",
    ],
)
def test_what_is_done_when(easytier: EasyTier, now: Inputs, does: Action | None, again_s: float | None) -> None:
    decision = easytier.part.plan(now, NOW_S)
    assert decision.does == does
    if again_s is not None:
        assert decision.again_s == again_s


async def test_nothing_is_asked_of_an_overlay_that_is_down(easytier: EasyTier) -> None:
    easytier.want(FIRST, SECOND)
    easytier.given(overlay_is_up=False)
    await easytier.settle()
    assert easytier.condition.reason == "OverlayDown"
    assert easytier.told == []

"""What the keeper of the overlay sees, and what it may do about it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from edgelink.facts.board import Wish
from edgelink.facts.part import Action
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.link import LinkState
from edgelink.overlay.ways import Ways
from edgelink.process import Identity

FAULT_SETTLES_S = 0.2  # somebody may be taking the address away to put it back


class Occasion(NamedTuple):
    """What a look is for: another value calls for another look.

    ``changes``: how often somebody has told of something that is no fact.
    """

    spec: OverlaySpec
    wishes: tuple[Wish, ...]
    standstills: int
    changes: int


@dataclass(frozen=True)
class EasyTier:
    """A process that this daemon has started, or adopted from another one."""

    identity: Identity
    wishes: tuple[Wish, ...]  # those to have EasyTier started anew that this one serves
    confirm_until_s: float  # when its device has to be as it should, on the monotonic clock
    is_adopted: bool
    is_running: bool = True
    confirmed: LinkState | None = None  # its device when it first was as it should be


@dataclass(frozen=True)
class Looked:
    """What the part itself has seen and done. Moments are on the monotonic clock."""

    changes: int = 0
    occasion: Occasion | None = None  # of the last look
    at_s: float = 0.0  # the moment of the last look
    look_at_s: float = 0.0  # of the next one, without an occasion
    is_ours: bool = False  # this daemon runs EasyTier, and no other one of this machine
    easytier: EasyTier | None = None
    start_at_s: float = 0.0  # no EasyTier is started before
    has_failed: bool = False  # the last EasyTier had no device; that stays visible while it is tried again
    device: LinkState = field(default_factory=LinkState)
    fault_since_s: float = math.inf  # since when a confirmed device is not as it should be
    held: str = ""  # the present name of such a device, where EasyTier holds it open
    mend_at_s: float = 0.0  # no device is mended before, and no EasyTier started anew for another uplink
    redial: str = ""  # why EasyTier is to be started anew for another uplink
    caveats: tuple[str, ...] = ()  # what is not as it should be although the overlay works


@dataclass(frozen=True)
class Inputs:
    """What this node's EasyTier depends on. One that runs needs no permission any more."""

    overlay_spec: OverlaySpec | None
    easytier_may_start: bool
    restart_for_relays: Wish
    restart_for_pair: Wish
    standstills: int
    ways: Ways
    own: Looked

    def occasion(self, spec: OverlaySpec) -> Occasion:
        """What there is to look for now."""
        return Occasion(spec, (self.restart_for_relays, self.restart_for_pair), self.standstills, self.own.changes)


@dataclass(frozen=True)
class Look(Action):
    """Look who runs EasyTier, at its device and its uplink, and put right what stands around it."""

    occasion: Occasion


@dataclass(frozen=True)
class Start(Action):
    """Start EasyTier."""

    occasion: Occasion


@dataclass(frozen=True)
class Treat(Action):
    """A step about the EasyTier that runs or ran."""

    spec: OverlaySpec
    easytier: EasyTier
    why: str = ""
    reason: str = ""


class NoteEnd(Treat):
    """Forget an EasyTier that has ended unasked."""


class Replace(Treat):
    """End EasyTier, because another configuration or a wish wants a new one."""


class Redial(Treat):
    """End EasyTier, because the uplink that it uses is gone."""


class Repair(Treat):
    """Put the device right while EasyTier goes on behind it. Where that does not help, end EasyTier."""


class GiveUp(Treat):
    """End EasyTier, which does not notice that its device is gone and would go on without one for ever."""


Do = Look | Start | Treat


def why_outdated(easytier: EasyTier, occasion: Occasion) -> str:
    """Return why EasyTier is to be started anew although its device is fine. Empty: it is not."""
    if easytier.identity.config_hash != occasion.spec.config_hash:
        return "the configuration changed"
    wishes = zip(occasion.wishes, easytier.wishes, strict=True)
    return "; ".join(wish.why for wish, served in wishes if wish.count != served.count)


def due_s(own: Looked, easytier: EasyTier, problem: tuple[str, str] | None) -> float:
    """Return when a fault is acted on unless it passes before. Infinite: there is none."""
    if problem is None:
        return own.mend_at_s if own.redial else math.inf
    if easytier.confirmed is None:
        return easytier.confirm_until_s
    settled_s = own.fault_since_s + FAULT_SETTLES_S
    return max(settled_s, own.mend_at_s) if own.held else settled_s

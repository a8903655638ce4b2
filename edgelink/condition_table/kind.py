"""What a condition is made of, as the table of conditions states it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from edgelink.conditions import Status

GOES_ON = "nothing: it goes on by itself"


class Place(StrEnum):
    """The kinds of daemon; a relay without the registry is an additional one."""

    RELAY = "relay"
    ADDITIONAL_RELAY = "additional relay"
    HEAD = "head"
    EDGE = "edge"


NODES = (Place.HEAD, Place.EDGE)
RELAYS = (Place.RELAY, Place.ADDITIONAL_RELAY)
EVERYWHERE = tuple(Place)


class Weight(StrEnum):
    """How much of a person's attention a condition wants."""

    WELL = "well"
    IDLE = "idle"  # a healthy node may stay like this
    COMES = "comes"  # it goes on by itself
    WRONG = "wrong"


@dataclass(frozen=True)
class Reason:
    """Why a condition is what it is. ``to_do`` is for people; "": what the error of that name says."""

    name: str
    meaning: str
    to_do: str = ""
    status: Status = Status.FALSE
    weight: Weight = Weight.WRONG


@dataclass(frozen=True)
class ConditionKind:
    """One condition.

    Attributes:
        name: its type.
        means: what True says.
        reasons: all that it is ever given, besides those of any condition.
        required_on: whose readiness it decides.
        informs_on: where it is only shown.
        needs_easytier: only where EdgeLink runs an EasyTier, not with ``overlay.kind: existing``.
        note: what else there is to know.
    """

    name: str
    means: str
    reasons: tuple[Reason, ...]
    required_on: tuple[Place, ...] = ()
    informs_on: tuple[Place, ...] = ()
    needs_easytier: bool = False
    note: str = ""


def true(name: str, meaning: str, to_do: str = "nothing") -> Reason:
    return Reason(name, meaning, to_do, Status.TRUE, Weight.WELL)


def unknown(name: str, meaning: str, to_do: str = GOES_ON) -> Reason:
    return Reason(name, meaning, to_do, Status.UNKNOWN, Weight.COMES)


def waits(name: str, meaning: str, to_do: str = GOES_ON) -> Reason:
    return Reason(name, meaning, to_do, weight=Weight.COMES if to_do else Weight.WRONG)


def idle(name: str, meaning: str, to_do: str = "nothing") -> Reason:
    return Reason(name, meaning, to_do, weight=Weight.IDLE)

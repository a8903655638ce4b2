"""All conditions: on which daemons each is, what it says, and every reason with what to do.

The daemons take their conditions from this table, and ``docs/reference/conditions.md`` is made of it. Tests compare it
with what the code sets: a reason that is set and not here is refused, and so is one here that nobody sets.
"""

from __future__ import annotations

from edgelink.condition_table.informing import INFORMING, RAY_CURRENT, SHIELDED, STUN_SERVING
from edgelink.condition_table.kind import NODES, ConditionKind, Place, Reason, Weight, unknown
from edgelink.condition_table.required import LEASED, OVERLAY_UP, RAY_JOINED, REQUIRED
from edgelink.conditions import Status

__all__ = [
    "COMMON",
    "KINDS",
    "NODES",
    "REFUSED_ENROLMENT",
    "ConditionKind",
    "Place",
    "Reason",
    "Weight",
    "declared",
    "required_on",
    "types_on",
    "weight_of",
]

KINDS: tuple[ConditionKind, ...] = (*REQUIRED, *INFORMING)

COMMON = (
    unknown("NotObserved", "in the first moments"),
    Reason("NotRecorded", "a file that is needed for it cannot be written, here or on the relay; it is tried again"),
    Reason("InternalError", "a defect of EdgeLink; its log has the details"),
)
"""Of any condition."""

REFUSED_ENROLMENT = (
    Reason("TokenRefused", "the token does not let this machine in"),
    Reason("TokenUnknown", "the relay does not know the token"),
    Reason("TokenRevoked", "the operator has revoked the token"),
    Reason("TokenExpired", "the token's time is over"),
    Reason("TokenUsedUp", "the token has let in as many machines as it may"),
    Reason("TokenRoleMismatch", "the token is for another role"),
    Reason("TokenMismatch", "the token is for another machine: hostname, address or labels"),
    Reason(
        "LeaseConflict",
        "hostname, address or rank is another node's, is promised by a token, or rests after a release; or this node "
        "holds another lease",
    ),
    Reason("AddressPoolExhausted", "no address is left in the network, or in the range of the role (`relay.ranges`)"),
    Reason(
        "NodeRevoked",
        "the key of this machine was put out of the network by the operator, or another one has its place "
        "([registry](../how-to/registry.md)); a daemon that hears so ends with it",
    ),
    Reason(
        "RequestOutdated",
        "this node asked before, at a later time by its own clock: the clock was set back, or an old request was "
        "played again",
    ),
    Reason("ConfigInvalid", "the request itself is unusable, or does not fit the network"),
    Reason(
        "RenewedJustNow",
        "not of an enrolment, of `edgelink renew`: the node had a new password less than a minute ago; its daemon asks "
        "again by itself",
    ),
    Reason("Untrusted", "what answers is not the relay that the token was made for"),
)
"""Why an enrolment is refused: `edgelink join` ends with it, and so does a daemon that was to enrol by itself."""


def declared(kind: str, reason: str) -> Reason | None:
    """What the table says of a reason of this condition; None: nothing."""
    found = next((one for one in KINDS if one.name == kind), None)
    reasons = (*(found.reasons if found else ()), *(REFUSED_ENROLMENT if found is LEASED else ()), *COMMON)
    return next((one for one in reasons if one.name == reason), None)


def weight_of(kind: str, status: str, reason: str) -> Weight:
    """Return how much attention a condition wants, also one that only a newer EdgeLink knows."""
    known = declared(kind, reason)
    if known is not None and known.status == status:
        return known.weight
    return {Status.TRUE: Weight.WELL, Status.UNKNOWN: Weight.COMES}.get(Status(status), Weight.WRONG)


def required_on(place: Place) -> tuple[str, ...]:
    """The types that make such a daemon ready, in the order of its start."""
    return tuple(kind.name for kind in KINDS if place in kind.required_on)


def types_on(
    place: Place, *, runs_easytier: bool, answers_stun: bool, has_ray: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which conditions make a daemon ready, and which only inform; pure.

    Through an overlay that is there already a relay carries nothing: its own device is no reason for an alarm, and
    there is nothing to be closed. A node without Ray is Ready without it: ``RayJoined`` only says so.
    """
    is_bare_relay = not runs_easytier and place not in NODES
    absent = {kind for kind in KINDS if kind.needs_easytier and not runs_easytier}
    if not answers_stun:
        absent.add(STUN_SERVING)
    if is_bare_relay:
        absent.add(SHIELDED)
    only_informs = {OVERLAY_UP} if is_bare_relay else set()
    if not has_ray:
        absent.add(RAY_CURRENT)
        only_informs.add(RAY_JOINED)
    kinds = [kind for kind in KINDS if kind not in absent and place in (*kind.required_on, *kind.informs_on)]
    required = [kind for kind in kinds if place in kind.required_on and kind not in only_informs]
    return tuple(kind.name for kind in required), tuple(kind.name for kind in kinds if kind not in required)

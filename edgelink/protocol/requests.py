"""What a node asks the registry and is answered, as frozen, versioned models.

A request is signed by the node, a reply by the registry.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from edgelink.protocol.payloads import (
    MAX_MACHINE_PARTS,
    Base64,
    Bounded,
    CutText,
    Instance,
    MachinePart,
    NodeId,
    Payload,
)

COOKIE_S = 60.0  # for how long one counts for certain
_ID = r"^[0-9a-f]{32}$"


class Renew(Bounded):
    """This password is to open the broker to the node from now on; of two with one password the second does nothing."""

    kind: Literal["renew"] = "renew"
    sealed_password: Base64 = Field(description="to the registry's key: not for the broker before it has to check it")


class Claim(Bounded):
    """This life of its daemon is the node, on this machine (:mod:`edgelink.relay.claims`).

    ``machine`` holds keyed hashes of what a copy of the disk does not carry; empty where nothing can be read.
    """

    kind: Literal["claim"] = "claim"
    instance: Instance
    machine: tuple[MachinePart, ...] = Field((), max_length=MAX_MACHINE_PARTS, description="what tells it from a copy")
    runs_overlay: bool = Field(False, description="its own EasyTier has the node's address already")


class EchoUp(Bounded):
    """Whether this node is there and says that its echo is up: it answers us, and proves nothing."""

    kind: Literal["echo-up"] = "echo-up"
    of: NodeId = Field(description="the node that is asked about")


class EchoWord(Bounded):
    """What the node that was asked about says of its echo, in its present session."""

    kind: Literal["echo-word"] = "echo-word"
    is_up: bool = Field(description="false also where it is not there")


class Verdict(Bounded):
    """On a claim. ``wait``: it is not known yet; claim again after ``again_s``."""

    kind: Literal["verdict"] = "verdict"
    outcome: Literal["accepted", "refused", "wait"] = Field(description="whether it is the node")
    reason: CutText = ""
    message: CutText = ""
    hint: CutText = ""
    again_s: float = Field(0.0, ge=0, le=3600, description="when to claim again")


class Again(Bounded):
    """Nothing was done: the request had no cookie that counts now. Ask again with the one of this reply."""

    kind: Literal["again"] = "again"


class Done(Bounded):
    """What was asked for is done, or was before; and on the registry's disk."""

    kind: Literal["done"] = "done"


class Speak(Bounded):
    """Unasked: somebody else claims to be this node; it is to say its status, once more, if it is there."""

    kind: Literal["speak"] = "speak"


class Refused(Bounded):
    """Nothing was done, and why."""

    kind: Literal["refused"] = "refused"
    error: CutText
    error_reason: CutText = ""
    error_hint: CutText = ""


Question = Annotated[Renew | Claim | EchoUp, Field(discriminator="kind")]
Answer = Annotated[Again | Done | Verdict | EchoWord | Speak | Refused, Field(discriminator="kind")]


class NodeRequest(Payload):
    """Signed by the node. ``cookie`` is the registry's, of its last reply: an old request has none that counts."""

    network_id: str
    node_id: NodeId
    nonce: str = Field(pattern=_ID)
    cookie: str = Field("", pattern=r"^([0-9a-f]{32})?$", description="of the registry's last reply")
    made_at: AwareDatetime = Field(description="by the node's clock")
    ask: Question = Field(description="what is asked")


class NodeReply(Payload):
    """Signed by the registry."""

    network_id: str
    node_id: NodeId
    nonce: str = Field(pattern=_ID, description="of the request: the same one is answered once")
    cookie: str = Field(pattern=_ID, description="for the next request")
    answer: Answer = Field(description="what became of it")

"""Make ``docs/reference/mqtt.md`` from the code.

Topics and rights come from the table of topics, what is said there from the models of the payloads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel

from edgelink.protocol.payloads import MAX_PAYLOAD_BYTES, Envelope
from edgelink.protocol.request_limit import RequestLimit
from edgelink.protocol.topic_table import QOS, TOPICS, Topic
from edgelink.relay.status_gate import StatusGate
from reference_pages.types_in_words import in_words, link_to

_HEAD = f"""# Topics and payloads

Control goes over MQTT 3.1.1 with TLS to the relay's public address (port 8883), with QoS {QOS} and clean sessions: for
who is away only what is retained is kept. Payloads are JSON (`edgelink/protocol/payloads.py`) of
{MAX_PAYLOAD_BYTES >> 10} KiB at most, with a `version`. What a node obeys is an *envelope*: the exact text that was
signed (Ed25519), its kind, and the signature.

This page is generated (`make reference`).

| topic below `edgelink/1/<network id>/` | written by | read by | retained | payload | when |
|---|---|---|---|---|---|
"""

_AFTER = """
## Who may do what

Every token and every node has a broker user of its own with exactly these rights; whoever is not named may neither
publish nor be sent anything. What all nodes of a role may do is a role of Mosquitto's dynamic security, what is a
node's own stands by patterns of its username, the node_id, in an ACL file. Who subscribes to another node's
lease is sent nothing.

## What does not count

Documents that are malformed, forged, or older than what is known are counted by reason, logged once of each sender, and
otherwise ignored; so are, on the registry's side, enrolment requests beyond

- {node} of one node,
- {token} of one token,
- {all} altogether:

who means them asks again after two seconds. The same holds for nodes' requests, without the token. Of a node's statuses
the registry reads {status}; of more, it reads the newest in its turn.

## Payloads

Each has `version`, which is 1. Units stand in the names: `…_s` is in seconds, `…_ip` an overlay address. Times are UTC,
ISO 8601. A key that is not known is ignored: a newer peer may add some. What is signed travels as the text, `body`, of
an [Envelope](#envelope). What is *optional* may be left out.
"""

# Of keys that mean the same wherever they stand; what a field says of itself comes first.
_MEANINGS = {
    "network_id": "the network that this is for; in another one it does not count",
    "node_id": "whose this is",
    "hostname": "in the network",
    "role": "of the node",
    "is_relay": "a relay's machine may also be the head",
    "verify_key": "the node's public key (Ed25519), which its signatures are checked with; `node_id` is its hash",
    "labels": "of the node, by name",
    "overlay_ip": "the node's",
    "preferred_rank": "null: takes no part in Ray (relay)",
    "node_rank": "in Ray's cluster: RLINF_NODE_RANK",
    "generation": "of the registry: grows with each restoration from a backup",
    "edgelink_version": "that runs there",
    "easytier_version": "that is used there; null: not known, or none",
    "ray_version": "that `ray.python` has; null: not known, or none",
    "python_version": "of `ray.python`",
    "nonce": "tells a new request from a repeat",
    "request_id": "ties replies to it",
    "reason": "in one word",
    "message": "for people",
    "hint": "what to do, for people",
    "error": "why, for people",
    "error_reason": "the same in one word",
    "error_hint": "what to do, for people",
}


def render() -> str:
    """The page."""
    lines = [_HEAD + "\n".join(map(_topic_row, TOPICS))]
    limits = {"node": RequestLimit.PER_NODE, "token": RequestLimit.PER_TOKEN, "all": RequestLimit.ALL}
    limits["status"] = StatusGate.PER_NODE
    lines += [_AFTER.format(**{name: f"{rate:g} a second ({burst} at once)" for name, (rate, burst) in limits.items()})]
    for model in models():
        lines += [f"### {model.__name__}", "", _told(model), "", "| key | type | meaning |", "|---|---|---|"]
        lines += [*_rows(model), ""]
    return "\n".join(lines)


def models() -> list[type[BaseModel]]:
    """What is said on the topics, in their order, each followed by what it is made of."""
    found: dict[type[BaseModel], None] = {Envelope: None}

    def add(kind: Any) -> None:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if kind not in found:
                found[kind] = None
                for hint in get_type_hints(kind, include_extras=True).values():
                    add(hint)
            return
        for part in get_args(kind):
            add(part)

    for topic in TOPICS:
        for model in (topic.payload, *topic.inside):
            add(model)
    return list(found)


def _topic_row(topic: Topic) -> str:
    writers = "; ".join([*topic.writers, *([f"registry ({topic.of_registry})"] if topic.of_registry else [])])
    kept = "yes" if topic.is_retained else "no"
    payload = f"{link_to(topic.payload)}: {topic.meaning}"
    return f"| `{topic.path}` | {writers} | {', '.join(topic.readers)} | {kept} | {payload} | {topic.sent} |"


def _told(model: type[BaseModel]) -> str:
    """Its docstring, without what only Sphinx understands."""
    words = (model.__doc__ or "").strip()
    return re.sub(r"\n +", "\n", re.sub(r",? ?\(?(see )?:mod:`[^`]*`\)?", "", words).replace("``", "`"))


def _rows(model: type[BaseModel]) -> Iterator[str]:
    hints = get_type_hints(model, include_extras=True)
    for name, field in model.model_fields.items():
        if name != "version":
            key = f"`{name}`" + ("" if field.is_required() else " (optional)")
            meaning = "which of them this is" if name == "kind" and hints[name] is not str else field.description
            yield f"| {key} | {in_words(hints[name])} | {meaning or _MEANINGS.get(name, '')} |"

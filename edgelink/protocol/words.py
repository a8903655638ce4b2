"""Words: what a node says to other nodes over the broker, signed with the key of its lease."""

from __future__ import annotations

from typing import TypeVar

from edgelink.errors import UntrustedError
from edgelink.protocol.keys import Kind, open_envelope
from edgelink.protocol.payloads import (
    Directory,
    DirectoryEntry,
    EasyTierDeath,
    Envelope,
    PairSilence,
    RayDeath,
    ReportRequest,
)

Word = TypeVar("Word", EasyTierDeath, PairSilence, RayDeath, ReportRequest)


def word_of(
    speaker: DirectoryEntry, envelope: Envelope | bytes, kind: Kind, model: type[Word], directory: Directory
) -> Word:
    """Believe what came in the name of a node, which ``directory`` lists.

    Raises:
        UntrustedError: another key has signed it, it is no such word, or it is of another network.
        ValidationError: it is no signed document at all.
    """
    if isinstance(envelope, bytes):
        envelope = Envelope.model_validate_json(envelope)
    word = open_envelope(envelope, kind, model, speaker.verify_key)
    if word.network_id != directory.network_id:
        raise UntrustedError(f"the {kind} that {speaker.hostname} has signed is of another network, {word.network_id}")
    return word

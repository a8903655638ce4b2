"""The echo's packets: a question by UDP, and its answer of the same length. Pure, and the standard library only.

The same length, because an answer that is longer than its question would let a forged sender flood somebody, and
because a full packet is to be tried in both directions. Times are wall-clock nanoseconds, each by its writer's clock.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

PORT = 9749
MAGIC = b"EL"
VERSION = 1
NOBODY = 65534  # the user that the responder becomes
_QUESTION, _ANSWER = 0, 1
# magic, version, kind, nonce, asked, received, answered, length of what follows the header
_HEADER = struct.Struct("!2sBBQqqqH")
LEAST_BYTES = _HEADER.size
MOST_BYTES = 65_507  # of UDP over IPv4


@dataclass(frozen=True)
class Question:
    """One echo asked. ``nonce`` is drawn anew each time: only who saw the question can answer it."""

    nonce: int
    asked_ns: int
    extension: bytes = b""  # see edgelink.overlay.echo_proof; what a version does not know it returns as it came

    def pack(self, length_bytes: int = 0) -> bytes:
        """The packet, padded with zeros to ``length_bytes``."""
        return _pack(self, _QUESTION, 0, 0, length_bytes)


@dataclass(frozen=True)
class Answer:
    """The question again, with when it was received and answered."""

    question: Question
    received_ns: int
    answered_ns: int

    def pack(self, length_bytes: int) -> bytes:
        """The packet, padded to the length of the question's."""
        return _pack(self.question, _ANSWER, self.received_ns, self.answered_ns, length_bytes)


def parse_question(packet: bytes) -> Question | None:
    """The question in a packet; None for any other packet."""
    found = _parse(packet)
    return found[1] if found is not None and found[0] == _QUESTION else None


def parse_answer(packet: bytes) -> Answer | None:
    """The answer in a packet; None for any other packet."""
    found = _parse(packet)
    return Answer(*found[1:]) if found is not None and found[0] == _ANSWER else None


def _pack(question: Question, kind: int, received_ns: int, answered_ns: int, length_bytes: int) -> bytes:
    extension = question.extension
    fields = (question.nonce, question.asked_ns, received_ns, answered_ns, len(extension))
    return (_HEADER.pack(MAGIC, VERSION, kind, *fields) + extension).ljust(length_bytes, b"\0")


def _parse(packet: bytes) -> tuple[int, Question, int, int] | None:
    if len(packet) < LEAST_BYTES:
        return None
    magic, version, kind, nonce, asked_ns, received_ns, answered_ns, extra = _HEADER.unpack_from(packet)
    if magic != MAGIC or version < VERSION or len(packet) < LEAST_BYTES + extra:
        return None
    question = Question(nonce, asked_ns, packet[LEAST_BYTES : LEAST_BYTES + extra])
    return kind, question, received_ns, answered_ns

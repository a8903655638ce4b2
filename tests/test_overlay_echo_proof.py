"""Who answers an echo proves to be the node that is meant, and nobody else can."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from edgelink.overlay.echo_proof import Asker, Identity, Proof, Prover, certified, draw_keys, sign
from edgelink.overlay.echo_wire import Answer, Question, parse_answer, parse_question

OURS, HEAD, ELSEWHERE = (IPv4Address(f"10.10.0.{n}") for n in (4, 2, 9))
HEADS_NAME, ANOTHER_NAME = UUID(int=1), UUID(int=2)
HEADS_KEY, ANOTHER_KEY = SigningKey(b"h" * 32), SigningKey(b"a" * 32)
IDENTITY = Identity(b64encode(bytes(HEADS_KEY.verify_key)).decode(), HEADS_NAME)


class Responder:
    """One life of a node's responder, at an address."""

    def __init__(self, key: SigningKey = HEADS_KEY, name: UUID = HEADS_NAME, address: IPv4Address = HEAD) -> None:
        self.keys = draw_keys()
        self.at_s = 0.0
        self.signature = sign(b64encode(bytes(key)), certified(self.keys[0], name, address))
        self.prover = Prover(self.keys, self.signature)

    def answer(self, packet: bytes, asker: IPv4Address = OURS, local: IPv4Address = HEAD) -> bytes:
        question = parse_question(packet)
        assert question is not None
        answer = Answer(question, 5, 6)
        extension = self.prover.extension(answer, asker, local, self.at_s)
        return replace(answer, question=replace(question, extension=extension)).pack(len(packet))


def question_of(asker: Asker, nonce: int = 1) -> bytes:
    return Question(nonce, 4, asker.extension(IDENTITY, HEAD)).pack()


def verdict(asker: Asker, packet: bytes) -> Proof:
    answer = parse_answer(packet)
    assert answer is not None
    return asker.judge(answer, IDENTITY, OURS, HEAD)


def exchange(asker: Asker, responder: Responder, nonce: int = 1) -> Proof:
    return verdict(asker, responder.answer(question_of(asker, nonce)))


def flood(responder: Responder, number: int) -> None:
    """Ask from another member's address with another key each time."""
    responder.answer(Question(number, 4, b"\x01" + number.to_bytes(32, "big")).pack(), asker=ELSEWHERE)


def test_the_first_answer_proves_and_later_ones_are_small() -> None:
    asker, responder = Asker(), Responder()
    first = question_of(asker)
    assert verdict(asker, responder.answer(first)) is Proof.PROVEN
    later = question_of(asker)
    assert verdict(asker, responder.answer(later)) is Proof.PROVEN
    assert len(later) <= len(first) / 2
    assert all(len(responder.answer(packet)) == len(packet) for packet in (first, later))


IMPOSTORS = {
    "its own key": Responder(ANOTHER_KEY),
    "another node's certificate": Responder(ANOTHER_KEY, ANOTHER_NAME, ELSEWHERE),
    "its certificate for another network": Responder(name=ANOTHER_NAME),
    "its certificate for another address": Responder(address=ELSEWHERE),
}


@pytest.mark.parametrize("responder", IMPOSTORS.values(), ids=IMPOSTORS)
def test_who_is_another_is_wrong(responder: Responder) -> None:
    assert exchange(Asker(), responder) is Proof.WRONG


def test_a_certificate_helps_nobody_who_lacks_its_key() -> None:
    """It goes to whoever asks, so an impostor has it."""
    impostor = Responder()
    real = Responder()
    impostor.prover = Prover((real.keys[0], impostor.keys[1]), real.signature)
    assert exchange(Asker(), impostor) is Proof.WRONG


def test_what_was_answered_to_another_question_or_asker_is_wrong() -> None:
    responder, asker = Responder(), Asker()
    recorded = responder.answer(question_of(asker, nonce=1))
    later = parse_answer(recorded)
    assert later is not None
    assert verdict(asker, replace(later, question=replace(later.question, nonce=2)).pack(0)) is Proof.WRONG
    assert verdict(asker, responder.answer(question_of(asker), asker=ELSEWHERE)) is Proof.WRONG
    assert verdict(asker, responder.answer(question_of(asker), local=ELSEWHERE)) is Proof.WRONG
    assert verdict(Asker(), recorded) is Proof.WRONG


@given(st.integers(0, 112), st.integers(1, 255))
def test_no_byte_of_an_introduction_can_be_changed(place: int, change: int) -> None:
    asker = Asker()
    answer = parse_answer(Responder().answer(question_of(asker)))
    assert answer is not None
    extension = bytearray(answer.question.extension)
    extension[place] ^= change
    forged = replace(answer, question=replace(answer.question, extension=bytes(extension)))
    assert asker.judge(forged, IDENTITY, OURS, HEAD) is not Proof.PROVEN


def _times(answer: Answer) -> Answer:
    return replace(answer, received_ns=answer.received_ns + 1)


def _mac(answer: Answer) -> Answer:
    extension = answer.question.extension
    return replace(answer, question=replace(answer.question, extension=extension[:-1] + bytes([extension[-1] ^ 1])))


@pytest.mark.parametrize("forge", [_times, _mac])
def test_within_a_session_a_wrong_answer_has_the_node_introduce_itself(forge: Callable[[Answer], Answer]) -> None:
    asker, responder = Asker(), Responder()
    exchange(asker, responder)
    answer = parse_answer(responder.answer(question_of(asker)))
    assert answer is not None
    assert asker.judge(forge(answer), IDENTITY, OURS, HEAD) is Proof.STALE
    assert exchange(asker, responder) is Proof.PROVEN


def test_a_responder_that_was_started_anew_introduces_itself() -> None:
    asker = Asker()
    assert exchange(asker, Responder()) is Proof.PROVEN
    anew = Responder()
    assert exchange(asker, anew) is Proof.STALE
    assert exchange(asker, anew) is Proof.PROVEN


def test_an_older_responder_proves_nothing_and_is_not_wrong() -> None:
    """It returns the extension as it came, with or without a session."""
    asker = Asker()
    for _ in range(2):
        packet = question_of(asker)
        question = parse_question(packet)
        assert question is not None
        assert verdict(asker, Answer(question, 5, 6).pack(len(packet))) is Proof.UNPROVEN
        exchange(asker, Responder())


@given(st.binary(max_size=200))
def test_an_older_asker_and_any_other_extension_is_answered_without_more_bytes(extension: bytes) -> None:
    packet = Question(1, 4, extension).pack()
    answered = Responder().answer(packet)
    assert len(answered) == len(packet)
    answer = parse_answer(answered)
    assert answer is not None
    assert answer.question.extension == extension or extension[:1] in (b"\x01", b"\x02")


def test_a_flood_of_new_keys_displaces_nobody_who_asks_at_times() -> None:
    """For the minute that a metered node takes between two of its own. Who comes then is proven to as well."""
    asker, responder = Asker(), Responder()
    assert exchange(asker, responder) is Proof.PROVEN
    for number in range(1, 6000):
        responder.at_s = number * 0.01
        flood(responder, number)
    assert exchange(asker, responder) is Proof.PROVEN
    assert exchange(Asker(), responder) is Proof.PROVEN


def test_whoever_is_too_many_is_answered_without_a_proof_and_soon_with_one() -> None:
    responder = Responder()
    verdicts = {exchange(Asker(), responder) for _ in range(60)}
    assert verdicts == {Proof.PROVEN, Proof.UNPROVEN}
    responder.at_s += 1
    assert exchange(Asker(), responder) is Proof.PROVEN

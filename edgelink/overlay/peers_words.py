"""What is said of the answers of other nodes in PeersReachable and RelaysReachable; pure."""

from __future__ import annotations

from edgelink.condition_table.informing import RELAYS_REACHABLE
from edgelink.condition_table.required import PEERS_REACHABLE
from edgelink.conditions import Said, Status, is_not_so, is_so, is_unknown
from edgelink.overlay.echo_proof import Proof
from edgelink.overlay.peers_known import EAGER_TRIES, METERED, Look, Seen
from edgelink.overlay.targets import Targets
from edgelink.wording import few

_MOST_NAMED = 5
_NOBODY = "what carries the overlay is up, but nobody is there: check the other nodes' `edgelink status`"


def says(own: Seen, look: Look) -> tuple[Said, ...]:
    """Return what the answers say, PeersReachable last. One lost packet says nothing."""
    targets, was_reachable = look.targets, own.status is Status.TRUE
    silent = {name for name, known in own.known.items() if known.is_silent}
    if not was_reachable:  # then only an answer counts, not that nobody was asked three times yet
        silent.update(name for name in {**targets.needed, **targets.relays} if own.known[name].answered_s is None)
    wrong = [name for name, known in own.known.items() if known.proof is Proof.WRONG]
    silent.update(wrong)
    missed, relays = targets.silent(silent)
    if missed and set(missed).isdisjoint(wrong):
        return (_unreachable(own, targets, missed),)
    if missed:
        return (_not_who_they_say(own, [name for name in missed if name in wrong]),)
    doubtful = [name for name in targets.counted if name not in relays and own.known[name].silences]
    if doubtful and was_reachable:
        return ()  # asked again before it is said: one lost packet is what networks do
    answering = own.answering
    heard = ", ".join(name for name in targets.counted if name in answering) or "nobody has to"
    others = [name for name in targets.others if name in silent and name not in wrong]
    also = f"; no answer from {few(others, most=_MOST_NAMED)}" if others else ""
    told = f"answering over the overlay: {heard}{also}{_metered_in_words(look)}{_proofs_in_words(own, targets)}"
    return _of_relays(own, targets, relays), is_so(PEERS_REACHABLE.name, "Reachable", told)


def _metered_in_words(look: Look) -> str:
    """Who is asked seldom, and therefore missed late."""
    every = f"asked every {METERED.needed_s:g} s"
    if look.is_metered:
        return f"; metered: {every}"
    names = [name for name in look.targets.counted if name in look.targets.metered]
    return f"; metered: {few(names, most=_MOST_NAMED)}, {every}" if names else ""


def _proofs_in_words(own: Seen, targets: Targets) -> str:
    """Who answers and does not prove who it is, where that matters, and who is somebody else."""
    proven, told = own.proven, ""
    if lacking := [name for name in targets.needed if name in targets.provers and name not in proven]:
        told += f"; {few(lacking)} does not prove who it is: new connections with it wait, and so does a start of Ray"
    if unproven := [name for name in targets.needed if name not in targets.provers and name not in proven]:
        told += f"; {few(unproven)} does not prove who it is: its echo is not up"
    if wrong := [name for name, known in own.known.items() if known.proof is Proof.WRONG]:
        told += f"; somebody else answers as {own.with_addresses(wrong)}, and is kept out"
    return told


def _not_who_they_say(own: Seen, wrong: list[str]) -> Said:
    return is_not_so(
        PEERS_REACHABLE.name,
        "PeerNotWhoItSays",
        f"somebody else answers at the address of {own.with_addresses(wrong)}: nothing but echoes passes until the "
        "right node answers; `edgelink status` on relay or head names who else has that address",
    )


def _of_relays(own: Seen, targets: Targets, silent: list[str]) -> Said:
    """Say which relays are silent. It only informs: with several relays, the silence of one costs nothing yet."""
    if not silent:
        names = ", ".join(targets.relays) or "none is needed"
        return is_so(RELAYS_REACHABLE.name, "AllAnswer", f"relays that answer: {names}")
    told = f"no answer over the overlay from {own.with_addresses(silent)}, another relay carries on"
    return is_not_so(
        RELAYS_REACHABLE.name, "RelaySilent", f"{told}; if it is gone for good, `edgelink registry release` it"
    )


def _unreachable(own: Seen, targets: Targets, silent: list[str]) -> Said:
    heard = own.answering
    answering = [name for name in targets.counted if name in heard]
    is_eager = all(known.silences < EAGER_TRIES for known in own.known.values() if known.answered_s is None)
    names = own.with_addresses(silent)
    if not answering and is_eager and own.status is Status.UNKNOWN:  # EasyTier dials first a second after its start
        return is_unknown(PEERS_REACHABLE.name, "Connecting", f"waiting for an answer of {names}")
    reason = "PeerSilent"
    hint = f"answers come from {few(answering, most=_MOST_NAMED)}; check that node's `edgelink status`"
    if not answering:
        found = own.why
        reason, hint = (found.reason, found.message) if found else ("NobodyAnswers", _NOBODY)
    return is_not_so(PEERS_REACHABLE.name, reason, f"no answer over the overlay from {names}; {hint}")

"""The registry's word on which machine is a node, when a copy of its disk claims to be it as well (ADR 0023).

What is heard of each node decides, beside what is on disk: the statuses, which the broker keeps and ends for those
that are lost, and the claims themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import IPv4Address

from edgelink.clock import Clock
from edgelink.errors import RegistryError
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.protocol.alternation import Alternation
from edgelink.protocol.payloads import Lease, NodeStatus
from edgelink.protocol.refusals import Refusals
from edgelink.protocol.requests import Claim, Verdict
from edgelink.relay.claims import Outcome, Presence, Recorded, judge, merged
from edgelink.relay.store import CLONE_REFUSED, RegistryStore

_COPY = (
    "if this machine's disk is a copy: `edgelink leave` here, then `edgelink up` with a token of its own. If it is "
    "the one that is meant: end the other one first (`edgelink stop` there), then start here again"
)

_MAX_LIVES = 8  # of one node, whose newest word is remembered
_TELL_AGAIN_S = 3600.0

log = get_logger("registry")


@dataclass(frozen=True)
class _Heard:
    """The newest word of one life of a node; ``at_s``: None where only the broker remembered it."""

    is_online: bool
    at_s: float | None
    is_metered: bool = False


class ClaimDesk:
    """Decides who is a node.

    Args:
        ask: has a node say its status again, whoever it is that hears it.
        is_listed: whether the relay's EasyTier lists this overlay address.
    """

    def __init__(
        self,
        store: RegistryStore,
        refusals: Refusals,
        clock: Clock,
        *,
        ask: Callable[[Lease], None],
        is_listed: Callable[[IPv4Address], bool],
    ) -> None:
        self._store = store
        self._refusals = refusals
        self._clock = clock
        self._ask = ask
        self._is_listed = is_listed
        self._heard: dict[str, dict[str, _Heard]] = {}  # by node and life, the newest life last
        self._alternation = Alternation()
        self._since_s = clock.monotonic_s()
        self._claiming: dict[str, dict[str, float]] = {}  # by node and life that is not the recorded one: since when
        self._told_s: dict[str, float] = {}  # by node: when a refused copy was last recorded
        self._outage = Outage(clock)  # of the database

    def begin_session(self) -> None:
        """Who was lost meanwhile is not known: each may have been until now."""
        now_s = self._since_s = self._clock.monotonic_s()
        holders = {lease.node_id for lease in self._store.leases()}
        self._heard = {
            node_id: {
                instance: replace(heard, is_online=False, at_s=now_s if heard.is_online else heard.at_s)
                for instance, heard in lives.items()
            }
            for node_id, lives in self._heard.items()
            if node_id in holders
        }
        self._alternation.forget_others(holders)
        self._claiming = {}
        self._told_s = {node_id: told_s for node_id, told_s in self._told_s.items() if node_id in holders}

    def hear(self, lease: Lease, status: NodeStatus, *, is_retained: bool) -> None:
        """A status has come, or a Last Will."""
        if status.instance is None:
            return
        now_s, known = self._clock.monotonic_s(), self._heard.get(lease.node_id, {}).get(status.instance)
        if status.online or known is not None:  # not the end of who never spoke
            is_metered = status.metered if known is None or status.online else known.is_metered
            self._note(lease, status.instance, _Heard(status.online, None if is_retained else now_s, is_metered))
        if status.online:
            self._alternation.note(lease.node_id, status.instance, now_s)
        elif any(heard.is_online for heard in self._heard.get(lease.node_id, {}).values()):
            self._ask(lease)  # what the broker keeps of the node now is another one's end

    def _note(self, lease: Lease, instance: str, heard: _Heard) -> None:
        lives = self._heard.setdefault(lease.node_id, {})
        lives.pop(instance, None)
        lives[instance] = heard
        if len(lives) > _MAX_LIVES:
            del lives[next(iter(lives))]

    def alternations(self) -> tuple[tuple[str, float], ...]:
        """The hostname of each node that has spoken with two voices, and when it did so last."""
        found = self._alternation.alternated().items()
        return tuple((lease.hostname, at_s) for n, at_s in found if (lease := self._store.lease(n)) is not None)

    def decide(self, lease: Lease, claim: Claim) -> Verdict:
        """On disk before this returns, where that is possible: a full disk stops no robot."""
        now_s, recorded = self._clock.monotonic_s(), self._store.machines.get(lease.node_id)
        is_announced = not claim.runs_overlay and self._is_listed(lease.overlay_ip)
        judgement = judge(
            recorded,
            claim.instance,
            claim.machine,
            self._presence(lease.node_id, recorded),
            now_s - self._since_s,
            is_announced=is_announced,
            claimed_s=self._claimed_s(lease.node_id, claim.instance),
        )
        if recorded is None or judgement.outcome is Outcome.ACCEPTED:
            self._admit(lease, claim, recorded, "")
            return Verdict(outcome="accepted")
        since = since_in_words(recorded.since, self._clock.now())
        if judgement.outcome is Outcome.CHANGED:
            words = f"on another machine than before, which ran since {since} and is not heard any more"
            log.warning("registry.machine_changed", node_id=lease.node_id, hostname=lease.hostname, former_since=since)
            self._admit(lease, claim, recorded, words)
            return Verdict(outcome="accepted", reason="MachineChanged", message=f"{lease.hostname} runs {words}")
        if judgement.asks_recorded:
            self._ask(lease)
        if judgement.outcome is Outcome.WAIT:
            looks = (
                f"somebody has {lease.overlay_ip} in the overlay: its EasyTier goes on, `edgelink stop` there ends it"
                if is_announced
                else "the registry looks whether it is still there"
            )
            return Verdict(
                outcome="wait",
                reason="OtherMachine",
                message=f"{lease.hostname} ({lease.node_id}) was running on another machine since {since}; {looks}",
                again_s=judgement.again_s,
            )
        message = f"{lease.hostname} ({lease.node_id}) is running on another machine since {since}"
        self._tell_of_clone(lease, message)
        return Verdict(outcome="refused", reason="ClonedNode", message=message, hint=_COPY)

    def _claimed_s(self, node_id: str, instance: str) -> float:
        """For how long this life has been claiming to be the node."""
        now_s, lives = self._clock.monotonic_s(), self._claiming.setdefault(node_id, {})
        since_s = lives.setdefault(instance, now_s)
        if len(lives) > _MAX_LIVES:
            del lives[next(iter(lives))]
        return now_s - since_s

    def _presence(self, node_id: str, recorded: Recorded | None) -> Presence:
        heard = self._heard.get(node_id, {}).get(recorded.instance) if recorded is not None else None
        if heard is None:
            return Presence()
        silent_s = None if heard.at_s is None else self._clock.monotonic_s() - heard.at_s
        return Presence(heard.is_online, silent_s, heard.is_metered)

    def _admit(self, lease: Lease, claim: Claim, recorded: Recorded | None, change: str) -> None:
        now_s = self._clock.monotonic_s()
        self._claiming.pop(lease.node_id, None)
        self._alternation.note(lease.node_id, claim.instance, now_s)
        self._note(lease, claim.instance, _Heard(is_online=True, at_s=now_s))
        machine = claim.machine if change or recorded is None else merged(recorded.machine, claim.machine)
        if recorded is not None and (recorded.instance, recorded.machine) == (claim.instance, machine):
            return
        try:
            with self._store.transaction():
                self._store.machines.put(lease.node_id, claim.instance, machine)
                if change:
                    self._store.record("machine changed", lease.node_id, f"{lease.hostname} runs {change}", "")
        except RegistryError as error:
            if self._outage.is_news(error.condition_reason):
                log.warning("registry.claim_not_kept", reason=error.condition_reason, error=str(error))
        else:
            self._outage.over()

    def _tell_of_clone(self, lease: Lease, message: str) -> None:
        self._refusals.note("ClonedNode", lease.node_id, what="claim", error=message)
        now_s = self._clock.monotonic_s()
        if lease.node_id in self._told_s and now_s < self._told_s[lease.node_id] + _TELL_AGAIN_S:
            return  # whoever starts it over and over fills no history with it
        self._told_s[lease.node_id] = now_s
        detail = f"{message}: another one was refused"
        try:
            with self._store.transaction():
                self._store.record(CLONE_REFUSED, lease.node_id, detail, "", is_change=False)
        except RegistryError as error:
            log.warning("registry.clone_not_recorded", reason=error.condition_reason, error=str(error))


def since_in_words(since: datetime, now: datetime) -> str:
    """A moment for people, by the relay's clock; pure."""
    return f"{since:%H:%M} UTC" if since.date() == now.date() else f"{since:%Y-%m-%d %H:%M} UTC"

"""Changes of the network's secret, and who is put out: what the registry decides and signs (ADR 0020, ADR 0050).

It knows nothing of MQTT: :mod:`edgelink.relay.rotation_driver` carries the documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Address

from edgelink.clock import Clock
from edgelink.errors import RegistryError, UntrustedError, UsageError
from edgelink.fault_points import reached
from edgelink.log import get_logger, hide
from edgelink.protocol.keys import Kind, open_envelope, seal
from edgelink.protocol.payloads import MAX_REVOKED, Envelope, Lease, NetworkSecrets, NetworkState, Rotation
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.rotation import RotationRecord, notice_s
from edgelink.relay.store import RegistryStore

log = get_logger("registry")

HOLD_S = 60.0
_REPEAT_S = 5.0  # who comes later is told the remainder, which is never older
_LEARNT = "learnt from a node after this registry was restored from a backup"


@dataclass(frozen=True)
class Revoked:
    """Who was put out, and the change of the secret that began with it."""

    lease: Lease
    record: RotationRecord


@dataclass(frozen=True)
class _Hour:
    """When the network changes, on this machine's monotonic clock. ``switch_at`` names the change."""

    switch_at: datetime
    at_s: float


class Rotations:
    """One network's."""

    def __init__(self, store: RegistryStore, keys: AuthorityKeys, clock: Clock) -> None:
        self._store = store
        self._book = store.rotations
        self._keys = keys
        self._clock = clock
        self._sealed: dict[str, tuple[tuple[object, ...], bytes]] = {}  # by node: sealing is random, so kept
        self._hour: _Hour | None = None
        self._said: tuple[object, float, Envelope] | None = None  # the newest state: of what, when, signed
        self.changed_s: float | None = None  # when this daemon changed the secret last

    @property
    def record(self) -> RotationRecord | None:
        """The change that is under way."""
        return self._book.record()

    @property
    def secret_epoch(self) -> int:
        return self._book.secret_epoch()

    def seen_epochs(self) -> Mapping[str, int]:
        """See :meth:`edgelink.relay.rotation_book.RotationBook.seen_epochs`."""
        return self._book.seen_epochs()

    def stragglers(self) -> list[Lease]:
        """Whoever was never seen on the present secret, after it was changed: relays first, they carry the old one on.

        On the first secret of a network there is nobody to wait for.
        """
        epoch = self.secret_epoch
        if epoch == 1:
            return []
        seen = self.seen_epochs()
        behind = [lease for lease in self._store.leases() if seen.get(lease.node_id, 0) < epoch]
        return sorted(behind, key=lambda lease: not lease.is_relay)

    # what the operator asks for

    def revoke(
        self, node: str, *, hold_s: float = 0.0, own_node_id: str, all_tokens: bool = False, caller: str = ""
    ) -> Revoked:
        """Put a node (by hostname or node_id) out for ever, and begin to change what it knows: one transaction.

        ``hold_s``: the longest time for which robots in motion may hold the change up.

        Raises:
            RegistryError: no node of that name holds a lease.
            UsageError: it is the relay that holds the registry.
        """
        with self._store.transaction():
            gone = self._store.revocations.find(node)
            if gone is not None and self._store.find_lease(node) is None:
                raise RegistryError(
                    f"{node} was revoked already, at {gone.revoked_at:%Y-%m-%d %H:%M} UTC",
                    hint="`edgelink rotate-secret` changes the secret once more, for those who were away",
                    reason="NodeRevoked",
                )
            lease = self._store.require_lease(node)
            if lease.node_id == own_node_id:
                raise UsageError(
                    "this is the relay that holds the registry: who has it has the network's keys",
                    hint="after a relay in wrong hands start a new network in a new state directory, and join all anew",
                    reason="OwnLease",
                )
            self._take_away(lease, "revoked by the operator", caller)
            reached("revoke.recorded")
            if all_tokens:
                self._book.revoke_all_tokens()
            record = self._begin(f"{lease.hostname} was revoked", hold_s)
        reached("rotate.begun")
        log.info("registry.revoked", node_id=lease.node_id, hostname=lease.hostname)
        return Revoked(lease, record)

    def _take_away(self, lease: Lease, why: str, caller: str) -> None:
        self._store.release(lease.node_id, caller=caller)
        reached("revoke.released")
        self._store.revocations.put(lease, why)
        self._book.revoke_tokens(lease)
        self._store.record("revoked", lease.node_id, f"{lease.hostname}: {why}", caller)
        # Who has the old secret may go on claiming the address among all that have it, too.
        self._store.quarantine.put(lease, None)

    def rotate(self, hold_s: float = 0.0) -> RotationRecord:
        """Begin to change the secret, or return the change that is to come."""
        with self._store.transaction():
            running = self._book.record()
            if running is not None:
                return running
            record = self._begin("the operator asked for it", hold_s)
        reached("rotate.begun")
        return record

    def _begin(self, why: str, hold_s: float) -> RotationRecord:
        running = self._book.record()
        if running is not None and not self._is_far(running):
            self._book.commit()  # nodes may change to it before they hear of another one
        record = self._book.begin(why=why, switch_in_s=max(self._notice_s(), hold_s))
        hide(record.next_secret)
        log.info("registry.rotation_begun", epoch=record.to_epoch, why=why)
        return record

    def _notice_s(self) -> float:
        return notice_s(len(self._store.leases()))

    def _is_far(self, record: RotationRecord) -> bool:
        """Whether all nodes hear before the hour of the change when that becomes another one."""
        return self._left_s(record) > 1.5 * self._notice_s()

    # what happens then

    def advance(self, *, is_held: bool) -> bool:
        """Take the step that is due. Return whether there was one.

        ``is_held``: a robot in motion may hold the change up.
        """
        record = self._book.record()
        if record is None:
            return False
        if self._left_s(record) <= 0:
            self._book.commit()
            self.changed_s = self._clock.monotonic_s()
            log.info("registry.secret_changed", epoch=record.to_epoch)
            reached("rotate.commit")
        elif not is_held and self._is_far(record):
            self._book.hasten(self._notice_s())
            reached("rotate.hastened")
        else:
            return False
        return True

    def left_s(self) -> float | None:
        """In how many seconds the network changes. None: it does not."""
        record = self._book.record()
        return None if record is None else self._left_s(record)

    def _left_s(self, record: RotationRecord) -> float:
        """By the monotonic clock, as nodes count. The wall clock is read once a change and daemon: it may be set."""
        now_s = self._clock.monotonic_s()
        if self._hour is None or self._hour.switch_at != record.switch_at:
            whole_s = (record.switch_at - record.started_at).total_seconds()
            left_s = (record.switch_at - self._clock.now()).total_seconds()
            self._hour = _Hour(record.switch_at, now_s + min(left_s, whole_s))
        return self._hour.at_s - now_s

    def note(self, epochs: Mapping[str, int]) -> bool:
        """Write down on which secret nodes say that they run. Return whether something is news.

        Nobody signs that: it is only shown. A number that this registry has not reached was said to another one.
        """
        epoch = self.secret_epoch
        is_news = self._book.note_epochs({node_id: seen for node_id, seen in epochs.items() if seen <= epoch})
        if is_news:
            reached("rotate.seen")
        return is_news

    def recall(self, known: Envelope) -> bool:
        """A node was told something by this registry that this database does not know: it was restored from a backup
        that is older. Who was put out since is put out again, and the secret is a fresh one (ADR 0020).

        Raises:
            UntrustedError: this registry never said that.
        """
        state = open_envelope(known, Kind.NETWORK, NetworkState, self._keys.verify_key_b64)
        if state.network_id != self._keys.network_id:
            raise UntrustedError(f"a state of another network, {state.network_id}")
        with self._store.transaction():
            missing = [node_id for node_id in state.revoked if self._store.revocations.get(node_id) is None]
            if not missing and state.secret_epoch <= self.secret_epoch:
                return False
            for node_id in missing:
                lease = self._store.lease(node_id)
                if lease is None:
                    self._store.revocations.put_stranger(node_id, _LEARNT)
                else:
                    self._take_away(lease, _LEARNT, "")
            self._book.renew_after_restoration(
                epoch=state.secret_epoch, generation=state.generation, number=state.number
            )
        log.warning(
            "registry.backup_was_older",
            why="nodes were told of a newer secret than the backup holds: a fresh one was made",
            revoked_again=missing,
        )
        return True

    # what is told

    def revoked_ips(self) -> tuple[IPv4Address, ...]:
        """Overlay addresses of nodes that were put out, which nobody holds."""
        return tuple(self._store.quarantine.for_good()[-MAX_REVOKED:])

    def state(self) -> Envelope:
        """What all may know. Of texts with one number the newest has the remainder until the change."""
        with self._store.transaction():
            record, revoked, now_s = self._book.record(), self._store.revocations.all(), self._clock.monotonic_s()
            state = NetworkState(
                network_id=self._keys.network_id,
                generation=self._store.generation(),
                number=self._book.number() + len(revoked),  # a key is put out for other reasons, too
                secret_epoch=self.secret_epoch,
                revoked=tuple(item.node_id for item in revoked[-MAX_REVOKED:]),
                revoked_ips=self.revoked_ips(),
            )
            if (
                self._said is not None
                and self._said[0] == state
                and (record is None or now_s < self._said[1] + _REPEAT_S)
            ):
                return self._said[2]
            rotation = record and Rotation(to_epoch=record.to_epoch, switch_in_s=max(0.0, self._left_s(record)))
        signed = self._keys.sign(Kind.NETWORK, state.model_copy(update={"rotation": rotation}))
        self._said = state, now_s, signed
        return signed

    def sealed_secrets(self) -> dict[str, bytes]:
        """For each node that holds a lease, by node id: sealed to its key, signed inside."""
        with self._store.transaction():
            network, record, leases = self._store.network(), self._book.record(), self._store.leases()
            generation, number = self._store.generation(), self._book.number()
        if network is None:
            return {}
        found: dict[str, bytes] = {}
        for lease in leases:
            next_epoch = record.to_epoch if record else None
            content = (generation, network.secret_epoch, next_epoch)
            kept = self._sealed.get(lease.node_id)
            if kept is None or kept[0] != content:
                secrets = NetworkSecrets(
                    network_id=network.network_id,
                    node_id=lease.node_id,
                    generation=generation,
                    number=number,
                    secret_epoch=network.secret_epoch,
                    network_secret=network.secret,
                    next_epoch=next_epoch,
                    next_secret=record.next_secret if record else None,
                )
                signed = self._keys.sign(Kind.NETWORK_SECRETS, secrets).model_dump_json().encode()
                kept = (content, seal(lease.verify_key, signed).encode())
            self._sealed[lease.node_id] = kept
            found[lease.node_id] = kept[1]
        self._sealed = {node_id: kept for node_id, kept in self._sealed.items() if node_id in found}
        return found

"""Changes of the network's secret, and who is put out: what the registry decides and signs (ADR 0020).

It knows nothing of MQTT: :mod:`edgelink.relay.rotation_driver` carries the documents and brings the answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address

from pydantic import ValidationError

from edgelink.clock import Clock
from edgelink.errors import RegistryError, UntrustedError, UsageError
from edgelink.fault_points import reached
from edgelink.log import get_logger, hide
from edgelink.protocol.keys import Kind, open_envelope, seal
from edgelink.protocol.payloads import (
    MAX_REVOKED,
    Envelope,
    Lease,
    NetworkAnswer,
    NetworkSecrets,
    NetworkState,
    Rotation,
)
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.rotation import Progress, RotationRecord, Step, next_look, next_step
from edgelink.relay.store import RegistryStore

log = get_logger("registry")

PREPARE_S = 20.0
ROTATE_PREPARE_S = 60.0
HOLD_S = 60.0
_LEARNT = "learnt from a node after this registry was restored from a backup"


@dataclass(frozen=True)
class RotationRequest:
    """What the operator asks for. ``expected``: the nodes that are online, whose answer is waited for ``prepare_s``;
    ``hold_s``: the longest patience with a robot in motion; ``force``: commit also without all of them."""

    expected: frozenset[str]
    prepare_s: float
    hold_s: float = HOLD_S
    force: bool = True


@dataclass(frozen=True)
class Revoked:
    """Who was put out, and the change of the secret that began with it."""

    lease: Lease
    record: RotationRecord


class Rotations:
    """One network's."""

    def __init__(self, store: RegistryStore, keys: AuthorityKeys, clock: Clock) -> None:
        self._store = store
        self._book = store.rotations
        self._keys = keys
        self._clock = clock
        self._sealed: dict[str, tuple[tuple[object, ...], bytes]] = {}  # by node: sealing is random, so kept

    @property
    def record(self) -> RotationRecord | None:
        """The change that is under way."""
        return self._book.record()

    @property
    def secret_epoch(self) -> int:
        return self._book.secret_epoch()

    def progress(self) -> dict[str, Progress]:
        """How far each node is, by node id."""
        return {node.node_id: node for node in self._book.progress()}

    def stragglers(self) -> list[Lease]:
        """Whoever was never seen on the present secret, after it was changed: relays first, they carry the old one on.

        On the first secret of a network there is nobody to wait for.
        """
        epoch = self.secret_epoch
        if epoch == 1:
            return []
        running = {node_id: node.running_epoch for node_id, node in self.progress().items()}
        behind = [lease for lease in self._store.leases() if running.get(lease.node_id, 0) < epoch]
        return sorted(behind, key=lambda lease: not lease.is_relay)

    # what the operator asks for

    def revoke(
        self, node: str, request: RotationRequest, *, own_node_id: str, all_tokens: bool = False, caller: str = ""
    ) -> Revoked:
        """Put a node (by hostname or node_id) out for ever, and begin to change what it knows: one transaction.

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
            record = self._begin(f"{lease.hostname} was revoked", request)
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

    def rotate(self, request: RotationRequest) -> RotationRecord:
        """Begin to change the secret; one that is being prepared is gone on with."""
        with self._store.transaction():
            running = self._book.record()
            if running is not None and running.phase == "prepare":
                return running
            record = self._begin("the operator asked for it", request)
        reached("rotate.begun")
        return record

    def _begin(self, why: str, request: RotationRequest) -> RotationRecord:
        record = self._book.begin(
            why=why,
            expected=request.expected,
            prepare_s=request.prepare_s,
            hold_s=request.hold_s,
            force=request.force,
        )
        hide(record.next_secret)
        log.info("registry.rotation_begun", epoch=record.to_epoch, why=why, expected=len(request.expected))
        return record

    # what happens then

    def advance(self) -> Step:
        """Take the step that is due."""
        with self._store.transaction():
            record = self._book.record()
            if record is None:
                return Step.WAIT
            step = next_step(record, self._book.progress(), self._clock.now())
            match step:
                case Step.COMMIT:
                    self._book.commit()
                case Step.ABORT:
                    self._book.abort()
                case Step.FINISH:
                    self._book.finish()
        if step is not Step.WAIT:
            log.info("registry.rotation", step=step.value, epoch=record.to_epoch)
            reached(f"rotate.{step.value}")
        return step

    def look_again_s(self) -> float | None:
        """When :meth:`advance` may have something to do without an answer; None: never."""
        record = self._book.record()
        if record is None:
            return None
        return next_look(record, self._book.progress(), self._clock.now()).total_seconds()

    def receive(self, node_id: str, payload: bytes) -> bool:
        """Take what came on ``node_id``'s topic; whether it is news.

        Raises:
            UntrustedError: it is malformed, not signed by this node, or of another network.
        """
        lease = self._store.lease(node_id)
        if lease is None:
            return False  # it was put out a moment ago
        try:
            envelope = Envelope.model_validate_json(payload)
        except ValidationError:
            raise UntrustedError("an answer that is no signed document") from None
        answer = open_envelope(envelope, Kind.NETWORK_ANSWER, NetworkAnswer, lease.verify_key)
        if answer.node_id != node_id or answer.network_id != self._keys.network_id:
            raise UntrustedError(f"an answer of {answer.node_id} of network {answer.network_id}")
        recalled = answer.known is not None and self.recall(answer.known)
        return self.note(answer) or recalled

    def note(self, answer: NetworkAnswer) -> bool:
        """Take the word of a node; of this relay itself, without a signature."""
        if answer.generation != self._store.generation() or answer.running_epoch > self.secret_epoch:
            return False  # said to another registry
        if answer.prepared_epoch > self._newest_epoch():
            return False  # of no secret that was ever given out: else one who counts on has each number written down
        is_news = self._book.note(answer)
        if is_news:
            record = self._book.record()
            is_running = record is not None and answer.running_epoch >= record.to_epoch
            reached("rotate.running" if is_running else "rotate.prepared")
        return is_news

    def _newest_epoch(self) -> int:
        """Of the newest secret that a node can have been given."""
        record = self._book.record()
        return self.secret_epoch if record is None else max(self.secret_epoch, record.to_epoch)

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
        """What all may know; the same number is the same text."""
        with self._store.transaction():
            record, revoked = self._book.record(), self._store.revocations.all()
            state = NetworkState(
                network_id=self._keys.network_id,
                generation=self._store.generation(),
                number=self._book.number() + len(revoked),  # a key is put out for other reasons, too
                secret_epoch=self.secret_epoch,
                rotation=record
                and Rotation(
                    rotation_id=record.rotation_id,
                    to_epoch=record.to_epoch,
                    phase=record.phase,
                    hold_until=record.hold_until if record.phase == "prepare" else None,
                ),
                revoked=tuple(item.node_id for item in revoked[-MAX_REVOKED:]),
                revoked_ips=self.revoked_ips(),
            )
        return self._keys.sign(Kind.NETWORK, state)

    def sealed_secrets(self) -> dict[str, bytes]:
        """For each node that holds a lease, by node id: sealed to its key, signed inside."""
        with self._store.transaction():
            network, record, leases = self._store.network(), self._book.record(), self._store.leases()
            generation, number = self._store.generation(), self._book.number()
        if network is None:
            return {}
        upcoming = record if record is not None and record.phase == "prepare" else None
        found: dict[str, bytes] = {}
        for lease in leases:
            next_epoch = upcoming.to_epoch if upcoming else None
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
                    next_secret=upcoming.next_secret if upcoming else None,
                )
                signed = self._keys.sign(Kind.NETWORK_SECRETS, secrets).model_dump_json().encode()
                kept = (content, seal(lease.verify_key, signed).encode())
            self._sealed[lease.node_id] = kept
            found[lease.node_id] = kept[1]
        self._sealed = {node_id: kept for node_id, kept in self._sealed.items() if node_id in found}
        return found

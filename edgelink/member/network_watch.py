"""A node's side of the network's secret: which documents of the registry it believes, and the newest on its disk.

The newest state is written down before anybody acts on it: else a restart would open the door to an older one that a
broker in wrong hands plays again. On a full disk it waits in memory, and this node goes on as before; only that it was
put out itself counts at once, and so do the addresses that are to be dropped.
"""

from __future__ import annotations

import math
from ipaddress import IPv4Address
from pathlib import Path

from pydantic import ValidationError

from edgelink.clock import Clock
from edgelink.errors import NotRecordedError, UntrustedError
from edgelink.files import AT_ONCE, Files
from edgelink.log import get_logger, hide
from edgelink.protocol.held_secret import HeldSecret, NetworkTold
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import MAX_REVOKED, Envelope, NetworkSecrets, NetworkState
from edgelink.protocol.refusals import OUTDATED
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Message

STATE_FILE = "network-state.json"

log = get_logger("registry")


class NetworkWatch:
    """What is known of the network's secret. ``directory``: where the newest state is kept; None: nowhere.

    ``state`` is what counts here: the newest one that is on disk.
    """

    def __init__(
        self, membership: Membership, key: NodeKey, clock: Clock, directory: Path | None, files: Files = AT_ONCE
    ) -> None:
        self._network_id = membership.network_id
        self._verify_key = membership.registry_verify_key
        self._key = key
        self._clock = clock
        self._topics = Topics(membership.network_id)
        self._path = directory / STATE_FILE if directory is not None else None
        self._files = files
        self._is_waiting = False  # for room on the disk
        self._held = membership.held  # the newest secret that this node was given
        self._given_as: tuple[int, int] | None = None  # generation and number of the document that it came in
        self.state: NetworkState | None = None
        self.behind: NetworkState | None = None  # what a registry says that was restored from before `state`
        self._newest: NetworkState | None = None  # of those that were verified, on disk or not
        self._envelope: Envelope | None = None  # in which `_newest` came
        self._hours: dict[int, float] = {}
        self._restore()

    @property
    def subscriptions(self) -> tuple[str, ...]:
        return (self._topics.network, self._topics.secrets(self._key.node_id))

    @property
    def given(self) -> HeldSecret | None:
        """The newest secret that the registry has given to this daemon."""
        return None if self._given_as is None else self._held

    @property
    def known(self) -> Envelope | None:
        """What the registry that answers has to be told of itself."""
        return self._envelope if self.behind is not None else None

    @property
    def is_revoked(self) -> bool:
        """The registry's own word that this node was put out."""
        return self._newest is not None and self._key.node_id in self._newest.revoked

    @property
    def revoked_ips(self) -> tuple[IPv4Address, ...]:
        """Overlay addresses of nodes that were put out, which nobody holds."""
        return self._newest.revoked_ips if self._newest is not None else ()

    @property
    def told(self) -> NetworkTold:
        """All of it as of this moment."""
        return NetworkTold(
            self.state,
            self.given,
            self.behind,
            self._hours,
            self.known,
            self.is_revoked,
            self.revoked_ips,
            self._newest == self.state,
        )

    def settle(self) -> bool:
        """Write the newest state down, and go by it; False while that cannot be done. Harmless at any time."""
        if self._newest is None or self._envelope is None or self._newest == self.state:
            return True
        if self._path is not None:
            try:
                self._files.require(self._path, self._envelope.model_dump_json())
            except NotRecordedError as error:
                if not self._is_waiting:
                    log.warning("registry.state_waits", path=str(self._path), error=str(error))
                self._is_waiting = True
                return False
            self._is_waiting = False
        self.state = self._newest
        return True

    def take(self, message: Message) -> bool:
        """Believe a document; False when the message is none of ours.

        Raises:
            UntrustedError, ValidationError: it is forged, malformed or older than what is known.
        """
        if message.topic == self._topics.network:
            if message.payload:
                self._take_state(Envelope.model_validate_json(message.payload))
            return True
        if message.topic == self._topics.secrets(self._key.node_id):
            if message.payload:
                self._take_secrets(message.payload.decode("ascii", "replace"))
            return True
        return False

    def _take_state(self, envelope: Envelope) -> None:
        state = self._verified(envelope)
        known = self._newest
        if known is not None and (state.generation, state.number) < (known.generation, known.number):
            raise UntrustedError(
                f"the network's state {state.generation}.{state.number} is older than "
                f"{known.generation}.{known.number}",
                reason=OUTDATED,
            )
        is_whole = len(state.revoked) < MAX_REVOKED
        if known is not None and (
            state.secret_epoch < known.secret_epoch or (is_whole and not set(known.revoked) <= set(state.revoked))
        ):
            self.behind = state  # its registry was restored from before: it is told so, and makes good for it
            return
        self._newest, self._envelope, self.behind = state, envelope, None
        self._note_hours(state)
        self.settle()

    def _note_hours(self, state: NetworkState) -> None:
        """Note the hours by this machine's own clock. Words may come late, never early: the earliest hour is right."""
        said = {state.secret_epoch: 0.0}
        if state.rotation is not None:
            said[state.rotation.to_epoch] = state.rotation.switch_in_s
        now_s, known = self._clock.monotonic_s(), self._hours
        self._hours = {epoch: min(now_s + in_s, known.get(epoch, math.inf)) for epoch, in_s in said.items()}

    def _verified(self, envelope: Envelope) -> NetworkState:
        state = open_envelope(envelope, Kind.NETWORK, NetworkState, self._verify_key)
        if state.network_id != self._network_id:
            raise UntrustedError(f"a state of another network, {state.network_id}")
        return state

    def _take_secrets(self, sealed: str) -> None:
        envelope = Envelope.model_validate_json(self._key.unseal(sealed))
        secrets = open_envelope(envelope, Kind.NETWORK_SECRETS, NetworkSecrets, self._verify_key)
        if secrets.node_id != self._key.node_id or secrets.network_id != self._network_id:
            raise UntrustedError(f"secrets of another node, {secrets.node_id} of network {secrets.network_id}")
        hide(secrets.network_secret, secrets.next_secret or "")
        given_as = secrets.generation, secrets.number
        is_older = self._given_as is not None and given_as < self._given_as
        if is_older or secrets.secret_epoch < self._held.epoch:
            raise UntrustedError(
                f"secret {secrets.secret_epoch} of state {secrets.generation}.{secrets.number} is older than what this "
                f"node was given, secret {self._held.epoch}",
                reason=OUTDATED,
            )
        self._held, self._given_as = HeldSecret.of(secrets), given_as

    def _restore(self) -> None:
        if self._path is None:
            return
        try:
            envelope = Envelope.model_validate_json(self._path.read_bytes())
            self.state = self._newest = self._verified(envelope)
            self._envelope = envelope
            self._note_hours(self.state)
        except FileNotFoundError:
            pass
        except (UntrustedError, ValidationError, OSError) as error:
            log.warning("registry.state_unreadable", path=str(self._path), error=str(error))


def known_state(path: Path) -> Envelope | None:
    """The newest state that this machine was told as a node, for a registry that is restored on it."""
    try:
        return Envelope.model_validate_json((path / STATE_FILE).read_bytes())
    except (OSError, ValidationError):
        return None

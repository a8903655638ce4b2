"""A node's side of the access rules: which document of the registry it believes, and the newest on its disk.

The newest is written down before it opens anything: a restart would otherwise open the door to an older one that a
broker in wrong hands plays again. On a full disk it closes at once what it no longer opens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from edgelink.errors import NotRecordedError, UntrustedError
from edgelink.files import AT_ONCE, Files
from edgelink.log import get_logger
from edgelink.process.port_ranges import in_words
from edgelink.protocol.keys import Kind, open_envelope
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Envelope, NodeAccess
from edgelink.protocol.refusals import OUTDATED
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Message

ACCESS_FILE = "access.json"

log = get_logger("registry")


@dataclass(frozen=True)
class AccessTold:
    """What the registry has told this node of its openings.

    Attributes:
        recorded: the newest document that is on this node's disk.
        newest: the newest document that was heard. Another one waits for room on the disk.
    """

    recorded: NodeAccess | None = None
    newest: NodeAccess | None = None


class AccessWatch:
    """Keeps the newest document. ``directory``: where; None: nowhere."""

    def __init__(self, membership: Membership, directory: Path | None, files: Files = AT_ONCE) -> None:
        self._network_id = membership.network_id
        self._node_id = membership.lease.node_id
        self._verify_key = membership.registry_verify_key
        self._path = directory / ACCESS_FILE if directory is not None else None
        self._files = files
        self._is_waiting = False  # for room on the disk
        self._envelope: Envelope | None = None  # in which the newest came
        self.topic = Topics(membership.network_id).access(self._node_id)
        self.told = AccessTold()
        self._restore()

    @property
    def is_on_disk(self) -> bool:
        """Whether the newest document is."""
        return self.told.newest == self.told.recorded

    def take(self, message: Message) -> bool:
        """Believe a document; False when the message is none of ours.

        Raises:
            UntrustedError, ValidationError: it is forged, malformed, another node's, or older than what is known.
        """
        if message.topic != self.topic:
            return False
        if message.payload:  # a cleared retained message says nothing
            self._take(Envelope.model_validate_json(message.payload))
        return True

    def settle(self) -> None:
        """Write the newest document down, which counts then. Harmless at any time."""
        newest = self.told.newest
        if self._envelope is None or newest is None or self.is_on_disk:
            return
        if self._path is not None:
            try:
                self._files.require(self._path, self._envelope.model_dump_json())
            except NotRecordedError as error:
                if not self._is_waiting:
                    log.warning("registry.access_waits", path=str(self._path), error=str(error))
                self._is_waiting = True
                return
            self._is_waiting = False
        before, self.told = self.told.recorded, AccessTold(newest, newest)
        if before is None or before.openings != newest.openings:
            ports = [in_words(one.protocol, one.first, one.last) for one in newest.openings]
            log.info("registry.access_changed", generation=newest.generation, epoch=newest.epoch, open=ports)

    def _take(self, envelope: Envelope) -> None:
        document, known = self._verified(envelope), self.told.newest
        if known is not None and (
            _age(document) < _age(known) or (_age(document) == _age(known) and document != known)
        ):
            raise UntrustedError(
                f"access {document.generation}.{document.epoch} is older than {known.generation}.{known.epoch}",
                reason=OUTDATED,
            )
        self._envelope, self.told = envelope, AccessTold(self.told.recorded, document)
        self.settle()

    def _verified(self, envelope: Envelope) -> NodeAccess:
        document = open_envelope(envelope, Kind.ACCESS, NodeAccess, self._verify_key)
        if (document.network_id, document.node_id) != (self._network_id, self._node_id):
            raise UntrustedError(f"access of another node, {document.node_id} of network {document.network_id}")
        return document

    def _restore(self) -> None:
        if self._path is None:
            return
        try:
            document = self._verified(Envelope.model_validate_json(self._path.read_bytes()))
            self.told = AccessTold(document, document)
        except FileNotFoundError:
            pass
        except (UntrustedError, ValidationError, OSError) as error:  # nothing is open then until the registry says so
            log.warning("registry.access_unreadable", path=str(self._path), error=str(error))


def _age(document: NodeAccess) -> tuple[int, int]:
    return document.generation, document.epoch

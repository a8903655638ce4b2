"""The documents that all nodes follow, as one node believes them: who holds which lease, and the Ray cluster.

Each is verified before it counts: the directory and its pages by the registry's key, the cluster spec by the key that
the directory names for the head. What is older than what is known does not count, also after a restart: the newest are
kept on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from edgelink.errors import RegistryUnavailableError, UntrustedError
from edgelink.files import AT_ONCE, Files
from edgelink.protocol.keys import Kind, open_envelope
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import ClusterSpec, Directory, Envelope, NodeId, Role, RosterPage
from edgelink.protocol.refusals import OUTDATED, Refusals, refusal_reason
from edgelink.protocol.roster_pages import Pages, completed, digest
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Message
from edgelink.ray_cluster.cluster_spec import FILE_NAME, OwnEpoch

_DIRECTORY_CACHE = "directory.json"
_PAGE_CACHE = "roster-{}.json"
_EPOCHS_CACHE = "cluster-epochs.json"
_EPOCHS = TypeAdapter(dict[NodeId, int])


class ReplacedRegistryError(RegistryUnavailableError):
    """What answers was the registry once."""

    reason = "RegistryReplaced"


class Documents:
    """``cache`` is the directory in which the newest are kept; None: nowhere."""

    def __init__(
        self,
        membership: Membership,
        *,
        hears_all: bool,
        refusals: Refusals,
        cache: Path | None = None,
        files: Files = AT_ONCE,
    ) -> None:
        """``hears_all``: whether this node reads the roster of a large network."""
        self.directory: Directory | None = None
        self.cluster_spec: ClusterSpec | None = None
        self.named: Directory | None = None  # the newest directory as it was signed; `directory` has all its pages
        self._node_id = membership.lease.node_id
        self._is_head = membership.lease.role is Role.HEAD
        self._network_id = membership.network_id
        self._verify_key = membership.registry_verify_key
        self._topics = Topics(membership.network_id)
        self._hears_all = hears_all
        self._states_cluster = False
        self._refusals = refusals
        self._cache = cache
        self._files = files
        self._pages = Pages()
        self._granted_before: frozenset[IPv4Address] = frozenset()  # by a registry that was restored since
        self._pending_cluster: Envelope | None = None
        self._spec_epochs: dict[str, int] = {}  # the newest by head: outlives the spec, which goes with its head
        self._own_spec: ClusterSpec | None = None  # of those that we signed, the one that has the newest epoch
        self._restore()

    def take(self, message: Message, address: str) -> bool:
        """Believe a document that the broker at ``address`` brought; False when the message is none of ours.

        Raises:
            UntrustedError, ValidationError: it is forged, malformed or older than what is known.
            ReplacedRegistryError: that registry does not count any more.
        """
        topics = {self._topics.directory: self._take_directory, self._topics.cluster: self._take_cluster_envelope}
        take = self._take_page if self._topics.is_roster(message.topic) else topics.get(message.topic)
        if take is None:
            return False
        if message.payload:  # a cleared retained message says nothing
            take(Envelope.model_validate_json(message.payload), address)
        return True

    def state_cluster(self, envelope: Envelope) -> None:
        """Follow what we said ourselves, as the head."""
        self._states_cluster = True
        self._follow_spec(ClusterSpec.model_validate_json(envelope.body), envelope)

    @property
    def usable_ips(self) -> frozenset[IPv4Address] | None:
        """The overlay addresses that nodes may use. None: this node is not told of all of them."""
        told = self.directory
        if told is None or told.unleased_ips is None or (told.roster and not self._hears_all):
            return None
        return self._granted_before.union(told.unleased_ips, (entry.overlay_ip for entry in told.entries))

    @property
    def own_epoch(self) -> OwnEpoch:
        """The newest epoch of our own cluster specs, as far as the network has heard of them."""
        return OwnEpoch(self._spec_epochs.get(self._node_id, 0), self._own_spec)

    def _take_directory(self, envelope: Envelope, address: str = "") -> None:
        directory = open_envelope(envelope, Kind.DIRECTORY, Directory, self._verify_key)
        if directory.network_id != self._network_id:
            raise UntrustedError(f"a directory of another network, {directory.network_id}")
        known = self.named
        if known is not None and directory.generation < known.generation:
            raise ReplacedRegistryError(
                f"the registry at {address} was replaced by one that was restored from its backup",
                hint="stop that relay for good: what it grants does not count",
            )
        if known is not None and directory.generation == known.generation and directory.epoch < known.epoch:
            raise UntrustedError(f"directory {directory.epoch} is older than {known.epoch}", reason=OUTDATED)
        if directory != known:
            self._keep(_DIRECTORY_CACHE, envelope.model_dump_json())
        self.named = directory
        self._complete_directory()

    def _take_page(self, envelope: Envelope, _address: str = "") -> None:
        """Part of the list of a large network; it counts when the directory names it, before or after."""
        page = open_envelope(envelope, Kind.ROSTER, RosterPage, self._verify_key)
        if page.network_id != self._network_id:
            raise UntrustedError(f"a page of the roster of another network, {page.network_id}")
        if self._pages.put(digest(envelope), page, self.named):
            self._keep(_PAGE_CACHE.format(page.page), envelope.model_dump_json())
        self._complete_directory()

    def _complete_directory(self) -> None:
        """Who reads no roster goes by what the directory itself names: relays and head."""
        if self.named is None:
            return
        whole = completed(self.named, self._pages) if self._hears_all else self.named
        if whole is None:
            return  # a page is still to come
        if self.directory is not None and self.directory.generation < whole.generation:
            # A restored registry does not know who joined since its backup. Who works goes on until it joins again.
            self._granted_before |= {entry.overlay_ip for entry in self.directory.entries}
        self.directory, head = whole, whole.head
        if self.cluster_spec is not None and (head is None or head.node_id != self.cluster_spec.head_node_id):
            self.cluster_spec = None  # the operator made another node the head
        self._take_cluster()

    def _take_cluster_envelope(self, envelope: Envelope, _address: str = "") -> None:
        self._pending_cluster = envelope
        self._take_cluster()

    def _take_cluster(self) -> None:
        """Believe the newest cluster spec as soon as the directory tells whose key must have signed it."""
        envelope = self._pending_cluster
        head = self.directory.head if self.directory is not None else None
        if envelope is None or head is None or envelope.signer != head.node_id:
            return
        self._pending_cluster = None
        spec = open_envelope(envelope, Kind.CLUSTER_SPEC, ClusterSpec, head.verify_key)
        if spec.network_id != self._network_id or spec.head_node_id != head.node_id:
            raise UntrustedError("a cluster spec of another network or head")
        newest = self._spec_epochs.get(head.node_id, 0)
        self._note_epoch(spec)
        if envelope.signer == self._node_id and self._states_cluster:
            return  # our own words: what we say now counts, whatever its number
        if spec.epoch < newest:
            raise UntrustedError(f"cluster spec {spec.epoch} is older than {newest}", reason=OUTDATED)
        self._follow_spec(spec, envelope)

    def _follow_spec(self, spec: ClusterSpec, envelope: Envelope) -> None:
        if spec == self.cluster_spec:
            return
        self.cluster_spec = spec
        if not self._is_head:  # the head's own Ray has written what it states
            self._keep(FILE_NAME, envelope.model_dump_json())
        self._note_epoch(spec)

    def _note_epoch(self, spec: ClusterSpec) -> None:
        newest = self._spec_epochs.get(spec.head_node_id, 0)
        if spec.epoch < newest:
            return
        if spec.head_node_id == self._node_id and (
            self._own_spec is None or spec.epoch > newest or spec != self.cluster_spec
        ):
            self._own_spec = spec  # with the same number, what was heard counts against what we say
        if spec.epoch > newest:
            self._spec_epochs[spec.head_node_id] = spec.epoch
            self._keep(_EPOCHS_CACHE, _EPOCHS.dump_json(self._spec_epochs))

    def _keep(self, name: str, content: str | bytes) -> None:
        """For the next start of the daemon."""
        if self._cache is not None:
            self._files.keep(self._cache / name, content)

    def _restore(self) -> None:
        """What was known when the daemon ended; verified again, and replaced by whatever newer the registry says."""
        if self._cache is None:
            return
        takers: dict[str, Callable[[bytes], None]] = {
            _EPOCHS_CACHE: lambda text: self._spec_epochs.update(_EPOCHS.validate_json(text)),
            **{path.name: self._restore_page for path in sorted(self._cache.glob(_PAGE_CACHE.format("*")))},
            _DIRECTORY_CACHE: lambda text: self._take_directory(Envelope.model_validate_json(text)),
            FILE_NAME: lambda text: self._take_cluster_envelope(Envelope.model_validate_json(text)),
        }
        for name, take in takers.items():
            try:
                take((self._cache / name).read_bytes())
            except FileNotFoundError:
                continue
            except (UntrustedError, ValidationError) as error:
                self._refusals.note(refusal_reason(error), name, error=str(error))

    def _restore_page(self, text: bytes) -> None:
        self._take_page(Envelope.model_validate_json(text))

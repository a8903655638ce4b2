"""The content of the cluster spec: who is in the Ray cluster with which rank, and its numbering on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from edgelink.errors import RayClusterError, UntrustedError
from edgelink.files import AT_ONCE, Files
from edgelink.protocol.keys import Kind, NodeKey, open_envelope, seal
from edgelink.protocol.payloads import (
    MAX_PAYLOAD_BYTES,
    ClusterMember,
    ClusterSpec,
    DirectoryEntry,
    EdgesOpenTo,
    Envelope,
    Lease,
)
from edgelink.ray_cluster.held_run import HeldRun, Meeting
from edgelink.ray_cluster.wishes import Wishes

FILE_NAME = "cluster-spec.json"  # on every node: its head's newest word
_ENVELOPE_BYTES = 512  # beside the text that is signed


def write_spec(
    *,
    lease: Lease,
    incarnation: str,
    ray_port: int,
    ray_version: str,
    python_version: str,
    ranks: Sequence[tuple[DirectoryEntry, int]],
    token_auth: bool,
    ride_through_s: int,
    wishes: Wishes,
) -> ClusterSpec:
    """The spec of this head's cluster, not numbered and without sealed tokens yet; pure."""
    return ClusterSpec(
        network_id=lease.network_id,
        epoch=0,
        incarnation=incarnation,
        head_node_id=lease.node_id,
        head_ip=lease.overlay_ip,
        ray_port=ray_port,
        ray_version=ray_version,
        python_version=python_version,
        token_auth=token_auth,
        ride_through_s=ride_through_s,
        ray_wanted=wishes.ray_wanted,
        members=tuple(
            ClusterMember(
                node_id=entry.node_id,
                hostname=entry.hostname,
                overlay_ip=entry.overlay_ip,
                node_rank=rank,
                ray_restarts=wishes.restarts_of(entry.node_id),
            )
            for entry, rank in ranks
        ),
    )


def without_ray(spec: ClusterSpec) -> ClusterSpec:
    """The same cluster, not numbered and without sealed tokens, while no Ray is wanted in it; pure."""
    members = tuple(member.model_copy(update={"sealed_ray_token": None}) for member in spec.members)
    return spec.model_copy(update={"epoch": 0, "ray_wanted": False, "members": members})


def with_restarts(spec: ClusterSpec, wishes: Wishes) -> ClusterSpec:
    """The same cluster, not numbered and without sealed tokens, with the restarts that are wished for; pure."""
    members = tuple(
        member.model_copy(update={"sealed_ray_token": None, "ray_restarts": wishes.restarts_of(member.node_id)})
        for member in spec.members
    )
    return spec.model_copy(update={"epoch": 0, "members": members})


def edges_open_to(
    access: str, run: HeldRun | None, meeting: Meeting, before: ClusterSpec | None, at_s: float
) -> EdgesOpenTo:
    """Return whom edges answer beside head and relays; pure. ``before``: the last spec, also a former daemon's."""
    if access == "members":
        return "all"
    if meeting.is_asked or (run is not None and run.is_granted):
        return "members"
    was_open = before is not None and before.edges_open_to != "head"
    return "members" if was_open and at_s < meeting.may_come_back_until_s else "head"


@dataclass(frozen=True)
class OwnEpoch:
    """The newest epoch that a cluster spec of this node has, and that spec where it is known."""

    epoch: int = 0
    spec: ClusterSpec | None = None

    def beside(self, spec: ClusterSpec | None) -> int:
        """Return the newest epoch that another spec of ours than ``spec`` has, as far as is known. 0: none has.

        A head whose disk is an older copy learns so which numbers the edges have seen already.
        """
        is_it = spec is not None and spec.epoch == self.epoch and self.spec in (None, spec)
        return 0 if is_it else self.epoch


@dataclass(frozen=True)
class Draft:
    """A cluster spec that is neither numbered nor sealed.

    Attributes:
        spec: its content.
        verify_keys: those of the members, by node id. A member without one keeps its rank, and gets no token.
        token: the Ray token that is sealed to them. None: this Ray has none.
        own_epoch: the newest spec of ours that the network knows. This disk may be an older copy, and no edge follows
            a number that it has passed.
    """

    spec: ClusterSpec
    verify_keys: Mapping[str, str]
    token: str | None
    own_epoch: OwnEpoch


class SpecBook:
    """Gives each new content the next epoch, also across restarts, seals the Ray token to each member, and signs.

    Sealing is random, the same content sealed twice looks different: the sealed spec is kept, and given out again. It
    is in the file in which every node has its head's word, with a digest of the content beside it.
    """

    def __init__(self, path: Path, key: NodeKey, files: Files = AT_ONCE) -> None:
        self._path = path
        self._key = key
        self._files = files
        self._page: _Page | None = None
        self.newest: ClusterSpec | None = None  # that was given out, also by a predecessor
        with suppress(FileNotFoundError, ValidationError, UntrustedError):  # of another head: this node was an edge
            page = _Page.model_validate_json(path.read_bytes())
            self.newest = open_envelope(page, Kind.CLUSTER_SPEC, ClusterSpec, key.verify_key_b64)
            self._page = page

    def number(self, draft: Draft) -> Envelope:
        """Return the signed spec with its epoch and, where there is a token, sealed tokens. It is on disk then.

        Raises:
            NotRecordedError: it cannot be written, so that its number must not be used.
            RayClusterError: no message of the broker can carry it.
        """
        verify_keys, token = draft.verify_keys, draft.token
        content = json.dumps([draft.spec.model_dump_json(), sorted(verify_keys.items()), token])
        digest = hashlib.sha256(content.encode()).hexdigest()
        last, taken = self.newest, draft.own_epoch.beside(self.newest)
        if self._page is None or last is None or self._page.digest != digest or last.epoch <= taken:
            members = tuple(
                member
                if token is None or member.node_id not in verify_keys
                else member.model_copy(update={"sealed_ray_token": seal(verify_keys[member.node_id], token.encode())})
                for member in draft.spec.members
            )
            epoch = max(last.epoch if last is not None else 0, taken) + 1
            spec = draft.spec.model_copy(update={"epoch": epoch, "members": members})
            _refuse_too_large(spec)
            page = _Page(**self._key.sign(Kind.CLUSTER_SPEC, spec).model_dump(), digest=digest)
            self._files.require(self._path, page.model_dump_json())
            self._page, self.newest = page, spec
        return Envelope.model_validate(self._page.model_dump())


class _Page(Envelope):
    """The signed spec. ``digest``: that of the draft. Empty where another daemon has written the file."""

    digest: str = ""


def _refuse_too_large(spec: ClusterSpec) -> None:
    size_bytes = len(json.dumps(spec.model_dump_json())) + _ENVELOPE_BYTES
    if size_bytes > MAX_PAYLOAD_BYTES:
        raise RayClusterError(
            f"a cluster of {len(spec.members)} nodes does not fit into one message of the broker: {size_bytes} bytes, "
            f"and {MAX_PAYLOAD_BYTES} are the most",
            hint="some 700 with a rank fit, on or off: `edgelink registry release` those that are gone",
            reason="ClusterTooLarge",
        )

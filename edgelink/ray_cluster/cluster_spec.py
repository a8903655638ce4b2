"""The content of the cluster spec: who is in the Ray cluster with which rank, and its numbering on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ValidationError

from edgelink.files import AT_ONCE, Files
from edgelink.protocol.keys import seal
from edgelink.protocol.payloads import ClusterMember, ClusterSpec, DirectoryEntry, Lease
from edgelink.ray_cluster.wishes import Wishes


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


class SpecBook:
    """Gives each new content the next epoch, also across restarts, and seals the Ray token to each member.

    Sealing is random, the same content sealed twice looks different: the sealed spec is kept, and given out again.
    """

    def __init__(self, path: Path, files: Files = AT_ONCE) -> None:
        self._path = path
        self._files = files
        self._last: _Page | None = None

    def number(
        self,
        draft: ClusterSpec,
        verify_keys: Mapping[str, str],
        token: str | None,
        taken: Callable[[ClusterSpec | None], int],
    ) -> ClusterSpec:
        """``draft`` with its epoch and, where there is a ``token``, sealed tokens; on disk when this returns.

        Args:
            verify_keys: of the members, by node id; without one a member keeps its rank, and gets no token.
            taken: the newest epoch under which the network knows another spec of ours than the given one: this disk
                may be an older copy, and no edge follows a number that it has passed.

        Raises:
            NotRecordedError: it cannot be written, so that its number must not be used.
        """
        content = json.dumps([draft.model_dump_json(), sorted(verify_keys.items()), token])
        digest = hashlib.sha256(content.encode()).hexdigest()
        last = self._page()
        taken_epoch = taken(last.spec if last else None)
        if last is None or last.digest != digest or last.spec.epoch <= taken_epoch:
            members = tuple(
                member
                if token is None or member.node_id not in verify_keys
                else member.model_copy(update={"sealed_ray_token": seal(verify_keys[member.node_id], token.encode())})
                for member in draft.members
            )
            epoch = max(last.spec.epoch if last else 0, taken_epoch) + 1
            last = _Page(digest=digest, spec=draft.model_copy(update={"epoch": epoch, "members": members}))
            self._files.require(self._path, last.model_dump_json())
        self._last = last
        return last.spec

    @property
    def newest(self) -> ClusterSpec | None:
        """The spec that was given out last, also by a predecessor."""
        page = self._page()
        return page.spec if page else None

    def _page(self) -> _Page | None:
        self._last = self._last or self._read()
        return self._last

    def _read(self) -> _Page | None:
        try:
            return _Page.model_validate_json(self._path.read_text())
        except (FileNotFoundError, ValidationError):
            return None


class _Page(BaseModel):
    digest: str
    spec: ClusterSpec

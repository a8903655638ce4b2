"""What one `ray start` is made of, and what is remembered of the Ray that it left behind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgelink.process import Identity
from edgelink.ray_cluster.interpreter import RayUser


@dataclass(frozen=True)
class GcsStart:
    """What starts the head's GCS again alone: the command line and environment of the one that ran.

    ``program`` is a stamp of its file: a GCS of another Ray does not fit raylets that run.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    program: str

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> GcsStart:
        """Raises KeyError or TypeError when ``values`` is none."""
        env = {str(name): str(value) for name, value in values["env"].items()}
        return cls(tuple(map(str, values["argv"])), env, str(values["program"]))


@dataclass(frozen=True)
class RayLaunch:
    """One `ray start`. ``ports`` must be free, by the configuration key that sets each; ``head`` is ``ip:port``.

    ``temp_dir`` is where Ray will keep its session; None: not known before it is there. ``gcs_store`` is where its GCS
    keeps its tables; None: in memory.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    user: RayUser
    head: str
    node_rank: int
    incarnation: str
    is_head: bool
    config_hash: str
    restarts: int = 0
    temp_dir: Path | None = None
    gcs_store: Path | None = None
    ports: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RayRecord:
    """What is remembered of a Ray that runs."""

    session: int
    raylet: Identity
    gcs: Identity | None
    head: str
    node_rank: int
    incarnation: str
    config_hash: str
    ray_node_id: str | None = None  # Ray's own name of it, once Ray has listed it
    cluster_id: str | None = None  # of the GCS that listed it: another GCS, another id
    outputs: tuple[str, ...] = ()  # where raylet and GCS write
    restarts: int = 0  # as the cluster spec counted them when it was started
    gcs_start: GcsStart | None = None  # None: without its GCS, this Ray is none

    @property
    def identities(self) -> tuple[Identity, ...]:
        return (self.raylet,) if self.gcs is None else (self.raylet, self.gcs)

    def belongs_to(self, incarnation: str) -> bool:
        """Whether it is part of that life of the head's Ray: as the cluster spec said, or as the GCS itself did."""
        return incarnation in (self.incarnation, self.cluster_id)

    def to_json(self) -> str:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values |= {"raylet": self.raylet.to_dict(), "gcs": self.gcs and self.gcs.to_dict()}
        values["gcs_start"] = self.gcs_start and asdict(self.gcs_start)
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> RayRecord:
        """Raises KeyError, TypeError or ValueError when ``text`` is no record."""
        values: dict[str, Any] = json.loads(text)
        return cls(
            session=int(values["session"]),
            raylet=Identity.from_dict(values["raylet"]),
            gcs=Identity.from_dict(values["gcs"]) if values["gcs"] else None,
            head=str(values["head"]),
            node_rank=int(values["node_rank"]),
            incarnation=str(values["incarnation"]),
            config_hash=str(values["config_hash"]),
            ray_node_id=values.get("ray_node_id"),
            cluster_id=values.get("cluster_id"),
            outputs=tuple(values.get("outputs", ())),
            restarts=int(values.get("restarts", 0)),
            gcs_start=GcsStart.from_dict(values["gcs_start"]) if values.get("gcs_start") else None,
        )


def hash_of(values: Mapping[str, object]) -> str:
    """What a Ray was started with, in short: equal hashes need no restart."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:32]

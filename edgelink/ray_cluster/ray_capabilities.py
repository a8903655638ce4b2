"""What differs between the versions of Ray that EdgeLink works with; one table, nothing else asks for versions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgelink.errors import ConfigError

MINIMUM = (2, 47, 0)
_LABELS_SINCE = (2, 49, 0)
_TOKEN_AUTH_SINCE = (2, 52, 0)
_GCS_STORE_SINCE = (2, 60, 0)  # in the wheels from 2.57 on at the latest; our tests kill the GCS of 2.60


@dataclass(frozen=True)
class RayCapabilities:
    """What one version of Ray can do.

    ``labels``: `ray start --labels` can be relied on. ``token_auth``: RAY_AUTH_MODE=token is understood.
    ``gcs_store``: the GCS can keep its tables in RocksDB.
    """

    version: str
    labels: bool
    token_auth: bool
    gcs_store: bool

    @classmethod
    def for_version(cls, version: str) -> RayCapabilities:
        """Raises ConfigError for a Ray that is too old or whose version cannot be read."""
        match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
        if match is None:
            raise ConfigError(f"ray {version!r}: is not a version number", reason="RayTooOld")
        number = (int(match[1]), int(match[2]), int(match[3] or 0))
        if number < MINIMUM:
            minimum = ".".join(map(str, MINIMUM))
            raise ConfigError(
                f"ray {version} is too old: EdgeLink works with {minimum} and later",
                hint=f"pip install 'ray>={minimum}' into ray.python, the same version on every node",
                reason="RayTooOld",
            )
        return cls(
            version=version,
            labels=number >= _LABELS_SINCE,
            token_auth=number >= _TOKEN_AUTH_SINCE,
            gcs_store=number >= _GCS_STORE_SINCE,
        )

    def require_gcs_store(self) -> None:
        """Raise ConfigError where this Ray cannot do what `ray.gcs_store` asks for."""
        if not self.gcs_store:
            least = ".".join(map(str, _GCS_STORE_SINCE))
            raise ConfigError(
                f"ray.gcs_store: true needs Ray {least} or later, and ray.python has Ray {self.version}",
                hint=f"remove the key, or pip install 'ray>={least}' into ray.python, the same version on every node",
                reason="NoGcsStore",
            )

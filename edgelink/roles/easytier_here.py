"""Which EasyTier this machine has, and what a node with it can follow.

By itself, for `edgelink join`, which needs nothing else of what runs an overlay.
"""

from __future__ import annotations

from edgelink.config import Config
from edgelink.errors import EasyTierNotFoundError
from edgelink.overlay.acquisition import default_cache_dir, find_easytier
from edgelink.overlay.capabilities import Capabilities
from edgelink.registry.payloads import EASYTIER_CREDENTIALS


def easytier_version_of(config: Config) -> str | None:
    """Of the easytier-core that the overlay uses on this machine; None where there is none."""
    if config.overlay.kind == "existing":
        return None
    try:
        return find_easytier(config.overlay.easytier_core, default_cache_dir()).version
    except EasyTierNotFoundError:
        return None


def easytier_features(version: str | None) -> tuple[str, ...]:
    """What a node with this EasyTier can follow because of it; pure."""
    try:
        can = version is not None and Capabilities.for_version(version).credentials
    except EasyTierNotFoundError:
        can = False
    return (EASYTIER_CREDENTIALS,) if can else ()

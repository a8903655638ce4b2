"""Local configuration: frozen models, loaded once at start.

The models are imported when they are asked for: most commands need the paths only, and would wait for pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgelink.config.paths import Paths

if TYPE_CHECKING:
    from edgelink.config.load import load_config
    from edgelink.config.models import (
        Config,
        FirewallConfig,
        HostConfig,
        OverlayConfig,
        RayConfig,
        RelayConfig,
    )

__all__ = [
    "Config",
    "FirewallConfig",
    "HostConfig",
    "OverlayConfig",
    "Paths",
    "RayConfig",
    "RelayConfig",
    "load_config",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from edgelink.config import load, models

    return getattr(load if name == "load_config" else models, name)

"""Local configuration: frozen models, loaded once at start."""

from edgelink.config.load import load_config
from edgelink.config.models import (
    Config,
    FirewallConfig,
    HostConfig,
    OverlayConfig,
    RayConfig,
    RelayConfig,
)
from edgelink.config.paths import Paths

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

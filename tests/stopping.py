"""Requests to stop a daemon that can use any configuration."""

from __future__ import annotations

from collections.abc import Callable

from edgelink.daemon.lifecycle import StopRequest
from edgelink.process.service_manager import ServiceManager


def _keep_nothing() -> None:
    """The next daemon goes on with nothing of this one's."""


def stop_request(manager: ServiceManager | None = None, before_end: Callable[[], None] = _keep_nothing) -> StopRequest:
    """A request as a daemon makes it."""
    return StopRequest(manager, require_usable=lambda _config: None, before_end=before_end)

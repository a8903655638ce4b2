"""A request to the registry, which answers on the relay only."""

from __future__ import annotations

from typing import Any

from edgelink.cli.patience import call
from edgelink.config.paths import Paths


def ask_registry(method: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = 30.0) -> Any:
    """Its answer. Raises as :func:`edgelink.api.client.call`."""
    what = "waiting for the registry to answer"
    return call(Paths.from_environment().bootstrap_socket, method, path, body, timeout_s=timeout_s, what=what)

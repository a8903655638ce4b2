"""The seam between a broker session and whoever makes and gathers reports."""

from __future__ import annotations

from typing import Protocol


class Reports(Protocol):
    """Both raise UntrustedError or pydantic's ValidationError for what is forged or malformed."""

    def take_request(self, payload: bytes) -> None:
        """Somebody asks for this node's report."""

    def take_reply(self, node_id: str, payload: bytes) -> None:
        """What is said on the topic of ``node_id``'s report."""

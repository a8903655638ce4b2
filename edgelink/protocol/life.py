"""One life of a node's daemon, and what the registry lets it do (ADR 0023)."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Life:
    """One life of a node's daemon. ``machine``: keyed hashes of what a copy of its disk does not carry."""

    machine: tuple[str, ...] = ()
    instance: str = field(default_factory=lambda: secrets.token_hex(16))


@dataclass(frozen=True)
class Admission:
    """What this machine may do before, and after, the registry has said that it is the node.

    Attributes:
        may_start: EasyTier may be started.
        is_accepted: the registry has said so in this life of the daemon.
        is_doubted: another machine may be the node, as the registry said last.
        settled_in: the number of the last session in which the registry answered, or did not in time.
    """

    may_start: bool = False
    is_accepted: bool = False
    is_doubted: bool = False
    settled_in: int = 0

    def may_report(self, session: int) -> bool:
        """Whether this machine has a voice in the session of that number."""
        return self.is_accepted or self.settled_in >= session

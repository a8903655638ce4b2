"""What was refused, by reason: counted always, logged once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pydantic import ValidationError

from edgelink.errors import EdgelinkError, ExitCode, RegistryError
from edgelink.log import get_logger

OUTDATED = "Outdated"  # what was true once, and may be played again
_MAX_REMEMBERED = 1024  # whom it was said of: more than a network has nodes that go wrong

log = get_logger("registry")


def refusal_reason(error: EdgelinkError | ValidationError) -> str:
    """In one word, of what a message was refused for."""
    return error.condition_reason if isinstance(error, EdgelinkError) else "Malformed"


class Refusals:
    """``counts`` by reason, a short word in CamelCase. Who keeps sending nonsense fills no log with it."""

    def __init__(self, event: str) -> None:
        """``event`` is what the log calls it."""
        self.counts: Counter[str] = Counter()
        self._event = event
        self._told: set[tuple[str, str]] = set()

    @property
    def total(self) -> int:
        return self.counts.total()

    def note(self, reason: str, subject: str, **more: Any) -> None:
        """One more of this kind; ``subject`` is where it came from, as the registry knows it: a topic, a token."""
        self.counts[reason] += 1
        if (reason, subject) in self._told:
            return
        if len(self._told) >= _MAX_REMEMBERED:
            if self.counts[reason] > 1:
                return  # a flood under ever new names
        else:
            self._told.add((reason, subject))
        log.warning(self._event, reason=reason, subject=subject, **more)


class NodeRevokedError(RegistryError):
    """This key was put out of the network, for ever."""

    reason = "NodeRevoked"
    exit_code = ExitCode.CONFIG  # trying again changes nothing

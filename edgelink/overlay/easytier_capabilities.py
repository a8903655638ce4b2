"""What each version of EasyTier can do and how it spells it: the one place that knows about versions.

Read from the sources of the tagged releases; ``docs/reference/easytier.md`` says what was run. A version that is newer
than the newest known one is used like that one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgelink.errors import EasyTierNotFoundError

Version = tuple[int, int, int]
MINIMUM: Version = (2, 6, 0)
NEWEST_KNOWN: Version = (2, 6, 4)

# The release in which each capability appeared.
_SINCE: dict[str, Version] = {
    "upnp_key": (2, 6, 2),
}


@dataclass(frozen=True)
class Capabilities:
    """One version's abilities."""

    version: Version
    upnp_key: bool  # `disable_upnp` can be set in the file

    @classmethod
    def for_version(cls, version: str) -> Capabilities:
        """Raises EasyTierNotFoundError for a version older than the oldest supported one."""
        parsed = parse_version(version)
        if parsed < MINIMUM:
            raise EasyTierNotFoundError(
                f"EasyTier {version} is too old: EdgeLink works with {'.'.join(map(str, MINIMUM))} and later",
                hint=f"install EasyTier {'.'.join(map(str, NEWEST_KNOWN))}, or name its easytier-core in "
                "overlay.easytier_core",
                reason="EasyTierTooOld",
            )
        return cls(version=parsed, **{name: since <= parsed for name, since in _SINCE.items()})

    @property
    def is_newer_than_known(self) -> bool:
        return self.version > NEWEST_KNOWN


def parse_version(text: str) -> Version:
    """The version in ``easytier-core --version``'s answer ("easytier-core 2.6.4-8428a89d").

    Raises:
        EasyTierNotFoundError: there is no version in it.
    """
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    if found is None:
        raise EasyTierNotFoundError(
            f"no version in what easytier-core --version says: {text.strip()[:80]!r}",
            hint="check overlay.easytier_core, or the easytier-core on PATH",
        )
    return int(found[1]), int(found[2]), int(found[3])

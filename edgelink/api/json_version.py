"""The version of what ``--json`` prints, apart from its models: each command needs it at its start."""

from __future__ import annotations

from typing import Final

VERSION: Final = 1  # grows when a key is taken away or means something else; keys that come are no new version

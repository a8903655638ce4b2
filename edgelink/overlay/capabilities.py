"""What each version of EasyTier can do and how it spells it: the one place that knows about versions.

Read from the sources of the tagged releases; ``docs/reference/easytier.md`` says what was run. A version that is newer
than the newest known one is used like that one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgelink.errors import EasyTierNotFoundError

Version = tuple[int, int, int]
MINIMUM: Version = (2, 0, 3)
NEWEST_KNOWN: Version = (2, 6, 4)

# Release in which each capability appeared.
_SINCE: dict[str, Version] = {
    "relay_whitelist": (2, 1, 0),
    "multi_thread_key": (2, 1, 0),
    "bind_device": (2, 1, 2),
    "netlink_device_setup": (2, 2, 0),
    "stun_txt_record": (2, 2, 3),
    "rpc_flag": (2, 3, 0),
    "json_cli": (2, 3, 0),
    "private_mode": (2, 3, 1),
    "sym_punching_key": (2, 4, 3),
    "stun_switch": (2, 4, 5),
    "env_parsing_switch": (2, 5, 0),
    "tcp_punching_key": (2, 5, 0),
    "tcp_stun": (2, 5, 0),
    "zero_on_failure": (2, 3, 0),
    "quiet_banner": (2, 6, 0),
    "connector_cli": (2, 6, 0),
    "upnp_key": (2, 6, 2),
}
# Release in which it was no more.
_UNTIL: dict[str, Version] = {"zero_on_failure": (2, 4, 1)}


@dataclass(frozen=True)
class Capabilities:
    """One version's abilities."""

    version: Version
    relay_whitelist: bool  # the whitelist of networks to relay is `relay_network_whitelist`, not `foreign_…`
    multi_thread_key: bool  # `multi_thread` can be set in the file
    bind_device: bool  # whether sockets are bound to network cards can be chosen
    netlink_device_setup: bool  # sets the device up by netlink; older ones run `sh -c "ip …"`
    stun_txt_record: bool  # STUN servers come from a TXT record as well
    rpc_flag: bool  # `-r` counts next to `-c`; from 2.5.0 on it is the only way
    json_cli: bool  # `easytier-cli -o json`
    private_mode: bool  # a relay can refuse other networks at the handshake
    sym_punching_key: bool
    stun_switch: bool  # an empty list of STUN servers means none
    env_parsing_switch: bool  # expands `$NAME` in the file, unless told not to
    tcp_punching_key: bool
    tcp_stun: bool  # asks TCP STUN servers, without a switch
    zero_on_failure: bool  # ends with status 0 when its start failed
    connector_cli: bool  # `easytier-cli connector add` does it; before it only says so
    quiet_banner: bool  # RUST_LOG can leave out the banner that shows the secret
    upnp_key: bool

    @classmethod
    def for_version(cls, version: str) -> Capabilities:
        """Raises EasyTierNotFoundError for a version older than the oldest supported one."""
        parsed = parse_version(version)
        if parsed < MINIMUM:
            raise EasyTierNotFoundError(
                f"EasyTier {version} is too old: EdgeLink works with {'.'.join(map(str, MINIMUM))} and later",
                hint="install a newer one, or name it in overlay.easytier_core",
                reason="EasyTierTooOld",
            )
        return cls(
            version=parsed,
            **{name: since <= parsed < _UNTIL.get(name, (99, 0, 0)) for name, since in _SINCE.items()},
        )

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

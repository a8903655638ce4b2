"""What the core says of its work on standard output: a line for each event, in EasyTier's words; pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

_INSTANCE = "CORE::INSTANCE"
_CONNECTION = "CORE::INSTANCE::CONNECTION"


def line(now: datetime, target: str, words: str, level: str = "INFO") -> str:
    """One record of the log. ``now`` is in UTC."""
    return f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond:06d}000Z {level:>5} {target}: {words}\n"


def lines_of(event: Any, instance_id: str, now: datetime) -> list[str]:
    """The lines for one event, which is a name, or a mapping of names to what happened."""
    named = event if isinstance(event, Mapping) else {str(event): None}
    lines = []
    for name, about in named.items():
        target, words, level = _record(str(name), about)
        lines.append(line(now, target, f"[{instance_id}] {words}", level))
    return lines


def _record(name: str, about: Any) -> tuple[str, str, str]:
    match name:
        case "TunDeviceReady":
            return _INSTANCE, f'tun device ready dev="{about}"', "INFO"
        case "TunDeviceError":
            return _INSTANCE, f'tun device error err="{about}"', "ERROR"
        case "PeerAdded":
            return _INSTANCE, f"new peer added peer_id={about}", "INFO"
        case "PeerRemoved":
            return _INSTANCE, f"peer removed peer_id={about}", "INFO"
        case "PeerConnAdded":
            return _CONNECTION, f"new peer connection added conn_info={_connection(about)}", "INFO"
        case "PeerConnRemoved":
            return _CONNECTION, f"peer connection removed conn_info={_connection(about)}", "INFO"
        case "ListenerAdded":
            return _INSTANCE, f"new listener added listener={about}", "INFO"
        case "ListenerAddFailed":
            return _INSTANCE, f"listener add failed {about}", "ERROR"
        case "ConnectionAccepted":
            return _CONNECTION, f'new connection accepted local="{about[0]}" remote="{about[1]}"', "INFO"
        case "ConnectionError":
            local, remote, error = about
            return _CONNECTION, f'connection error local="{local}" remote="{remote}" err="{error}"', "INFO"
        case "Connecting":
            return _CONNECTION, f"connecting to peer dst={about}", "INFO"
        case "ConnectError":
            url, ip_version, error = about
            return _CONNECTION, f'connect to peer error dst="{url}" ip_version="{ip_version}" error={error}', "INFO"
    return _INSTANCE, name, "INFO"  # what it is about stays unsaid: it may be the configuration, with the secret


def _connection(about: Mapping[str, Any]) -> str:
    tunnel = about.get("tunnel") or {}
    local, remote = ((tunnel.get(end) or {}).get("url", "") for end in ("local_addr", "remote_addr"))
    return (
        f"PeerConnInfo {{ my_peer_id: {about.get('my_peer_id')}, dst_peer_id: {about.get('peer_id')}, "
        f'tunnel_info: Some(TunnelInfo {{ tunnel_type: "{tunnel.get("tunnel_type", "")}", '
        f'local_addr: Some(Url {{ url: "{local}" }}), remote_addr: Some(Url {{ url: "{remote}" }}) }}) }}'
    )

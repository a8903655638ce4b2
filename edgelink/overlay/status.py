"""EasyTier's own list of peers, through the easytier-cli that came with the core (versions cannot be mixed)."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from edgelink.errors import OverlayError
from edgelink.log import redact
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.capabilities import Capabilities

_TIMEOUT_S = 5.0
# 2.0.3's table heads and later ones' JSON keys, where they differ.
_ALIASES = {"lat(ms)": "lat_ms", "loss": "loss_rate", "tunnel": "tunnel_proto", "nat": "nat_type"}


@dataclass(frozen=True)
class Peer:
    """One row; ``ipv4`` is None for a relay without an overlay address, ``lat_ms`` None for ourselves."""

    ipv4: IPv4Address | None
    hostname: str
    cost: str
    lat_ms: float | None
    tunnel_proto: str
    version: str
    peer_id: str = ""
    nat_type: str = ""

    @property
    def is_self(self) -> bool:
        return self.cost == "Local"

    @property
    def is_direct(self) -> bool:
        return self.cost == "p2p"


async def peers(binary: EasyTierBinary, rpc_port: int) -> list[Peer]:
    """What EasyTier on this machine lists, ourselves first.

    Raises:
        OverlayError: there is no easytier-cli, or EasyTier does not answer it.
    """
    if binary.cli is None:
        raise OverlayError(
            f"{binary.core}: no easytier-cli beside it", hint="install the whole release", reason="CliMissing"
        )
    json_flag = ("-o", "json") if Capabilities.for_version(binary.version).json_cli else ()
    output = await _run(str(binary.cli), "-p", f"127.0.0.1:{rpc_port}", *json_flag, "peer")
    return parse_json(output) if json_flag else parse_table(output)


def parse_table(text: str) -> list[Peer]:
    """The box-drawn table of 2.0.3 to 2.2.4, read by its header."""
    rows = [[cell.strip() for cell in line.strip().strip("│").split("│")] for line in text.splitlines() if "│" in line]
    if not rows:
        return []
    header = [_ALIASES.get(name, name) for name in rows[0]]
    return [_peer(dict(zip(header, row, strict=False))) for row in rows[1:]]


def parse_json(text: str) -> list[Peer]:
    """``easytier-cli -o json peer`` from 2.3.0 on. Raises OverlayError when it is not that."""
    try:
        rows = json.loads(text)
        return [_peer(row) for row in rows]
    except (ValueError, TypeError, AttributeError) as error:
        raise OverlayError(f"easytier-cli: unexpected answer: {redact(text)[:200]!r}") from error


def duplicates(rows: Iterable[Peer]) -> dict[IPv4Address, list[str]]:
    """Overlay addresses that more than one hostname claims.

    Two rows of one hostname are a node that restarted a moment ago, not a conflict.
    """
    claims: defaultdict[IPv4Address, set[str]] = defaultdict(set)
    for row in rows:
        if row.ipv4 is not None:
            claims[row.ipv4].add(row.hostname)
    return {ip: sorted(names) for ip, names in claims.items() if len(names) > 1}


def _peer(row: dict[str, Any]) -> Peer:
    address = str(row.get("ipv4", "")).partition("/")[0]
    latency = str(row.get("lat_ms", ""))
    return Peer(
        ipv4=IPv4Address(address) if address else None,
        hostname=str(row.get("hostname", "")),
        cost=str(row.get("cost", "")),
        lat_ms=float(latency) if latency.replace(".", "", 1).isdigit() else None,
        tunnel_proto=str(row.get("tunnel_proto", "")).strip("-"),
        version=str(row.get("version", "")),
        peer_id=str(row.get("id", "")),
        nat_type=str(row.get("nat_type", "")),
    )


async def _run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={},
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            stdout, stderr = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise OverlayError(f"easytier-cli: no answer within {_TIMEOUT_S:g} s", reason="CliTimedOut") from None
    if process.returncode != 0:
        words = redact((stderr or stdout).decode(errors="replace").strip())
        raise OverlayError(f"easytier-cli: {words[:300]}", hint="is EasyTier running?", reason="CliFailed")
    return stdout.decode(errors="replace")

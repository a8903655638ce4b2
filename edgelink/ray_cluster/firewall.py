"""EdgeLink's own nftables table: Ray answers on loopback and the overlay only, EasyTier's RPC to root only.

Ray listens on every address whatever ``--node-ip-address`` says, and EasyTier hands its secret to whoever asks on its
RPC port. The table is replaced in one transaction, is ours alone, and touches no other rule of the machine. Only the
first packet of a connection is looked at: replies to connections that this machine made from such a port get through.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable

from edgelink.errors import EdgelinkError, MissingDependencyError

TABLE = "edgelink"
_OPENING = "tcp flags & (fin|syn|rst|ack) == syn"


class FirewallError(EdgelinkError):
    """nftables refused our table."""

    reason = "FirewallFailed"
    retryable = True


def render(ray_ports: Iterable[tuple[int, int]], rpc_port: int | None, devices: Iterable[str]) -> str:
    """The script for ``nft -f -``; running it twice is harmless."""
    ports = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ray_ports)
    overlay = ", ".join(f'"{device}"' for device in devices)
    rpc_input = f"    tcp dport {rpc_port} {_OPENING} drop\n" if rpc_port else ""
    rpc_output = (
        f"""  chain output {{
    type filter hook output priority filter; policy accept;
    oifname "lo" tcp dport {rpc_port} meta skuid != 0 reject with tcp reset
  }}
"""
        if rpc_port
        else ""
    )
    body = f"""  chain input {{
    type filter hook input priority filter; policy accept;
    iifname "lo" accept comment "edgelink @HASH@"
{rpc_input}    iifname {{ {overlay} }} accept
    tcp dport {{ {ports} }} {_OPENING} drop
  }}
{rpc_output}"""
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    rules = body.replace("@HASH@", digest)
    # Naming the table first makes the deletion succeed where there is none yet.
    return f"table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n{rules}}}\n"


async def apply(script: str) -> None:
    """Put the table that :func:`render` described in place, unless exactly this one is there.

    Raises:
        MissingDependencyError: no nft on this machine.
        FirewallError: nft refused.
    """
    if await is_applied(script):
        return
    status, output = await _nft("-f", "-", script=script)
    if status != 0:
        raise FirewallError(
            f"nftables table inet {TABLE} could not be made: {output.strip()}",
            hint="EdgeLink needs root (NET_ADMIN) and nf_tables in the kernel; "
            "firewall.enabled: false leaves Ray's ports open to every network of this machine",
        )


async def is_applied(script: str) -> bool:
    """Whether the table in the kernel is the one of ``script``."""
    mark = script.partition('comment "')[2].partition('"')[0]
    status, output = await _nft("list", "table", "inet", TABLE)
    return status == 0 and mark in output


async def remove() -> None:
    """Take EdgeLink's table away, whatever it holds; nothing happens when there is none."""
    await _nft("-f", "-", script=f"table inet {TABLE}\ndelete table inet {TABLE}\n")


async def _nft(*arguments: str, script: str = "") -> tuple[int, str]:
    try:
        process = await asyncio.create_subprocess_exec(
            "nft",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except FileNotFoundError as error:
        raise MissingDependencyError(
            "nft: not found; the firewall around Ray's ports needs it",
            hint="apt-get install nftables, or accept open ports with firewall.enabled: false",
        ) from error
    output, _ = await process.communicate(script.encode())
    return process.returncode or 0, output.decode(errors="replace")

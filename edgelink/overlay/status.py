"""EasyTier's own list of peers, and what it dials; by the easytier-cli beside the core (versions cannot be mixed)."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any, TypeVar

from edgelink.errors import OverlayError
from edgelink.log import redact
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.process.answer import AnswerTooLongError, answer_of, end
from edgelink.timeouts import timeout
from edgelink.wording import printable

_T = TypeVar("_T")
_TIMEOUT_S = 5.0
_MAX_ANSWER_BYTES = 16 << 20  # some thousand peers are one or two


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
    received: str = ""  # how much of it came, in EasyTier's rounded words
    loss: float | None = None  # the share of EasyTier's own pings on this connection that got no answer
    sent: str = ""  # the same of what went to it

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
    return parse_json(await ask(binary, rpc_port, "peer"))


async def next_hops(binary: EasyTierBinary, rpc_port: int) -> dict[IPv4Address, str]:
    """Through which node each one is reached that is not reached directly; raises as :func:`peers` does."""
    return parse_next_hops(await ask(binary, rpc_port, "route"))


async def ask(binary: EasyTierBinary, rpc_port: int, *words: str) -> str:
    """Return what easytier-cli answers to ``words``, as JSON. Raises as :func:`peers` does."""
    if binary.cli is None:
        raise OverlayError(
            f"{binary.core}: no easytier-cli beside it", hint="install the whole release", reason="CliMissing"
        )
    return await _run(str(binary.cli), "-p", f"127.0.0.1:{rpc_port}", "-o", "json", *words)


async def connectors(binary: EasyTierBinary, rpc_port: int) -> list[str]:
    """The URLs that EasyTier on this machine dials, connected or not. Raises OverlayError as :func:`peers` does."""
    output = await ask(binary, rpc_port, "connector")
    return re.findall(r'"([a-z0-9]+://[^"\s]+)"', output)


async def change_connector(binary: EasyTierBinary, rpc_port: int, action: str, url: str) -> None:
    """Have it dial ``url`` from now on (``add``), or no longer (``remove``: a connection that is there stays).

    Raises:
        OverlayError: as :func:`peers` does.
    """
    await ask(binary, rpc_port, "connector", action, url)


def parse_json(text: str) -> list[Peer]:
    """``easytier-cli -o json peer``. Raises OverlayError when it is not that."""
    return each_row(_peer, text)


def parse_next_hops(text: str) -> dict[IPv4Address, str]:
    """``easytier-cli -o json route``: the neighbour's hostname by overlay address, without neighbours themselves."""
    return dict(hop for hop in each_row(_next_hop, text) if hop is not None)


def each_row(read: Callable[[dict[str, Any]], _T], text: str) -> list[_T]:
    """What ``read`` makes of each row of a list in JSON. Raises OverlayError when it is none."""
    try:
        rows = json.loads(text)
        if rows and "result" in rows[0]:  # several instances in one process; ours is the only one
            rows = rows[0]["result"]
        return [read(row) for row in rows]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
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


def _next_hop(row: dict[str, Any]) -> tuple[IPv4Address, str] | None:
    address, hop = str(row.get("ipv4", "")).partition("/")[0], printable(str(row.get("next_hop_hostname", "")))
    return (IPv4Address(address), hop) if address and hop not in ("", "-", "Local", "DIRECT") else None


def _peer(row: dict[str, Any]) -> Peer:
    address = str(row.get("ipv4", "")).partition("/")[0]
    latency = str(row.get("lat_ms", ""))
    return Peer(
        ipv4=IPv4Address(address) if address else None,
        hostname=printable(str(row.get("hostname", ""))),
        cost=str(row.get("cost", "")),
        lat_ms=float(latency) if latency.replace(".", "", 1).isdigit() else None,
        tunnel_proto=str(row.get("tunnel_proto", "")).strip("-"),
        version=printable(str(row.get("version", ""))),
        peer_id=str(row.get("id", "")),
        nat_type=str(row.get("nat_type", "")),
        received=str(row.get("rx_bytes", "")),
        loss=_share(str(row.get("loss_rate", ""))),
        sent=str(row.get("tx_bytes", "")),
    )


def _share(text: str) -> float | None:
    """The share that a percentage like ``1.0%`` names; None for what is none."""
    number = text.removesuffix("%")
    is_share = text.endswith("%") and number.replace(".", "", 1).isdigit()
    return float(number) / 100 if is_share else None


async def _run(*command: str) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={},
        )
    except OSError as error:  # EasyTier is being upgraded by hand, say: whoever asks may ask again
        raise OverlayError(
            f"easytier-cli: {command[0]} cannot be run: {error.strerror or error}",
            hint="put easytier-core and easytier-cli of one version back there; what runs is left alone",
            reason="CliFailed",
        ) from error
    try:
        async with timeout(_TIMEOUT_S):
            stdout, stderr = await answer_of(process, _MAX_ANSWER_BYTES)
    except TimeoutError:
        raise OverlayError(f"easytier-cli: no answer within {_TIMEOUT_S:g} s", reason="CliTimedOut") from None
    except AnswerTooLongError:
        raise OverlayError(
            f"easytier-cli: an answer of more than {_MAX_ANSWER_BYTES >> 20} MiB", reason="CliFailed"
        ) from None
    finally:
        await end(process)
    if process.returncode != 0:
        words = redact((stderr or stdout).decode(errors="replace").strip())
        hint = "is EasyTier running, and of the same version as this easytier-cli?"
        raise OverlayError(f"easytier-cli: {words[:300]}", hint=hint, reason="CliFailed")
    return stdout.decode(errors="replace")

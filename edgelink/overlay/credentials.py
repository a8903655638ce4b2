"""Credentials of EasyTier, made and revoked by the one that has the network's secret; by the easytier-cli beside it.

Known of them is what was measured on 2.6.4 by hand (ADR 0024): asked again for one that is there it tells the same
secret, they outlive a restart, and one that is revoked cuts its holder off at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edgelink.errors import OverlayError
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.status import ask

TTL_S = 10 * 365 * 86400  # EasyTier wants one
_SECRET = re.compile(r"[A-Za-z0-9+/]{43}=")  # 32 bytes, base64


async def generate(binary: EasyTierBinary, rpc_port: int, credential_id: str) -> str:
    """The secret of a credential, which is made unless it is there.

    Raises:
        OverlayError: EasyTier does not answer, refuses, or says something else.
    """
    text = await ask(binary, rpc_port, "credential", "generate", "--ttl", str(TTL_S), "--credential-id", credential_id)
    answer = _object(text)
    secret = answer.get("credential_secret")
    if answer.get("credential_id") != credential_id or not isinstance(secret, str) or not _SECRET.fullmatch(secret):
        raise _unexpected("generate")
    return secret


async def expiries(binary: EasyTierBinary, rpc_port: int) -> Mapping[str, int]:
    """The credentials that count, and when each expires, in seconds of the epoch. Raises as :func:`generate`."""
    rows = _object(await ask(binary, rpc_port, "credential", "list")).get("credentials")
    try:
        return {str(row["credential_id"]): int(row["expiry_unix"]) for row in rows}  # type: ignore[union-attr]
    except (TypeError, KeyError, ValueError):
        raise _unexpected("list") from None


async def revoke(binary: EasyTierBinary, rpc_port: int, credential_id: str) -> None:
    """Have nobody let in by it any more, and whoever is cut off. Raises as :func:`generate`."""
    await ask(binary, rpc_port, "credential", "revoke", credential_id)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _unexpected("")
    return found


def _unexpected(verb: str) -> OverlayError:
    """Without the answer, which may hold a secret."""
    return OverlayError(
        f"easytier-cli credential {verb}: an answer that this EdgeLink does not know",
        hint="it was made for the answers of EasyTier 2.6.4; without credentials every version works",
        reason="CliFailed",
    )

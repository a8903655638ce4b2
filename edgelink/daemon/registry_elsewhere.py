"""What a relay without a registry says: where it is dialled, to the registry; where the registry is, to its users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from edgelink.api.server import Caller, Route, route
from edgelink.daemon.member_parts import MemberParts
from edgelink.errors import EdgelinkError, UsageError
from edgelink.facts.board import Board
from edgelink.facts.facts import Facts
from edgelink.log import get_logger
from edgelink.member.enrolment import Enrolment
from edgelink.protocol.payloads import RelayAddresses
from edgelink.relay import relay_secrets
from edgelink.relay.registry_routes import ROUTES

log = get_logger("bootstrap")


async def tell_addresses(
    board: Board[Facts], member: MemberParts, addresses: RelayAddresses, enrolment: Enrolment | None
) -> None:
    """Enrol again where this relay has moved. Without a token, tell a person."""
    directory = board.facts.directory
    told = directory.relays.get(member.key.node_id) if directory else None
    if told is None or told == addresses:
        return
    if enrolment is None:
        log.warning(
            "bootstrap.addresses_not_told",
            told=told.overlay_peers,
            now=addresses.overlay_peers,
            hint="start it once with --join and a new token of `edgelink token create --role relay`",
        )
        return
    try:
        await member.enrol(enrolment)
    except EdgelinkError as error:
        log.warning("bootstrap.addresses_not_told", told=told.overlay_peers, error=str(error))


def registry_is_elsewhere(member: MemberParts) -> Iterator[Route]:
    """Yield the routes of a registry. Each says where the registry is."""

    async def refuse(_caller: Caller, _body: dict[str, Any]) -> NoReturn:
        where = member.joined.registry.address if member.joined else "another relay"
        raise UsageError(
            f"this relay has no registry: it is at {where}", hint="run the command there", reason="NoRegistryHere"
        )

    for method, path, _ in (*ROUTES, *relay_secrets.ROUTES):
        yield route(method, path, refuse)

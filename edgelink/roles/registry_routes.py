"""The local API of the daemon that holds the registry: what ``edgelink token`` and ``edgelink registry`` ask."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any, Protocol

from edgelink.api.server import Caller, LocalApi, user_name
from edgelink.clock import Clock
from edgelink.conditions import Status
from edgelink.errors import UsageError
from edgelink.log import get_logger
from edgelink.registry.authority import Authority
from edgelink.registry.keys import NodeKey
from edgelink.registry.payloads import Role
from edgelink.registry.service import RegistryService
from edgelink.registry.store import RegistryStore
from edgelink.registry.tokens import TokenRequest

# Method, path, and the method of RegistryRoutes that answers: also what a relay without a registry has to refuse.
ROUTES = (
    ("POST", "/tokens", "create_token"),
    ("GET", "/tokens", "list_tokens"),
    ("DELETE", "/tokens/{token_id}", "revoke_token"),
    ("GET", "/leases", "list_leases"),
    ("DELETE", "/leases/{node}", "release_lease"),
)

log = get_logger("bootstrap")


class RegistryHolder(Protocol):
    """What the routes need of the relay; all of it is there by the time that a request comes."""

    clock: Clock
    key: NodeKey
    store: RegistryStore
    authority: Authority
    registry: RegistryService


class RegistryRoutes:
    """Answers for ``holder``; see :data:`ROUTES`."""

    def __init__(self, holder: RegistryHolder) -> None:
        self._holder = holder

    def add_to(self, api: LocalApi) -> None:
        for method, path, name in ROUTES:
            api.add(method, path, getattr(self, name))

    def nodes(self) -> list[dict[str, Any]]:
        """Every node that holds a lease, and what is known of it now."""
        statuses = self._holder.registry.statuses
        nodes = []
        for lease in self._holder.store.leases():
            status = statuses.get(lease.node_id)
            nodes.append(
                {
                    "hostname": lease.hostname,
                    "node_id": lease.node_id,
                    "role": lease.role.value,
                    "overlay_ip": str(lease.overlay_ip),
                    "preferred_rank": lease.preferred_rank,
                    "online": status.online if status else False,
                    "phase": status.phase if status else Status.UNKNOWN.value,
                }
            )
        return nodes

    async def create_token(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        caller.require()
        request = TokenRequest(
            role=Role(body["role"]),
            ttl_s=float(body["ttl_s"]),
            uses=int(body["uses"]),
            hostname=body.get("hostname"),
            ip=parse_ip(body.get("ip")),
            rank=body.get("rank"),
            labels=body.get("labels") or {},
        )
        token = await self._holder.registry.create_token(request)
        record = next(item for item in self._holder.authority.tokens() if item.token_id == token.token_id)
        return {"token": token.encode(), **record.to_dict(self._holder.clock.now())}

    async def list_tokens(self, caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        caller.require()
        now = self._holder.clock.now()
        return {"tokens": [record.to_dict(now) for record in self._holder.authority.tokens()]}

    async def revoke_token(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        caller.require()
        await self._holder.registry.revoke_token(body["token_id"])
        return {}

    async def list_leases(self, _caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return {"leases": self.nodes()}

    async def release_lease(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Only of a node that is gone: one that goes on with a released address would share it with its next holder."""
        caller.require()
        lease = self._holder.store.find_lease(body["node"])
        status = self._holder.registry.statuses.get(lease.node_id) if lease else None
        if lease is not None and lease.node_id == self._holder.key.node_id:
            raise UsageError("this is the relay's own lease", hint="name another node", reason="OwnLease")
        if lease is not None and status is not None and status.online:
            raise UsageError(
                f"{lease.hostname} ({lease.overlay_ip}) is online and uses its lease",
                hint="stop its daemon first",
                reason="NodeOnline",
            )
        released = await self._holder.registry.release(
            body["node"], at_once=bool(body.get("now")), caller=user_name(caller.uid)
        )
        log.info("bootstrap.lease_released", hostname=released.hostname, node_id=released.node_id)
        return {
            "version": 1,
            "hostname": released.hostname,
            "node_id": released.node_id,
            "overlay_ip": released.held.get("overlay_ip"),
            "rank": int(released.held["rank"]) if "rank" in released.held else None,
            "rests_until": released.rests_until.isoformat(timespec="seconds") if released.rests_until else None,
        }


def parse_ip(text: str | None) -> IPv4Address | None:
    """An overlay IP given on the command line. Raises UsageError."""
    if text is None:
        return None
    try:
        return IPv4Address(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not an IPv4 address") from error

"""The local API of the daemon that holds the registry: what ``edgelink token``, ``registry`` and ``access`` ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Address
from typing import Any, NoReturn

from edgelink.api.server import Caller, Route, route, user_name
from edgelink.clock import Clock
from edgelink.conditions import Status
from edgelink.errors import NodeInUseError, UsageError
from edgelink.facts.board import Board
from edgelink.log import get_logger
from edgelink.protocol.payloads import LEFT, Role
from edgelink.relay.access import access_to_dict
from edgelink.relay.authority import Authority
from edgelink.relay.fleet import read_fleet
from edgelink.relay.inspection import VERSION, describe, export, lease_to_dict
from edgelink.relay.lease_changes import LeaseChange
from edgelink.relay.records import AccessRule
from edgelink.relay.registry_service import RegistryService
from edgelink.relay.store import RegistryStore
from edgelink.relay.tokens import TokenRequest

# Method, path, and the method of RegistryRoutes that answers: also what a relay without a registry has to refuse.
ROUTES = (
    ("POST", "/tokens", "create_token"),
    ("GET", "/tokens", "list_tokens"),
    ("DELETE", "/tokens/{token_id}", "revoke_token"),
    ("GET", "/leases", "list_leases"),
    ("GET", "/leases/{node}", "show_lease"),
    ("PATCH", "/leases/{node}", "change_lease"),
    ("DELETE", "/leases/{node}", "release_lease"),
    ("GET", "/registry", "export"),
    ("POST", "/registry", "import_fleet"),
    ("GET", "/access", "list_access"),
    ("POST", "/access", "allow_access"),
    ("DELETE", "/access", "deny_access"),
)

log = get_logger("bootstrap")


class RegistryRoutes:
    """Answers for the registry ``service`` of the relay ``node_id``; see :data:`ROUTES`."""

    def __init__(
        self,
        board: Board[Any],
        node_id: str,
        store: RegistryStore,
        authority: Authority,
        service: RegistryService,
        clock: Clock,
    ) -> None:
        self._board = board
        self._node_id = node_id
        self._store = store
        self._authority = authority
        self._service = service
        self._clock = clock

    def routes(self) -> Iterator[Route]:
        for method, path, name in ROUTES:
            yield route(method, path, getattr(self, name))
        yield route("POST", "/renew", self._refuse_to_renew)

    def nodes(self) -> list[dict[str, Any]]:
        """Every node that holds a lease, and what is known of it now."""
        leases, seen = self._store.leases(), self._seen()
        return [
            {
                "hostname": lease.hostname,
                "node_id": lease.node_id,
                "role": lease.role.value,
                "overlay_ip": str(lease.overlay_ip),
                "preferred_rank": lease.preferred_rank,
                **seen(lease.node_id),
            }
            for lease in leases
        ]

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
            replaces=body.get("replaces"),
            reissue=bool(body.get("reissue")),
        )
        if request.replaces is not None:
            self._refuse_in_use(request.replaces, force=bool(body.get("force")))
        token = await self._service.create_token(request)
        record = next(item for item in self._authority.tokens() if item.token_id == token.token_id)
        return {"token": token.encode(), **record.to_dict(self._clock.now())}

    async def list_tokens(self, caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        caller.require()
        now = self._clock.now()
        return {"tokens": [record.to_dict(now) for record in self._authority.tokens()]}

    async def revoke_token(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        caller.require()
        await self._service.revoke_token(body["token_id"])
        return {}

    async def _refuse_to_renew(self, _caller: Caller, _body: dict[str, Any]) -> NoReturn:
        raise UsageError(
            "this is the relay that holds the registry: its password at the broker is new at each start",
            hint="`edgelink renew` is for head, edges and additional relays",
            reason="OwnLease",
        )

    async def list_leases(self, _caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        resting = [rest.to_dict() for rest in self._store.quarantine.resting()]
        return {"version": VERSION, "leases": self.nodes(), "resting": resting}

    async def show_lease(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        caller.require()
        known = describe(self._store, body["node"], self._clock.now())
        status = self._service.statuses.get(known["node_id"])
        return known | {
            **self._seen()(known["node_id"]),
            "edgelink_version": status.edgelink_version if status else None,
        }

    def _seen(self) -> Callable[[str], dict[str, Any]]:
        """Return what tells of a node, by its id, whether it is there and how it is; the database is read once for all.

        This relay itself has no session as a node, and answers here.
        """
        paused, left = self._paused(), self._store.departures.all()

        def seen(node_id: str) -> dict[str, Any]:
            status = self._service.statuses.get(node_id)
            if status is None and node_id == self._node_id:
                return {"online": True, "phase": self._board.facts.phase.value, "paused": False}
            if node_id in left:
                return {"online": False, "phase": LEFT, "paused": False}
            if status is None:
                return {"online": False, "phase": Status.UNKNOWN.value, "paused": False}
            return {"online": status.online, "phase": status.phase, "paused": status.online and node_id in paused}

        return seen

    def _paused(self) -> set[str]:
        """Whom the head calls paused, as long as it is there itself: it knows sooner than the broker."""
        heads = [lease.node_id for lease in self._store.leases() if lease.role is Role.HEAD]
        said = [status for node_id in heads if (status := self._service.statuses.get(node_id)) is not None]
        return {node_id for status in said if status.online for node_id in status.paused}

    async def change_lease(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """A node that is there takes it up at once, unless a run uses it."""
        caller.require()
        change = LeaseChange(
            hostname=body.get("hostname"),
            overlay_ip=parse_ip(body.get("ip")),
            rank=body.get("rank"),
            labels=body.get("labels") or {},
            unlabel=tuple(body.get("unlabel") or ()),
        )
        if not change.is_of_labels_only:
            self._refuse_change(body["node"], force=bool(body.get("force")))
        lease = await self._service.change_lease(body["node"], change, caller=user_name(caller.uid))
        log.info("bootstrap.lease_changed", hostname=lease.hostname, node_id=lease.node_id, epoch=lease.lease_epoch)
        return {"version": VERSION, "lease": lease_to_dict(lease)}

    def _refuse_change(self, node: str, *, force: bool) -> None:
        """Raises NodeInUseError, unless forced, for a node that would have to go on with the lease that it has."""
        lease = self._store.find_lease(node)
        if lease is not None and lease.node_id == self._node_id:  # also where the head's daemon runs beside
            raise UsageError(
                f"{lease.hostname} is the relay that holds the registry: its lease is as it was founded",
                hint="labels may be changed; a head beside it has hostname and address with it",
                reason="OwnLease",
            )
        status = self._service.statuses.get(lease.node_id) if lease else None
        if lease is None or lease.preferred_rank is None or status is None or not status.online or force:
            return
        if run := self._run_in_progress():
            raise NodeInUseError(
                f"{lease.hostname} may have workers of the run in progress ({run})",
                hint="wait for its end; with --force the node itself waits until nobody works on it",
                reason="RunInProgress",
            )

    def _run_in_progress(self) -> str | None:
        """What the head says of it."""
        heads = {lease.node_id for lease in self._store.leases() if lease.role is Role.HEAD}
        said = [status for status in self._service.statuses.values() if status.node_id in heads]
        running = (c for status in said if status.online for c in status.conditions if c.type == "DriverRunning")
        return next((condition.message for condition in running if condition.status is Status.TRUE), None)

    async def export(self, caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        caller.require()
        return export(self._store, self._clock.now())

    async def import_fleet(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        caller.require()
        imported = await self._service.import_fleet(
            read_fleet(body["file"]).leases, ttl_s=float(body["ttl_s"]), dry_run=bool(body.get("dry_run"))
        )
        return {
            "version": VERSION,
            "machines": [
                {
                    "hostname": item.entry.hostname,
                    "state": item.state,
                    "token": item.token.encode() if item.token else None,
                }
                for item in imported
            ],
        }

    async def list_access(self, caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        caller.require()
        return {"version": VERSION, **self._access()}

    async def allow_access(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``{"target", "ports", "sources"}``: one rule for each source."""
        caller.require()
        rules, user = self._rules(body), user_name(caller.uid)
        new, is_told = await self._service.allow_access(rules, caller=user)
        for rule in new:
            log.info("bootstrap.access_allowed", rule=str(rule), by=user)
        return {"version": VERSION, "new": len(new), "told": is_told, **self._access(rules)}

    async def deny_access(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Serve the same. The rules in the answer are those that still open some of these ports."""
        caller.require()
        rules, user = self._rules(body), user_name(caller.uid)
        is_told = await self._service.deny_access(rules, caller=user)
        for rule in rules:
            log.info("bootstrap.access_denied", rule=str(rule), by=user)
        left = [made.rule for made in self._authority.access.all()]
        overlapping = [rule for rule in left if any(rule.overlaps(gone) for gone in rules)]
        return {"version": VERSION, "told": is_told, **self._access(overlapping, changed=rules)}

    def _rules(self, body: dict[str, Any]) -> list[AccessRule]:
        access = self._authority.access
        return [access.rule(str(body["target"]), str(body["ports"]), str(source)) for source in body["sources"]]

    def _access(self, only: list[AccessRule] | None = None, changed: Sequence[AccessRule] = ()) -> dict[str, Any]:
        """Rules (None: all) with what they come to, and which of their targets and of ``changed`` do not follow yet."""
        statuses, own = self._service.statuses, self._node_id
        behind = {}
        for lease in self._store.leases():
            status = statuses.get(lease.node_id)
            if lease.node_id == own:
                continue
            if status is None or not status.online:
                behind[lease.node_id] = "offline"
        return access_to_dict(self._store, behind, only, changed)

    async def release_lease(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Only of a node that is gone: one that goes on with a released address would share it with its next holder."""
        caller.require()
        self._refuse_in_use(body["node"])
        released = await self._service.release(
            body["node"], at_once=bool(body.get("now")), caller=user_name(caller.uid)
        )
        log.info("bootstrap.lease_released", hostname=released.hostname, node_id=released.node_id)
        return {
            "version": VERSION,
            "hostname": released.hostname,
            "node_id": released.node_id,
            "overlay_ip": released.held.get("overlay_ip"),
            "rank": int(released.held["rank"]) if "rank" in released.held else None,
            "rests_until": released.rests_until.isoformat(timespec="seconds") if released.rests_until else None,
        }

    def _refuse_in_use(self, node: str, *, force: bool = False) -> None:
        """Raises UsageError for our own lease, and, unless forced, for that of a node that is there."""
        lease = self._store.find_lease(node)
        if lease is None:
            return
        if lease.node_id == self._node_id:
            raise UsageError("this is the relay's own lease", hint="name another node", reason="OwnLease")
        status = self._service.statuses.get(lease.node_id)
        if status is not None and status.online and not force:
            raise NodeInUseError(
                f"{lease.hostname} ({lease.overlay_ip}) is online and uses its lease",
                hint="stop its daemon first: `edgelink stop` there",
            )


def parse_ip(text: str | None) -> IPv4Address | None:
    """An overlay IP given on the command line. Raises UsageError."""
    if text is None:
        return None
    try:
        return IPv4Address(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not an IPv4 address") from error

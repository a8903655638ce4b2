"""The relay's part in a change of the network's secret: what `edgelink revoke` and `edgelink rotate-secret` ask of its
daemon, and ``SecretCurrent`` for the whole network.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

from edgelink.api.server import Caller, Route, stream_route, user_name
from edgelink.clock import Clock
from edgelink.condition_table.informing import SECRET_CURRENT
from edgelink.conditions import ConditionSet
from edgelink.errors import DeadlineError, RegistryUnavailableError, UntrustedError
from edgelink.facts.board import Board
from edgelink.log import get_logger
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Envelope, Lease
from edgelink.relay.authority import Authority
from edgelink.relay.registry_service import RegistryService
from edgelink.relay.rotation import RotationRecord
from edgelink.relay.rotations import HOLD_S
from edgelink.relay.store import RegistryStore

_LOOK_S = 0.1
_CHANGED_S = 30.0  # for the nodes that are online to run on the new secret
_UNFINISHED_S = 60.0  # beyond the hour of the change, for the relay itself to change

ROUTES = (("POST", "/revoke", "revoke"), ("POST", "/rotate-secret", "rotate"))

log = get_logger("bootstrap")


class Holder(Protocol):
    """What is needed of the relay; all of it is there by the time that a request comes."""

    clock: Clock
    conditions: ConditionSet
    key: NodeKey
    board: Board[Any]
    store: RegistryStore
    authority: Authority
    registry: RegistryService

    @property
    def membership(self) -> Membership | None:
        """The membership that the relay runs with."""


@dataclass(frozen=True)
class NodeStep:
    """How far one node is, in words. ``relay``: it is one."""

    hostname: str
    state: str
    done: bool
    online: bool
    relay: bool


class RelaySecrets:
    """Sets ``SecretCurrent``, which only informs."""

    condition: ClassVar[str] = SECRET_CURRENT.name

    def __init__(self, holder: Holder) -> None:
        self._holder = holder

    def routes(self) -> Iterator[Route]:
        for method, path, name in ROUTES:
            yield stream_route(method, path, getattr(self, name))

    def recall(self, known: Envelope) -> None:
        """This machine was told of a newer secret as a node than the registry that was restored on it knows."""
        try:
            self._holder.authority.rotations.recall(known)
        except UntrustedError as error:  # of a network that it was in before
            log.warning("bootstrap.state_ignored", error=str(error))

    def overlay_changed(self) -> None:
        """Note with which secret this relay's own EasyTier runs, and say who is not on the present one.

        Raises:
            RegistryError: the database cannot be read or written.
        """
        holder = self._holder
        assert holder.membership is not None
        if holder.board.facts.easytier_as_wanted:
            holder.authority.rotations.note({holder.key.node_id: holder.membership.held.epoch})
        self._report()

    def _report(self) -> None:
        holder, rotations = self._holder, self._holder.authority.rotations
        record, behind = rotations.record, rotations.stragglers()
        names = ", ".join(lease.hostname + (" (a relay)" if lease.is_relay else "") for lease in behind)
        changed_s = rotations.changed_s
        is_young = changed_s is not None and holder.clock.monotonic_s() < changed_s + _CHANGED_S
        if record is not None:
            holder.conditions.set_false(self.condition, "Preparing", f"to secret {record.to_epoch}: {record.why}")
        elif is_young and any(map(self._is_online, behind)):
            holder.conditions.set_false(
                self.condition, "Changing", f"to secret {rotations.secret_epoch}; not seen on it yet: {names}"
            )
        elif behind:
            holder.conditions.set_false(
                self.condition,
                "OldSecretInUse",
                f"not seen on secret {rotations.secret_epoch} yet: {names}; each follows when its daemon is back; "
                "until then they are a network apart, with whoever else has the old secret",
            )
        else:
            holder.conditions.set_true(
                self.condition, "Current", f"all nodes were seen on secret {rotations.secret_epoch}"
            )

    # routes

    async def revoke(self, caller: Caller, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Serve ``{"node", "hold_s", "all_tokens"}``.

        Raises:
            RegistryError: no such node. UsageError: it is this relay.
            DeadlineError: it is out, but not everybody is on the new secret yet; they follow.
        """
        caller.require()
        started_s = self._holder.clock.monotonic_s()
        revoked, is_off_broker = await self._holder.registry.revoke(
            body["node"],
            hold_s=self._hold_s(body),
            own_node_id=self._holder.key.node_id,
            all_tokens=bool(body.get("all_tokens")),
            caller=user_name(caller.uid),
        )
        self._report()
        lease = revoked.lease
        yield {
            "event": "revoked",
            "hostname": lease.hostname,
            "node_id": lease.node_id,
            "off_broker": is_off_broker,
        }
        async for item in self._follow(started_s, revoked.record):
            yield item

    async def rotate(self, caller: Caller, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Serve ``{"hold_s"}``.

        Raises:
            DeadlineError: not everybody is on the new secret yet.
            RegistryUnavailableError: the broker is away: nobody could be told, nothing was changed.
        """
        caller.require()
        holder = self._holder
        if not holder.registry.is_connected:
            raise RegistryUnavailableError(
                f"the registry has no session with its broker: {holder.registry.last_error or 'it has just begun'}",
                hint="nothing was changed: nobody could be told; try again when `edgelink status` here is ready",
            )
        started_s = holder.clock.monotonic_s()
        record = holder.authority.rotations.rotate(self._hold_s(body))
        holder.registry.rotation.look()
        self._report()
        async for item in self._follow(started_s, record):
            yield item

    def _hold_s(self, body: dict[str, Any]) -> float:
        """Return for how long robots may hold the change up: as the operator says, and no longer than they ask for."""
        asked_s = float(HOLD_S if body.get("hold_s") is None else body["hold_s"])
        return min(asked_s, self._holder.registry.hold_s(without=body.get("node", "")))

    async def _follow(self, started_s: float, record: RotationRecord) -> AsyncIterator[dict[str, Any]]:
        holder, rotations = self._holder, self._holder.authority.rotations
        target, changed_s, last = record.to_epoch, None, None
        until_s = holder.clock.monotonic_s() + (rotations.left_s() or 0.0) + _UNFINISHED_S
        while True:
            coming, now_s = rotations.record, holder.clock.monotonic_s()
            target = max(target, coming.to_epoch if coming else 0)
            rows = self._rows(coming, target)
            if rows != last:
                last = rows
                after_s = round(now_s - started_s, 1)
                yield {"event": "nodes", "after_s": after_s, "nodes": [asdict(row) for row in rows]}
            if changed_s is None and rotations.secret_epoch >= target:
                changed_s = now_s
            if changed_s is not None and (
                all(row.done for row in rows if row.online) or now_s > changed_s + _CHANGED_S
            ):
                break
            if now_s > until_s:
                away = f": no session with the broker: {holder.registry.last_error}"
                raise DeadlineError(
                    f"the change to secret {target} has begun, but is not over after {now_s - started_s:.0f} s"
                    + ("" if holder.registry.is_connected else away),
                    hint="this daemon goes on with it by itself; `edgelink status` here tells of it (SecretCurrent)",
                    reason="RotationUnfinished",
                )
            await holder.clock.sleep(_LOOK_S)
        yield {
            "event": "done",
            "after_s": round(holder.clock.monotonic_s() - started_s, 1),
            "behind": [asdict(row) for row in rows if not row.done],
        }

    def _rows(self, coming: RotationRecord | None, target: int) -> list[NodeStep]:
        registry, seen = self._holder.registry, self._holder.authority.rotations.seen_epochs()
        unheard, rows = registry.unheard(), []
        for lease in self._holder.store.leases():
            status, is_online = registry.statuses.get(lease.node_id), self._is_online(lease)
            is_done = seen.get(lease.node_id, 0) >= target
            if is_done:
                state = f"runs on secret {target}"
            elif not is_online:
                state = "not heard of yet" if lease.node_id in unheard else "offline, follows when it is back"
            elif coming is None:
                state = f"changing to secret {target}"
            elif status is not None and status.hold_s > 0:
                state = f"holding until {coming.switch_at:%H:%M:%S} UTC at the latest"
            else:
                state = f"is told of secret {target}"
            rows.append(NodeStep(lease.hostname, state, is_done, is_online, lease.is_relay))
        return sorted(rows, key=lambda row: (not row.relay, row.hostname))

    def _is_online(self, lease: Lease) -> bool:
        status = self._holder.registry.statuses.get(lease.node_id)
        return lease.node_id == self._holder.key.node_id or (status is not None and status.online)

"""The relay's part in a change of the network's secret: what `edgelink revoke` and `edgelink rotate-secret` ask of its
daemon, and ``SecretCurrent`` for the whole network.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
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
from edgelink.protocol.payloads import Envelope, NetworkAnswer
from edgelink.protocol.statuses import SILENCE_S
from edgelink.relay.authority import Authority
from edgelink.relay.registry_service import RegistryService
from edgelink.relay.rotation import COMMITTED_S, Progress, RotationRecord, is_holding
from edgelink.relay.rotations import HOLD_S, PREPARE_S, ROTATE_PREPARE_S, RotationRequest
from edgelink.relay.store import RegistryStore

_LOOK_S = 0.1
_CHANGED_S = 30.0  # for the nodes that are online to run on the new secret

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
    """How far one node is, in words."""

    hostname: str
    state: str
    is_done: bool
    is_online: bool
    is_relay: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "hostname": self.hostname,
            "state": self.state,
            "done": self.is_done,
            "online": self.is_online,
            "relay": self.is_relay,
        }


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
        holder, rotations = self._holder, self._holder.authority.rotations
        assert holder.membership is not None
        epoch = holder.membership.held.epoch
        if holder.board.facts.easytier_as_wanted:
            rotations.note(
                NetworkAnswer(
                    network_id=holder.membership.network_id,
                    node_id=holder.key.node_id,
                    generation=holder.store.generation(),
                    number=0,
                    prepared_epoch=epoch,
                    running_epoch=epoch,
                )
            )
        self._report()

    def _report(self) -> None:
        holder, rotations = self._holder, self._holder.authority.rotations
        record, behind = rotations.record, rotations.stragglers()
        if record is not None:
            reason = "Preparing" if record.phase == "prepare" else "Changing"
            holder.conditions.set_false(self.condition, reason, f"to secret {record.to_epoch}: {record.why}")
        elif behind:
            names = ", ".join(lease.hostname + (" (a relay)" if lease.is_relay else "") for lease in behind)
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
        """Serve ``{"node", "hold_s", "timeout_s", "all_tokens"}``.

        Raises:
            RegistryError: no such node. UsageError: it is this relay.
            DeadlineError: it is out, but not everybody is on the new secret yet; they follow.
        """
        caller.require()
        request = self._request(body, PREPARE_S, force=True, without=body["node"])
        started_s = self._holder.clock.monotonic_s()
        revoked, is_off_broker = await self._holder.registry.revoke(
            body["node"],
            request,
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
        async for item in self._follow(started_s, revoked.record.to_epoch, request):
            yield item

    async def rotate(self, caller: Caller, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Serve ``{"hold_s", "timeout_s", "force"}``.

        Raises:
            DeadlineError: given up, because a node that is online did not prepare; or not everybody is there yet.
            RegistryUnavailableError: the broker is away: nobody could be asked, nothing was changed.
        """
        caller.require()
        await self._wait_for_word()
        request = self._request(body, ROTATE_PREPARE_S, force=bool(body.get("force")))
        started_s = self._holder.clock.monotonic_s()
        record = self._holder.authority.rotations.rotate(request)
        self._holder.registry.rotation.wakeup.set()
        self._report()
        async for item in self._follow(started_s, record.to_epoch, request):
            yield item

    async def _wait_for_word(self) -> None:
        """Soon after this daemon's start who is online has not said so yet, and would not be waited for."""
        holder = self._holder
        until_s = holder.clock.monotonic_s() + SILENCE_S
        while True:
            if not holder.registry.is_connected:
                raise RegistryUnavailableError(
                    f"the registry has no session with its broker: {holder.registry.last_error or 'it has just begun'}",
                    hint="nothing was changed: nobody could be asked; try again when `edgelink status` here is ready",
                )
            is_complete = not holder.registry.unheard() - {holder.key.node_id}
            if is_complete or holder.clock.monotonic_s() >= until_s:
                return
            await holder.clock.sleep(_LOOK_S)

    def _request(
        self, body: dict[str, Any], prepare_s: float, *, force: bool, without: str | None = None
    ) -> RotationRequest:
        registry = self._holder.registry
        names = {lease.node_id: lease.hostname for lease in self._holder.store.leases()}
        online = {node_id for node_id, status in registry.statuses.items() if status.online}
        # Who was not heard of yet may be online: it is waited for as well, as long as anybody is.
        asked = (online | registry.unheard()) & names.keys() - {self._holder.key.node_id}
        return RotationRequest(
            expected=frozenset(node_id for node_id in asked if without not in (node_id, names[node_id])),
            prepare_s=float(prepare_s if body.get("timeout_s") is None else body["timeout_s"]),
            hold_s=float(HOLD_S if body.get("hold_s") is None else body["hold_s"]),
            force=force,
        )

    async def _follow(self, started_s: float, target: int, request: RotationRequest) -> AsyncIterator[dict[str, Any]]:
        holder, rotations = self._holder, self._holder.authority.rotations
        committed_s, last = None, None
        until_s = holder.clock.monotonic_s() + request.prepare_s + request.hold_s + COMMITTED_S
        while True:
            record, epoch, now_s = rotations.record, rotations.secret_epoch, holder.clock.monotonic_s()
            rows = self._rows(record, max(target, record.to_epoch if record else 0))
            if rows != last:
                last = rows
                after_s = round(now_s - started_s, 1)
                yield {"event": "nodes", "after_s": after_s, "nodes": [row.to_dict() for row in rows]}
            if record is None and epoch == target + 1 and committed_s is None:
                late = ", ".join(row.hostname for row in rows if not row.is_done) or "nobody"
                raise DeadlineError(
                    f"the secret is the former one: not every node that is online had the next one in time ({late})",
                    hint="see `edgelink status` there; `--force` changes it without them: they follow later",
                    reason="RotationGivenUp",
                )
            if epoch >= target and committed_s is None:
                committed_s = now_s
            if committed_s is not None and all(row.is_done for row in rows if row.is_online):
                break
            if committed_s is not None and now_s > committed_s + _CHANGED_S:
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
        behind = [row for row in last or [] if not row.is_done]
        yield {
            "event": "done",
            "after_s": round(holder.clock.monotonic_s() - started_s, 1),
            "behind": [row.to_dict() for row in behind],
        }

    def _rows(self, record: RotationRecord | None, target: int) -> list[NodeStep]:
        holder = self._holder
        progress, statuses = holder.authority.rotations.progress(), holder.registry.statuses
        rows = []
        for lease in holder.store.leases():
            node = progress.get(lease.node_id, Progress(lease.node_id, is_expected=False))
            status = statuses.get(lease.node_id)
            is_online = lease.node_id == holder.key.node_id or (status is not None and status.online)
            is_done = node.running_epoch >= target
            state = _in_words(record, node, target, is_online=is_online, now_held=self._is_holding(record, node))
            rows.append(NodeStep(lease.hostname, state, is_done, is_online, lease.is_relay))
        return sorted(rows, key=lambda row: (not row.is_relay, row.hostname))

    def _is_holding(self, record: RotationRecord | None, node: Progress) -> bool:
        return record is not None and is_holding(record, node, self._holder.clock.now())


def _in_words(record: RotationRecord | None, node: Progress, target: int, *, is_online: bool, now_held: bool) -> str:
    if node.running_epoch >= target:
        return f"runs on secret {target}"
    if now_held and record is not None and node.hold_until is not None:
        return f"holding until {min(node.hold_until, record.hold_until):%H:%M:%S} UTC at the latest"
    if not is_online:
        return "offline, follows when it is back"
    if record is not None and record.phase == "prepare":
        return "prepared" if node.prepared_epoch >= target else "preparing"
    return f"changing to secret {target}"

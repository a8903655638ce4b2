"""The relay has its EasyTier know a credential of each node that holds a lease, and of no other (ADR 0024).

What is wanted follows from the leases, what is there is asked of EasyTier: a daemon that was killed between a
revocation and its last step takes that step when it is back.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import ClassVar, Protocol

from edgelink.clock import Clock
from edgelink.conditions import ConditionSet
from edgelink.config import Config
from edgelink.errors import ConfigError, DeadlineError, EdgelinkError, OverlayError, UsageError
from edgelink.log import get_logger, hide
from edgelink.outage import Outage
from edgelink.overlay import credentials
from edgelink.reconcile import Wakeup
from edgelink.registry.authority import Authority
from edgelink.registry.payloads import EASYTIER_CREDENTIALS, Lease, NodeStatus
from edgelink.registry.service import RegistryService
from edgelink.registry.store import RegistryStore
from edgelink.roles.easytier_here import easytier_features
from edgelink.roles.overlay_parts import OverlayParts

_LOOK_S = 30.0
_RETRY_S = 1.0
_ENDS_SOON_S = 30 * 86400
_OURS = re.compile(r"[a-z2-7]{26}-[0-9]+")  # whatever else the operator made by hand is left alone

log = get_logger("credentials")


class Holder(Protocol):
    """What is needed of the relay."""

    clock: Clock
    config: Config
    conditions: ConditionSet
    parts: OverlayParts
    store: RegistryStore
    authority: Authority
    registry: RegistryService


class NodeCredentials:
    """``problem``: why not every node has one, in words; ``on_change`` when that is another."""

    name: ClassVar[str] = "credentials"

    def __init__(self, holder: Holder, on_change: Callable[[], None]) -> None:
        self.wakeup = Wakeup()
        self.problem = ""
        self._holder = holder
        self._on_change = on_change
        self._made: dict[str, str] = {}  # by credential
        self._ends: Mapping[str, int] = {}  # seconds of the epoch, by credential
        self._epoch = 0  # of the network's secret that they are made with
        self._busy = asyncio.Lock()
        self._seen: tuple[object, ...] = ()  # what the last look was for
        self._look_at_s = 0.0
        self._outage = Outage(holder.clock)

    async def run(self) -> None:
        """Bring EasyTier in step whenever woken, and from time to time; ends by cancellation only."""
        while True:
            await self.wakeup.wait(await self.reconcile())

    async def reconcile(self) -> float:
        """One look, unless nothing has changed since the last; seconds until the next."""
        now_s = self._holder.clock.monotonic_s()
        try:
            network = self._holder.authority.network
            if not network.node_credentials:
                self._outage.over()
                self._tell("")
                return _LOOK_S
            seen = (wanted_of(self._holder.store.leases()), network.secret_epoch, self._is_up)
            if seen == self._seen and now_s < self._look_at_s:
                return self._look_at_s - now_s
            self._seen = seen
            await self.bring_in_step()
            problem = self._holds_until()
        except EdgelinkError as error:
            problem = str(error)
            if self._outage.is_news(error.condition_reason):
                log.warning("credentials.not_in_step", reason=error.condition_reason, error=problem)
        else:
            self._outage.over()
        self._tell(problem)
        look_s = _RETRY_S if problem else _LOOK_S
        self._look_at_s = now_s + look_s
        return look_s

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._on_change()

    async def bring_in_step(self) -> None:
        """Revoke first, then make. Nothing is done in a network without credentials, or while EasyTier is not up.

        Raises:
            OverlayError, EasyTierNotFoundError: EasyTier does not answer, or refuses.
        """
        async with self._busy:
            holder = self._holder
            network = holder.authority.network
            if not network.node_credentials or not self._is_up:
                return
            if self._epoch != network.secret_epoch:
                self._made, self._epoch = {}, network.secret_epoch
            binary, port = holder.parts.binary(), holder.config.overlay.rpc_port
            wanted = wanted_of(holder.store.leases())
            there = await credentials.expiries(binary, port)
            for credential_id in (gone := surplus(there, wanted.values())):
                await credentials.revoke(binary, port, credential_id)
                log.info("credentials.revoked", credential_id=credential_id)
            for credential_id in (new := lacking(there, self._made, wanted.values())):
                secret = await credentials.generate(binary, port, credential_id)
                hide(secret)
                self._made[credential_id] = secret
            self._ends = await credentials.expiries(binary, port) if gone or new else there
            told = {node: self._made[credential] for node, credential in wanted.items()}
            if told != holder.authority.rotations.credentials:
                holder.authority.rotations.credentials = told
                holder.registry.rotation.wakeup.set()

    async def cut_off(self, lease: Lease) -> None:
        """Revoke what a lease that is gone was given, now. Raises as :meth:`bring_in_step`, and when EasyTier is down.

        An EasyTier that is down lets nobody in, but would let in again whoever it knows.
        """
        await self.bring_in_step()
        if not self._is_up or set(wanted_of([lease]).values()) & self._ends.keys():
            self.wakeup.set()
            raise OverlayError("EasyTier of this relay is not up", hint="see OverlayUp", reason="OverlayDown")

    @property
    def _is_up(self) -> bool:
        """Whether EasyTier runs on the present secret; where another daemon of this machine runs it, that knows."""
        is_wanted = self._holder.parts.overlay.runs_as_wanted
        return is_wanted is not False and self._holder.conditions.is_true("OverlayUp")

    def _holds_until(self) -> str:
        now_s = self._holder.clock.now().timestamp()
        ends = {ends_s: name for name, ends_s in self._ends.items() if name in self._made}
        if not ends or (first_s := min(ends)) > now_s + _ENDS_SOON_S:
            return ""
        node = ends[first_s].partition("-")[0]
        lease = self._holder.store.lease(node)
        return (
            f"EasyTier's credential of {lease.hostname if lease else node} ends on "
            f"{datetime.fromtimestamp(first_s, UTC):%Y-%m-%d}: `edgelink registry release` it, and have it join again"
        )


def wanted_of(leases: Iterable[Lease]) -> dict[str, str]:
    """The credential of each node that is to have one; another for each time that a lease was granted: what EasyTier
    makes of an id that was revoked is not known. Pure."""
    return {
        lease.node_id: f"{lease.node_id}-{int(lease.granted_at.timestamp())}" for lease in leases if not lease.is_relay
    }


def surplus(there: Iterable[str], wanted: Collection[str]) -> list[str]:
    """What is to be revoked; pure."""
    return sorted(one for one in there if _OURS.fullmatch(one) and one not in wanted)


def lacking(there: Collection[str], made: Collection[str], wanted: Iterable[str]) -> list[str]:
    """What is to be made, or asked for again because it is not known here; pure."""
    return sorted(one for one in wanted if one not in there or one not in made)


def require_credentials(config: Config, easytier_version: str | None) -> None:
    """Of the relay that is to make them. Raises ConfigError where this machine cannot."""
    if config.overlay.kind == "existing":
        raise ConfigError(
            "EasyTier's credentials: with `overlay.kind: existing` there is no EasyTier",
            hint="set relay.credentials to false",
        )
    if not easytier_features(easytier_version):
        raise ConfigError(
            f"EasyTier's credentials need EasyTier 2.6.0 or later, this machine has {easytier_version or 'none'}",
            hint="install a newer one, or name it in overlay.easytier_core; on every node, too",
            reason="EasyTierTooOld",
        )


def refuse_unable(
    leases: Iterable[Lease], statuses: Mapping[str, NodeStatus], *, own_node_id: str, accepted: Collection[str]
) -> None:
    """Before a network changes to credentials; pure. ``accepted``: whose loss the operator accepts, by name or id.

    Raises:
        DeadlineError: names each node that cannot follow, with the EasyTier that it has.
        UsageError: there is another relay.
    """
    unable: list[str] = []
    for lease in leases:
        status = statuses.get(lease.node_id)
        if lease.node_id == own_node_id:
            if status is None:
                continue  # no head's daemon beside the relay's
        elif lease.is_relay:
            raise UsageError(
                f"{lease.hostname} is a relay, too, and a network with credentials has one",
                hint=f"`edgelink registry release {lease.hostname}`, when it is not needed any more",
                reason="OneRelayOnly",
            )
        is_able = status is not None and EASYTIER_CREDENTIALS in status.features
        if not is_able and not {lease.hostname, lease.node_id} & set(accepted):
            unable.append(f"{lease.hostname} ({_has(status)})")
    if unable:
        raise DeadlineError(
            f"EasyTier 2.6.0 or later is needed on every node, and not known to be on {', '.join(unable)}",
            hint="install it there, restart its EdgeLink (EasyTier and Ray go on), and try again; or `--leave-behind` "
            "it: it is cut off until then",
            reason="EasyTierTooOld",
        )


def _has(status: NodeStatus | None) -> str:
    if status is None or not status.online:
        return "offline"
    return f"EasyTier {status.easytier_version}" if status.easytier_version else "does not say"

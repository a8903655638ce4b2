"""A node follows the network's secret (ADR 0020): prepares the next one, changes to it, catches up, and stands aside
when the registry has put it out.

::

    told of a next secret ──▶ on disk, the hook is asked ──▶ "prepared" ──▶ told that it counts ──▶ EasyTier on it
    told of a present secret that is newer than ours (we were away) ──────────────────────────────▶ EasyTier on it

What is told is state, not commands; a secret that was left behind is never gone back to.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from edgelink.clock import Clock
from edgelink.condition_table.informing import SECRET_CURRENT
from edgelink.conditions import ConditionSet, Status
from edgelink.errors import EdgelinkError
from edgelink.facts.board import Board, Fact
from edgelink.log import get_logger, hide
from edgelink.reconcile import Wakeup
from edgelink.registry.client import RegistryClient
from edgelink.registry.membership import Membership
from edgelink.registry.membership_store import MembershipStore
from edgelink.registry.network_watch import NetworkTold
from edgelink.registry.payloads import NetworkAnswer, Rotation
from edgelink.registry.rotation import HeldSecret
from edgelink.registry.rotations import NodeRevokedError

KEPT_SECRET: Final[Fact[HeldSecret | None]] = Fact("kept_secret")
SECRET_CHANGED_S: Final[Fact[float | None]] = Fact("secret_changed_s")
_LOOK_S = 30.0
_AFTER_RELAYS_S = 0.3  # a relay that is started anew listens within a tenth of a second
_SPREAD_S = 0.2  # all within the same half second, so that both ends of a direct path are new
_FULL_DISK_S = 5.0

log = get_logger("node")


class Overlay(Protocol):
    """What of the overlay's reconciler is needed here."""

    @property
    def runs_as_wanted(self) -> bool | None:
        """Whether EasyTier is confirmed to run with the present membership's secret; None: another daemon knows."""


class Hold(Protocol):
    """See :class:`edgelink.roles.hold.HoldHook`."""

    @property
    def is_set(self) -> bool:
        """Whether there is anybody to ask."""

    async def wait(self, reason: str, patience_s: float) -> str:
        """Return when the overlay may be restarted."""


@dataclass(frozen=True)
class Inputs:
    """What a node that follows the network's secret depends on."""

    running: Membership | None
    network: NetworkTold
    tries_next_secret: bool
    overlay_is_up: bool


class SecretEpochs:
    """Sets ``SecretCurrent``, which only informs."""

    name: ClassVar[str] = "secret-epochs"
    condition: ClassVar[str] = SECRET_CURRENT.name

    def __init__(
        self,
        *,
        board: Board[Any],
        store: MembershipStore,
        client: Callable[[], RegistryClient | None],
        overlay: Overlay,
        hold: Hold,
        conditions: ConditionSet,
        clock: Clock,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self.wakeup = Wakeup()
        self._board = board
        self._store = store
        self._client = client
        self._overlay = overlay
        self._hold = hold
        self._conditions = conditions
        self._clock = clock
        self._spread = spread
        self._keep = board.claim(KEPT_SECRET, self.name)
        board.read(Inputs, self.name, self.wakeup)
        self._put_changed_s = board.claim(SECRET_CHANGED_S, self.name)
        self._revoked = asyncio.Event()
        self._answered: NetworkAnswer | None = None
        self._numbers = 0
        self._asked: str | None = None  # the change that the hook was asked about
        self._to_ask: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self._is_holding = False
        self._hold_why = ""

    def refuse_revoked(self) -> None:
        """At the daemon's start: the registry has said before that this node was put out. Raises NodeRevokedError."""
        if self._now.network.is_revoked:
            raise self._put_out()

    async def run(self) -> None:
        """Ask the hook when there is a change to ask about; end the daemon when the registry has put this node out.

        Raises:
            NodeRevokedError: it has; final.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ask_hook(), name="hold-hook")
            await self._revoked.wait()
            raise self._put_out()

    async def reconcile(self) -> float:
        client, membership = self._client(), self._now.running
        if client is None or membership is None:
            return _LOOK_S
        if self._now.network.is_revoked:
            self._revoked.set()
            return _LOOK_S
        client.settle_network()
        network = self._now.network
        held = membership.held
        if network.given is not None:
            held = held.given(network.given)
        if network.state is not None:
            held = held.told(network.state)
        if held != membership.held:
            membership = await self._take_up(held, membership)
        rotation = network.state.rotation if network.state is not None else None
        self._see_to_hook(rotation, held)
        self._answer(client, membership, rotation)
        self._report(membership, rotation)
        return _LOOK_S if network.is_on_disk else _FULL_DISK_S

    @property
    def _now(self) -> Inputs:
        return self._board.select(Inputs)

    async def _take_up(self, held: HeldSecret, membership: Membership) -> Membership:
        """On disk before it is used. Relays come first: nobody could dial one that is still on the former secret."""
        hide(held.secret, held.next_secret or "")
        is_another = held.epoch != membership.held.epoch
        if is_another:
            self._keep(membership.held)
        try:
            self._store.change(lambda present: present.holding(held))
            if is_another:
                log.info("node.secret_changed", epoch=held.epoch)
                if not membership.lease.is_relay:
                    await self._clock.sleep(_AFTER_RELAYS_S + _SPREAD_S * self._spread())
                self._put_changed_s(self._clock.monotonic_s())
            else:
                log.info("node.secret_prepared", epoch=held.next_epoch)
        finally:
            self._keep(None)
        return self._now.running or membership

    def _see_to_hook(self, rotation: Rotation | None, held: HeldSecret) -> None:
        if rotation is None or rotation.phase != "prepare" or not self._hold.is_set:
            return
        if self._asked != rotation.rotation_id and held.next_epoch == rotation.to_epoch:
            self._asked, self._is_holding, self._hold_why = rotation.rotation_id, True, "asking the robot's hook"
            self._to_ask.put_nowait((rotation.rotation_id, rotation.to_epoch))

    async def _ask_hook(self) -> None:
        while True:
            rotation_id, epoch = await self._to_ask.get()
            why = await self._hold.wait(f"the network changes to secret {epoch}", float("inf"))
            if self._asked == rotation_id:
                self._is_holding, self._hold_why = False, why
                self.wakeup.set()

    def _answer(self, client: RegistryClient, membership: Membership, rotation: Rotation | None) -> None:
        """Say how far we are, whenever that changes."""
        held = membership.held
        is_holding = self._is_holding and rotation is not None and rotation.phase == "prepare"
        answer = NetworkAnswer(
            network_id=membership.network_id,
            node_id=membership.lease.node_id,
            generation=self._now.network.generation,
            number=0,
            rotation_id=rotation.rotation_id if rotation else None,
            prepared_epoch=held.next_epoch or held.epoch,
            running_epoch=held.epoch if self._overlay.runs_as_wanted and not self._is_trying else 0,
            hold_until=rotation.hold_until if rotation is not None and is_holding else None,
            hold_why=self._hold_why,
            known=self._now.network.known,
        )
        if self._now.network.state is not None and answer != self._answered:
            self._answered = answer
            self._numbers += 1
            client.publish_answer(answer.model_copy(update={"number": self._numbers}))

    def _report(self, membership: Membership, rotation: Rotation | None) -> None:
        network, held = self._now.network, membership.held
        state = network.behind or network.state
        if state is None:
            self._conditions.set(
                self.condition, Status.UNKNOWN, "NotToldYet", "the registry has not said which secret the network is on"
            )
        elif state.secret_epoch < held.epoch:
            self._down("RegistryBehind", "the registry was restored from an older backup; it makes a fresh secret")
        elif state.secret_epoch > held.epoch:
            self._down("BehindNetwork", f"waits to be given secret {state.secret_epoch}; this node has {held.epoch}")
        elif self._is_trying:
            self._down(
                "TryingNext",
                f"nobody is heard on secret {held.epoch}; EasyTier runs by turns on secret {held.next_epoch}, to which "
                "the network was about to change",
            )
        elif self._overlay.runs_as_wanted is False:
            self._down("Changing", f"EasyTier is to run on secret {held.epoch}")
        elif rotation is not None and rotation.phase == "prepare" and self._is_holding:
            self._down("Holding", f"secret {rotation.to_epoch} waits for the robot: {self._hold_why}")
        elif rotation is not None and rotation.phase == "prepare":
            self._down("Preparing", f"secret {rotation.to_epoch} is being told to all nodes")
        else:
            self._conditions.set_true(self.condition, "Current", f"EasyTier runs on secret {held.epoch}")

    def _down(self, reason: str, message: str) -> None:
        self._conditions.set_false(self.condition, reason, message)

    @property
    def _is_trying(self) -> bool:
        """Whether EasyTier runs on the next secret although nobody has said that it counts."""
        return self._now.tries_next_secret

    def _put_out(self) -> EdgelinkError:
        error = NodeRevokedError(
            "the operator has put this node out of the network",
            hint="if that was a mistake: `edgelink leave`, then `edgelink join` with a new token of the operator",
        )
        self._conditions.set_error("Leased", error)
        return error

"""What follows from the session with the registry: its condition, and where the relays are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any, ClassVar, Final

from edgelink.clock import Clock
from edgelink.condition_table.required import REGISTRY_CONNECTED
from edgelink.conditions import failed, is_so
from edgelink.errors import EdgelinkError, NotRecordedError
from edgelink.facts.board import Board, Fact, Table
from edgelink.facts.part import Action, Decision, Part
from edgelink.log import get_logger
from edgelink.member.membership_store import MembershipStore
from edgelink.member.registry_client import Session
from edgelink.protocol.held_secret import NetworkTold
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import ClusterSpec, Directory, Envelope, NodeStatus

HOLDERS: Final[Fact[Mapping[IPv4Address, str]]] = Fact("holders")
REVOKED_IPS: Final[Fact[frozenset[IPv4Address]]] = Fact("revoked_ips")

log = get_logger("node")


@dataclass(frozen=True)
class RegistrysWord:
    """Everything that the registry and the nodes say. It changes several times a second on a head."""

    session: Session
    directory: Directory | None
    cluster_spec: ClusterSpec | None
    statuses: Table[str, NodeStatus]


@dataclass(frozen=True)
class SessionOnly:
    """What ``RegistryConnected`` depends on."""

    session: Session


class SessionTeller(Part[SessionOnly, Action]):
    """Sets ``RegistryConnected``."""

    name = "session teller"
    condition: ClassVar[str] = REGISTRY_CONNECTED.name
    inputs = SessionOnly

    def plan(self, now: SessionOnly, at_s: float) -> Decision[Action]:
        session = now.session
        if session.is_connected:
            return Decision((is_so(self.condition, "Connected", f"the relay's broker answers at {session.address}"),))
        if session.error is None:
            return Decision()
        return Decision((failed(self.condition, session.error),))


@dataclass(frozen=True)
class OwnStatus:
    """What there is to tell of this node. ``own``: what was told last."""

    node_status: NodeStatus | None
    own: NodeStatus | None


@dataclass(frozen=True)
class Tell(Action):
    """Tell the network how this node is."""

    status: NodeStatus


class StatusTeller(Part[OwnStatus, Tell]):
    """Tells the network of this node whenever there is something new to tell. The client merges a burst."""

    name = "status"
    condition: ClassVar[str] = REGISTRY_CONNECTED.name
    inputs = OwnStatus

    def __init__(self, board: Board[Any], publish: Callable[[NodeStatus], None], clock: Clock) -> None:
        super().__init__(board)
        self._publish = publish
        self._clock = clock

    def plan(self, now: OwnStatus, at_s: float) -> Decision[Tell]:
        status = now.node_status
        return Decision() if status is None or status == now.own else Decision(does=Tell(status))

    async def act(self, action: Tell) -> None:
        self._publish(action.status.model_copy(update={"reported_at": self._clock.now()}))
        self.own = action.status


@dataclass(frozen=True)
class Stated:
    """What this head states of the Ray cluster. ``own``: what was told last."""

    stated_cluster: Envelope | None
    own: Envelope | None


@dataclass(frozen=True)
class State(Action):
    """Tell the network what this head states."""

    spec: Envelope


class ClusterTeller(Part[Stated, State]):
    """Tells the network of the Ray cluster whenever the head states something new."""

    name = "cluster"
    condition: ClassVar[str] = REGISTRY_CONNECTED.name
    inputs = Stated

    def __init__(self, board: Board[Any], publish: Callable[[Envelope], None]) -> None:
        super().__init__(board)
        self._publish = publish

    def plan(self, now: Stated, at_s: float) -> Decision[State]:
        spec = now.stated_cluster
        return Decision() if spec is None or spec == now.own else Decision(does=State(spec))

    async def act(self, action: State) -> None:
        self._publish(action.spec)
        self.own = action.spec


@dataclass(frozen=True)
class Where:
    """What the addresses of the relays depend on."""

    membership: Membership | None
    session: Session


@dataclass(frozen=True)
class Follow(Action):
    """Write down where the relays are."""

    directory: Directory
    address: str


class RelayFollower(Part[Where, Follow]):
    """Keeps on disk where the relays are now: what is dialled, also after a restart with the first one gone."""

    name = "relay follower"
    condition: ClassVar[str] = REGISTRY_CONNECTED.name
    inputs = Where

    def __init__(self, board: Board[Any], store: MembershipStore) -> None:
        super().__init__(board)
        self._store = store

    def plan(self, now: Where, at_s: float) -> Decision[Follow]:
        directory, address = now.session.directory, now.session.address
        if directory is None or now.membership is None:
            return Decision()
        if now.membership.following(directory, in_use=address) == now.membership:
            return Decision()
        return Decision(does=Follow(directory, address))

    async def act(self, action: Follow) -> None:
        try:
            following = self._store.change(lambda present: present.following(action.directory, in_use=action.address))
        except NotRecordedError:  # StateRecorded tells of it; what is known goes on being dialled
            return
        except EdgelinkError as error:
            log.warning("node.relays_not_kept", error=str(error))
            return
        if following is not None:
            log.info("node.relays_changed", brokers=following.addresses, peers=following.secrets.overlay_peers)


@dataclass(frozen=True)
class Listed:
    """What the holders of addresses depend on."""

    directory: Directory | None
    waiting: frozenset[str]


def holders(now: Listed) -> Mapping[IPv4Address, str]:
    """Who holds which address, as the registry says, but for nodes that go on with a lease that was changed."""
    entries = now.directory.entries if now.directory is not None else ()
    return {entry.overlay_ip: entry.hostname for entry in entries if entry.node_id not in now.waiting}


@dataclass(frozen=True)
class NetworkOnly:
    """What the addresses of revoked nodes depend on."""

    network: NetworkTold


def revoked_ips(now: NetworkOnly) -> frozenset[IPv4Address]:
    """The overlay addresses of nodes that the registry has put out."""
    return frozenset(now.network.revoked_ips)

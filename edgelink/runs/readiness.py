"""How far the node of one rank has come on its way into Ray, in words for the person who waits; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from edgelink.conditions import Status
from edgelink.protocol.payloads import DirectoryEntry, NodeStatus
from edgelink.ray_cluster.no_ray import NO_RAY_BRIEF, NO_RAY_IN_WORDS
from edgelink.ray_cluster.pause import Pause, pause_in_words
from edgelink.ray_cluster.ray_members import RayMember
from edgelink.ray_cluster.versions import Versions, differences, refusal, warnings

# paused: alive in Ray, which rides through, and not answering; off: switched off on purpose; coming: on its way in;
# missing: nobody is enrolled; silent: neither in Ray nor there.
State = Literal["ready", "paused", "off", "coming", "missing", "silent"]

_LIFE_ORDER = ("Leased", "RegistryConnected", "OverlayUp", "PeersReachable", "RayJoined")
_ON_THE_WAY = {
    "Leased": "not enrolled yet",
    "RegistryConnected": "no session with the relay",
    "OverlayUp": "overlay down",
    "PeersReachable": "overlay up, head or relay silent",
    "RayJoined": "overlay up, no Ray",
}
_BY_REASON = {  # where people have better words for it
    "OverlayDown": "overlay coming up",  # of PeersReachable: nobody was asked yet
    "Connecting": "overlay coming up",
    "Starting": "overlay up, Ray starting",
    "Joining": "overlay up, Ray joining",
    "HeadNotSeen": "overlay up, waits for the head's Ray",
    "NotAMember": "overlay up, waits to be taken into the cluster",
    "RayReplaced": "overlay up, Ray restarting",
    "RayStopping": "Ray stopping",
    "RayStopped": "Ray stopped",
}


@dataclass(frozen=True)
class NodeReadiness:
    """How far the node of one rank has come; ``step`` is the condition it stands at, ``brief`` says it in some words,
    ``message`` also what to do."""

    node_rank: int
    hostname: str | None
    overlay_ip: str | None
    ready: bool
    step: str
    message: str
    brief: str = ""
    warnings: tuple[str, ...] = ()  # what does not keep it out, and may fail later
    cpus: float = 0.0  # that Ray has of it; 0 while it is not ready
    accelerators: int = 0
    ray_node_id: str | None = None  # Ray's own; another one means that the node's Ray died in between
    device: str | None = None  # of the overlay there; None: its daemon has not said so
    online: bool | None = None  # whether its daemon is in touch with the relay
    state: State = "coming"
    told_by: str | None = None  # who says that it is paused
    paused_s: float | None = field(default=None, compare=False)  # since its last answer
    gives_up_in_s: float | None = field(default=None, compare=False)  # until Ray may give it up, at the earliest
    without_ray: bool = False  # by its own configuration: it is no node of Ray, and its rank says nothing
    ray_known: bool = True  # whether anybody can say who is alive in Ray: no Ray node id means a death only then

    @property
    def pause_in_words(self) -> str:
        """Empty where it is not paused."""
        if self.paused_s is None or self.gives_up_in_s is None or self.told_by is None:
            return ""
        return pause_in_words(self.paused_s, self.gives_up_in_s, self.told_by)


def versions_of(status: NodeStatus | None) -> Versions:
    """Those of the interpreter that has Ray; without one, the Python that a node tells of is its daemon's own."""
    if status is None or status.ray_version is None:
        return Versions()
    return Versions(status.ray_version, status.python_version, status.packages)


@dataclass(frozen=True)
class NodeFacts:
    """What the head knows of the node of one rank.

    Attributes:
        status: the last one that it told.
        member: as what Ray lists it with this rank.
        former: a Ray of this node that is alive with another rank.
        head: what the head's Ray runs with.
        pause: its silence, where Ray lists it as alive all the same.
        is_silent: it does not answer over the overlay.
        may_be_back: its status is of a session with the broker that has ended.
        has_left: it has left the network by its own word, as the registry remembers.
        is_without_ray: it has no Ray by its own configuration.
    """

    rank: int
    entry: DirectoryEntry
    status: NodeStatus | None = None
    member: RayMember | None = None
    former: RayMember | None = None
    head: Versions = field(default_factory=Versions)
    pause: Pause | None = None
    is_silent: bool = False
    may_be_back: bool = False
    has_left: bool = False
    is_without_ray: bool = False


def unclaimed_in_words(ranks: Sequence[int]) -> str:
    """Return that nobody has these ranks, and what to do."""
    which, more = (f"rank {ranks[0]}", "one more machine") if len(ranks) == 1 else ("them", "more machines")
    return (
        f"nobody is enrolled with {which}: make a token on the relay (`edgelink token create`) and join {more}, or "
        "lower cluster.num_nodes"
    )


def unclaimed(rank: int) -> NodeReadiness:
    """Return the row of a rank that nobody has."""
    return NodeReadiness(
        rank,
        None,
        None,
        ready=False,
        step="Enrolled",
        message=unclaimed_in_words([rank]),
        brief="nobody enrolled",
        state="missing",
    )


def readiness(now: NodeFacts) -> NodeReadiness:
    """Return at which step of its life the node stands."""
    rank, entry, status, member = now.rank, now.entry, now.status, now.member
    found = [] if now.is_without_ray else differences(versions_of(status), now.head)

    def node(step: str, message: str, brief: str, state: State = "coming") -> NodeReadiness:
        return NodeReadiness(
            rank,
            entry.hostname,
            str(entry.overlay_ip),
            ready=state == "ready",
            step=step,
            message=message,
            brief=brief,
            warnings=warnings(found),
            state=state,
            without_ray=now.is_without_ray,
        )

    if (now.has_left and not (status and status.online)) or (status and status.has_left):
        why = f"has left the network: `edgelink registry release {entry.hostname} --now` on the relay frees its place"
        return node("Started", why, "left", "off")
    is_back = now.may_be_back and member is not None and member.alive
    if status is not None and status.is_stopped and not is_back:
        return node("Started", f"switched off: `edgelink up` on {entry.hostname} brings it back", "off", "off")
    if member is not None and member.alive:
        if (pause := now.pause) is not None:
            why = f"no answer, says {pause.told_by}; Ray rides through: look at its power and its uplink"
            return replace(node("PeersReachable", why, "paused, no answer", "paused"), told_by=pause.told_by)
        alive = node("RayJoined", "alive in Ray", "ready", "ready")
        if status is not None and not status.online:
            alive = replace(alive, warnings=("its daemon is not in touch with the relay", *alive.warnings))
        return replace(alive, cpus=member.cpus, accelerators=member.accelerator_count)
    if status is None:
        return node("Started", f"never seen: start `edgelink edge` on {entry.hostname}", "never seen", "silent")
    if not status.online:
        why = f"offline: is {entry.hostname} switched on, and `edgelink edge` running there?"
        return node("Started", why, "offline", "silent")
    conditions = {condition.type: condition for condition in status.conditions}
    refused = refusal(found)
    for step in _LIFE_ORDER[:-1] if now.is_without_ray else _LIFE_ORDER:
        condition = conditions.get(step)
        if condition is not None and condition.status is Status.TRUE:
            continue
        reason = condition.reason if condition else "not reported"
        why = f"{reason}: {condition.message}" if condition else reason
        if step == "RayJoined" and refused:
            return node(step, why, f"overlay up, Ray refused ({refused})")
        brief = _BY_REASON.get(reason) if step in ("PeersReachable", "RayJoined") else None
        brief = brief or f"{_ON_THE_WAY[step]} ({reason})"
        # What will be refused once the overlay is up can be mended now.
        return node(step, why, f"{brief}; Ray will be refused ({refused})" if refused else brief)
    if now.is_silent:
        why = f"no answer over the overlay: is {entry.hostname} switched on, and its uplink there?"
        return node("PeersReachable", why, "no answer", "silent")
    if now.is_without_ray:
        return node("PeersReachable", NO_RAY_IN_WORDS, NO_RAY_BRIEF, "ready")
    if (former := now.former) is not None:
        return node(
            "RayJoined",
            f"alive in Ray with node rank {former.rank}; its Ray is started anew with {rank}",
            f"Ray restarting, its node rank {former.rank} becomes {rank}",
        )
    return node(
        "RayJoined",
        f"ready; waiting for Ray to list it with node rank {rank}",
        f"Ray joined, not listed with node rank {rank} yet",
    )

"""How far the node of one rank has come on its way into Ray, in words for the person who waits; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgelink.conditions import Status
from edgelink.ray_cluster.membership import RayMember
from edgelink.ray_cluster.versions import Versions, differences, refusal, warnings
from edgelink.registry.payloads import DirectoryEntry, NodeStatus

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
    device: str | None = None  # of the overlay there; None: an older daemon does not tell
    online: bool | None = None  # whether its daemon is in touch with the relay
    ray_known: bool = True  # whether anybody can say who is alive in Ray: no Ray node id means a death only then


def versions_of(status: NodeStatus | None) -> Versions:
    """Those of the interpreter that has Ray; without one, the Python that a node tells of is its daemon's own."""
    if status is None or status.ray_version is None:
        return Versions()
    return Versions(status.ray_version, status.python_version, status.packages)


def readiness(
    rank: int,
    entry: DirectoryEntry | None,
    status: NodeStatus | None,
    member: RayMember | None,
    head: Versions | None = None,
    former: RayMember | None = None,
) -> NodeReadiness:
    """At which step of its life the node of ``rank`` stands.

    Args:
        member: as what Ray lists it with this rank.
        head: what the head's Ray runs with.
        former: a Ray of this node that is alive with another rank.
    """
    if entry is None:
        return NodeReadiness(
            rank,
            None,
            None,
            ready=False,
            step="Enrolled",
            message=f"nobody is enrolled with rank {rank}: make a token on the relay (`edgelink token create`) and "
            "join one more machine, or lower cluster.num_nodes",
            brief="nobody enrolled",
        )
    found = differences(versions_of(status), head or Versions())

    def node(step: str, message: str, brief: str, *, ready: bool = False) -> NodeReadiness:
        return NodeReadiness(
            rank,
            entry.hostname,
            str(entry.overlay_ip),
            ready=ready,
            step=step,
            message=message,
            brief=brief,
            warnings=warnings(found),
        )

    if member is not None and member.alive:
        found_ready = node("RayJoined", "alive in Ray", "ready", ready=True)
        return replace(found_ready, cpus=member.cpus, accelerators=member.accelerator_count)
    if status is None:
        return node("Started", f"never seen: start `edgelink edge` on {entry.hostname}", "never seen")
    if not status.online:
        return node(
            "Started", f"offline: is {entry.hostname} switched on, and `edgelink edge` running there?", "offline"
        )
    conditions = {condition.type: condition for condition in status.conditions}
    refused = refusal(found)
    for step in _LIFE_ORDER:
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
    if former is not None:
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

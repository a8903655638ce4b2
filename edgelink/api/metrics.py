"""Metrics of a node for Prometheus: what there is, as one table, and its text form.

The functions take what the daemon tells in ``/status``, ``/paths`` and ``/nodes`` as they stand there, and are pure.

The text form is the one that every Prometheus reads (version 0.0.4). It is written here, in a few lines, so that the
daemon needs no library for it; a test reads it with Prometheus' own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from edgelink.overlay.overlay_drops import MEANINGS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATUS = {"True": 1, "False": 0, "Unknown": -1}
_PHASES = ("Starting", "Ready", "Degraded", "Stopping", "Failed")


@dataclass(frozen=True)
class Metric:
    """One family. ``where``: which daemons have it."""

    name: str
    kind: str  # gauge, or counter: since the daemon started, unless it says otherwise
    labels: tuple[str, ...]
    meaning: str
    where: str = "all"

    def __call__(self, value: float, *labels: object) -> Sample:
        assert len(labels) == len(self.labels), self.name
        return Sample(self, tuple("" if label is None else str(label) for label in labels), float(value))


@dataclass(frozen=True)
class Sample:
    metric: Metric
    labels: tuple[str, ...]
    value: float


def _gauge(name: str, meaning: str, *labels: str, where: str = "all") -> Metric:
    return Metric(name, "gauge", labels, meaning, where)


def _counter(name: str, meaning: str, *labels: str, where: str = "all") -> Metric:
    return Metric(name, "counter", labels, meaning, where)


INFO = _gauge("edgelink_info", "1; who this node is", "role", "version", "hostname", "overlay_ip")
READY = _gauge("edgelink_ready", "1: the node is ready, as `edgelink status` says")
PHASE = _gauge("edgelink_phase", "1 for the phase that the node is in, 0 for the others", "phase")
CONDITION = _gauge(
    "edgelink_condition", "each condition: 1 True, 0 False, -1 Unknown; [reasons](conditions.md)", "type", "reason"
)
CONDITION_SINCE = _gauge(
    "edgelink_condition_since_timestamp_seconds", "when the condition's status last changed", "type"
)
RIDE_THROUGH = _gauge("edgelink_ride_through_seconds", "how long an outage may be without costing a node")
CPU = _counter("edgelink_daemon_cpu_seconds_total", "CPU time of the daemon, since its process started")
RSS = _gauge("edgelink_daemon_resident_memory_bytes", "memory of the daemon")
CONNECTED = _gauge(
    "edgelink_registry_connected", "1: in touch with the relay's broker by MQTT; on the relay: it serves"
)
REFUSED = _counter("edgelink_refused_total", "messages that were not believed or understood", "reason")
LEASE = _gauge("edgelink_lease_granted_timestamp_seconds", "when this node's lease was granted")
RX = _counter("edgelink_overlay_receive_bytes_total", "bytes in by the overlay's device, since it was made", "device")
TX = _counter("edgelink_overlay_transmit_bytes_total", "bytes out by it", "device")
MTU = _gauge("edgelink_overlay_mtu_bytes", "its MTU", "device")
EASYTIER = _gauge("edgelink_easytier_running", "1: EasyTier runs here")
EASYTIER_STARTS = _counter(
    "edgelink_easytier_starts_total", "how often this daemon started EasyTier; 0: it was adopted"
)
EASYTIER_CPU = _counter("edgelink_easytier_cpu_seconds_total", "CPU time of EasyTier, since it started")
DROPPED = _counter(
    "edgelink_overlay_dropped_packets_total",
    "packets that EdgeLink's nftables dropped on or beside the overlay's device, looked at every 30 s: "
    + ", ".join(f"`{kind}` {meaning}" for kind, meaning in MEANINGS.items()),
    "kind",
)
PATHS = _gauge("edgelink_paths", "how many other nodes EasyTier reaches directly, how many through others", "path")
_NAMED = "; on relay and head of every other node, on edges of relays and head"
PATH = _gauge("edgelink_path", f"1: the way to that node{_NAMED}", "peer", "path", "via", "protocol")
PATH_LATENCY = _gauge("edgelink_path_latency_seconds", "EasyTier's own round trip on it, where it measures one", "peer")
PATH_LOSS = _gauge("edgelink_path_loss_ratio", "what share of EasyTier's own pings is lost, on direct ones", "peer")
PATH_FULL = _gauge(
    "edgelink_path_loses_full_packets", "1: small packets pass and full ones do not: `overlay.mtu` is too large", "peer"
)
RTT = _gauge(
    "edgelink_peer_rtt_seconds",
    "round trip of the daemon's last echo from that node; absent: no answer",
    "peer",
    where="all but a registry's relay",
)
PINGS = _counter("edgelink_peer_pings_total", "echoes asked of that node", "peer", where="all but a registry's relay")
LOST = _counter(
    "edgelink_peer_pings_lost_total", "those of them without an answer", "peer", where="all but a registry's relay"
)
PAIRS_LOST = _counter(
    "edgelink_pairs_lost_total",
    "how often this node and that one lost each other while a relay answered both",
    "peer",
    where="head and edges",
)
PAIRS_HEALED = _counter(
    "edgelink_pairs_healed_total",
    "how often that ended, and by what of this node's: `close` (a connection to the relay), `restart` (of EasyTier), "
    "`other` (nothing of its own)",
    "peer",
    "by",
    where="head and edges",
)
ENROLLED = _gauge("edgelink_nodes_enrolled", "nodes that hold a lease", where="the registry's relay")
ONLINE = _gauge(
    "edgelink_nodes_online",
    "those that are in touch with the broker, the relay itself included",
    where="the registry's relay",
)
WANTED = _gauge("edgelink_ray_nodes_expected", "nodes that take part, the head included", where="head")
ALIVE = _gauge(
    "edgelink_ray_nodes_alive", "those of them that are alive in Ray with their rank, and answer", where="head"
)
CPUS = _gauge("edgelink_ray_cpus", "CPUs that Ray has of them", where="head")
GPUS = _gauge("edgelink_ray_gpus", "GPUs that Ray has of them", where="head")
NODE = _gauge("edgelink_ray_node_alive", "1: that node is alive in Ray, and answers", "node", "node_rank", where="head")
PAUSED = _gauge(
    "edgelink_ray_node_paused_seconds",
    "since the last answer of a node that Ray still counts as alive; 0: it is not paused",
    "node",
    "node_rank",
    where="head",
)
WITHOUT_RAY = _gauge(
    "edgelink_node_without_ray_ready",
    "1: that node, which has no Ray by its configuration, is up, and answers",
    "node",
    where="head",
)
STRANGERS = _gauge("edgelink_ray_strangers", "nodes in Ray that are none of this network's", where="head")
RUN = _gauge("edgelink_run_in_progress", "1: a driver runs", where="head")
ATTEMPT = _gauge("edgelink_run_attempts", "how often the driver of the present or last run was started", where="head")
STEP = _gauge("edgelink_run_step", "how far it is, if it writes a number to EDGELINK_STEP_FILE", where="head")

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


def of_status(status: Mapping[str, Any]) -> Iterator[Sample]:
    """What every daemon tells of itself in ``/status``."""
    yield INFO(1, status["role"], status["version"], status["hostname"], status["overlay_ip"])
    yield READY(status["ready"])
    for phase in _PHASES:
        yield PHASE(status["phase"] == phase, phase)
    for condition in status["conditions"]:
        yield CONDITION(_STATUS[condition["status"]], condition["type"], condition["reason"])
        since = datetime.fromisoformat(condition["since"]).timestamp()
        yield CONDITION_SINCE(since, condition["type"])
    yield RIDE_THROUGH(status["ride_through_s"])
    for reason, count in status.get("refused", {}).items():
        yield REFUSED(count, reason)


def of_paths(ways: Iterable[Mapping[str, Any]], named: Collection[str] | None) -> Iterator[Sample]:
    """What ``/paths`` tells.

    Args:
        named: the hostnames that are told one by one, so that a large network does not make as many series as there
            are pairs of nodes; None: all.
    """
    ways = list(ways)
    for path in ("direct", "relayed"):
        yield PATHS(sum(way["path"] == path for way in ways), path)
    seen: set[str] = set()
    for way in ways:
        peer = way["hostname"]
        if (named is not None and peer not in named) or peer in seen:
            continue
        seen.add(peer)  # two nodes of one name are told of by AddressesUnique; a series may come once only
        yield PATH(1, peer, way["path"], way["via"], way["protocol"])
        yield PATH_FULL(way["loses_full_packets"], peer)
        if way["latency_ms"] is not None:
            yield PATH_LATENCY(way["latency_ms"] / 1000, peer)
        if way["loss"] is not None:
            yield PATH_LOSS(way["loss"], peer)


def of_pings(rtt_ms: Mapping[str, float], sent: Mapping[str, int], lost: Mapping[str, int]) -> Iterator[Sample]:
    """Of the daemon's own pings, by hostname."""
    for peer, rtt in rtt_ms.items():
        yield RTT(rtt / 1000, peer)
    for peer, count in sent.items():
        yield PINGS(count, peer)
        yield LOST(lost.get(peer, 0), peer)


def of_pairs(lost: Mapping[str, int], healed: Mapping[tuple[str, str], int]) -> Iterator[Sample]:
    """Count the pairs of nodes that were dead, by the other's hostname."""
    for peer, count in lost.items():
        yield PAIRS_LOST(count, peer)
    for (peer, by), count in healed.items():
        yield PAIRS_HEALED(count, peer, by)


def of_fleet(nodes: Iterable[Mapping[str, Any]]) -> Iterator[Sample]:
    """Of those that hold a lease, as the registry's relay lists them in ``/status``."""
    nodes = list(nodes)
    yield ENROLLED(len(nodes))
    yield ONLINE(sum(bool(node["online"]) for node in nodes))


def of_cluster(nodes: Iterable[Mapping[str, Any]], totals: Mapping[str, float], strangers: int) -> Iterator[Sample]:
    """Of those that take part in Ray: ``hostname``, ``node_rank``, ``ready`` and ``paused_s`` of each."""
    nodes = list(nodes)
    yield WANTED(len(nodes))
    yield ALIVE(totals["nodes"])
    yield CPUS(totals["cpus"])
    yield GPUS(totals["gpus"])
    yield STRANGERS(strangers)
    for node in nodes:
        yield NODE(node["ready"], node["hostname"], node["node_rank"])
        yield PAUSED(node["paused_s"] or 0, node["hostname"], node["node_rank"])


def of_nodes_without_ray(nodes: Iterable[Mapping[str, Any]]) -> Iterator[Sample]:
    """Return a sample of each node that has no Ray. ``nodes`` tells ``hostname`` and ``ready`` of each."""
    for node in nodes:
        yield WITHOUT_RAY(node["ready"], node["hostname"])


def of_run(run: Mapping[str, Any] | None) -> Iterator[Sample]:
    """Of the run in progress, else of the last one."""
    yield RUN(bool(run and run["in_progress"]))
    attempts = run["attempts"] if run else []
    yield ATTEMPT(len(attempts))
    with suppress(ValueError):  # it says so in its own words
        yield STEP(float((attempts[-1]["step"] if attempts else None) or "none"))


def exposition(samples: Iterable[Sample]) -> str:
    """The text form, families in the order of the table, each with its help and type."""
    by_metric: dict[str, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric.name, []).append(sample)
    lines: list[str] = []
    for metric in ALL:
        found = by_metric.get(metric.name)
        if found:
            lines += [f"# HELP {metric.name} {_escaped(metric.meaning)}", f"# TYPE {metric.name} {metric.kind}"]
            lines += map(_line, found)
    return "\n".join(lines) + "\n"


def _line(sample: Sample) -> str:
    pairs = zip(sample.metric.labels, sample.labels, strict=True)
    labels = ",".join(f'{name}="{_quoted(value)}"' for name, value in pairs)
    value = int(sample.value) if sample.value.is_integer() else sample.value
    return f"{sample.metric.name}{{{labels}}} {value}" if labels else f"{sample.metric.name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')

"""Metrics of a node for Prometheus: what there is, as one table, and its text form.

The functions take what the daemon tells in ``/status``, ``/paths`` and ``/nodes`` as they stand there, and are pure.
``python -m edgelink.api.metrics > docs/reference/metrics.md`` writes the page.

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


INFO = Metric("edgelink_info", "gauge", ("role", "version", "hostname", "overlay_ip"), "1; who this node is")
READY = Metric("edgelink_ready", "gauge", (), "1: the node is ready, as `edgelink status` says")
PHASE = Metric("edgelink_phase", "gauge", ("phase",), "1 for the phase that the node is in, 0 for the others")
CONDITION = Metric(
    "edgelink_condition",
    "gauge",
    ("type", "reason"),
    "each condition: 1 True, 0 False, -1 Unknown; [reasons](conditions.md)",
)
CONDITION_SINCE = Metric(
    "edgelink_condition_since_timestamp_seconds", "gauge", ("type",), "when the condition's status last changed"
)
RIDE_THROUGH = Metric("edgelink_ride_through_seconds", "gauge", (), "how long an outage may be without costing a node")
CPU = Metric("edgelink_daemon_cpu_seconds_total", "counter", (), "CPU time of the daemon, since its process started")
RSS = Metric("edgelink_daemon_resident_memory_bytes", "gauge", (), "memory of the daemon")
CONNECTED = Metric(
    "edgelink_registry_connected", "gauge", (), "1: in touch with the relay's broker by MQTT; on the relay: it serves"
)
REFUSED = Metric("edgelink_refused_total", "counter", ("reason",), "messages that were not believed or understood")
LEASE = Metric("edgelink_lease_granted_timestamp_seconds", "gauge", (), "when this node's lease was granted")
RX = Metric(
    "edgelink_overlay_receive_bytes_total",
    "counter",
    ("device",),
    "bytes in by the overlay's device, since it was made",
)
TX = Metric("edgelink_overlay_transmit_bytes_total", "counter", ("device",), "bytes out by it")
MTU = Metric("edgelink_overlay_mtu_bytes", "gauge", ("device",), "its MTU")
EASYTIER = Metric("edgelink_easytier_running", "gauge", (), "1: EasyTier runs here")
EASYTIER_STARTS = Metric(
    "edgelink_easytier_starts_total", "counter", (), "how often this daemon started EasyTier; 0: it was adopted"
)
EASYTIER_CPU = Metric("edgelink_easytier_cpu_seconds_total", "counter", (), "CPU time of EasyTier, since it started")
DROPPED = Metric(
    "edgelink_overlay_dropped_packets_total",
    "counter",
    ("kind",),
    "packets that EdgeLink's nftables dropped on or beside the overlay's device, looked at every 30 s: "
    + ", ".join(f"`{kind}` {meaning}" for kind, meaning in MEANINGS.items()),
)
PATHS = Metric(
    "edgelink_paths", "gauge", ("path",), "how many other nodes EasyTier reaches directly, how many through others"
)
_NAMED = "; on relay and head of every other node, on edges of relays and head"
PATH = Metric("edgelink_path", "gauge", ("peer", "path", "via", "protocol"), f"1: the way to that node{_NAMED}")
PATH_LATENCY = Metric(
    "edgelink_path_latency_seconds", "gauge", ("peer",), "EasyTier's own round trip on it, where it measures one"
)
PATH_LOSS = Metric(
    "edgelink_path_loss_ratio", "gauge", ("peer",), "what share of EasyTier's own pings is lost, on direct ones"
)
PATH_FULL = Metric(
    "edgelink_path_loses_full_packets",
    "gauge",
    ("peer",),
    "1: small packets pass and full ones do not: `overlay.mtu` is too large",
)
RTT = Metric(
    "edgelink_peer_rtt_seconds",
    "gauge",
    ("peer",),
    "round trip of the daemon's last echo from that node; absent: no answer",
    "all but a registry's relay",
)
PINGS = Metric(
    "edgelink_peer_pings_total", "counter", ("peer",), "echoes asked of that node", "all but a registry's relay"
)
LOST = Metric(
    "edgelink_peer_pings_lost_total",
    "counter",
    ("peer",),
    "those of them without an answer",
    "all but a registry's relay",
)
PAIRS_LOST = Metric(
    "edgelink_pairs_lost_total",
    "counter",
    ("peer",),
    "how often this node and that one lost each other while a relay answered both",
    "head and edges",
)
PAIRS_HEALED = Metric(
    "edgelink_pairs_healed_total",
    "counter",
    ("peer", "by"),
    "how often that ended, and by what of this node's: `close` (a connection to the relay), `restart` (of EasyTier), "
    "`other` (nothing of its own)",
    "head and edges",
)
ENROLLED = Metric("edgelink_nodes_enrolled", "gauge", (), "nodes that hold a lease", "the registry's relay")
ONLINE = Metric(
    "edgelink_nodes_online",
    "gauge",
    (),
    "those that are in touch with the broker, the relay itself included",
    "the registry's relay",
)
WANTED = Metric("edgelink_ray_nodes_expected", "gauge", (), "nodes that take part, the head included", "head")
ALIVE = Metric(
    "edgelink_ray_nodes_alive", "gauge", (), "those of them that are alive in Ray with their rank, and answer", "head"
)
CPUS = Metric("edgelink_ray_cpus", "gauge", (), "CPUs that Ray has of them", "head")
GPUS = Metric("edgelink_ray_gpus", "gauge", (), "GPUs that Ray has of them", "head")
NODE = Metric(
    "edgelink_ray_node_alive", "gauge", ("node", "node_rank"), "1: that node is alive in Ray, and answers", "head"
)
PAUSED = Metric(
    "edgelink_ray_node_paused_seconds",
    "gauge",
    ("node", "node_rank"),
    "since the last answer of a node that Ray still counts as alive; 0: it is not paused",
    "head",
)
WITHOUT_RAY = Metric(
    "edgelink_node_without_ray_ready",
    "gauge",
    ("node",),
    "1: that node, which has no Ray by its configuration, is up, and answers",
    "head",
)
STRANGERS = Metric("edgelink_ray_strangers", "gauge", (), "nodes in Ray that are none of this network's", "head")
RUN = Metric("edgelink_run_in_progress", "gauge", (), "1: a driver runs", "head")
ATTEMPT = Metric(
    "edgelink_run_attempts", "gauge", (), "how often the driver of the present or last run was started", "head"
)
STEP = Metric("edgelink_run_step", "gauge", (), "how far it is, if it writes a number to EDGELINK_STEP_FILE", "head")

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

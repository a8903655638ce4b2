"""Models of what ``--json`` prints. Tests and the documentation go by them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgelink.api.json_version import VERSION

_Version = Annotated[int, f"of this schema: {VERSION}", Field(alias="schema")]
_NOT_ALWAYS: Any = None


class Document(BaseModel):
    """Base of the documents: a key that is not declared is an error.

    A string in ``Annotated`` says what the key means.
    """

    model_config = ConfigDict(extra="forbid", strict=True)


class Condition(Document):
    """An observable fact of a node; [all of them](conditions.md)."""

    type: Annotated[str, "its name"]
    status: Annotated[Literal["True", "False", "Unknown"], "text, because there are three"]
    reason: Annotated[str, "one word in CamelCase; stable"]
    message: Annotated[str, "for people; not stable"]
    since: Annotated[str, "when the status last changed, ISO 8601"]
    final: Annotated[bool, "no retry can mend it: a person has to act"]


class Path(Document):
    """On what way EasyTier reaches another node at this moment."""

    hostname: Annotated[str, "of the other node"]
    overlay_ip: Annotated[str, "its overlay address"]
    path: Annotated[Literal["direct", "relayed"], ""]
    via: Annotated[str | None, "through whom, if it is relayed and EasyTier says so"]
    protocol: Annotated[str | None, "of a direct one: tcp, udp, …"]
    latency_ms: Annotated[float | None, "EasyTier's own round trip, where it measures one"]
    loss: Annotated[float | None, "share of EasyTier's own pings that is lost on a direct one, 0 to 1"]
    loses_full_packets: Annotated[bool, "small packets pass and full ones do not: `overlay.mtu` is too large"]
    received: Annotated[str, "on a direct one, since it was made, in EasyTier's rounded words; empty: not told"]
    sent: Annotated[str, "likewise"]


class Impact(Document):
    """What a node that is Degraded still does."""

    goes_on: Annotated[list[str], "parts, in words"]
    waits: Annotated[list[str], "likewise"]


class Head(Document):
    """The head, as the registry names it."""

    hostname: Annotated[str, ""]
    overlay_ip: Annotated[str, ""]


class Lease(Document):
    """A node that holds a lease, as the registry's relay lists it."""

    hostname: Annotated[str, ""]
    node_id: Annotated[str, "fingerprint of its key"]
    role: Annotated[Literal["relay", "head", "edge"], ""]
    overlay_ip: Annotated[str, ""]
    preferred_rank: Annotated[int | None, "null: it takes no part in Ray"]
    online: Annotated[bool, "in touch with the broker"]
    phase: Annotated[str, "as it says itself; Unknown: it was never heard; Left: it has left, and keeps its lease"]
    paused: Annotated[bool, "the head misses it, and Ray rides through"]


class Attempt(Document):
    """One start of a run's command."""

    number: Annotated[int, "from 1"]
    started_at: Annotated[str, "ISO 8601"]
    ended_at: Annotated[str | None, "null: it runs"]
    exit_status: Annotated[int | None, ""]
    lost_nodes: Annotated[list[str], "whose Ray died under it"]
    step: Annotated[str | None, "how far it says it is"]
    what_followed: Annotated[str, "why it was not the last one, in words"]
    waits_for: Annotated[list[str], "what waits in Ray for room: what it wants, and what there is; empty: nothing"]


class Run(Document):
    """The run in progress, else the last one."""

    run_id: Annotated[str, ""]
    command: Annotated[str, "the program, with its script or EdgeLink's verb; other arguments may hold secrets"]
    retries: Annotated[int, "as asked for"]
    on_node_loss: Annotated[str, "as asked for"]
    attempts: Annotated[list[Attempt], ""]
    in_progress: Annotated[bool, ""]


class Cluster(Document):
    """What the head says of its Ray."""

    ray_address: Annotated[str, "address:port in the overlay"]
    ray_version: Annotated[str, ""]
    python_version: Annotated[str, "that Ray runs in"]


class Daemon(Document):
    """One daemon of this machine; relay and head may share one."""

    role: Annotated[Literal["bootstrap", "head", "edge"], "the command that started it"]
    version: Annotated[str, "of EdgeLink"]
    pid: Annotated[int, ""]
    node_id: Annotated[str, "fingerprint of the node's key"]
    network_id: Annotated[str | None, "null: not enrolled yet; so are the next two"]
    hostname: Annotated[str | None, "in the network"]
    overlay_ip: Annotated[str | None, ""]
    device: Annotated[str, "of the overlay"]
    phase: Annotated[Literal["Starting", "Ready", "Degraded", "Stopping", "Failed"], ""]
    ready: Annotated[bool, ""]
    ride_through_s: Annotated[int, "how long an outage may be without costing a node"]
    conditions: Annotated[list[Condition], "those that make it ready first"]
    impact: Annotated[Impact | None, "of a node that is Degraded"]
    easytier_pid: Annotated[int | None, ""]
    node_rank: Annotated[int | None, "in Ray's cluster; null: not in it, or a relay"]
    paths: Annotated[list[Path], "to every other node that EasyTier lists"]
    refused: Annotated[dict[str, int], "messages that were not believed, by reason"]
    preferred_rank: Annotated[int | None, "of its lease; not on the registry's relay"] = _NOT_ALWAYS
    head: Annotated[Head | None, "likewise"] = _NOT_ALWAYS
    rtt_ms: Annotated[dict[str, float], "the last ping's round trip by hostname: relays and head; likewise"] = (
        _NOT_ALWAYS
    )
    cluster: Annotated[Cluster | None, "null: the head has not been heard; head and edges"] = _NOT_ALWAYS
    has_ray: Annotated[bool, "false: it has no Ray by its configuration (`ray: off`); head and edges"] = _NOT_ALWAYS
    ray_auth: Annotated[str | None, "what protects Ray: token, firewall only, none; head and edges"] = _NOT_ALWAYS
    run: Annotated[Run | None, "head"] = _NOT_ALWAYS
    broker_pid: Annotated[int | None, "the registry's relay"] = _NOT_ALWAYS
    nodes: Annotated[list[Lease], "the registry's relay"] = _NOT_ALWAYS


class Status(Document):
    """`edgelink status --json`"""

    schema_version: _Version
    ready: Annotated[bool, "all daemons of this machine are"]
    daemons: Annotated[list[Daemon], "that answer"]
    silent: Annotated[
        list[str], "what is said of each that does not, although its socket is there; `ready` is false then"
    ]


class Standing(Document):
    """How a node that takes part in Ray stands."""

    state: Annotated[
        Literal["ready", "paused", "off", "coming", "missing", "silent"],
        "paused: alive in Ray, which rides through, and not answering; off: switched off on purpose; coming: on its "
        "way into Ray; missing: nobody is enrolled; silent: neither in Ray nor there",
    ]
    paused_s: Annotated[float | None, "seconds since its last answer; null: it is not paused"]
    gives_up_in_s: Annotated[float | None, "seconds until Ray may give it up, at the earliest; null: it is not paused"]
    told_by: Annotated[
        str | None,
        "who says that it is paused: echo; registry, overlay (not up here), route (none into it here), or several",
    ]


class Node(Standing):
    """A node that takes part in Ray, or has none by its configuration, as the head sees it."""

    hostname: Annotated[str | None, "null: nobody is enrolled with this rank"]
    node_id: Annotated[str | None, ""]
    role: Annotated[str | None, "head or edge"]
    node_rank: Annotated[int | None, "null: it has no Ray"]
    has_ray: Annotated[bool, "false: it has none by its configuration (`ray: off`)"]
    overlay_ip: Annotated[str | None, ""]
    online: Annotated[bool | None, "in touch with the broker; null: never heard"]
    phase: Annotated[str | None, "as it says itself; null while it is not online"]
    ready: Annotated[bool, "alive in Ray with this rank, and answering; without Ray: up, and answering"]
    ray: Annotated[str, "alive, paused and for how long, what it waits for, or that it has no Ray, in words"]
    ray_node_id: Annotated[str | None, ""]
    path: Annotated[Literal["self", "direct", "relayed"] | None, "from the head; null: EasyTier does not list it"]
    via: Annotated[str | None, "through whom"]
    protocol: Annotated[str | None, ""]
    latency_ms: Annotated[float | None, ""]
    loses_full_packets: Annotated[bool, "small packets pass and full ones do not"]
    cpus: Annotated[float, "that Ray has of it"]
    gpus: Annotated[int, "likewise"]
    labels: Annotated[dict[str, str], "of its lease"]
    open_ports: Annotated[list[str], "what it answers over the overlay by access rules, in words"]
    versions: Annotated[dict[str, str | None], "edgelink, easytier, python, ray, and of packages that have to match"]
    wrong: Annotated[list[str], "what a person should look at"]


class Stranger(Document):
    """A node in Ray that is none of this network's."""

    overlay_ip: Annotated[str, "its address"]
    hostname: Annotated[str, "as Ray says"]
    node_rank: Annotated[int | None, "that it claims"]
    ray_node_id: Annotated[str, ""]
    cpus: Annotated[float, ""]
    gpus: Annotated[int, ""]
    wrong: Annotated[list[str], "why it is none"]


class LeftOut(Document):
    """A node that the run in progress did not ask for."""

    hostname: Annotated[str, ""]
    node_id: Annotated[str, ""]
    overlay_ip: Annotated[str, ""]


class Totals(Document):
    """Of the nodes that are alive in Ray."""

    enrolled: Annotated[int, "nodes that take part in Ray, alive or not"]
    without_ray: Annotated[int, "nodes that have no Ray by their configuration"]
    nodes: Annotated[int, "that are alive"]
    gpus: Annotated[int, ""]
    cpus: Annotated[float, ""]


class Nodes(Document):
    """`edgelink nodes --json` on the head"""

    schema_version: _Version
    nodes: Annotated[list[Node], "by rank"]
    edges_open_to: Annotated[
        Literal["all", "members", "head"],
        "who reaches Ray and a training on an edge, beside head and relays: all, those of the run in progress, none",
    ]
    strangers: Annotated[list[Stranger], ""]
    left_out: Annotated[list[LeftOut], ""]
    totals: Annotated[Totals, ""]


class Member(Document):
    """A member of the network, as the relay or an edge knows it."""

    hostname: Annotated[str | None, "null: this machine, which has not joined"]
    role: Annotated[Literal["relay", "head", "edge"] | None, "null: EasyTier alone tells of it"]
    node_rank: Annotated[int | None, ""]
    overlay_ip: Annotated[str | None, ""]
    state: Annotated[
        str | None,
        "on the relay the phase that it tells of itself, in small letters, offline, off (on purpose) or left; on an "
        "edge answers or silent; null: not known here",
    ]
    path: Annotated[Literal["self", "direct", "relayed"] | None, "from this machine; null: not known"]
    via: Annotated[str | None, "through whom"]
    protocol: Annotated[str | None, ""]
    latency_ms: Annotated[float | None, "EasyTier's own"]
    loss: Annotated[float | None, "EasyTier's own, 0 to 1"]
    loses_full_packets: Annotated[bool | None, ""]


class Members(Document):
    """`edgelink nodes --json` on the relay and on edges"""

    schema_version: _Version
    members: Annotated[list[Member], "this machine first"]


class Probe(Document):
    """`edgelink ping --json`, one line a ping"""

    event: Annotated[Literal["probe"], ""]
    seq: Annotated[int, "from 1"]
    hostname: Annotated[str, ""]
    overlay_ip: Annotated[str, ""]
    node_rank: Annotated[int | None, ""]
    role: Annotated[str | None, "null: only EasyTier tells of it"]
    rtt_ms: Annotated[float | None, "null: no answer"]
    bytes: Annotated[int, "of the packet, with IP's header"]
    path: Annotated[Literal["self", "direct", "relayed"] | None, "null: not known"]
    via: Annotated[str | None, "through whom"]
    protocol: Annotated[str | None, ""]
    latency_ms: Annotated[float | None, "EasyTier's own"]
    loss: Annotated[float | None, "EasyTier's own, 0 to 1"]
    loses_full_packets: Annotated[bool | None, ""]


class PingSummary(Document):
    """`edgelink ping --json`, the last line"""

    schema_version: _Version
    event: Annotated[Literal["summary"], ""]
    hostname: Annotated[str, ""]
    overlay_ip: Annotated[str, ""]
    sent: Annotated[int, ""]
    answered: Annotated[int, ""]
    loss: Annotated[float, "0 to 1"]
    rtt_min_ms: Annotated[float | None, "null, as the next ones: nobody answered"]
    rtt_median_ms: Annotated[float | None, ""]
    rtt_p95_ms: Annotated[float | None, ""]
    rtt_max_ms: Annotated[float | None, ""]
    ways: Annotated[list[str], "in words, each time that it changed"]


class Check(Document):
    """One question about this machine, answered."""

    check: Annotated[str, "its name; stable"]
    topic: Annotated[str, "what it is about"]
    verdict: Annotated[
        Literal["ok", "limited", "failed", "skipped"],
        "limited: it works, but holds less than it could; skipped: there is nothing to judge",
    ]
    message: Annotated[str, "for people"]
    figure: Annotated[str, "the number behind it, with its unit; may be empty"]
    remedy: Annotated[str, "what to do; may be empty"]


class Away(Document):
    """`status --watch` and `nodes --watch`, while no daemon answers."""

    schema_version: _Version
    error: Annotated[str, "who does not, for people"]


class Doctor(Document):
    """`edgelink doctor --json`"""

    schema_version: _Version
    ok: Annotated[bool, "nothing failed"]
    checks: Annotated[list[Check], ""]


class Awaited(Standing):
    """How far the node of one rank has come."""

    node_rank: Annotated[int, ""]
    hostname: Annotated[str | None, "null: nobody is enrolled with this rank"]
    overlay_ip: Annotated[str | None, ""]
    ready: Annotated[bool, ""]
    step: Annotated[str, "the condition that it stands at"]
    message: Annotated[str, "why, and what to do"]
    brief: Annotated[str, "in some words"]
    warnings: Annotated[list[str], "what does not keep it out"]
    cpus: Annotated[float, "that Ray has of it"]
    accelerators: Annotated[int, "likewise"]
    ray_node_id: Annotated[str | None, ""]
    device: Annotated[str | None, "of the overlay there"]
    online: Annotated[bool | None, "in touch with the broker"]
    without_ray: Annotated[bool, "by its own configuration; such a node is never waited for"]
    ray_known: Annotated[bool, "whether anybody can say who is alive in Ray"]


class Waiting(Document):
    """`edgelink wait --json`, one line a change"""

    event: Annotated[Literal["waiting"], ""]
    message: Annotated[str, "of `--for ready`: what the daemon waits for; empty: nothing more"] = _NOT_ALWAYS
    nodes: Annotated[list[Awaited], "of the other goals; so are the next two"] = _NOT_ALWAYS
    left_s: Annotated[float, "until the deadline"] = _NOT_ALWAYS
    notes: Annotated[list[str], "what else is wrong with the cluster"] = _NOT_ALWAYS


class Waited(Document):
    """`edgelink wait --json`, the last line; if it is too late, an error on stderr and exit status 75 instead"""

    event: Annotated[Literal["done"], ""]
    totals: Annotated[dict[str, float], "nodes, gpus and cpus that are alive in Ray"] = _NOT_ALWAYS


class Dashboard(Document):
    """`edgelink dashboard --json`"""

    schema_version: _Version
    url: Annotated[str, "of the page, with what logs one browser in; a secret while nobody has used it"]
    overlay_url: Annotated[str | None, "the same over the overlay; null: it does not listen there"]
    lives_s: Annotated[float, "how long the link may wait to be used"]
    ssh: Annotated[str, "the command with which a laptop outside the overlay reaches the page and Ray's dashboard"]
    ssh_address: Annotated[str, "of this machine, in that command"]
    ssh_address_known: Annotated[bool, "false: a private address or the head's own name, which may lead nobody here"]
    ray_dashboard: Annotated[str, "where Ray's dashboard is then"]
    ray_dashboard_answers: Annotated[bool, "false: Ray does not run, or its interpreter lacks `ray[default]`"]
    ray_token_path: Annotated[str | None, "the file with the token that it asks for; null: none"]


class LoggedOut(Document):
    """`edgelink dashboard --log-out --json`"""

    schema_version: _Version
    logged_out: Annotated[bool, "always true: no browser is logged in any more, and no link that was made before works"]


class Report(Document):
    """`edgelink report --json`"""

    schema_version: _Version
    path: Annotated[str, "of the bundle, absolute"]
    bytes: Annotated[int, "its size"]
    files: Annotated[int, "in it"]
    nodes: Annotated[
        list[str], "hostnames of those whose files are in it: this machine, then, with `--all`, the others"
    ]
    missing: Annotated[list[str], "hostnames of those that did not answer, with `--all`"]
    daemon_error: Annotated[str | None, "why no daemon of this machine told of itself; null: one did"]


class Unit(Document):
    """One daemon's unit; systemd's word is empty, or 0, where systemd does not run."""

    unit: Annotated[str, "its name"]
    file: Annotated[
        Literal["current", "outdated", "changed", "masked", "unknown"],
        "as this EdgeLink writes it; another EdgeLink's, or from another configuration; by hand; masked; not to be "
        "told while the configuration cannot be used",
    ]
    enabled: Annotated[bool, "started at boot"]
    active: Annotated[str, "systemd's ActiveState"]
    sub: Annotated[str, "systemd's SubState"]
    says: Annotated[str, "the daemon's own words, for people"]
    restarts: Annotated[int, "by systemd, since it was started"]
    result: Annotated[str, "why it ended, as systemd says"]
    exit_status: Annotated[int, "with which it ended last"]


class Service(Document):
    """`edgelink service status --json`"""

    schema_version: _Version
    well: Annotated[bool, "installed, and all units are active"]
    is_booted: Annotated[bool, "systemd runs here"]
    units: Annotated[list[Unit], "of the installed daemons"]
    online: Annotated[bool, "`edgelink-online.target` is reached"]
    drop_ins: Annotated[list[str], "paths of what an administrator has added to the units"]
    needs_reload: Annotated[bool, "a file was changed since systemd has read it: `systemctl daemon-reload`"]
    config_error: Annotated[str | None, "why an installed daemon could not use the configuration as it is now"]


class LogLine(Document):
    """`edgelink logs --json`, one line an event; with fields of its own beside these"""

    model_config = ConfigDict(extra="allow")

    timestamp: Annotated[str, "ISO 8601"]
    level: Annotated[str, "debug, info, warning, error"]
    event: Annotated[str, "its name, such as `node.condition`; of systemd's own lines their text"]
    component: Annotated[str, "what part of the daemon says so"] = _NOT_ALWAYS


class EasyTier(Document):
    """The easytier-core that the configuration or PATH leads to."""

    version: Annotated[str, ""]
    core: Annotated[str, "its path"]


class Ray(Document):
    """The interpreter that Ray runs in, as `ray.python` or PATH says."""

    version: Annotated[str, "of Ray"]
    python: Annotated[str, "its version"]
    interpreter: Annotated[str, "its path"]
    packages: Annotated[dict[str, str], "versions of those that have to match the head's"]


class Version(Document):
    """`edgelink version --json`"""

    schema_version: _Version
    edgelink: Annotated[str, "the version of EdgeLink"]
    python: Annotated[str, "version of the Python that EdgeLink runs on"]
    interpreter: Annotated[str, "its path"]
    platform: Annotated[str, "such as linux-aarch64"]
    protocol: Annotated[int, "of what nodes and registry say to each other; nodes work together where it is the same"]
    registry_schema: Annotated[int, "of the relay's database; an older EdgeLink refuses a newer one"]
    easytier: Annotated[EasyTier | None, "null: none, and `problems` says why"]
    ray: Annotated[Ray | None, "likewise"]
    problems: Annotated[dict[str, str], "by `config`, `easytier` or `ray`: why it is null, and what to do"]


DOCUMENTS: tuple[type[Document], ...] = (
    Status,
    Nodes,
    Members,
    Away,
    Doctor,
    Probe,
    PingSummary,
    Waiting,
    Waited,
    Dashboard,
    LoggedOut,
    Report,
    Service,
    LogLine,
    Version,
)

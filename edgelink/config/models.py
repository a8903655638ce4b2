"""The configuration file's schema. Unknown keys are errors; every key has a default or a reason to lack one."""

from __future__ import annotations

import re
import unicodedata
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from edgelink.config.defaults import DEFAULT_RIDE_THROUGH_S
from edgelink.config.hosts import has_address_in_brackets
from edgelink.config.overlay_allow import parse_allowed
from edgelink.config.schemes import OVER_TCP, OVER_UDP
from edgelink.duration import parse_duration_s


def _matching(pattern: str, wanted: str) -> AfterValidator:
    """Refuse a text that is not as ``pattern`` has it."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(f"has to be {wanted}")
        return text

    return AfterValidator(check)


Port = Annotated[int, Field(ge=1, le=65535)]
# The kernel's limit (IFNAMSIZ is 16 with the terminating NUL); EasyTier passes the name on unchecked.
DeviceName = Annotated[str, _matching(r"[A-Za-z0-9_.-]{1,15}", "1 to 15 letters, digits, dots, dashes and _")]
HOSTNAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$"
_HOSTNAME_LENGTH = 32  # EasyTier cuts what is longer


def is_hostname(text: str) -> bool:
    """Whether a machine can have this name in the network."""
    return re.fullmatch(HOSTNAME_PATTERN, text) is not None


def hostname_like(os_name: str) -> str:
    """Return the name in the network that is closest to the OS's hostname. It is empty where none of it can stay.

    Of a domain name the first part counts. Letters lose their accents, and what no name may have becomes a dash.
    """
    plain = unicodedata.normalize("NFKD", os_name.split(".")[0].lower()).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:_HOSTNAME_LENGTH].rstrip("-")


Hostname = Annotated[str, _matching(HOSTNAME_PATTERN, "1 to 32 of a-z, 0-9 and, inside, dashes")]


def _whole_seconds(value: object) -> object:
    return round(parse_duration_s(value)) if isinstance(value, str) else value


# Shorter than the first bound Ray's own settings do; longer than the second nobody waits for.
RideThrough = Annotated[int, BeforeValidator(_whole_seconds), Field(ge=30, le=3600)]


def _port_range(value: object) -> object:
    """``29500``, ``"32768-60999"`` or a pair."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value, value)
    if isinstance(value, str):
        first, _, last = value.partition("-")
        return (first.strip(), (last or first).strip())
    return value


def _in_order(what: str) -> AfterValidator:
    def check(value: tuple[Any, Any]) -> tuple[Any, Any]:
        if value[0] > value[1]:
            raise ValueError(f"the first {what} of a range is not above its last one")
        return value

    return AfterValidator(check)


PortRange = Annotated[tuple[Port, Port], BeforeValidator(_port_range), _in_order("port")]


def _check_allowed(text: str) -> str:
    parse_allowed(text)
    return text


# A port alone may be written as a number.
AllowedPorts = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, int) and not isinstance(value, bool) else value),
    AfterValidator(_check_allowed),
]


def _check_source(text: str) -> str:
    """An address, a network, or a device: what looks like the former is not taken for the latter."""
    try:
        ip_network(text, strict=False)
    except ValueError:
        if re.fullmatch(r"[0-9./]+|.*:.*", text) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,15}", text):
            raise ValueError(f"{text!r} is neither address, network (192.168.1.0/24), nor device") from None
    return text


Source = Annotated[str, AfterValidator(_check_source)]

# What EdgeLink itself tells Ray, RLinf and the collectives of a node; the same names are in `ray_environment`.
_SET_BY_EDGELINK = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "EDGELINK_*",
    "RLINF_NODE_RANK",
    "RLINF_COMM_NET_DEVICES",
    "RAY_ADDRESS",
    "RAY_AUTH_*",
    "RAY_USAGE_STATS_*",
    "RAY_health_check_*",
    "RAY_gcs_*_timeout_*",
    "RAY_gcs_storage*",
    "RAY_grpc_*keepalive_timeout_ms",
    "RAY_subscriber_timeout_ms",
    "RAY_gcs_pull_resource_loads_period_milliseconds",
    "RAY_ray_syncer_message_refresh_interval_ms",
    "RAY_fetch_fail_timeout_milliseconds",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
    "*_SOCKET_IFNAME",
    "CCL_MNIC_NAME",
)


def _check_variable(name: str) -> str:
    """A name that a node's Ray may be given a value of."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
        raise ValueError(f"{name!r} is no name of a variable")
    if any(fnmatchcase(name, pattern) for pattern in _SET_BY_EDGELINK):
        raise ValueError(f"{name} is set by EdgeLink itself")
    return name


Variable = Annotated[str, AfterValidator(_check_variable)]
VariableValue = Annotated[str, _matching(r"[^\x00]*", "a text without NUL")]

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DIALLED_HOST = re.compile(rf"(?=.{{1,240}}$){_LABEL}(\.{_LABEL})*|\[[0-9A-Fa-f:.]{{2,45}}\]")


def _check_listeners(urls: tuple[str, ...]) -> tuple[str, ...]:
    """EasyTier would take what it does not understand for a panic or a default."""
    for url in urls:
        try:
            parts = urlsplit(url)
            is_whole = bool(parts.scheme in OVER_TCP | OVER_UDP and parts.hostname and parts.port)
        except ValueError:
            is_whole = False
        if not is_whole:
            raise ValueError(f"{url!r} is not a listener's URL like tcp://0.0.0.0:11010")
    return urls


_OFF = BeforeValidator(lambda value: "off" if value is False else value)  # what YAML makes of it


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


DEFAULT_QUARANTINE_S = 86400


def _address_range(value: object) -> object:
    if not isinstance(value, str):
        return value
    first, dash, last = value.partition("-")
    if not dash:
        raise ValueError("give FIRST-LAST, like 10.10.0.100-10.10.0.199")
    return first.strip(), last.strip()


# Whether it lies in the network is not known here: what counts is the one that the registry has recorded.
AddressRange = Annotated[tuple[IPv4Address, IPv4Address], BeforeValidator(_address_range), _in_order("address")]


class RelayConfig(_Section):
    """``relay:`` what ``edgelink relay`` makes and offers."""

    network_name: Annotated[str, _matching(r"[A-Za-z0-9_.-]{1,64}", "1 to 64 letters, digits, dots, dashes and _")] = (
        Field("edgelink", description="EasyTier network name")
    )
    cidr: IPv4Network = Field(IPv4Network("10.10.0.0/24"), description="overlay network; /16 to /28")
    overlay_ip: IPv4Address | None = Field(
        None, description="the relay's own overlay IP; default: the first host (existing overlay: what its device has)"
    )
    advertise: tuple[str, ...] = Field((), description="public addresses or DNS names that nodes dial")
    easytier_listeners: tuple[str, ...] = Field(
        ("tcp://0.0.0.0:11010",),
        description="EasyTier listener URLs, 0.0.0.0 meaning IPv6 too; tcp:// is faster to recover",
    )
    broker_port: Port = Field(8883, description="port of the MQTT broker (TLS)")
    stun_ports: tuple[Port, ...] = Field(
        (3478, 3479), description="UDP ports on which the relay answers STUN for direct paths; `[]`: none"
    )

    quarantine: Annotated[int, BeforeValidator(_whole_seconds), Field(ge=0, le=365 * 86400)] = Field(
        DEFAULT_QUARANTINE_S,
        description="how long nobody gets the hostname, address and rank of a released node, in seconds or as `24h`",
    )
    ranges: dict[Literal["relay", "head", "edge"], AddressRange] | None = Field(
        None,
        description="from where addresses are dealt, by role, as `edge: 10.10.0.100-10.10.0.199`; recorded in the "
        "registry; default: as recorded there, at first from the whole network",
    )

    @field_validator("cidr")
    @classmethod
    def _usable_size(cls, value: IPv4Network) -> IPv4Network:
        if not 16 <= value.prefixlen <= 28:
            raise ValueError("the overlay network must be between /16 and /28")
        return value

    @field_validator("stun_ports")
    @classmethod
    def _at_most_two(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(value) > 2 or len(set(value)) != len(value):
            raise ValueError("STUN needs one port or two different ones")
        return value

    @field_validator("advertise")
    @classmethod
    def _can_be_dialled(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for host in value:
            if _DIALLED_HOST.fullmatch(host) is None or not has_address_in_brackets(host):
                raise ValueError(f"{host!r} is neither an address nor a DNS name (IPv6 in brackets, no port)")
        return value

    _listeners = field_validator("easytier_listeners")(_check_listeners)


class OverlayConfig(_Section):
    """``overlay:`` the device that Ray's traffic uses."""

    kind: Literal["easytier", "existing"] = Field(
        "easytier",
        description="`existing`: use a device that something else made (public address, VPC, another VPN)",
    )
    device: DeviceName = Field("et0", description="name of the TUN device, or of the existing device")
    mtu: int = Field(
        1300,
        ge=576,
        le=9000,
        description="EasyTier's MTU; the device gets 20 less, packets on a punched path have 60 more",
    )
    easytier_core: Path | Literal["wheel"] | None = Field(
        None,
        description="easytier-core to use, or `wheel`: that of the extra `easytier-wheel`, a third party's build of "
        "EasyTier's main; default: EDGELINK_EASYTIER, PATH, the cache",
    )
    listeners: tuple[str, ...] = Field(
        ("tcp://0.0.0.0:11010",),
        description="EasyTier listeners of a node that is not the relay; needed for direct paths on a routed network",
    )
    p2p: bool = Field(
        True, description="let EasyTier look for direct paths to other nodes; `false`: all traffic goes through a relay"
    )
    metered: bool | None = Field(
        None,
        description="`true`: the uplink costs by the byte, so ask less often; `false`: it does not; default: as "
        "NetworkManager says, where it runs",
    )
    heal_pairs: bool = Field(
        True,
        description="close a connection of EasyTier's, and at last restart EasyTier, where it is proven that this node "
        "and another one have lost each other although both reach a relay",
    )
    rpc_port: Port = Field(15888, description="EasyTier's RPC port on 127.0.0.1")

    _listeners = field_validator("listeners")(_check_listeners)


_PORTS_OF_EVERY_NODE = (
    *("node_manager_port", "object_manager_port", "runtime_env_agent_port", "dashboard_agent_grpc_port"),
    *("dashboard_agent_listen_port", "metrics_export_port"),
)
_PORTS_OF_THE_HEAD = ("port", "client_server_port", "dashboard_port")


class RayConfig(_Section):
    """``ray:`` how Ray is started on this node."""

    enabled: bool = Field(
        True,
        description="run Ray on this node; `ray: off` for short: the node is Ready with overlay and reachability, no "
        "interpreter with Ray is looked for, and no run can have a process of Ray there",
    )
    python: Path | None = Field(None, description="the interpreter that has Ray; default: python3 on PATH that has it")
    user: str | None = Field(None, description="user to run Ray as; default: owner of ray.python, else SUDO_USER")
    allow_root: bool = Field(False, description="let Ray run as root")
    port: Port = Field(6379, description="GCS port; set on the head, learnt by the edges")
    node_manager_port: Port = Field(20001, description="raylet")
    object_manager_port: Port = Field(20002, description="object transfer between nodes")
    runtime_env_agent_port: Port = Field(20003, description="runtime environment agent")
    dashboard_agent_grpc_port: Port = Field(20004, description="dashboard agent, gRPC")
    dashboard_agent_listen_port: Port = Field(20005, description="dashboard agent, HTTP")
    metrics_export_port: Port = Field(20006, description="metrics")
    client_server_port: Port = Field(20007, description="Ray client (head)")
    min_worker_port: Port = Field(20100, description="first port of workers and drivers; a worker needs one")
    max_worker_port: Port = Field(
        20999, description="last port of workers and drivers; no other port of this node's Ray is among them"
    )
    dashboard_port: Port = Field(8265, description="dashboard (head); listens on 127.0.0.1")
    num_cpus: int | None = Field(None, ge=0, description="CPUs that Ray counts; default: what it finds")
    num_gpus: int | None = Field(None, ge=0, description="GPUs that Ray counts; default: what it finds")
    object_store_memory: int | None = Field(None, ge=80 * 1024 * 1024, description="bytes; default: Ray's own")
    temp_dir: Path | None = Field(
        None,
        description="Ray's directory, closed to other users (head only; each edge uses the same path, and its Ray's "
        "user has to write there); default: `/var/lib/edgelink-ray`, which the daemon makes",
    )
    gcs_store: bool = Field(
        False,
        description="keep the tables of Ray's GCS on disk, so that its death costs a run nothing (head only; Ray 2.60 "
        "and later)",
    )
    environment: dict[Variable, VariableValue] = Field(
        {},
        description="variables that this node's Ray and with it every worker here starts with, such as "
        '`{CUDA_VISIBLE_DEVICES: "2,3"}`, beside those that EdgeLink sets; no secrets',
    )
    allow_from: tuple[Source, ...] = Field(
        (), description="addresses, networks and devices that may reach Ray and the training beside the overlay"
    )
    robot_ip: tuple[IPv4Address, ...] = Field(
        (), description="robots that call back: they may reach the training's processes here, but not Ray itself"
    )

    @field_validator("temp_dir")
    @classmethod
    def _from_the_root(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_absolute():
            raise ValueError("has to begin with /")
        return value

    @model_validator(mode="after")
    def _ports_apart(self) -> Self:
        """As Ray refuses them. Those of the head may lie among an edge's workers', where nobody listens on them."""
        if self.min_worker_port > self.max_worker_port:
            raise ValueError(f"min_worker_port {self.min_worker_port} is above max_worker_port {self.max_worker_port}")
        keys_of: dict[int, str] = {}
        for key in (*_PORTS_OF_EVERY_NODE, *_PORTS_OF_THE_HEAD):
            port = getattr(self, key)
            if (other := keys_of.setdefault(port, key)) != key:
                raise ValueError(f"{other} and {key} are both {port}")
            if key in _PORTS_OF_EVERY_NODE and self.min_worker_port <= port <= self.max_worker_port:
                raise ValueError(f"{key} {port} is one of min_worker_port to max_worker_port")
        return self


class HostConfig(_Section):
    """``host:`` what EdgeLink may change of this machine's own settings."""

    tcp: Literal["adjust", "leave"] = Field(
        "adjust",
        description="let EdgeLink set `net.ipv4.tcp_rto_max_ms`, `tcp_retries2`, `tcp_syn_retries` and "
        "`tcp_mtu_probing` in its network namespace, so that connections resume at once after an outage and live on an "
        "uplink with a small MTU; what was there is kept and put back",
    )
    tcp_congestion: Literal["routes", "bbr", "leave"] = Field(
        "routes",
        description="how the tunnel gets BBR, which keeps lossy links fast: `routes` sets it for EasyTier's TCP to and "
        "from relays and for TCP in the overlay, by rules and a routing table of EdgeLink's own; `bbr` makes it the "
        "host's default (with `host.tcp: adjust`), where such rules cannot be had; `leave` sets nothing",
    )
    hosts: Literal["add", "leave"] = Field(
        "add",
        description="let EdgeLink keep a marked block with the overlay's addresses in `/etc/hosts` of head and edges, "
        "so that DNS that does not answer costs no collective ten seconds: `robot.edgelink.internal`, and `robot` "
        "where neither the machine nor its resolver means something else by that; `leave` takes it out again, as "
        "leaving does",
    )


class FirewallConfig(_Section):
    """``firewall:`` EdgeLink's own nftables tables."""

    enabled: bool = Field(
        True,
        description="drop Ray's ports on every device but lo and the overlay's, refuse members what is not EdgeLink's, "
        "keep EasyTier's RPC for root, and close dead direct paths; `firewall: off` for short",
    )
    rendezvous_ports: tuple[PortRange, ...] | None = Field(
        None,
        description="TCP ports where a training's processes meet, such as `[29500, 40000-49999]`, dropped likewise; "
        "default: 29400, 29500, and what of the kernel's `ip_local_port_range` lies in 32768-60999; `[]`: none, "
        "nor what else a run listens on",
    )
    overlay_allow: tuple[AllowedPorts, ...] | None = Field(
        None,
        description="ports of this node that members reach over the overlay beside EdgeLink's own, as `[8888, "
        "8000-8099, udp/7447 from edge-1, 5432 from head]`; default: none, but for ports in use at an upgrade; "
        "`[]`: none at all",
    )


def switch_in_full(value: object) -> object:
    """The section that ``firewall: off`` or ``ray: off`` is short for."""
    return {"enabled": value} if isinstance(value, bool) else value


class RobotConfig(_Section):
    """``robot:`` what this machine wants to be asked before its overlay is restarted on purpose."""

    hold: tuple[str, ...] = Field(
        (), description="program and arguments of a hook; exit status 0: go on, 75: ask again in 2 s"
    )
    hold_for: Annotated[int, BeforeValidator(_whole_seconds), Field(ge=1, le=3600)] = Field(
        60, description="the longest that the hook may hold a change of the network's secret up"
    )
    user: str | None = Field(None, description="user to run the hook as")


class DriverConfig(_Section):
    """``driver:`` the training program that `run` and `head -- CMD` start (on the head)."""

    pass_env: tuple[Annotated[str, _matching(r"[^=\s]+", "a variable's name without its value")], ...] = Field(
        (),
        description="variables of the caller's environment that reach it beside those that do anyway; names or "
        "patterns such as `AWS_*`",
    )


class WebConfig(_Section):
    """``web:`` the page that the head serves; `edgelink dashboard` makes the link with which one logs in."""

    listen: Annotated[Literal["overlay", "loopback", "off"], _OFF] = Field(
        "overlay",
        description="`overlay`: on 127.0.0.1 and on the overlay's address, but not where `overlay.kind` is `existing`; "
        "`loopback`: on 127.0.0.1 only; `off`: no page",
    )
    port: Port = Field(8270, description="port of the page (head)")


class ExecConfig(_Section):
    """``exec:`` programs that other nodes may run on this one (`edgelink exec NODE -- CMD`)."""

    accept: Annotated[str, _OFF] = Field(
        "from head",
        pattern=r"^(off|from( [a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?)+)$",
        description="whose programs this node runs, as Ray's user: `from head`, `from head edge-1` or `off`",
    )
    allow_root: bool = Field(False, description="run them as root where Ray's user is root")


class ProcessConfig(_Section):
    """``process:`` how EasyTier, Ray, the broker and programs are started."""

    launcher: Literal["auto", "session", "systemd"] = Field(
        "auto",
        description="`systemd`: as transient units, outside the daemon's own; `session`: as its children; "
        "`auto`: as units where systemd runs the daemon",
    )
    import_hook: bool = Field(
        True,
        description="put EdgeLink's import hook at the front of PYTHONPATH, for drivers, for Ray's workers from the "
        "next start of Ray on, and in `edgelink exec`: it gives gRPC the patience of `ride_through`",
    )


class MetricsConfig(_Section):
    """``metrics:`` what each daemon tells Prometheus ([which](metrics.md))."""

    listen: Literal["loopback", "overlay", "nowhere"] = Field(
        "loopback",
        description="where they are served: on 127.0.0.1, with `overlay` for the other nodes, too, or nowhere",
    )
    port: Port = Field(9747, description="of the head's and the edges' daemon, for `/metrics`")
    relay_port: Port = Field(9748, description="of the relay's daemon, which may share a machine with the head's")


class Config(_Section):
    """A node's whole local configuration."""

    version: Literal[1] = Field(1, description="of this schema")
    hostname: Hostname | None = Field(None, description="the node's name in the network; default: the OS hostname")
    ride_through: RideThrough | None = Field(
        None,
        description="an outage of up to so long costs a pause, not the run: 30s to 1h; default: 5m; set on the head, "
        "the edges follow; an edge that sets another value does not join",
    )
    access: Literal["members", "per-run"] = Field(
        "members",
        description="whether an edge answers other edges on the ports of Ray and a training at any time, or, with "
        "`per-run`, those of the run in progress only; set on the head, the edges follow",
    )
    relay: RelayConfig = RelayConfig()
    overlay: OverlayConfig = OverlayConfig()
    ray: RayConfig = RayConfig()
    firewall: FirewallConfig = FirewallConfig()
    host: HostConfig = HostConfig()
    robot: RobotConfig = RobotConfig()
    driver: DriverConfig = DriverConfig()
    web: WebConfig = WebConfig()
    exec: ExecConfig = ExecConfig()
    process: ProcessConfig = ProcessConfig()
    metrics: MetricsConfig = MetricsConfig()

    @field_validator("firewall", "ray", mode="before")
    @classmethod
    def _on_or_off(cls, value: object) -> object:
        return switch_in_full(value)

    @field_validator("overlay")
    @classmethod
    def _can_be_closed(cls, value: OverlayConfig, info: ValidationInfo) -> OverlayConfig:
        if value.kind == "existing" and info.data.get("access") == "per-run":
            raise ValueError("kind: EdgeLink closes nothing on an overlay that was there; use `access: members`")
        return value

    @field_validator("metrics")
    @classmethod
    def _overlay_is_our_own(cls, value: MetricsConfig, info: ValidationInfo) -> MetricsConfig:
        overlay = info.data.get("overlay")
        if value.listen == "overlay" and overlay is not None and overlay.kind == "existing":
            raise ValueError("listen: an overlay that was there already may lead to the Internet; use `loopback`")
        return value

    @property
    def ride_through_s(self) -> int:
        """``ride_through`` in seconds, as the head means it."""
        return DEFAULT_RIDE_THROUGH_S if self.ride_through is None else self.ride_through

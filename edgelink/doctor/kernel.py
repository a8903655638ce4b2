"""What the kernel gives this machine's daemons: devices, rights, and limits that are reached in silence."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from edgelink.config.schemes import tcp_ends
from edgelink.doctor.check import NOT_ROOT, Finding, Surroundings, failed, limited, listed, ok, skipped, text_of
from edgelink.doctor.own_ports import own_ports
from edgelink.errors import MissingDependencyError
from edgelink.overlay import before_easytier
from edgelink.overlay.congestion import CONTROL
from edgelink.process import procfs
from edgelink.process.port_ranges import listed as ranges_listed
from edgelink.process.port_ranges import merged, within, without

_FEWEST_FILES = 4096
_FEWEST_PROCESSES = 512
_FEWEST_INOTIFY = 8
_NEARLY = 0.9
_FULL_FILES = 0.8


def tun(surroundings: Surroundings) -> Finding:
    """Does the kernel give out TUN devices?

    EasyTier needs `/dev/net/tun`; a container has it only with `--device /dev/net/tun`.
    """
    if surroundings.config.overlay.kind == "existing":
        return skipped("the overlay is one that was there already (overlay.kind: existing)")
    device = surroundings.root / "dev/net/tun"
    try:
        before_easytier.check_tun(device)
    except MissingDependencyError as error:
        if isinstance(error.__cause__, PermissionError) and not surroundings.probes.is_root:
            return NOT_ROOT
        return failed(error.message, error.hint)
    return ok("/dev/net/tun is there and can be opened")


def capabilities(surroundings: Surroundings) -> Finding:
    """May the daemons make devices and send pings?

    CAP_NET_ADMIN and CAP_NET_RAW of each daemon that runs here; without one, of whoever asks.
    """
    pids = {name: str(pid) for name, pid in surroundings.own_pids.items() if name.endswith("daemon")}
    if not pids and not surroundings.probes.is_root:
        return NOT_ROOT
    missing = [
        f"{name} has no {capability}"
        for name, pid in (pids or {"root here": "self"}).items()
        for number, capability in ((procfs.CAP_NET_ADMIN, "CAP_NET_ADMIN"), (procfs.CAP_NET_RAW, "CAP_NET_RAW"))
        if not procfs.has_capability(number, surroundings.proc / pid / "status")
    ]
    if missing:
        return failed(listed(missing), "run it as root; in a container add `--cap-add NET_ADMIN --cap-add NET_RAW`", "")
    return ok("the daemons may make devices and send pings")


def open_files(surroundings: Surroundings) -> Finding:
    """May this node's processes open enough files?

    Each connection is one. Ray raises its own limit as far as the hard one allows, which should be 4096 or more.
    """
    tight, low, figures = [], [], []
    for name, pid in surroundings.own_pids.items():
        found = re.search(r"^Max open files\s+(\d+)\s+(\d+)", surroundings.text("proc", str(pid), "limits"), re.M)
        if found is None:
            continue
        soft, hard = int(found[1]), int(found[2])
        used = _entries(surroundings.proc / str(pid) / "fd")
        figures.append(f"{name} {'?' if used is None else used} of {soft}")
        if used is not None and used >= soft * _FULL_FILES:
            tight.append(f"{name} has {used} of {soft} files open")
        elif hard < _FEWEST_FILES:
            low.append(f"{name} may open {hard} files at most")
    remedy = "raise LimitNOFILE= of its unit (systemd), `--ulimit nofile` (Docker), or /etc/security/limits.conf"
    if tight:
        return failed(listed(tight), remedy)
    if low:
        return limited(listed(low), remedy)
    if not figures:
        return skipped("none of this node's processes runs, or only root can look")
    return ok("no process of this node is near its limit of open files", listed(figures))


def process_limit(surroundings: Surroundings) -> Finding:
    """May enough processes and threads be started?

    Ray starts some hundred threads a node, and one worker process a CPU. Looked at are the kernel's limits and those
    of the daemon's control groups.
    """
    limits = [(surroundings.number(f"kernel/{name}"), f"kernel.{name}") for name in ("pid_max", "threads-max")]
    used = re.search(r"/(\d+)", surroundings.text("proc/loadavg"))
    left = {name: most - int(used[1]) for most, name in limits if most is not None and used is not None}
    for pid in surroundings.own_pids.values():
        for directory in _control_groups(surroundings, pid):
            most, now = text_of(directory / "pids.max"), text_of(directory / "pids.current")
            if most.isdigit() and now.isdigit():
                left[f"pids.max of {directory.name or 'the control group'}"] = int(most) - int(now)
    if not left:
        return skipped("the kernel does not say")
    name, least = min(left.items(), key=lambda item: item[1])
    if least < _FEWEST_PROCESSES:
        return failed(
            f"only {max(least, 0)} more processes and threads may be started here ({name})",
            f"raise {name}: TasksMax= of the unit, `--pids-limit` of the container, or the sysctl",
            f"{least} left",
        )
    return ok("Ray's workers may start enough processes", f"{least} left")


def inotify(surroundings: Surroundings) -> Finding:
    """Is there an inotify left for the daemons?

    Without one they notice what EasyTier writes seconds later instead of at once.
    """
    remedy = "sysctl fs.inotify.max_user_instances=1024"
    most = surroundings.number("fs/inotify/max_user_instances")
    if most is not None and most < _FEWEST_INOTIFY:
        return limited(f"each user may have {most} inotify instances", remedy, f"{most}")
    if error := surroundings.probes.inotify_error():
        return limited(f"the kernel gives out no inotify any more: {error}", remedy, "" if most is None else f"{most}")
    return ok("the kernel gives out inotify", "" if most is None else f"{most} a user")


def congestion_control(surroundings: Surroundings) -> Finding:
    """Does the tunnel stay fast when a packet is lost?

    Linux's default, cubic, takes each loss for congestion: on a link of 100 ms that loses 1 % it leaves 2 of 20 Mbit/s,
    and BBR 12 (measured). EdgeLink sets BBR for EasyTier's connections to and from relays alone; a connection keeps
    what it began with.
    """
    if surroundings.config.overlay.kind == "existing":
        return skipped("the overlay is one that was there already (overlay.kind: existing)")
    if surroundings.config.host.tcp_congestion == "leave":
        return skipped("`host.tcp_congestion: leave` in the configuration")
    if not surroundings.probes.is_root:
        return NOT_ROOT
    pid = surroundings.own_pids.get("EasyTier")
    if pid is None:
        return skipped("no EasyTier of this node runs")
    relays, config = _relay_addresses(surroundings), surroundings.config
    listeners = config.relay.easytier_listeners if surroundings.is_relay else config.overlay.listeners
    ports = {urlsplit(url).port for url in listeners}
    judged = {
        found.other_end: found.control
        for found in surroundings.probes.congestion_controls(pid)
        if found.local_port in ports or found.other_end.partition(":")[0] in relays
    }
    if not judged:
        return skipped("EasyTier has no TCP connection to or from a relay")
    others = {end: control for end, control in judged.items() if control != CONTROL}
    figure = listed(sorted(set(judged.values())))
    if not others:
        return ok("EasyTier's connections use a congestion control for long links", figure)
    available = text_of(surroundings.proc_sys / "net/ipv4/tcp_available_congestion_control").split()
    remedy = "`host.tcp_congestion: bbr` sets it for the whole machine; connections take it when they begin anew"
    if CONTROL not in available:
        remedy = "this kernel has no BBR: `modprobe tcp_bbr`, or another kernel"
    return limited(
        f"EasyTier's connection to {listed(sorted(others))} makes little of a long link that loses packets",
        remedy,
        figure,
    )


def _relay_addresses(surroundings: Surroundings) -> set[str]:
    """Those that EasyTier dials over TCP, names resolved."""
    peers = surroundings.membership.secrets.overlay_peers if surroundings.membership is not None else ()
    hosts = {end.host for end in tcp_ends(peers)}
    names = {host for host in hosts if not host.replace(".", "").isdigit()}
    answers = surroundings.probes.resolve(names)
    return (hosts - names).union(*(answer.found for answer in answers.values()))


def conntrack(surroundings: Surroundings) -> Finding:
    """Is there room in the kernel's table of connections?

    Where it is full, packets of new connections are dropped in silence.
    """
    now = surroundings.number("net/netfilter/nf_conntrack_count")
    most = surroundings.number("net/netfilter/nf_conntrack_max")
    if now is None or not most:
        return skipped("the kernel keeps no such table here")
    if now >= most * _NEARLY:
        return failed(
            "the kernel's table of connections is nearly full: it drops new ones in silence",
            f"sysctl net.netfilter.nf_conntrack_max={most * 4}",
            f"{now} of {most}",
        )
    return ok("the kernel's table of connections has room", f"{now} of {most}")


def ephemeral_ports(surroundings: Surroundings) -> Finding:
    """Does the kernel leave the ports alone that EdgeLink and Ray listen on?

    A port within `net.ipv4.ip_local_port_range` may be taken by any outgoing connection just before they start.
    """
    try:
        first, last = map(int, text_of(surroundings.proc_sys / "net/ipv4/ip_local_port_range").split())
    except ValueError:
        return skipped("the kernel does not say")
    reserved = []
    for part in text_of(surroundings.proc_sys / "net/ipv4/ip_local_reserved_ports").split(","):
        low, _, high = part.partition("-")
        reserved += [(int(low), int(high or low))] if low else []
    needed = [(port, port) for _, port in own_ports(surroundings)]
    if surroundings.has_ray:
        needed.append((surroundings.config.ray.min_worker_port, surroundings.config.ray.max_worker_port))
    at_risk = within(without(needed, reserved), (first, last))
    if at_risk:
        numbers = ranges_listed(at_risk)
        both = ranges_listed(merged([*reserved, *at_risk]))  # setting it replaces what others have reserved
        return limited(
            f"the kernel may give ports that this node needs to outgoing connections: {numbers}",
            f"sysctl net.ipv4.ip_local_reserved_ports={both.replace(', ', ',')}, or a narrower ip_local_port_range",
            f"{first}-{last}",
        )
    return ok("outgoing connections take no port of EdgeLink or Ray", f"{first}-{last}")


def _control_groups(surroundings: Surroundings, pid: int) -> list[Path]:
    """The directory of a process's control group (version 2), and those above it."""
    found = re.search(r"^0::/(.*)$", surroundings.text("proc", str(pid), "cgroup"), re.M)
    if found is None:
        return []
    top = surroundings.root / "sys/fs/cgroup"
    directory = top / found[1]
    return [directory, *(parent for parent in directory.parents if parent.is_relative_to(top))]


def _entries(directory: Path) -> int | None:
    try:
        return sum(1 for _ in directory.iterdir())
    except OSError:
        return None

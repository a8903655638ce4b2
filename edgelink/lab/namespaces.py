"""Network namespaces, links and holder processes: the part of the lab that talks to the kernel.

Interfaces are made inside the namespaces, in pairs, so none is ever seen on the host and names of several labs cannot
clash. The synchronous pyroute2 API is used: call this from a thread that runs no event loop.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from pathlib import Path

from pyroute2 import IPRoute, netns
from pyroute2.netlink.exceptions import NetlinkError

from edgelink.errors import LabError, MissingDependencyError
from edgelink.lab import node_files
from edgelink.lab.processes import PinnedProcess
from edgelink.lab.topology import NODE_NAME_PATTERN, LabNode, Link, Port

NETNS_DIRECTORY = Path("/run/netns")
_HOLDER_SCRIPT = Path(__file__).with_name("holder.py")
_LOOPBACK_INDEX = 1


def netns_name(lab: str, node: str) -> str:
    return f"edgelink-{lab}-{node}"


def netns_path(lab: str, node: str) -> Path:
    return NETNS_DIRECTORY / netns_name(lab, node)


def existing_netns(lab: str) -> list[Path]:
    """Namespaces of this lab and of no other, whatever state it is in."""
    pattern = re.compile(rf"edgelink-{re.escape(lab)}-{NODE_NAME_PATTERN}")
    if not NETNS_DIRECTORY.is_dir():
        return []
    return sorted(path for path in NETNS_DIRECTORY.iterdir() if pattern.fullmatch(path.name))


def create_netns(lab: str, nodes: Sequence[LabNode]) -> None:
    for node in nodes:
        netns.create(netns_name(lab, node.name))


def remove_netns(path: Path) -> None:
    """Also one whose file was made but never mounted, as a SIGKILL at the wrong moment leaves it."""
    with contextlib.suppress(OSError):
        netns.remove(str(path))
    path.unlink(missing_ok=True)


def connect(lab: str, nodes: Sequence[LabNode], links: Sequence[Link]) -> None:
    """Make the links, give the addresses, bring everything up, set the default routes of ``nodes``."""
    names = {node.name for node in nodes} | {port.node for link in links for port in (link.near, link.far)}
    with contextlib.ExitStack() as stack:
        sockets = {name: stack.enter_context(IPRoute(netns=str(netns_path(lab, name)))) for name in names}
        try:
            for node in nodes:
                sockets[node.name].link("set", index=_LOOPBACK_INDEX, state="up")
            for link in links:
                sockets[link.near.node].link(
                    "add",
                    ifname=link.near.device,
                    kind="veth",
                    address=_mac_address(lab, link.near),
                    peer={
                        "ifname": link.far.device,
                        "net_ns_fd": str(netns_path(lab, link.far.node)),
                        "address": _mac_address(lab, link.far),
                    },
                )
                for port in (link.far,) if link.is_spare else (link.near, link.far):
                    _bring_up(sockets[port.node], port)
            for node in nodes:
                if node.gateway:
                    sockets[node.name].route("add", dst="default", gateway=str(node.gateway))
        except NetlinkError as error:
            raise LabError(
                f"the kernel refused to build the lab's network: {error}",
                hint="the lab needs veth and IPv4 routing; in a container, --privileged or NET_ADMIN and SYS_ADMIN",
            ) from error


def _mac_address(lab: str, port: Port) -> str:
    """A locally administered one, the same after each reboot of the machine: it is the card's."""
    digest = hashlib.sha256(f"{lab}\0{port.node}\0{port.device}".encode()).digest()
    return ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))


def disconnect(lab: str, links: Sequence[Link]) -> None:
    """Remove the links, both ends at once: the kernel would do so at leisure once a namespace is gone."""
    for link in links:
        with contextlib.suppress(OSError), IPRoute(netns=str(netns_path(lab, link.far.node))) as ip:
            for index in ip.link_lookup(ifname=link.far.device):
                ip.link("del", index=index)


def _bring_up(ip: IPRoute, port: Port) -> None:
    (index,) = ip.link_lookup(ifname=port.device)
    ip.addr("add", index=index, address=str(port.address.ip), prefixlen=port.address.network.prefixlen)
    ip.link("set", index=index, state="up")


def move_uplink(namespace: Path, old: Port, new: Port, gateway: IPv4Address, *, keep_old: bool) -> None:
    """Have the default route lead through ``new``; ``old`` goes down without its address unless ``keep_old``."""
    with IPRoute(netns=str(namespace)) as ip:
        if not keep_old:
            (index,) = ip.link_lookup(ifname=old.device)
            ip.flush_addr(index=index, family=2)
            ip.link("set", index=index, state="down")
        with contextlib.suppress(NetlinkError):  # it has the address since the last move that kept it
            _bring_up(ip, new)
        ip.route("replace", dst="default", gateway=str(gateway))


def default_device(namespace: Path) -> str:
    """The device that the default route leads through; empty without one."""
    with IPRoute(netns=str(namespace)) as ip:
        for route in ip.get_default_routes(family=2):
            (link,) = ip.get_links(route.get_attr("RTA_OIF"))
            return str(link.get_attr("IFLA_IFNAME"))
    return ""


def addresses(namespace: Path) -> dict[str, list[IPv4Address]]:
    """IPv4 addresses by device, as the kernel has them now; the overlay's device shows up here too."""
    found: dict[str, list[IPv4Address]] = {}
    with IPRoute(netns=str(namespace)) as ip:
        names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in ip.get_links()}
        for device in names.values():
            found[device] = []
        for item in ip.get_addr(family=2):
            found[names[item["index"]]].append(IPv4Address(item.get_attr("IFA_ADDRESS")))
    return found


@dataclass(frozen=True)
class HolderSpec:
    """What ``holder.py`` is told, on its command line; nothing in it is secret."""

    netns: str
    hostname: str
    binds: tuple[tuple[str, str], ...]  # (the lab's own file or directory, where the node sees it)
    scratch: str
    shm_size: str
    sysctls: Mapping[str, str]


def holder_spec(lab: str, node: LabNode, directory: Path, shm_size: str) -> HolderSpec:
    """How the holder of ``node``, whose own files are in ``directory``, arranges its namespaces."""
    return HolderSpec(
        netns=str(netns_path(lab, node.name)),
        hostname=node.name,
        binds=node_files.binds(directory),
        scratch=str(directory / "scratch"),
        shm_size=shm_size,
        sysctls={
            "net/ipv6/conf/all/disable_ipv6": "1",
            "net/ipv6/conf/default/disable_ipv6": "1",
            "net/ipv4/ip_forward": "1" if node.is_router else "0",
        },
    )


def start_holders(specs: Mapping[str, HolderSpec], environ: Mapping[str, str]) -> dict[str, subprocess.Popen[bytes]]:
    """Start all holders at once and wait until each has arranged its namespaces."""
    started: dict[str, subprocess.Popen[bytes]] = {}
    reports: dict[str, int] = {}
    for name, spec in specs.items():
        reader, writer = os.pipe()
        argument = json.dumps(asdict(spec) | {"report_fd": writer})
        with os.fdopen(writer):
            started[name] = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_HOLDER_SCRIPT), argument],
                pass_fds=(writer,),
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        reports[name] = reader
    for name, reader in reports.items():
        with os.fdopen(reader, "rb") as file:
            answer = file.read().decode(errors="replace")  # ends when the holder has become `sleep`, or died
        if answer != "ok":
            raise LabError(
                f"lab node {name}: its namespaces could not be arranged: {answer or 'the holder process died'}",
                hint="the lab needs root and a kernel with network, mount and UTS namespaces",
            )
    return started


def enter_argv(holder: PinnedProcess, directory: Path, argv: Sequence[str]) -> list[str]:
    """The command line that runs ``argv`` in a node's namespaces; every step of it execs, so the pid stays.

    The directory is changed to inside (``env --chdir``): a directory opened outside would still lead, by ``..``,
    to the host's mounts.
    """
    enter = ["nsenter", f"--target={holder.pid}", "--net", "--mount", "--uts", "--"]
    return [*enter, "env", f"--chdir={directory}", "--", *argv]


def apply_firewall(holder: PinnedProcess, node: LabNode) -> None:
    result = subprocess.run(
        enter_argv(holder, Path("/"), ["nft", "-f", "-"]),
        input=node.firewall,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise LabError(
            f"lab node {node.name}: nft refused the rules: {result.stderr.strip()}",
            hint="the kernel needs nf_tables with masquerading and connection tracking",
        )


def check_root() -> None:
    if os.geteuid() != 0:
        raise LabError("the lab needs root: it makes and enters network namespaces", hint="run it with sudo")


def check_prerequisites() -> None:
    """Raises LabError or MissingDependencyError before anything is made."""
    check_root()
    packages = {"nft": "nftables", "nsenter": "util-linux", "env": "coreutils"}
    if missing := [program for program in packages if shutil.which(program) is None]:
        raise MissingDependencyError(
            f"the lab needs {', '.join(missing)}, not found on PATH",
            hint=f"apt-get install {' '.join(packages[program] for program in missing)}",
        )

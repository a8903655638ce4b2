"""What has to be true before EasyTier is started; each thing that is not is named with what to do.

EasyTier itself answers most of them with a panic, or with a device that never comes.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from edgelink.config.schemes import OVER_UDP
from edgelink.errors import MissingDependencyError, OverlayError
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.echo import may_bind_to_devices
from edgelink.overlay.link import LinkMonitor, check_collision
from edgelink.overlay.mend import tun_holder
from edgelink.process import ports, procfs

TUN = Path("/dev/net/tun")


async def check(spec: OverlaySpec, links: LinkMonitor) -> None:
    """Refuse to start where it cannot work.

    Raises:
        MissingDependencyError: no TUN, no right to make devices.
        OverlayAddressError: a device of this machine has an address in the overlay's network.
        OverlayError: a port or the device is taken.
    """
    check_machine()
    networks = await links.local_networks(spec.device)
    # A route leads nowhere once our own rule is there: who pushes one by DHCP is not to keep the overlay down.
    check_collision(spec.overlay_ip.network, [network for network in networks if network.is_connected])
    check_ports(spec)
    if (await links.observe(spec.device)).exists:
        raise OverlayError(
            f"the device {spec.device} already exists, held by {tun_holder(spec.device)}",
            hint="stop what made it (an EasyTier started by hand?), or set overlay.device to another name",
            reason="DeviceBusy",
        )


def check_machine(tun: Path = TUN) -> None:
    """Kernel features and rights that EasyTier and EdgeLink need."""
    check_tun(tun)
    if not procfs.has_capability(procfs.CAP_NET_ADMIN):
        raise MissingDependencyError(
            "EdgeLink may not make network devices: CAP_NET_ADMIN is missing",
            hint="run it as root; in a container add `--cap-add NET_ADMIN --device /dev/net/tun`",
            reason="NetAdminMissing",
        )
    if not may_bind_to_devices():
        raise MissingDependencyError(
            "EdgeLink could not tell who answers over the overlay: it may not bind sockets to a device (CAP_NET_RAW is "
            "missing, and Linux before 5.7 wants it)",
            hint="run it as root; in a container add `--cap-add NET_RAW`",
            reason="NetRawMissing",
        )


def check_ports(spec: OverlaySpec) -> None:
    """The RPC port and every listener have to be free."""
    wanted = [f"tcp://127.0.0.1:{spec.rpc_port}", *spec.listeners]
    for url in wanted:
        parts = urlsplit(url)
        if not parts.port or parts.hostname is None:
            continue
        protocol: ports.Protocol = "udp" if parts.scheme in OVER_UDP else "tcp"
        if not ports.is_port_free(protocol, parts.hostname, parts.port):
            key = "overlay.rpc_port" if url == wanted[0] else "overlay.listeners (relay: relay.easytier_listeners)"
            raise OverlayError(
                f"{protocol} port {parts.port}, which EasyTier has to listen on, is held by "
                f"{ports.port_holder(protocol, parts.port)}",
                hint=f"stop that process, or choose another port in {key}",
                reason="PortBusy",
            )


def check_tun(tun: Path = TUN) -> None:
    """TUN devices can be made. Raises MissingDependencyError."""
    try:
        os.close(os.open(tun, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise MissingDependencyError(
            f"{tun}: {error.strerror}: this machine gives EdgeLink no TUN devices",
            hint="`modprobe tun`; in a container add `--device /dev/net/tun`",
            reason="TunMissing",
        ) from error

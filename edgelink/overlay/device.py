"""Whether the overlay's device is as it should be, and what to do when it is not. Pure."""

from __future__ import annotations

from ipaddress import IPv4Interface

from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.link import LinkState

_MIN_MTU = 576
# A new EasyTier would make no difference to these: other software sees to it that they come back.
NOT_EASYTIERS = frozenset({"MtuWrong", "RouteMissing"})


def device_problem(
    state: LinkState, spec: OverlaySpec, *, is_ours: bool = True, was: LinkState | None = None
) -> tuple[str, str] | None:
    """Reason and sentence for what is wrong with the device; None when it is as it should be.

    Args:
        is_ours: False for a device that something else made: it may have more addresses than ours, and any MTU.
        was: the device as it was confirmed; another one of the same name is a stranger's.
    """
    device = spec.device
    if not state.exists:
        return "DeviceMissing", f"the device {device} does not exist"
    if was is not None and was.index != state.index:
        return "DeviceReplaced", f"{device} is no longer the device that EasyTier made, but another one of that name"
    if not state.is_up:
        return "DeviceDown", f"the device {device} is down"
    has = ", ".join(map(str, state.addresses)) or "no address"
    if not is_ours:
        if spec.overlay_ip.ip in (address.ip for address in state.addresses):
            return None
        return "AddressMissing", f"the device {device} has {has}, not this node's {spec.overlay_ip.ip}"
    if state.addresses != (IPv4Interface(spec.overlay_ip),):
        return "AddressWrong", f"the device {device} has {has} instead of {spec.overlay_ip}"
    wanted_mtu = was.mtu if was is not None else spec.device_mtu
    if not _MIN_MTU <= state.mtu <= spec.mtu or (was is not None and state.mtu != was.mtu):
        return "MtuWrong", f"the device {device} has an MTU of {state.mtu} instead of {wanted_mtu}"
    if spec.overlay_ip.network not in state.routes:
        return "RouteMissing", f"the route to {spec.overlay_ip.network} through {device} is missing"
    return None

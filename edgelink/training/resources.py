"""What a driver asks of Ray in whole devices, against what each node has; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_ACCELERATORS = ("GPU", "NPU", "TPU")  # Ray's resources; the first that any node has is the one that drivers ask for


@dataclass(frozen=True)
class NodeResources:
    """What one node has, by Ray's names of resources."""

    name: str
    total: Mapping[str, float] = field(default_factory=dict)
    free: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Demand:
    """``groups`` times ``devices`` devices on one node, with ``cpus`` CPUs a device.

    ``what``: who asks, in the words of the command line.
    """

    what: str
    groups: int
    devices: int
    cpus: float = 0.0


@dataclass(frozen=True)
class Asked:
    """What a command asks of Ray. ``unclear``: what of it cannot be read, or ""."""

    demands: tuple[Demand, ...] = ()
    unclear: str = ""


@dataclass(frozen=True)
class Shortage:
    """A demand for which there is no room; ``fitting``: so many of its groups have room after the demands before it."""

    demand: Demand
    fitting: int
    device: str
    is_for_good: bool  # also when everything is free

    def message(self, nodes: Sequence[NodeResources]) -> str:
        """What does not fit, and what each node has."""
        demand, cpus = self.demand, self.demand.cpus
        each = f"{_devices(demand.devices, self.device)}"
        if cpus:
            each += f" and {cpus * demand.devices:g} CPU{'s' if cpus * demand.devices != 1 else ''}"
        where = f"{demand.groups} times {each} on one node" if demand.groups > 1 else f"{each} on one node"
        if demand.devices == 1:
            where = f"{_devices(demand.groups, self.device)}" + (f", {cpus:g} CPU with each" if cpus else "")
        return (
            f"{demand.what}: {where}; there is room for {self.fitting} of {demand.groups}: "
            f"{has_in_words(nodes, self.device, with_cpus=bool(cpus))}"
        )


def device_of(nodes: Iterable[NodeResources]) -> str:
    """Ray's name of the accelerator that this cluster has; ``GPU`` where it has none."""
    had = {name for node in nodes for name, count in node.total.items() if count >= 1}
    return next((name for name in _ACCELERATORS if name in had), _ACCELERATORS[0])


def shortage(demands: Iterable[Demand], nodes: Sequence[NodeResources]) -> Shortage | None:
    """The first demand that has no room beside those before it, in what is free now; None: all fit.

    Large groups are placed first, each on the node where it leaves least: as good as Ray's own choice, which is greedy,
    too.
    """
    wanted = list(demands)
    found = _first_without_room(wanted, nodes, is_free=True)
    if found is None:
        return None
    never = _first_without_room(wanted, nodes, is_free=False)
    demand, fitting = never or found
    return Shortage(demand, fitting, device_of(nodes), is_for_good=never is not None)


def _first_without_room(
    demands: Sequence[Demand], nodes: Sequence[NodeResources], *, is_free: bool
) -> tuple[Demand, int] | None:
    device = device_of(nodes)
    left = [
        [amount.get(device, 0.0), amount.get("CPU", 0.0)]
        for amount in (node.free if is_free else node.total for node in nodes)
    ]
    for demand in sorted(demands, key=lambda each: each.devices, reverse=True):
        for placed in range(demand.groups):
            need = (demand.devices, demand.devices * demand.cpus)
            fitting = [has for has in left if has[0] >= need[0] and has[1] >= need[1]]
            if not fitting:
                return demand, placed
            best = min(fitting, key=lambda has: has[0])
            best[0] -= need[0]
            best[1] -= need[1]
    return None


def has_in_words(nodes: Iterable[NodeResources], device: str, *, with_cpus: bool = False) -> str:
    """``cloud 4 of 8 GPUs free, 16 of 32 CPUs; edge-1 no GPU``."""
    return "; ".join(_has(node, device, with_cpus=with_cpus) for node in nodes)


def _has(node: NodeResources, device: str, *, with_cpus: bool) -> str:
    total = node.total.get(device, 0.0)
    if not total:
        return f"{node.name} no {device}"
    words = f"{node.name} {node.free.get(device, 0.0):g} of {_devices(total, device)} free"
    if with_cpus:
        words += f", {node.free.get('CPU', 0.0):g} of {node.total.get('CPU', 0.0):g} CPUs"
    return words


def _devices(count: float, device: str) -> str:
    return f"{count:g} {device}{'s' if count != 1 else ''}"

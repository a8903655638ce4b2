"""The environment in which RLinf starts each worker, in its order; later sources win (``SOURCES``).

Variables that hold paths are not replaced but put in front, unless ``RLINF_PATH_ENV_MERGE_MODE`` of the node is
``override``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from edgelink.placement.groups import Group, Placement
from edgelink.placement.nodes import Driver, Node
from edgelink.placement.profiling import Profiling
from edgelink.placement.rlinf_rules import RlinfRules

SOURCES = ("node", "driver", "default", "env_configs", "rlinf", "profiler", "worker")
_PATH_LIKE = frozenset(
    {"PYTHONPATH", "LD_LIBRARY_PATH", "PATH", "LIBRARY_PATH", "CMAKE_PREFIX_PATH", "PKG_CONFIG_PATH", "CPATH"}
)
_MERGE_MODE = "RLINF_PATH_ENV_MERGE_MODE"
_DEVICES = "RLINF_COMM_NET_DEVICES"
# What RLinf sets on a node that has no value of its own, unless the driver has one; None: nothing.
_DEFAULTS = {
    "RLINF_CATCH_FAILURE": "0",
    "RLINF_LOG_LEVEL": "INFO",
    "RLINF_TIMEOUT": "180",
    "RLINF_NODE_RANK": None,
    _DEVICES: None,
    "RLINF_EXT_MODULE": None,
    _MERGE_MODE: "append",
    "RLINF_CODE_WORKING_DIR": "0",
}
# By accelerator: what names the visible devices, what keeps Ray from setting it, and the network device of its NCCL.
_VENDORS = {
    "NV_GPU": ("CUDA_VISIBLE_DEVICES", ("CUDA_VISIBLE_DEVICES",), "NCCL_SOCKET_IFNAME"),
    "AMD_GPU": ("HIP_VISIBLE_DEVICES", ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), "NCCL_SOCKET_IFNAME"),
    "NPU": ("ASCEND_RT_VISIBLE_DEVICES", ("ASCEND_RT_VISIBLE_DEVICES",), "HCCL_SOCKET_IFNAME"),
    "INTEL_GPU": ("ONEAPI_DEVICE_SELECTOR", ("ONEAPI_DEVICE_SELECTOR",), "CCL_MNIC_NAME"),
    "MUSA_GPU": ("MUSA_VISIBLE_DEVICES", ("MUSA_VISIBLE_DEVICES",), "MCCL_SOCKET_IFNAME"),
    "KUNLUN_XPU": ("CUDA_VISIBLE_DEVICES", ("CUDA_VISIBLE_DEVICES",), "BKCL_SOCKET_IFNAME"),  # since RLinf 0.4
}
_UNKNOWN_MODEL = "UNKNOWN"

Layer = tuple[str, Mapping[str, str]]  # a source and what it sets


class Environments:
    """What each process of a plan gets; computed when it is asked for."""

    def __init__(
        self,
        nodes: Sequence[Node],
        home: Node,
        driver: Driver,
        groups: Sequence[Group],
        profiling: Profiling | None,
        rules: RlinfRules,
    ) -> None:
        self._nodes = nodes
        self._groups = {group.label: group for group in reversed(groups)}
        self._profiling = profiling
        self._rules = rules
        before = self._at_ray_start(home)
        now = {name: text for name, text in before.items() if name not in driver.unset} | dict(driver.env)
        now.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        self._driver_env = now
        self.changed_by_driver = {name: text for name, text in now.items() if before.get(name) != text}
        self._bases: dict[tuple[int, str], dict[str, str]] = {}

    def of(self, component: str, placements: Sequence[Placement], process_rank: int) -> dict[str, str]:
        """The environment of one process of ``component``, after its start; without MASTER_PORT."""
        placement = placements[process_rank]
        place = (placement.node_rank, placement.node_group)
        base = self._bases.get(place)
        if base is None:
            base = self._bases[place] = self._merged(self._base_layers(*place))
        env = base.copy()
        env.update(self._rlinf(component, placements, placement))
        env.update(self._profiler(component, placement))
        env.update(self._worker(placement, env))
        return env

    def layers(self, component: str, placements: Sequence[Placement], process_rank: int) -> list[Layer]:
        """Where the environment of a process comes from: each source of ``SOURCES`` with what it sets."""
        placement = placements[process_rank]
        layers = list(self._base_layers(placement.node_rank, placement.node_group))
        layers.append(("rlinf", self._rlinf(component, placements, placement)))
        layers.append(("profiler", self._profiler(component, placement)))
        layers.append(("worker", self._worker(placement, self._merged(layers))))
        return layers

    def py_executable(self, component: str, placement: Placement) -> str | None:
        """The interpreter of one process, with its profiler; None: not known."""
        own = self._groups[placement.node_group].interpreters.get(placement.node_rank)
        python = own or self._nodes[placement.node_rank].python
        if python is None or self._profiling is None or not self._profiling.covers(component):
            return python
        return self._profiling.command(python, placement.actor_name)

    @staticmethod
    def merges(name: str) -> bool:
        """Whether a later value of ``name`` is put in front of the earlier ones instead of replacing them."""
        return name in _PATH_LIKE

    @staticmethod
    def _at_ray_start(node: Node) -> dict[str, str]:
        rank = {} if node.set_rank is None else {"RLINF_NODE_RANK": node.set_rank}
        device = {} if node.device is None or node.env is not None else {_DEVICES: node.device}
        return {**(node.env or {}), **device, **rank}

    def _base_layers(self, node_rank: int, label: str) -> Iterator[Layer]:
        """What all processes of a group on a node have in common."""
        own = self._at_ray_start(self._nodes[node_rank])
        yield "node", own
        yield "driver", self.changed_by_driver
        defaults = {}
        for name, default in {**_DEFAULTS, **self._rules.defaults}.items():
            value = self._driver_env.get(name, default)
            if name not in own and name not in self.changed_by_driver and value is not None:
                defaults[name] = value
        yield "default", defaults
        yield "env_configs", self._groups[label].env_vars.get(node_rank, {})

    @staticmethod
    def _merged(layers: Iterator[Layer] | Sequence[Layer]) -> dict[str, str]:
        env: dict[str, str] = {}
        for _, variables in layers:
            appends = env.get(_MERGE_MODE, "append").lower() != "override"
            for name, text in variables.items():
                if appends and name in _PATH_LIKE and name in env:
                    entries = [*text.split(":"), *env[name].split(":")]
                    env[name] = ":".join(dict.fromkeys(entry for entry in entries if entry))
                else:
                    env[name] = text
        return env

    def _rlinf(self, component: str, placements: Sequence[Placement], placement: Placement) -> dict[str, str]:
        """What RLinf sets for each worker; the names are RLinf's, NODE_RANK counts the nodes of the component."""
        node = self._nodes[placement.node_rank]
        kind = placement.accelerator_type
        model = f"{kind}:{node.model or _UNKNOWN_MODEL}" if node.accelerator_count else ""
        env = {
            "GROUP_NAME": component,
            "WORKER_NAME": placement.actor_name,
            "MASTER_ADDR": self._nodes[placements[0].node_rank].ip,
            "WORLD_SIZE": str(len(placements)),
            "RANK": str(placement.process_rank),
            "NODE_RANK": str(placement.placement_node_rank),
            "CLUSTER_NODE_RANK": str(placement.node_rank),
            "LOCAL_ACCELERATOR_RANK": str(placement.local_accelerator_rank),
            "NODE_LOCAL_RANK": str(placement.local_rank),
            "NODE_LOCAL_WORLD_SIZE": str(placement.local_world_size),
            "RAY_ACTOR": "1",
            "CLUSTER_NAMESPACE": "RLinf",
            "CATCH_SYSTEM_FAILURE": "1" if self._driver_env.get("RLINF_CATCH_FAILURE", "0") == "1" else "0",
            "VISIBLE_DEVICES": placement.visible_devices,
            "ACCELERATOR_TYPE": kind,
            "ACCELERATOR_MODEL": model,
            "ISOLATE_ACCELERATOR": "1" if placement.isolate else "0",
            "LOCAL_HARDWARE_RANKS": ",".join(map(str, placement.hardware_ranks)),
            "NODE_GROUP_LABEL": placement.node_group,
        }
        if kind in _VENDORS:
            visible, unset, _ = _VENDORS[kind]
            env[visible] = placement.visible_devices
            env.update({f"RAY_EXPERIMENTAL_NOSET_{name}": "1" for name in unset})
        if kind == "NV_GPU":
            env["NCCL_CUMEM_ENABLE"] = self._driver_env.get("NCCL_CUMEM_ENABLE", "0")
            first = next(iter(placement.accelerators), None)
            env |= self._rules.of_nvidia(first, self._driver_env.get("MUJOCO_GL"))
        return env

    def _profiler(self, component: str, placement: Placement) -> dict[str, str]:
        if self._profiling is None or not self._profiling.covers(component):
            return {}
        return self._profiling.variables(placement.actor_name)

    @staticmethod
    def _worker(placement: Placement, env: Mapping[str, str]) -> dict[str, str]:
        """What the worker sets in its own process when it starts."""
        alone = placement.isolate
        own = {
            "LOCAL_RANK": "0" if alone else str(placement.local_accelerator_rank),
            "LOCAL_WORLD_SIZE": "1" if alone else str(placement.local_world_size),
        }
        if _DEVICES in env:
            vendor = _VENDORS.get(placement.accelerator_type)
            for name in ("GLOO_SOCKET_IFNAME", *((vendor[2],) if vendor else ())):
                if name not in env:
                    own[name] = env[_DEVICES]
        return own

"""Nodes and drivers, also as plain data: a nodes file, and the arguments of ``plan`` (docs/reference/placement.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgelink.errors import PlacementError
from edgelink.wording import few, json_mistake

NO_ACCELERATOR = "NO_ACCEL"
ACCELERATORS = ("NV_GPU", "AMD_GPU", "INTEL_GPU", "NPU", "MUSA_GPU", "KUNLUN_XPU", NO_ACCELERATOR)
_NODE_FIELDS = (
    "rank",
    "ip",
    "hostname",
    "accelerator",
    "accelerator_count",
    "model",
    "env",
    "python",
    "paths",
    "cameras",
    "unreachable",
    "profilers",
)
_DRIVER_FIELDS = ("node", "env", "unset")
_MOST_ACCELERATORS = 1024  # of a node: a slip of the finger must not fill the memory
# What a node has of which its description says nothing.
_DEFAULT_PATH = "/usr/local/bin:/usr/bin"
_DEFAULT_PYTHON = "/opt/python/bin/python3"
_DEFAULT_MODEL = "Mock"


@dataclass(frozen=True)
class Node:
    """One alive Ray node. None means: not known; nothing that depends on it is then checked."""

    rank: int | str | None  # its RLINF_NODE_RANK (a string is read as RLinf reads it); None: not set
    ip: str
    hostname: str = ""
    accelerator: str = NO_ACCELERATOR
    accelerator_count: int = 0
    model: str | None = None  # of the accelerators, as RLinf shortens it
    env: Mapping[str, str] | None = field(default=None, hash=False)  # before `ray start`, without RLINF_NODE_RANK
    device: str | None = None  # RLINF_COMM_NET_DEVICES before `ray start`, where no more is known of ``env``
    python: str | None = None  # interpreter of the raylet
    paths: frozenset[str] | None = None  # files that exist there
    cameras: tuple[str, ...] | None = None  # serial numbers plugged in
    unreachable: frozenset[str] = frozenset()  # robot addresses that do not answer there
    profilers: frozenset[str] | None = None  # profiling backends whose tools are there
    # Filled in by the plan, which makes ``rank`` a number:
    set_rank: str | None = None  # the text of RLINF_NODE_RANK before
    labels: tuple[str, ...] = ()
    hardware: Mapping[str, int] = field(default_factory=dict, hash=False)  # count by hardware type

    @property
    def accelerator_type(self) -> str:
        """What RLinf calls it: no type without a device."""
        return self.accelerator if self.accelerator_count else NO_ACCELERATOR

    @property
    def number(self) -> int:
        """The rank, once the plan has made it a number."""
        assert isinstance(self.rank, int)
        return self.rank

    @property
    def name(self) -> str:
        """For messages."""
        if not self.ip:
            return self.hostname or f"node {self.rank}"
        return f"{self.hostname} ({self.ip})" if self.hostname else self.ip

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "rank": self.rank,
            "ip": self.ip,
            **({"hostname": self.hostname} if self.hostname else {}),
            "labels": list(self.labels),
            "accelerator": self.accelerator_type,
            "accelerator_count": self.accelerator_count,
            "hardware": dict(self.hardware),
        }


@dataclass(frozen=True)
class Driver:
    """Where the driver runs, and what its shell changed after `ray start`."""

    node: int = 0  # index in the list of nodes
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    unset: tuple[str, ...] = ()


def as_node(data: Mapping[str, Any], key: str = "node") -> Node:
    """A node from plain data. Null means: not known, and not checked; a field that is left out has its default.

    Raises:
        PlacementError: a field is missing, unknown or of the wrong type.
    """
    if not isinstance(data, Mapping):
        raise PlacementError(f"{key}: not a mapping: {data!r}", hint="describe each node by its rank, ip, …")
    unknown = sorted(set(data).difference(_NODE_FIELDS))
    if unknown:
        raise PlacementError(f"{key}.{unknown[0]}: not a field of a node", hint=f"known are {', '.join(_NODE_FIELDS)}")
    if not isinstance(data.get("ip"), str):
        raise PlacementError(f"{key}.ip: missing, or not a text", hint="write the node's address, as Ray knows it")
    for name in ("hostname", "model", "python"):
        if not isinstance(data.get(name), str | None):
            raise PlacementError(f"{key}.{name}: not a text: {data[name]!r}", hint="write a text, or null")
    rank = data.get("rank")
    if not isinstance(rank, int | str | None) or isinstance(rank, bool):
        hint = "write the number that RLINF_NODE_RANK holds there, or null"
        raise PlacementError(f"{key}.rank: neither a number nor a text: {rank!r}", hint=hint)
    count = data.get("accelerator_count", 0)
    if not isinstance(count, int) or not 0 <= count <= _MOST_ACCELERATORS:
        hint = f"write a whole number, at most {_MOST_ACCELERATORS}"
        raise PlacementError(f"{key}.accelerator_count: {count!r} is not a number of devices", hint=hint)
    kind = data.get("accelerator", NO_ACCELERATOR)
    if kind not in ACCELERATORS:
        raise PlacementError(f"{key}.accelerator: unknown: {kind!r}", hint=f"known are {', '.join(ACCELERATORS)}")
    if count and kind == NO_ACCELERATOR:
        hint = 'write which they are, for example "accelerator": "NV_GPU"'
        raise PlacementError(f"{key}.accelerator: missing, but accelerator_count is {count}", hint=hint)
    env = data.get("env", {})
    return Node(
        rank=rank,
        ip=data["ip"],
        hostname=data.get("hostname") or "",
        accelerator=kind,
        accelerator_count=count,
        model=data.get("model", _DEFAULT_MODEL),
        env=None if env is None else {"PATH": _DEFAULT_PATH, **_texts(env, f"{key}.env")},
        python=data.get("python", _DEFAULT_PYTHON),
        paths=_names(data.get("paths", ()), f"{key}.paths"),
        cameras=_list(data.get("cameras", ()), f"{key}.cameras"),
        unreachable=_names(data.get("unreachable", ()), f"{key}.unreachable") or frozenset(),
        profilers=_names(data.get("profilers", ()), f"{key}.profilers"),
    )


def as_driver(data: Driver | Mapping[str, Any] | int | None, node_count: int) -> Driver:
    """The driver from what ``plan`` was given. Raises PlacementError."""
    driver = data
    if driver is None:
        driver = Driver()
    elif isinstance(driver, int):
        driver = Driver(driver)
    elif isinstance(driver, Mapping):
        unknown = sorted(set(driver).difference(_DRIVER_FIELDS))
        if unknown:
            hint = f"known are {', '.join(_DRIVER_FIELDS)}"
            raise PlacementError(f"driver.{unknown[0]}: not a field of the driver", hint=hint)
        place = driver.get("node") or 0
        if not isinstance(place, int):
            raise PlacementError(f"driver.node: not a number: {place!r}", hint="write its place in the list of nodes")
        env = _texts(driver.get("env") or {}, "driver.env")
        driver = Driver(place, env, _list(driver.get("unset"), "driver.unset") or ())
    elif not isinstance(driver, Driver):
        raise PlacementError(f"driver: not a mapping: {driver!r}", hint='write {"node": 0, "env": {…}}')
    if node_count and not 0 <= driver.node < node_count:
        hint = f"the driver's node is a place in the list of nodes, 0 to {node_count - 1}"
        raise PlacementError(f"driver.node: {driver.node} of {node_count} nodes", hint=hint)
    return driver


def load_nodes_file(path: Path) -> tuple[list[Node], Driver | None]:
    """Nodes, and the driver if it is told of, from a JSON file: a list, or ``{"nodes": [...], "driver": {...}}``.

    Raises:
        PlacementError: unreadable, or not such a file.
    """
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise PlacementError(f"{path}: cannot be read: {error.strerror}", hint="check the path") from error
    except (ValueError, RecursionError) as error:
        raise PlacementError(f"{path}: {json_mistake(error)}", hint="write a list of nodes") from error
    listed = content.get("nodes") if isinstance(content, Mapping) else content
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise PlacementError(f"{path}: holds no list of nodes", hint='write [{"rank": 0, "ip": "10.10.0.2"}, …]')
    nodes = [as_node(item, f"{path}: nodes[{index}]") for index, item in enumerate(listed)]
    driver = content.get("driver") if isinstance(content, Mapping) else None
    return nodes, None if driver is None else as_driver(driver, len(nodes))


def _texts(value: Any, key: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise PlacementError(f"{key}: not a mapping: {value!r}", hint='write {"NAME": "value"}')
    return {str(name): str(text) for name, text in value.items()}


def _names(value: Any, key: str) -> frozenset[str] | None:
    listed = _list(value, key)
    return None if listed is None else frozenset(listed)


def _list(value: Any, key: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, (Sequence, frozenset, set)):
        raise PlacementError(f"{key}: not a list: {value!r}", hint="write a list of texts")
    return tuple(str(item) for item in value)


def describe(nodes: Sequence[Node]) -> str:
    """Who is there, short: consecutive nodes that are alike are told together."""
    if not nodes:
        return "no nodes"
    runs: list[tuple[Node, Node, str]] = []
    for node in nodes:
        has = f"{node.accelerator_count} {node.accelerator}" if node.accelerator_count else "no accelerator"
        if runs and runs[-1][2] == has and _follows(runs[-1][1], node):
            runs[-1] = (runs[-1][0], node, has)
        else:
            runs.append((node, node, has))
    told = [
        f"{_numbered(first)} ({has})" if first is last else f"{first.rank}-{last.rank} ({has} each)"
        for first, last, has in runs
    ]
    return f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}: {few(told)}"


def _numbered(node: Node) -> str:
    return node.name if node.rank is None else f"{node.rank} {node.name}"


def _follows(last: Node, node: Node) -> bool:
    return isinstance(last.rank, int) and isinstance(node.rank, int) and node.rank == last.rank + 1

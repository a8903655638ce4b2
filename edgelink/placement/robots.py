"""Robots: the fields of each type, what is checked in the file, and how many of them a node turns out to have.

RLinf fills fields that are not given from the node's environment (``robot_ip`` from ``ROBOT_IP``), and makes whole
robots of it on *every* node that has an identifying variable, whether or not a group mentions robots.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgelink.placement.nodes import Node
from edgelink.placement.problems import Findings, Stage


@dataclass(frozen=True)
class RobotType:
    """One type: its fields with their defaults (None: unset), and which of them identify a robot."""

    fields: Mapping[str, Any]
    identifiers: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()


# In the order in which RLinf looks for them on a node.
ROBOT_TYPES: dict[str, RobotType] = {
    "DOSW1": RobotType(
        {
            "robot_url": "localhost",
            "left_arm_port": 50051,
            "right_arm_port": 50053,
            "left_lead_port": 50050,
            "right_lead_port": 50052,
            "camera_serials": None,
        },
        identifiers=("robot_url",),
        lists=("camera_serials",),
    ),
    "DualFranka": RobotType(
        {
            "left_robot_ip": None,
            "right_robot_ip": None,
            "left_camera_serials": None,
            "right_camera_serials": None,
            "base_camera_serials": None,
            "camera_type": "realsense",
            "base_camera_type": None,
            "left_camera_type": None,
            "right_camera_type": None,
            "left_gripper_type": "franka",
            "right_gripper_type": "franka",
            "left_gripper_connection": None,
            "right_gripper_connection": None,
            "left_controller_node_rank": None,
            "right_controller_node_rank": None,
        },
        identifiers=("left_robot_ip", "right_robot_ip"),
        addresses=("left_robot_ip", "right_robot_ip"),
        lists=("left_camera_serials", "right_camera_serials", "base_camera_serials"),
    ),
    "Franka": RobotType(
        {
            "robot_ip": None,
            "camera_serials": None,
            "camera_type": "realsense",
            "gripper_type": "franka",
            "gripper_connection": None,
            "controller_node_rank": None,
            "disable_validate": False,
        },
        identifiers=("robot_ip",),
        addresses=("robot_ip",),
        lists=("camera_serials",),
    ),
    "GimArm": RobotType(
        {
            "can_interface": "can0",
            "arm_variant": "gim_arm_xl",
            "camera_serials": None,
            "camera_type": "realsense",
            "enable_gripper": True,
            "gripper_type": "parallel",
            "controller_node_rank": None,
            "disable_validate": False,
        },
        identifiers=("can_interface",),
        lists=("camera_serials",),
    ),
    "Turtle2": RobotType({}),
}


@dataclass(frozen=True)
class Robot:
    """One entry of ``hardware.configs``."""

    key: str
    type: str
    node_rank: int
    values: Mapping[str, Any] = field(hash=False)


def read_robot(kind: str, entry: Mapping[str, Any], key: str, findings: Findings) -> Robot | None:
    """An entry whose fields are known ones; None if a value cannot be used."""
    before = findings.count
    rank = entry["node_rank"]
    if not isinstance(rank, int):  # True is 1, as in RLinf
        fix = "write a number without quotes"
        findings.add(Stage.PARSE, f"{key}.node_rank", rank, "hardware node_rank not an integer", "", fix)
    for name in ROBOT_TYPES[kind].addresses:
        if entry.get(name) is not None and not _is_address(entry[name]):
            fix = "write an IPv4 or IPv6 address, not a name"
            findings.add(Stage.PARSE, f"{key}.{name}", entry[name], "robot ip invalid", "", fix)
    variant = entry.get("arm_variant", "gim_arm_xl")
    if kind == "GimArm" and variant not in ("gim_arm", "gim_arm_xl"):
        fix = "write gim_arm or gim_arm_xl"
        findings.add(Stage.PARSE, f"{key}.arm_variant", variant, "arm variant invalid", "", fix)
    for name in ROBOT_TYPES[kind].lists:
        value = entry.get(name)
        must_iterate = value is not None if kind == "DOSW1" else bool(value)
        if must_iterate and not isinstance(value, (Sequence, Mapping)):
            findings.add(Stage.PARSE, f"{key}.{name}", value, "wrong YAML type", "a list is needed", "write a list")
    if findings.count > before:
        return None
    return Robot(key, kind, int(rank), {**ROBOT_TYPES[kind].fields, **entry})


def _is_address(value: Any) -> bool:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True


def count_robots(node: Node, configured: Sequence[Robot], findings: Findings) -> dict[str, int]:
    """How many robots of each type RLinf finds on ``node``; what stops it there is noted."""
    counts: dict[str, int] = {}
    for kind, robot_type in ROBOT_TYPES.items():
        mine = [robot for robot in configured if robot.type == kind]
        if node.env is None:
            robots = [dict(robot.values) for robot in mine]
        else:
            robots = _with_environment(node, kind, robot_type, mine, findings)
        for index, values in enumerate(robots):
            key = mine[index].key if mine else f"the environment of {node.name}"
            _check_on_node(node, kind, values, key, findings)
        if robots:
            counts[kind] = len(robots)
    return counts


def _with_environment(
    node: Node, kind: str, robot_type: RobotType, configured: Sequence[Robot], findings: Findings
) -> list[dict[str, Any]]:
    env = node.env or {}
    robots = [dict(robot.values) for robot in configured]
    created = not robots
    if created:
        robots = [dict(robot_type.fields) for _ in range(_count_in_environment(node, robot_type, findings))]
        if robots:
            names = ", ".join(name.upper() for name in robot_type.identifiers if name.upper() in env)
            findings.notice(
                "robot_from_environment",
                "",
                f"{node.name} gets {len(robots)} {kind} only because {names} is set in its environment",
                "unset the variable there, or name the robots under hardware: of a node group",
            )
    for name, default in robot_type.fields.items():
        variable = name.upper()
        if not robots or name.endswith("node_rank") or variable not in env:
            continue
        pieces = [env[variable]] if len(robots) == 1 else [piece.strip() for piece in env[variable].split(",")]
        if len(pieces) != len(robots):
            findings.add(
                Stage.DISCOVER,
                f"{variable} on {node.name}",
                env[variable],
                "robot env var count mismatch",
                f"{len(pieces)} values for {len(robots)} robots of type {kind} on node {node.rank}",
                "set one value a robot, with commas between them, or unset the variable before Ray is started there",
            )
            continue
        for values, piece in zip(robots, pieces, strict=True):
            if created or values[name] is None:
                values[name] = _parsed(node, variable, piece, name, default, robot_type, findings)
    return robots


def _count_in_environment(node: Node, robot_type: RobotType, findings: Findings) -> int:
    """How many robots the identifying variables tell of."""
    env = node.env or {}
    told = {name.upper(): len(env[name.upper()].split(",")) for name in robot_type.identifiers if name.upper() in env}
    if len(set(told.values())) > 1:
        findings.add(
            Stage.DISCOVER,
            f"{' and '.join(told)} on {node.name}",
            None,
            "robot identifier env vars disagree",
            ", ".join(f"{name} has {count} values" for name, count in told.items()),
            "give each robot a value in both variables",
        )
        return 0
    return next(iter(told.values()), 0)


def _parsed(
    node: Node, variable: str, text: str, name: str, default: Any, robot_type: RobotType, findings: Findings
) -> Any:
    text = text.strip()
    if name in robot_type.lists:
        return [item.strip() for item in text.split(",") if item.strip()]
    if isinstance(default, bool):
        return text.lower() in ("1", "true", "yes", "on")
    if isinstance(default, int):
        try:
            return int(text)
        except ValueError:
            fix = "set a number, or unset the variable before Ray is started there"
            key = f"{variable} on {node.name}"
            findings.add(Stage.DISCOVER, key, text, "robot env var not a number", f"node {node.rank}", fix)
            return default
    return text


def _check_on_node(node: Node, kind: str, values: Mapping[str, Any], key: str, findings: Findings) -> None:
    """What RLinf checks of a robot on its node; only of Franka it asks for more than a CAN interface."""
    if values.get("disable_validate"):
        return
    where = f"from node {node.rank}, {node.name}"
    skip = "or set disable_validate: true"
    if kind == "GimArm":
        path = f"/sys/class/net/{values['can_interface']}"
        if node.paths is not None and path not in node.paths:
            message = f"{path} is not there on node {node.rank}, {node.name}: the arm may not start"
            findings.notice("can_interface_missing", f"{key}.can_interface", message, from_rlinf=True)
    if kind != "Franka":
        return
    if values["robot_ip"] is not None and str(values["robot_ip"]) in node.unreachable:
        fix = f"switch the robot on and check its network, {skip}"
        findings.add(Stage.DISCOVER, f"{key}.robot_ip", values["robot_ip"], "robot unreachable", where, fix)
    if node.cameras is None:
        return
    if not node.cameras:
        fix = f"plug a camera in, {skip}"
        findings.add(Stage.DISCOVER, key, None, "robot node has no cameras", where, fix)
    for serial in values["camera_serials"] or ():
        if node.cameras and serial not in node.cameras:
            there = f"{where} are {', '.join(node.cameras)}"
            if not isinstance(serial, str):
                there += "; serial numbers are texts: quote them in YAML"
            name = f"{key}.camera_serials"
            findings.add(Stage.DISCOVER, name, serial, "camera serial not connected", there, f"plug it in, {skip}")

"""What waits in Ray for room, in words; the helper that asks Ray is fed with what Ray said."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from edgelink.cli.ray_watch import RayWatch, waits_for
from edgelink.launch.ray_pending import actors_waiting, groups_waiting
from edgelink.training.resources import NodeResources

NODES = [
    NodeResources("cloud", {"GPU": 4.0, "CPU": 32.0, "node:10.10.0.2": 1.0}, {"GPU": 1.0, "CPU": 32.0}),
    NodeResources("edge-1", {"CPU": 4.0}, {"CPU": 4.0}),
]
GRANTED = [{"hostname": "cloud", "overlay_ip": "10.10.0.2"}, {"hostname": "edge-1", "overlay_ip": "10.10.0.3"}]
POOL = {
    "id": "aa",
    "what": "placement group pool",
    "strategy": "STRICT_PACK",
    "bundles": [{"GPU": 2.0, "CPU": 3.0}] * 2,
    "never": False,
}
CRITIC = {"id": "bb", "what": "actor Critic", "strategy": "", "bundles": [{"GPU": 8.0}], "never": True}


def test_a_group_is_named_with_its_wish_and_with_what_there_is() -> None:
    """Equal bundles once, and of each node only what the group wants."""
    told = waits_for(POOL, NODES)
    assert told.startswith("placement group pool waits for 2 times 2 GPU and 3 CPU (STRICT_PACK)")
    assert "cloud 32 of 32 CPU, 1 of 4 GPU; edge-1 4 of 4 CPU, 0 of 0 GPU" in told
    assert "node:" not in told


def test_what_no_node_ever_has_is_told_apart() -> None:
    """Waiting does not help there."""
    assert "no node ever" in waits_for(CRITIC, NODES)
    assert "no node ever" not in waits_for(POOL, NODES)
    assert waits_for(CRITIC, NODES).startswith("actor Critic waits for 8 GPU,")


def test_a_name_of_rays_cannot_write_on_the_terminal() -> None:
    """It is the program's, whatever it has in it; and there may be many nodes."""
    told = waits_for({**POOL, "what": "placement group \x1b[2J"}, NODES * 100)
    assert "\x1b" not in told
    assert len(told) <= 300


def test_each_thing_is_said_once_and_noted_while_it_waits() -> None:
    """Also when what is free changes meanwhile."""
    said: list[str] = []
    noted: list[tuple[str, ...]] = []
    watch = RayWatch(GRANTED, said.append)
    nodes = [{"ip": "10.10.0.2", "total": {"GPU": 4.0}, "free": {"GPU": 1.0}}]
    for waiting in ([POOL], [POOL, CRITIC], [CRITIC], [POOL], []):
        watch.hear({"waiting": waiting, "nodes": nodes})
        noted.append(watch.waits_for)
        nodes = [{**nodes[0], "free": {"GPU": 0.0}}]
    pool, critic = said
    assert noted == [(pool,), (pool, critic), (critic,), (pool,), ()]
    assert "cloud" in pool


def test_what_each_node_has_is_known_once_ray_has_answered() -> None:
    """By the names that people know, also after the helper has ended."""
    watch = RayWatch(GRANTED, lambda _: None)
    nodes = [{"ip": ip, "total": {"GPU": 4.0}, "free": {"GPU": 1.0}} for ip in ("10.10.0.3", "10.10.0.2", "10.10.0.9")]
    threading.Timer(0.05, watch.hear, [{"waiting": [], "nodes": nodes}]).start()
    assert [node.name for node in watch.nodes()] == ["10.10.0.9", "cloud", "edge-1"]
    watch.hear_nothing("it ended")
    assert len(watch.nodes()) == len(nodes)


def test_why_ray_does_not_answer_is_said() -> None:
    """By the helper, or of it."""
    for tell in (
        lambda watch: watch.hear({"waiting": [], "nodes": None, "error": "no such method"}),
        lambda watch: watch.hear_nothing("no such method"),
    ):
        watch = RayWatch(GRANTED, lambda _: None)
        tell(watch)
        with pytest.raises(LookupError, match="no such method"):
            watch.nodes()


def table(**changes: Any) -> dict[str, dict[str, Any]]:
    group = {
        "name": "pool",
        "strategy": "PACK",
        "state": "PENDING",
        "bundles": {0: {"GPU": 2.0}},
        "stats": {"scheduling_state": "NO_RESOURCES"},
    }
    return {"aa" * 16: {**group, **changes}}


@pytest.mark.parametrize("state", ["CREATED", "PREPARED", "REMOVED"])
def test_a_group_that_has_room_does_not_wait(state: str) -> None:
    assert groups_waiting(table(state=state)) == {}


def test_a_group_without_a_name_has_its_id() -> None:
    """Whether it can ever be placed is Ray's to say."""
    (found,) = groups_waiting(table(name="", stats={"scheduling_state": "INFEASIBLE"})).values()
    assert (found["what"], found["never"], found["bundles"]) == ("placement group aaaaaaaa", True, [{"GPU": 2.0}])


def actor(group: str = "", **wanted: float) -> Any:
    return SimpleNamespace(
        actor_id=b"\xbb",
        name="",
        class_name="Critic",
        required_resources=wanted,
        placement_group_id=bytes.fromhex(group),
    )


def test_an_actor_waits_that_has_no_room() -> None:
    """One that has, is being started; one of a group that waits is told of with the group."""
    nodes = [{"total": {"GPU": 4.0}, "free": {"GPU": 1.0}}]
    assert actors_waiting([actor(GPU=1.0), actor()], {}, nodes) == {}
    assert actors_waiting([actor("aa", GPU=2.0)], {"aa": POOL}, nodes) == {}
    assert actors_waiting([actor(GPU=2.0)], {}, nodes)["bb"]["never"] is False
    assert actors_waiting([actor(GPU=8.0)], {}, nodes)["bb"]["never"] is True

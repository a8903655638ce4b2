"""What does not fit a driver is refused with the names of the nodes, before the driver starts."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from telling import refuses

from edgelink.errors import ConfigError
from edgelink.training.framework import OPENRLHF, PLAIN, RLINF, VERL, Framework
from edgelink.training.grant_checks import addresses_of, check_grant, say_what_is_left

HOSTS = {"edge-1": {"10.10.0.3"}, "localhost": {"127.0.0.1"}, "nobody": set[str]()}


def granted(*devices: str | None, overlay: str = "easytier", **others: Any) -> dict[str, Any]:
    nodes = [
        {"hostname": f"edge-{rank}" if rank else "cloud", "overlay_ip": f"10.10.0.{rank + 2}", "device": device}
        for rank, device in enumerate(devices)
    ]
    return {"nodes": nodes, "overlay": overlay, **others}


def check(grant: dict[str, Any], framework: Framework = RLINF, **environment: str) -> None:
    check_grant(grant, framework, environment, lambda name: HOSTS.get(name, {name}))


def test_detached_actors_of_former_jobs_are_named() -> None:
    """Once, in a line."""
    said: list[str] = []
    for grant in (granted("et0"), granted("et0", left_actors=[])):
        say_what_is_left(grant, said.append)
    assert said == []
    say_what_is_left(granted("et0", left_actors=["replay (namespace train, on 10.10.0.3)"]), said.append)
    (line,) = said
    assert "replay (namespace train, on 10.10.0.3)" in line
    assert "ray.kill" in line


@pytest.mark.parametrize("framework", [RLINF, OPENRLHF, VERL, PLAIN])
def test_devices_that_differ_are_named(framework: Framework) -> None:
    """Each with its nodes; one whose device is not known does not count."""
    check(granted("et0", "et0", None), framework)
    with pytest.raises(ConfigError, match="et0 on cloud, edge-2; et7 on edge-1; ") as caught:
        check(granted("et0", "et7", "et0"), framework)
    assert "overlay.device" in str(caught.value.hint)
    assert caught.value.condition_reason == "DevicesDiffer"


@pytest.mark.parametrize(("framework", "is_refused"), [(RLINF, False), (PLAIN, False), (OPENRLHF, True), (VERL, True)])
def test_machines_of_an_existing_network_have_devices_of_their_own(framework: Framework, is_refused: bool) -> None:
    """RLinf asks each node for its device; the others' workers are all told the head's."""
    grant = granted("eth0", "wlan0", overlay="existing")
    refused = pytest.raises(ConfigError, match="eth0 on cloud; wlan0 on edge-1")
    with refused if is_refused else nullcontext():
        check(grant, framework)


@pytest.mark.parametrize("master", ["10.10.0.2", "10.10.0.3", "edge-1"])
def test_a_nodes_address_is_a_good_master(master: str) -> None:
    """By number and by name."""
    check(granted("et0", "et0"), MASTER_ADDR=master)


@pytest.mark.parametrize(
    ("master", "told"),
    [("192.0.2.9", "192.0.2.9 is no node's"), ("localhost", r"\(127.0.0.1\)"), ("nobody", r"\(no such host\)")],
)
def test_a_master_that_nodes_cannot_reach_is_refused(master: str, told: str) -> None:
    """With the addresses that are right."""
    with pytest.raises(ConfigError, match=f"MASTER_ADDR={master}.*: cloud 10.10.0.2, edge-1 10.10.0.3") as caught:
        check(granted("et0", "et0"), MASTER_ADDR=master)
    assert caught.match(told)
    assert caught.value.condition_reason == "MasterUnreachable"


def test_a_program_of_this_machine_alone_may_meet_on_it() -> None:
    """Of one node, or of a command that is no framework's."""
    check(granted("et0"), MASTER_ADDR="localhost")
    check(granted("et0", "et0"), PLAIN, MASTER_ADDR="localhost")
    with pytest.raises(ConfigError, match="MASTER_ADDR"):
        check(granted("et0", "et0"), PLAIN, MASTER_ADDR="192.0.2.9")


def test_rlinf_meets_nobody_without_a_rank() -> None:
    """Others do not look at ranks."""
    grant = granted("et0", without_rank=["Ray at 10.10.0.77 (laptop)"])
    check(grant, VERL)
    with refuses(ConfigError, "Ray at 10.10.0.77 (laptop)", reason="RankMissing"):
        check(grant)


def test_a_name_is_looked_up_as_this_machine_does() -> None:
    """An address is its own; nobody's name has none."""
    assert addresses_of("10.10.0.2") == {"10.10.0.2"}
    assert "127.0.0.1" in addresses_of("localhost")
    assert addresses_of("no such host") == set()

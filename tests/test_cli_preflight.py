"""The check before a launch, over loopback and a Ray that is pretended: what is said, and what is refused."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from telling import Words, refuses

from edgelink.api.server import Caller, LocalApi, route
from edgelink.cli.preflight import PreflightWishes, check_before_launch
from edgelink.clock import SystemClock
from edgelink.errors import ExitCode, UsageError
from edgelink.training.preflight import PreflightError
from edgelink.training.trainer.link_budget.links import Measured

pytestmark = pytest.mark.processes

# Each actor is an object in this process. Nobody has torch. A node whose id begins with "silent" never answers.
RAY = """
import pathlib, sys, threading
from concurrent.futures import ALL_COMPLETED, ThreadPoolExecutor, wait as wait_for
sys.modules["torch"] = None
HERE = pathlib.Path(__file__).parent.parent
POOL = ThreadPoolExecutor(64)
def init(address, **_):
    if address == "nobody:1": raise ConnectionError("no Ray there")
class Method:
    def __init__(self, function): self.function = function
    def remote(self, *arguments): return POOL.submit(self.function, *arguments)
class Actor:
    def __init__(self, peer, node): self.peer, self.node = peer, node
    def __getattr__(self, name): return Method(lambda *arguments: self.answer(name, *arguments))
    def answer(self, name, *arguments):
        if self.node.startswith("silent"): threading.Event().wait()
        answer = getattr(self.peer, name)(*arguments)
        if name == "facts":
            answer["devices"] = {"et0": {"ip": self.peer.ip, "mtu": 1280}}
        return answer
class remote:
    def __init__(self, kind): self.kind = kind
    def options(self, scheduling_strategy, **_): self.node = scheduling_strategy; return self
    def remote(self, *arguments, **named):
        with (HERE / "asked").open("a") as asked: asked.write(self.node + "\\n")
        return Actor(self.kind(*arguments, **named), self.node)
def wait(waiting, num_returns, timeout):
    done, _ = wait_for(waiting, timeout, ALL_COMPLETED)
    return [one for one in waiting if one in done], [one for one in waiting if one not in done]
def get(reference): return reference.result()
def kill(actor): pass
def nodes(): return [{"NodeID": "silent", "NodeManagerPort": 1}]
"""
STRATEGIES = "def NodeAffinitySchedulingStrategy(node, soft): return node\n"
WHY = "No such file or directory"
PLACEMENT: dict[str, Any] = {
    "placements": {"actor": [{"node_rank": 0}], "env": [{"node_rank": 1}]},
    "groups": [{"label": "robots", "node_ranks": [1, 2]}],
}


class World:
    """Three nodes; what is said of them is collected."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ids = ["cloud", "edge-1", "edge-2"]
        self.placement: dict[str, Any] | None = None
        self.address = "127.0.0.1:6379"
        self.said: list[str] = []
        self.links: Measured | None = None
        self.heard: list[str] = []

    @property
    def asked(self) -> list[str]:
        """The nodes on which somebody was started."""
        file = self.directory / "asked"
        return file.read_text().split() if file.exists() else []

    async def check(
        self, *, device: str = "et0", skip: bool = False, paths: Any = (), file: Path | None = None, argv: Any = ()
    ) -> None:
        granted = {
            "nodes": [
                {
                    "node_rank": rank,
                    "hostname": ("cloud", "edge-1", "edge-2")[rank],
                    "overlay_ip": f"127.0.0.{rank + 1}",
                    "ray_node_id": ray_node_id,
                }
                for rank, ray_node_id in enumerate(self.ids)
            ],
            "placement": self.placement,
            "environment": {
                "RAY_ADDRESS": self.address,
                "EDGELINK_RAY_PYTHON": sys.executable,
                "PYTHONPATH": str(self.directory),
                "RLINF_COMM_NET_DEVICES": "et0",
            },
        }
        wishes = PreflightWishes(skip, tuple(paths))
        content = None if file is None else yaml.safe_load(file.read_text())
        environment = {**granted["environment"], "GLOO_SOCKET_IFNAME": device}
        socket = self.directory / "node.sock"
        self.links = await asyncio.to_thread(
            check_before_launch, granted, environment, wishes, content, argv, socket, SystemClock(), self.said.append
        )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    (tmp_path / "ray/util").mkdir(parents=True)
    (tmp_path / "ray/__init__.py").write_text(RAY)
    (tmp_path / "ray/util/__init__.py").touch()
    (tmp_path / "ray/util/scheduling_strategies.py").write_text(STRATEGIES)
    world = World(tmp_path)

    async def heard(_caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        return {"heard": [address for address in world.heard if address in body["wanted"]]}

    api = LocalApi(tmp_path / "node.sock")
    async with api.serving([route("GET", "/heard", heard)]):
        yield world


async def test_nodes_without_torch_exchange_by_tcp(world: World, words: Words) -> None:
    """Which is said, and no reason to refuse."""
    await world.check()
    (said,) = world.said
    assert all(name in said for name in ("3 nodes", "plain TCP", "cloud, edge-1, edge-2: no torch"))
    words(said.rpartition(" (")[0])
    assert sorted(world.asked) == ["cloud", "edge-1", "edge-2"]


async def test_only_nodes_with_workers_and_the_head_take_part(world: World) -> None:
    world.placement = PLACEMENT
    await world.check()
    assert sorted(world.asked) == ["cloud", "edge-1"]


async def test_the_links_of_the_trainer_are_measured(world: World) -> None:
    """Between the nodes that its placement makes talk, and of no other command."""
    places = {name: [{"node_rank": rank}] for name, rank in (("actor", 0), ("rollout", 1), ("env", 1))}
    world.placement = {"placements": places, "groups": []}
    await world.check(argv=("/usr/bin/edgelink", "train", "run.seed=1"))
    assert world.links is not None
    assert set(world.links.links) == {(0, 1), (1, 0)}
    assert world.links.name(1) == "edge-1"
    assert world.said[0] == "measures cloud ↔ edge-1"
    await world.check(argv=("python", "train.py"))
    assert world.links is None


async def test_nothing_is_started_where_nothing_is_asked(world: World) -> None:
    await world.check(skip=True)
    world.ids = ["cloud"]
    await world.check()
    assert world.asked == world.said == []


async def test_a_wrong_device_is_refused_with_its_nodes(world: World) -> None:
    with pytest.raises(
        PreflightError, match=r"wrong device on cloud .*, edge-1 .*, edge-2 .*: there is no lan0"
    ) as refused:
        await world.check(device="lan0")
    assert refused.value.exit_code == ExitCode.CONFIG
    assert "--no-preflight" in refused.value.hint


async def test_a_node_that_does_not_answer_is_named(world: World, words: Words) -> None:
    """Its raylet's port refuses the head."""
    world.ids[2] = "silent"
    with refuses(PreflightError, "edge-2 (127.0.0.3)", "raylet's port") as refused:
        await world.check()
    assert refused.value.exit_code == ExitCode.TRY_AGAIN
    (said,) = world.said
    assert said.endswith("on edge-2")
    words(said)


async def test_a_ray_that_cannot_be_asked_says_why(world: World) -> None:
    world.address = "nobody:1"
    with pytest.raises(PreflightError, match="ended early: ConnectionError: no Ray there"):
        await world.check()


async def test_missing_paths_are_refused_without_the_exchange_too(world: World, tmp_path: Path) -> None:
    """On the nodes that need them only."""
    world.placement = PLACEMENT
    asked = [("robots", "/no/such"), (None, str(tmp_path))]
    with pytest.raises(PreflightError) as refused:
        await world.check(skip=True, paths=asked)
    assert refused.value.message == f"--require-path /no/such: missing on edge-1 ({WHY}), edge-2 ({WHY})"
    assert refused.value.exit_code == ExitCode.CONFIG
    assert "--no-preflight" not in refused.value.hint
    await world.check(skip=True, paths=asked[1:])
    with refuses(UsageError, "nobody"):
        await world.check(paths=[("nobody", "/x")])


async def test_paths_of_the_configuration_are_looked_for(world: World, tmp_path: Path) -> None:
    """Not with --no-preflight."""
    world.placement = PLACEMENT
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"cluster": {}, "env": {"assets_path": "/no/assets"}}))
    with pytest.raises(PreflightError) as refused:
        await world.check(file=file)
    assert refused.value.message == f"env.assets_path: /no/assets: missing on edge-1 ({WHY})"
    await world.check(file=file, skip=True)
    await world.check(file=file, argv=("python", "train.py", f"env.assets_path={tmp_path}"))

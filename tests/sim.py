"""Whole daemons in memory, on virtual time: a relay, a head and edges, put together as `edgelink` puts them together.

::

    @story
    async def test_an_edge_becomes_ready(sim):
        relay, head, edge = await sim.network("cloud", "edge-1")
        await sim.until(edge.is_ready, within_s=15)

What is played is in ``sim_machine.py``. While time goes on, and at the end, no board contradicts itself or the disk. At
the end no task is left. The order in which tasks run that are ready at one moment is drawn for each story. One that
fails tells the seed, and ``EDGELINK_SIM_SEED`` draws the same order again; keys and back-off stay random.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from in_memory import IN_MEMORY
from sim_machine import Machine, World, here

from edgelink.conditions import Condition, Status
from edgelink.config import Config, Paths
from edgelink.daemon.additional_relay import AdditionalRelay
from edgelink.daemon.edge import Edge
from edgelink.daemon.head import Head
from edgelink.daemon.own_registry import OwnRegistry
from edgelink.daemon.relay import Relay
from edgelink.facts.board import Board
from edgelink.facts.facts import Facts, contradictions
from edgelink.member.enrolment import Enrolment
from edgelink.member.join import join
from edgelink.member.registry_client import RegistryClient
from edgelink.protocol.held_secret import HeldSecret
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Role
from edgelink.protocol.token import Token
from edgelink.relay.relay_addresses import relay_addresses
from edgelink.testing.virtual_time import LoopClock, VirtualLoop, run

RELAY_ADDRESS, SECOND_ADDRESS = "203.0.113.5", "203.0.113.6"
BROKER_PORT = 8883
_LOOK_S = 0.05
_READY_S = 60.0  # from the start of all daemons, or the end of what is wrong

Daemon = Relay | AdditionalRelay | Head | Edge
Story = Callable[["Sim"], Coroutine[Any, Any, None]]


def story(test: Story) -> Callable[[], None]:
    """Make a test of an async function that takes a :class:`Sim`."""

    def told() -> None:
        play(test)

    told.__name__, told.__doc__, told.__module__ = test.__name__, test.__doc__, test.__module__
    return told


def play(test: Story) -> None:
    """Run one story, for a test that has arguments of its own."""
    seed = int(os.environ.get("EDGELINK_SIM_SEED") or random.randrange(1 << 32))
    directory = Path(tempfile.mkdtemp(prefix="sim", dir=IN_MEMORY))
    world = World()
    try:
        run(VirtualLoop(seed, world), _told(test, Sim(world, directory, seed)))
    except BaseException as failure:
        failure.add_note(f"the order of tasks was drawn by EDGELINK_SIM_SEED={seed}")
        raise
    finally:
        shutil.rmtree(directory)


async def _told(test: Story, sim: Sim) -> None:
    await test(sim)
    sim.check()
    for box in sim.boxes:
        assert box._failure is None, box
        await box.stop()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks were left: {sorted(task.get_name() for task in left)}"


async def ready(sim: Sim, *names: str) -> list[Box]:
    """A network in which everybody works."""
    boxes = await sim.network(*names)
    await all_ready(sim, boxes)
    return boxes


async def all_ready(sim: Sim, boxes: list[Box]) -> float:
    """How long it takes until they are, and the head says so of all."""
    head = next(box for box in boxes if box.role is Role.HEAD)
    everybody = [box for box in boxes if box.is_alive]
    return await sim.until(
        lambda: all(box.is_ready() for box in everybody) and head.has("NodesReady", "AllAlive")(), _READY_S
    )


class Sim:
    """The boxes of one network, and time."""

    def __init__(self, world: World, directory: Path, seed: int) -> None:
        self.world, self.seed = world, seed
        self.clock = LoopClock()
        self.boxes: list[Box] = []
        self._notes: list[str] = []
        self._directory = directory

    def box(self, name: str, role: Role, **config: Any) -> Box:
        """A new machine, on which nothing runs yet."""
        machine = Machine(self.world, self._directory / name, is_relay=role is Role.RELAY)
        box = Box(self, name, role, machine, config)
        self.boxes.append(box)
        return box

    async def relay(self, **config: Any) -> Box:
        """A relay that serves enrolments."""
        box = self.box("relay", Role.RELAY, **config)
        self.world.brokers[f"{RELAY_ADDRESS}:{BROKER_PORT}"] = box.machine.memory
        box.start()
        await self.until(box.has("RegistryConnected"), within_s=5)
        return box

    async def second_relay(self, relay: Box) -> Box:
        """An additional relay of that relay's network, which has joined, and whose daemon does not run yet."""
        box = self.box("relay-2", Role.RELAY, relay={"advertise": (SECOND_ADDRESS,), "stun_ports": ()})
        addresses = relay_addresses(box.config, box.config.relay.advertise)
        box.enrolment = replace(await self.invited(box.name, box.role, relay), relay=addresses)
        await join(box.enrolment, box.config, box.paths, self.clock, box.machine)
        return box

    async def join(self, name: str, role: Role, relay: Box, **config: Any) -> Box:
        """A machine that has joined, and whose daemon does not run yet."""
        box = self.box(name, role, **config)
        box.enrolment = await self.invited(name, role, relay)
        await join(box.enrolment, box.config, box.paths, self.clock, box.machine)
        return box

    async def invited(self, name: str, role: Role, relay: Box) -> Enrolment:
        """What a machine of this name joins with, by a new token."""
        answer = await relay.asks("POST", "/tokens", role=role.value, ttl_s=3600, uses=1)
        return Enrolment(Token.parse(answer["token"]), name)

    async def network(self, *names: str) -> list[Box]:
        """A relay, a head and edges, all started at once."""
        relay = await self.relay()
        roles = [Role.HEAD, *[Role.EDGE] * (len(names) - 1)]
        nodes = [await self.join(name, role, relay) for name, role in zip(names, roles, strict=True)]
        for node in nodes:
            node.start()
        return [relay, *nodes]

    async def until(self, holds: Callable[[], object], within_s: float) -> float:
        """Let time go on until ``holds()``; how long it took, in seconds."""
        begun_s = self.clock.monotonic_s()
        while not holds():
            took_s = self.clock.monotonic_s() - begun_s
            assert took_s < within_s, f"not within {within_s:g} s: {self}"
            await self.passes(_LOOK_S)
        return self.clock.monotonic_s() - begun_s

    async def passes(self, seconds: float) -> None:
        """Let time go on."""
        await self.clock.sleep(seconds)
        self.check()

    def note(self, event: str) -> None:
        """What a story that failed tells of."""
        self._notes.append(f"{self.clock.monotonic_s():.2f} s: {event}")

    def check(self) -> None:
        """What holds at each moment."""
        for box in self.boxes:
            if box.daemon is not None and box.is_alive:
                box.check()

    def __str__(self) -> str:
        return "\n".join([*self._notes, f"{self.clock.monotonic_s():.2f} s", *map(str, self.boxes)])


def secret(relay: Box) -> HeldSecret:
    """The network's present one, as the registry has it."""
    network = relay.relay.authority.network
    return HeldSecret(network.secret_epoch, network.secret)


class Box:
    """One machine and the daemon on it.

    Attributes:
        enrolment: how it becomes a member, if it is none when its daemon starts.
        history: the facts after each write of this life of the daemon.
    """

    def __init__(self, sim: Sim, name: str, role: Role, machine: Machine, config: dict[str, Any]) -> None:
        self.sim, self.name, self.role, self.machine = sim, name, role, machine
        self.paths = Paths(machine.directory / "s", machine.directory / "r")
        self.config = Config.model_validate(_config(machine, name) | config)
        self.enrolment: Enrolment | None = None
        self.daemon: Daemon | None = None
        self.history: list[Facts] = []
        self._failure: Exception | None = None
        self._task: asyncio.Task[None] | None = None
        self._seen: tuple[Membership | None, int | None] = None, None  # its membership, when it was last compared
        self._wrong: list[str] = []

    @property
    def relay(self) -> OwnRegistry:
        assert isinstance(self.daemon, Relay)
        return self.daemon.own

    @property
    def node(self) -> Head | Edge:
        assert isinstance(self.daemon, Head | Edge)
        return self.daemon

    @property
    def registry(self) -> RegistryClient:
        """The node's session with the registry."""
        assert self.node.member.joined is not None
        return self.node.member.joined.registry

    @property
    def board(self) -> Board[Facts]:
        assert self.daemon is not None
        return self.daemon.base.board

    @property
    def facts(self) -> Facts:
        return self.board.facts

    @property
    def membership(self) -> Membership:
        """The one on its disk."""
        found = Membership.load(self.paths)
        assert found is not None
        return found

    @property
    def node_id(self) -> str:
        return self.membership.lease.node_id

    @property
    def used(self) -> list[HeldSecret]:
        """The secrets that this life of its daemon came to run with, one after the other."""
        held = [facts.running.held for facts in self.history if facts.running is not None]
        return [after for before, after in itertools.pairwise(held) if after != before]

    @property
    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """A new life of its daemon."""
        assert not self.is_alive
        self._failure = None
        context = copy_context()
        context.run(here.set, self.machine)
        self.daemon = context.run(self._made)
        self._watch(self.daemon.base.board)
        self._task = asyncio.create_task(self._live(self.daemon), name=self.name, context=context)

    def _made(self) -> Daemon:
        clock = self.sim.clock
        if self.role is Role.RELAY and self.enrolment is None:
            return Relay(self.config, self.paths, clock, self.machine, None)
        if self.role is Role.RELAY:
            assert self.enrolment is not None
            assert self.enrolment.relay is not None
            addresses = self.enrolment.relay
            return AdditionalRelay(self.config, self.paths, clock, self.machine, addresses, self.enrolment)
        return (Head if self.role is Role.HEAD else Edge)(self.config, self.paths, clock, self.machine, self.enrolment)

    def _watch(self, board: Board[Facts]) -> None:
        put, self.history = board._put, []

        def noted(name: str, value: object) -> None:
            put(name, value)
            self.history.append(board.facts)
            self._wrong += contradictions(board.facts)

        board._put = noted  # type: ignore[method-assign]

    async def _live(self, daemon: Daemon) -> None:
        try:
            await daemon.run()
        except Exception as failure:
            self._failure = failure

    async def stop(self) -> None:
        """As `edgelink stop`."""
        if self._task is not None and not self._task.done():
            assert self.daemon is not None
            self.daemon.stop_request.request()
            await self._task

    async def kill(self) -> None:
        """As SIGKILL: its daemon is gone at once, and what it has started goes on."""
        assert self.daemon is not None
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        for program in self.machine.waiting:
            program.hang_up()
        for held in (self.daemon.overlay.overlay, self.daemon.overlay.echo):
            held._ownership.release()  # the kernel frees the locks of the dead
        if isinstance(self.daemon, Relay) and "own" in vars(self.daemon):  # it had come so far
            self.daemon.own.store.close()

    async def ends(self, within_s: float) -> Exception:
        """With what its daemon ends by itself; it is known then."""
        await self.sim.until(lambda: not self.is_alive, within_s)
        failure, self._failure = self._failure, None
        assert failure is not None, f"{self.name} has ended without an error"
        return failure

    def copied_from(self, other: Box) -> None:
        """Have this machine's disk be a copy of another one's."""
        shutil.copytree(other.paths.state, self.paths.state)

    def condition(self, kind: str) -> Condition:
        assert self.daemon is not None
        return self.daemon.base.conditions.get(kind)

    def has(self, kind: str, reason: str | None = None) -> Callable[[], bool]:
        """Whether the condition is True, or, with ``reason``, whatever it is, for that reason."""

        def holds() -> bool:
            found = self.condition(kind)
            return found.status is Status.TRUE if reason is None else found.reason == reason

        return holds

    def is_ready(self) -> bool:
        return self.daemon is not None and self.daemon.base.conditions.is_ready

    async def told(self, method: str, path: str, **body: Any) -> list[dict[str, Any]]:
        """All that its daemon answers over its socket to what `edgelink` asks there."""
        socket = self.paths.bootstrap_socket if self.role is Role.RELAY else self.paths.node_socket
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as client,
            client.request(method, f"http://edgelink{path}", json=body) as answer,
        ):
            return [json.loads(line) for line in (await answer.text()).splitlines()]

    async def asks(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        """The last of it, which is no error."""
        *_, last = await self.told(method, path, **body)
        assert "error" not in last, last
        return last

    def check(self) -> None:
        """Raises AssertionError where its facts contradict each other, or the disk."""
        assert not self._wrong, f"{self.name}: {self._wrong}"
        known = self.facts.membership
        seen = known, None if known is None else self.paths.membership.stat().st_mtime_ns
        if known is not None and seen != self._seen:
            assert known == Membership.load(self.paths), f"{self.name}: not what is on disk"
            self._seen = seen

    def __str__(self) -> str:
        if self.daemon is None:
            return f"{self.name}: not started"
        ended = f" ended with {self._failure!r}" if self._failure else "" if self.is_alive else " ended"
        unmet = [
            f"{c.type} {c.reason}: {c.message}" for c in self.daemon.base.conditions if c.status is not Status.TRUE
        ]
        return "\n  ".join([f"{self.name}{ended}", *unmet])


def _config(machine: Machine, name: str) -> dict[str, Any]:
    return {
        "hostname": name,
        "relay": {"advertise": (RELAY_ADDRESS,), "broker_port": BROKER_PORT, "stun_ports": ()},
        "overlay": {"easytier_core": machine.core},
        "ray": {"python": machine.python, "allow_root": True, "temp_dir": machine.python.parent / "ray"},
        "host": {"hosts": "leave"},
        "web": {"listen": "off"},
        "metrics": {"listen": "nowhere"},
    }

"""The echo responder outlives the daemon, is replaced when the address is another, and tells why it does not stay."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from math import isfinite
from pathlib import Path
from random import randrange

import pytest
from overlay_world import SPEC

from edgelink.clock import SystemClock
from edgelink.conditions import ConditionSet
from edgelink.config import Paths
from edgelink.errors import OverlayError
from edgelink.facts.part import Action
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.echo import ask
from edgelink.overlay.echo_keeper import EchoKeeper, Inputs, Look, Seen, Start, Stop, echo_users, responder_of
from edgelink.process import SessionLauncher, SupervisedProcess
from edgelink.protocol.keys import NodeKey
from edgelink.testing.facts import board_with, pretend, settle

processes = pytest.mark.processes
MINE, ANOTHER = responder_of(SPEC), responder_of(replace(SPEC, overlay_ip=IPv4Interface("10.10.0.9/24")))


def some_address() -> IPv4Interface:
    """One of loopback's that no other test has."""
    return IPv4Interface(f"127.{randrange(2, 250)}.{randrange(250)}.{randrange(2, 250)}/8")


class Node:
    """A node's daemon as far as echoes go; its overlay device is ``lo``."""

    def __init__(self, directory: Path) -> None:
        self.paths = Paths(directory / "state", directory / "run")
        NodeKey.load_or_create(self.paths.node_key)
        self.spec: OverlaySpec = replace(SPEC, overlay_ip=some_address(), device="lo")
        self.lives: list[EchoKeeper] = []

    def daemon(self) -> EchoKeeper:
        """A new life of it."""
        self.conditions = ConditionSet(SystemClock(), (), ("EchoAnswered",))
        self.board = board_with()
        pretend(self.board, overlay_spec=self.spec, overlay_is_up=True)
        self.die()
        keeper = EchoKeeper(
            board=self.board,
            paths=self.paths,
            process=SupervisedProcess(
                "echo", self.paths.processes / "echo.json", SessionLauncher(), SystemClock(), echo_users()
            ),
            clock=SystemClock(),
        )
        self.lives.append(keeper)
        return keeper

    async def settle(self, keeper: EchoKeeper) -> float:
        """Have the keeper decide and act until there is nothing to do; when it looks again, in seconds."""
        return await settle(keeper, self.board, self.conditions, SystemClock())

    async def hears_of_the_end(self, keeper: EchoKeeper) -> None:
        """Wait until the keeper knows that its responder has ended."""
        watching = asyncio.create_task(keeper.run())
        while isfinite(keeper.own.at_s):
            await keeper.wakeup.wait(10)
        watching.cancel()

    def die(self) -> None:
        """What the kernel does when a daemon is killed: its locks are free."""
        for keeper in self.lives:
            keeper._ownership.release()

    async def answers(self, address: IPv4Address | None = None) -> bool:
        """Whether an echo comes from our address, within seconds."""
        target = address or self.spec.overlay_ip.ip
        for _ in range(400):
            echo = await ask(None, target, 0.5)
            if echo is not None and not echo.is_refusal:
                return True
            await SystemClock().sleep(0.02)
        return False


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    await made.daemon().stop()


@pytest.mark.parametrize(
    ("spec", "is_up", "own", "does", "says"),
    [
        # Without a lease nothing is started, and what runs goes on.
        (None, False, Seen(), None, "NoLease"),
        (None, True, Seen(100, True, MINE), None, "NoLease"),
        # One daemon of a machine keeps the responder. The others look whether it is gone.
        (SPEC, True, Seen(), Look(), None),
        (SPEC, True, Seen(98.1), None, "AnotherDaemons"),
        (SPEC, True, Seen(98), Look(), None),
        (SPEC, True, Seen(70, True, MINE), Look(), None),
        # Before the overlay is up nothing is started, and what runs goes on in a moment without a device.
        (SPEC, False, Seen(100, True), None, "OverlayDown"),
        (SPEC, False, Seen(100, True, MINE), None, "Answering"),
        (SPEC, True, Seen(100, True, MINE), None, "Answering"),
        (SPEC, True, Seen(100, True), Start(SPEC), None),
        (SPEC, True, Seen(100, True, start_s=100.5), None, None),
        # One for another address is replaced, also while the device is not there.
        (SPEC, True, Seen(100, True, ANOTHER), Stop(), None),
        (SPEC, False, Seen(100, True, ANOTHER), Stop(), None),
    ],
)
def test_which_responder_runs(
    tmp_path: Path, spec: OverlaySpec | None, is_up: bool, own: Seen, does: Action | None, says: str | None
) -> None:
    decision = Node(tmp_path).daemon().plan(Inputs(spec, is_up, own), 100.0)
    assert (decision.does, [said.reason for said in decision.says]) == (does, [] if says is None else [says])


@processes
async def test_it_answers_and_the_next_daemon_adopts_it(node: Node) -> None:
    first = node.daemon()
    await node.settle(first)
    assert node.conditions.is_true("EchoAnswered")
    assert await node.answers()
    identity = first.process.identity
    second = node.daemon()
    await node.settle(second)
    assert second.process.identity == identity
    assert await node.answers()


@processes
async def test_one_whose_record_was_lost_is_known_by_its_mark(node: Node) -> None:
    """As when somebody empties the state directory under it."""
    first = node.daemon()
    await node.settle(first)
    assert await node.answers()
    (node.paths.processes / "echo.json").unlink()
    second = node.daemon()
    await node.settle(second)
    assert second.process.identity == first.process.identity
    assert await node.answers()


@processes
async def test_another_address_gets_another_process(node: Node) -> None:
    keeper = node.daemon()
    await node.settle(keeper)
    before = keeper.process.identity
    node.spec = replace(node.spec, overlay_ip=some_address())
    pretend(node.board, overlay_spec=node.spec)
    await node.settle(keeper)
    assert keeper.process.identity != before
    assert await node.answers()
    assert before is not None
    with pytest.raises(ProcessLookupError):
        os.kill(before.pid, 0)


@processes
async def test_one_that_was_killed_is_started_again(node: Node) -> None:
    keeper = node.daemon()
    await node.settle(keeper)
    assert await node.answers()
    assert keeper.process.identity is not None
    os.kill(keeper.process.identity.pid, 9)
    await node.hears_of_the_end(keeper)
    again_s = await node.settle(keeper)
    if not keeper.process.is_running:  # a pause comes first
        await SystemClock().sleep(again_s)
        await node.settle(keeper)
    assert await node.answers()


@processes
async def test_a_taken_port_is_named_with_its_holder(node: Node, tmp_path: Path) -> None:
    other = Node(tmp_path / "other")
    other.spec = node.spec
    holder = other.daemon()
    await other.settle(holder)
    assert await node.answers()
    keeper = node.daemon()
    await node.settle(keeper)
    await node.hears_of_the_end(keeper)
    with pytest.raises(OverlayError, match="Address already in use") as caught:
        await node.settle(keeper)
    assert caught.value.condition_reason == "EchoNotServed"
    assert holder.process.identity is not None
    assert str(holder.process.identity.pid) in caught.value.hint
    await other.daemon().stop()


@processes
async def test_stopped_it_answers_no_more(node: Node) -> None:
    keeper = node.daemon()
    await node.settle(keeper)
    assert await node.answers()
    await keeper.stop()
    echo = await ask(None, node.spec.overlay_ip.ip, 5)
    assert echo is not None
    assert echo.is_refusal

"""The echo responder outlives the daemon, is replaced when the address is another, and tells why it does not stay."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from random import randrange

import pytest
from overlay_world import SPEC

from edgelink.clock import SystemClock
from edgelink.conditions import ConditionSet
from edgelink.config import Paths
from edgelink.errors import OverlayError
from edgelink.facts.board import Board
from edgelink.facts.facts import Facts
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.echo import ask
from edgelink.overlay.echo_keeper import EchoKeeper, echo_users
from edgelink.process import SessionLauncher, SupervisedProcess
from edgelink.testing.facts import give

pytestmark = pytest.mark.processes


def some_address() -> IPv4Interface:
    """One of loopback's that no other test has."""
    return IPv4Interface(f"127.{randrange(2, 250)}.{randrange(250)}.{randrange(2, 250)}/8")


class Node:
    """A node's daemon as far as echoes go; its overlay device is ``lo``."""

    def __init__(self, directory: Path) -> None:
        self.paths = Paths(directory / "state", directory / "run")
        self.spec: OverlaySpec | None = replace(SPEC, overlay_ip=some_address(), device="lo")
        self.lives: list[EchoKeeper] = []

    def daemon(self) -> EchoKeeper:
        """A new life of it."""
        self.conditions = ConditionSet(SystemClock(), (), ("EchoAnswered",))
        self.board = Board(Facts())
        give(self.board, overlay_spec=self.spec, overlay_is_up=True)
        self.die()
        keeper = EchoKeeper(
            board=self.board,
            paths=self.paths,
            process=SupervisedProcess(
                "echo", self.paths.processes / "echo.json", SessionLauncher(), SystemClock(), echo_users()
            ),
            conditions=self.conditions,
            clock=SystemClock(),
        )
        self.lives.append(keeper)
        return keeper

    def die(self) -> None:
        """What the kernel does when a daemon is killed: its locks are free."""
        for keeper in self.lives:
            keeper._ownership.release()

    async def answers(self, address: IPv4Address | None = None) -> bool:
        """Whether an echo comes from our address, within seconds."""
        assert self.spec is not None
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


async def test_it_answers_and_the_next_daemon_adopts_it(node: Node) -> None:
    first = node.daemon()
    await first.reconcile()
    assert node.conditions.is_true("EchoAnswered")
    assert await node.answers()
    identity = first.process.identity
    second = node.daemon()
    await second.reconcile()
    assert second.process.identity == identity
    assert await node.answers()


async def test_one_whose_record_was_lost_is_known_by_its_mark(node: Node) -> None:
    """As when somebody empties the state directory under it."""
    first = node.daemon()
    await first.reconcile()
    assert await node.answers()
    (node.paths.processes / "echo.json").unlink()
    second = node.daemon()
    await second.reconcile()
    assert second.process.identity == first.process.identity
    assert await node.answers()


async def test_another_address_gets_another_process(node: Node) -> None:
    keeper = node.daemon()
    await keeper.reconcile()
    before = keeper.process.identity
    assert node.spec is not None
    node.spec = replace(node.spec, overlay_ip=some_address())
    give(node.board, overlay_spec=node.spec)
    await keeper.reconcile()
    assert keeper.process.identity != before
    assert await node.answers()
    assert before is not None
    with pytest.raises(ProcessLookupError):
        os.kill(before.pid, 0)


async def test_one_that_was_killed_is_started_again(node: Node) -> None:
    keeper = node.daemon()
    await keeper.reconcile()
    assert await node.answers()
    assert keeper.process.identity is not None
    os.kill(keeper.process.identity.pid, 9)
    await keeper.process.wait()
    again_s = await keeper.reconcile()
    if not keeper.process.is_running:  # a pause comes first
        await SystemClock().sleep(again_s)
        await keeper.reconcile()
    assert await node.answers()


async def test_a_taken_port_is_named_with_its_holder(node: Node, tmp_path: Path) -> None:
    other = Node(tmp_path / "other")
    other.spec = node.spec
    holder = other.daemon()
    await holder.reconcile()
    assert await node.answers()
    keeper = node.daemon()
    await keeper.reconcile()
    await keeper.process.wait()
    with pytest.raises(OverlayError, match="Address already in use") as caught:
        await keeper.reconcile()
    assert caught.value.condition_reason == "EchoNotServed"
    assert holder.process.identity is not None
    assert str(holder.process.identity.pid) in caught.value.hint
    await other.daemon().stop()


async def test_stopped_it_answers_no_more(node: Node) -> None:
    keeper = node.daemon()
    await keeper.reconcile()
    assert await node.answers()
    await keeper.stop()
    assert node.spec is not None
    echo = await ask(None, node.spec.overlay_ip.ip, 5)
    assert echo is not None
    assert echo.is_refusal


async def test_before_the_overlay_is_up_nothing_is_started_and_what_runs_goes_on(node: Node) -> None:
    keeper = node.daemon()
    give(node.board, overlay_is_up=False)
    await keeper.reconcile()
    assert node.conditions.get("EchoAnswered").reason == "OverlayDown"
    assert not keeper.process.is_running
    give(node.board, overlay_is_up=True)
    await keeper.reconcile()
    assert await node.answers()
    give(node.board, overlay_is_up=False)  # a moment without a device
    await keeper.reconcile()
    assert await node.answers()


async def test_without_a_lease_nothing_is_started(node: Node) -> None:
    node.spec = None
    keeper = node.daemon()
    await keeper.reconcile()
    assert node.conditions.get("EchoAnswered").reason == "NoLease"
    assert not keeper.process.is_running

"""A registry that is killed at work: run by test_relay_crash.py, which sends one line a life.

Each line is ``DIRECTORY LIFE WORK WHEN``: a forked child opens the registry in DIRECTORY, serves it on a broker in
memory, and does WORK (a function below), until it is SIGKILLed: after WHEN milliseconds of work (``+WHEN``: since it
began to serve), or as often as WHEN says at a fault point (``POINT*TIMES``). What it is about to do, and what was
acknowledged, it notes in ``acks-LIFE``; how long it worked is answered. Forking saves the imports of each life.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import time
from collections import Counter
from ipaddress import IPv4Network
from itertools import count
from pathlib import Path
from typing import Any

from registry_world import ADDRESSES
from test_relay_service_enrol import Relay

from edgelink import fault_points
from edgelink.conditions import ConditionSet
from edgelink.config import Paths
from edgelink.facts.part import run_part
from edgelink.files import Files
from edgelink.member.membership_store import MembershipStore
from edgelink.member.renewal import Renewal
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import Membership, put_membership
from edgelink.protocol.payloads import EnrolReply, Role
from edgelink.relay.dynamic_security import fingerprint
from edgelink.relay.lease_changes import LeaseChange
from edgelink.relay.renewals import EVERY_S
from edgelink.relay.tokens import TokenRequest
from edgelink.testing import MemoryTransport
from edgelink.testing.facts import board_with
from edgelink.testing.registry_client import ADMITTED, LoneClient

AT_ONCE = 20


class Victim:
    """One life: a relay, its broker, and the account of what was acknowledged."""

    def __init__(self, directory: Path, life: str, serves: int) -> None:
        self._serves = serves
        self._acks = os.open(directory / f"acks-{life}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.life = life
        self.directory = directory
        self.relay = Relay(directory / "state", IPv4Network("10.10.0.0/16"))
        self.relay.world.authority.relay_membership(NodeKey.load_or_create(directory / "relay.key"), "relay")
        for user in self.relay.world.store.broker_users():  # as the broker's file at its start
            self.relay.memory.add_user(user.username, fingerprint=fingerprint(user, self.relay.topics))
        network = self.relay.world.network
        self.note(network=f"{network.network_id} {network.secret}")

    def note(self, **what: Any) -> None:
        os.write(self._acks, json.dumps(what).encode() + b"\n")

    def note_reply(self, reply: EnrolReply) -> None:
        if reply.lease is not None:
            self.note(lease=reply.lease.model_dump())


async def crowd(victim: Victim) -> None:
    """Twenty machines at once, again and again, under names of which many are taken: refused, never shared."""
    relay, numbers = victim.relay, count()
    async with relay.running() as service:
        os.write(victim._serves, b"1")
        head = await service.create_token(TokenRequest(Role.HEAD))
        edges = await service.create_token(TokenRequest(Role.EDGE, uses=100_000))

        async def join() -> None:
            while True:
                number = next(numbers)
                token, role = (head, Role.HEAD) if number % 7 == 0 else (edges, Role.EDGE)
                hostname = f"edge-{victim.life if number % 3 else 0}-{number}"
                victim.note_reply(await relay.enrol(token, hostname, role=role))

        await asyncio.gather(*(join() for _ in range(AT_ONCE)))


async def operator(victim: Victim) -> None:
    """One machine after the other joins; each is changed, replaced or released."""
    relay = victim.relay
    async with relay.running() as service:
        edges = await service.create_token(TokenRequest(Role.EDGE, uses=100_000))
        for number in count():
            hostname = f"edge-{victim.life}-{number}"
            key = NodeKey.generate()
            victim.note(begin="enrol", node_id=key.node_id)
            victim.note_reply(await relay.enrol(edges, hostname, key))
            victim.note(begin="change", node_id=key.node_id)
            lease = await service.change_lease(hostname, LeaseChange(rank=number + 1000 * int(victim.life) + 500))
            victim.note(lease=relay.world.store.lease_envelopes()[lease.node_id].model_dump())
            if number % 2:
                successor = NodeKey.generate()
                token = await service.create_token(TokenRequest(Role.EDGE, replaces=hostname))
                victim.note(begin="replace", node_id=key.node_id, by=successor.node_id)
                reply = await relay.enrol(token, "fresh", successor)
                victim.note(gone=key.node_id, revoked=True)
                victim.note_reply(reply)
            elif number % 4:
                continue
            else:
                victim.note(begin="release", node_id=key.node_id)
                await service.release(hostname)
                victim.note(gone=key.node_id)


async def renewals(victim: Victim) -> None:
    """One node renews its password at the broker, again and again; in each life it goes on from its disk."""
    relay, paths = victim.relay, Paths(victim.directory / "node", victim.directory / "run")
    clock, key = relay.world.clock, NodeKey.load_or_create(paths.node_key)
    membership = Membership.load(paths)
    recorded = relay.world.store.node_password(key.node_id)
    for password in membership.broker_passwords if membership and recorded else ():
        if recorded.matches(password):  # the broker's file has its hash
            relay.memory.passwords[membership.secrets.broker_username] = password

    async def tick() -> None:
        while True:
            await clock.advance(0.5)
            await asyncio.sleep(0.001)

    async with relay.running() as service:
        if membership is None:
            token = await service.create_token(TokenRequest(Role.EDGE))
            reply = await relay.enrol(token, "edge", key)
            membership = Membership.from_reply(reply, token=token, key=key, ca_pem=relay.world.keys.ca_pem)
            put_membership(paths, membership)
        board = board_with(admission=ADMITTED)
        store = MembershipStore(board, paths, Files())
        store.reload()
        transport = MemoryTransport({ADDRESSES[0]: relay.memory})
        client = LoneClient(membership, key, clock, board=board, transport=transport)
        renewal = Renewal(board=board, store=store, channel=client.channel, clock=clock)
        keeping = run_part(renewal, board, ConditionSet(clock, [renewal.condition]), clock)
        tasks = [asyncio.create_task(work) for work in (client.run(), keeping, tick())]
        os.write(victim._serves, b"1")
        while True:
            await renewal.renew(60)
            victim.note(renewed=True)
            await clock.advance(EVERY_S)
            assert not any(task.done() for task in tasks)


def die_at(point: str, times: int) -> None:
    seen: Counter[str] = Counter()

    def on_reached(reached: str) -> None:
        seen[reached] += 1
        if reached == point and seen[point] == times:
            os.kill(os.getpid(), signal.SIGKILL)

    fault_points.on_reached = on_reached


def worked_s(pid: int) -> float:
    """How long a child was on a processor: on a busy machine it gets as far in so long as on an idle one."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def wait_for_work(pid: int, until_s: float) -> None:
    while worked_s(pid) < until_s and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.0005)


def main() -> None:
    works = {"crowd": crowd, "operator": operator, "renewals": renewals}
    gc.freeze()  # a life that looks for garbage in what it was given copies all of it
    for line in sys.stdin:
        directory, life, work, when = line.split()
        point, is_point, times = when.partition("*")
        is_serving, serves = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # logs are nobody's answers
            if is_point:
                die_at(point, int(times))
            asyncio.run(works[work](Victim(Path(directory), life, serves)))
            os._exit(1)
        os.close(serves)
        begun_s = 0.0
        if when.startswith("+"):
            os.read(is_serving, 1)
            begun_s = worked_s(child)
        os.close(is_serving)
        if not is_point:
            wait_for_work(child, begun_s + float(when) / 1000)
            os.kill(child, signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        worked_ms = (worked_s(child) - begun_s) * 1000
        _, status = os.waitpid(child, 0)
        # An own exit would mean that the victim failed, not that it was killed.
        sys.stdout.write(f"killed {worked_ms}\n" if os.WIFSIGNALED(status) else "failed\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

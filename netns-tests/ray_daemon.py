"""Stands in for a node's daemon in the Ray tests: one Ray reconciler in its loop, no registry, no EasyTier.

``ray_daemon.py head|edge STATE_DIR RUNTIME_DIR LEASES_FILE RANK SPEC_FILE``: the head writes the cluster spec to
SPEC_FILE, where the edge reads it, and its members to STATE_DIR/members.json. Each change of the
condition is a JSON line on stdout. SIGTERM ends the daemon and its Ray; SIGKILL leaves Ray alone.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

from edgelink.clock import SystemClock
from edgelink.condition_table import Place
from edgelink.conditions import Condition, ConditionSet
from edgelink.config import Paths, load_config
from edgelink.facts.board import Board
from edgelink.facts.derive import derive_patience
from edgelink.facts.facts import Facts
from edgelink.files import write_atomic
from edgelink.log import configure
from edgelink.overlay.nft_watch import NftWatch
from edgelink.protocol.held_secret import HeldSecret
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import ClusterSpec, Envelope, Lease
from edgelink.ray_cluster.firewall import RAY_TABLE
from edgelink.ray_cluster.local_ray import LocalRay
from edgelink.ray_cluster.ray_members import RayMember
from edgelink.ray_cluster.reconcilers import RayEdgeReconciler, RayHeadReconciler, RayInputs
from edgelink.reconcile import run_reconciler
from edgelink.testing.facts import give
from edgelink.testing.payloads import entry_of


def show(condition: Condition) -> None:
    print(json.dumps(condition.to_dict()), flush=True)


async def main(role: str, state: Path, runtime: Path, leases_file: Path, rank: int, spec_file: Path) -> None:
    configure(verbose=True)
    clock = SystemClock()
    conditions = ConditionSet(clock, ["RayJoined"], on_change=show)
    paths = Paths(state=state, runtime=runtime)
    lease = next(
        lease
        for lease in (Lease.model_validate(values) for values in json.loads(leases_file.read_text()))
        if lease.preferred_rank == rank
    )
    config = load_config()
    inputs = RayInputs(
        board=Board(Facts()),
        config=config,
        paths=paths,
        conditions=conditions,
        clock=clock,
        key=NodeKey.load(paths.node_key),
        ray=LocalRay(config, paths, clock),
    )
    derive_patience(inputs.board, config, Place(role))
    give(
        inputs.board,
        running=SimpleNamespace(lease=lease, held=HeldSecret(1, "")),
        peers_connected=True,
        host_patience_s=config.ride_through_s,
    )
    ray = RayHeadReconciler(inputs) if role == "head" else RayEdgeReconciler(inputs)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def poll_leases() -> None:
        told: tuple[RayMember, ...] | None = None
        stated: Envelope | None = None
        while True:
            leases = [Lease.model_validate(values) for values in json.loads(leases_file.read_text())]
            give(inputs.board, publishable=tuple((entry_of(lease), lease.preferred_rank or 0) for lease in leases))
            if (members := inputs.board.facts.ray_members) != told:
                paths.state.joinpath("members.json").write_text(json.dumps([asdict(member) for member in members]))
                told = members
            if (spec := inputs.board.facts.stated_cluster) is not None and spec != stated:
                write_atomic(spec_file, spec.body)
                stated = spec
            await asyncio.sleep(0.1)

    async def poll_spec() -> None:
        while True:
            with suppress(FileNotFoundError):
                spec = ClusterSpec.model_validate_json(spec_file.read_text())
                give(inputs.board, cluster_spec=spec, host_patience_s=spec.ride_through_s)
            ray.wakeup.set()
            await asyncio.sleep(0.1)

    tables = NftWatch()
    tables.watch(RAY_TABLE, inputs.ray.guard.doubts, ray.wakeup)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(tables.run()),
            group.create_task(ray.run()),
            group.create_task(run_reconciler(ray, conditions, clock)),
            group.create_task(poll_spec() if role == "edge" else poll_leases()),
        ]
        await stop.wait()
        for task in tasks:
            task.cancel()
    await ray.stop()


if __name__ == "__main__":
    role, state, runtime, leases_file, rank, spec_file = sys.argv[1:]
    asyncio.run(main(role, Path(state), Path(runtime), Path(leases_file), int(rank), Path(spec_file)))

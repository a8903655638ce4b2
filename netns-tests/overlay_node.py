"""The overlay part of a node's daemon alone, run by test_overlay.py in a namespace of its own.

Reads its settings from the JSON file in its only argument; prints each change of its condition as one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any

from edgelink import log
from edgelink.clock import SystemClock
from edgelink.conditions import Condition, ConditionSet
from edgelink.config import OverlayConfig, Paths
from edgelink.daemon.this_machine import ThisMachine
from edgelink.facts.board import Board
from edgelink.facts.facts import Facts
from edgelink.facts.part import run_part
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.congestion import TunnelCongestion
from edgelink.overlay.easytier_core import Core
from edgelink.overlay.easytier_load import LoadReconciler
from edgelink.overlay.link import LinkMonitor
from edgelink.overlay.overlay_keeper import Around, OverlayKeeper
from edgelink.overlay.overlay_rules import OverlayRules
from edgelink.overlay.own_routes import OwnRoutes
from edgelink.overlay.rpc_guard import rpc_guard
from edgelink.overlay.stun import PrivateHosts
from edgelink.overlay.table_keeper import TableKeeper
from edgelink.overlay.way_watch import WayWatch
from edgelink.overlay.ways import look
from edgelink.process import SessionLauncher, SupervisedProcess, host_tcp
from edgelink.reconcile import run_reconciler
from edgelink.testing.facts import give


def show(condition: Condition) -> None:
    print(json.dumps({"at": time.monotonic(), **condition.to_dict()}), flush=True)


async def main(settings: dict[str, object]) -> None:
    clock, links, config = SystemClock(), LinkMonitor(), OverlayConfig()
    paths = Paths(state=Path(str(settings["directory"])) / "state", runtime=Path(str(settings["directory"])) / "run")
    conditions = ConditionSet(clock, ["OverlayUp"], ["OverlayCpuNormal"], on_change=show)
    process = SupervisedProcess("easytier", paths.processes / "easytier.json", SessionLauncher(), clock)
    spec = OverlaySpec(
        hostname=str(settings["hostname"]),
        network_name="fleet-a",
        network_secret=str(settings["secret"]),
        overlay_ip=IPv4Interface(str(settings["address"])),
        peers=tuple(settings["peers"]),  # type: ignore[arg-type]
        listeners=tuple(settings.get("listeners", config.listeners)),  # type: ignore[arg-type]
        device=config.device,
        mtu=config.mtu,
        rpc_port=config.rpc_port,
        instance_id=str(settings["instance_id"]),
    )
    if settings.get("adjusts_tcp"):
        host_tcp.adjust(paths.host_tcp, patience_s=300)
    congestion = TunnelCongestion(links, clock, config.device, is_wanted=bool(settings.get("sets_bbr", True)))
    core = Path(str(settings["core"]))
    board = Board(Facts())
    told: Any = settings
    members = {IPv4Address(address): name for name, address in told.get("members", {}).items()}
    give(board, overlay_spec=spec, easytier_may_start=True, holders=members)
    routes = OwnRoutes(clock, sets_bbr=bool(settings.get("sets_bbr", True)))
    ways = WayWatch(
        board=board,
        routes=routes,
        links=links,
        device=config.device,
        look=look,
        ray_uid=lambda: told.get("ray_uid"),
        clock=clock,
    )
    rules = OverlayRules(spec.overlay_ip, usable=frozenset(members))
    guard = TableKeeper(rpc_guard(config.rpc_port, config.device, rules), clock, open_without="the RPC may be open")
    binary = EasyTierBinary(core, core.with_name("easytier-cli"), str(settings["version"]))
    overlay = OverlayKeeper(
        board=board,
        conditions=conditions,
        clock=clock,
        config=config,
        core=Core(process, lambda: binary, paths, PrivateHosts(paths.state)),
        links=links,
        around=Around(guard, routes, congestion),
        machine=ThisMachine(),
    )
    load = LoadReconciler(process=process, links=links, device=config.device, conditions=conditions, clock=clock)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(work)
            for work in (
                links.run(),
                congestion.run(),
                overlay.run(),
                run_part(overlay, board, conditions, clock),
                run_part(ways, board, conditions, clock),
                run_reconciler(load, conditions, clock),
            )
        ]
        await stopping.wait()
        for task in running:
            task.cancel()
    await overlay.stop()


if __name__ == "__main__":
    log.configure()
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))

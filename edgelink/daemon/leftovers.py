"""End what daemons of this machine left behind when they were killed or crashed, without starting one.

What is theirs is known by its record and its mark (ADR 0014); nothing else is touched. The daemons' own locks are held
meanwhile, so that none starts, or runs, while its children are taken away.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from edgelink.api.client import daemon_without_socket, without_socket
from edgelink.api.server import only_one
from edgelink.clock import Clock
from edgelink.conditions import ConditionSet
from edgelink.config import Config, Paths
from edgelink.daemon.lifecycle import end_all
from edgelink.daemon.overlay_parts import OverlayParts
from edgelink.daemon.this_machine import ThisMachine
from edgelink.errors import UsageError
from edgelink.facts.derive import board_of
from edgelink.files import private_directory
from edgelink.process import SessionLauncher
from edgelink.ray_cluster.local_ray import LocalRay
from edgelink.relay.broker import broker_process, remove_files


async def end_leftovers(config: Config, paths: Paths, clock: Clock) -> list[str]:
    """End Ray, broker and EasyTier of this node, in this order; says what there was.

    Raises:
        UsageError: a daemon runs here, and they are its children.
        DaemonNotRunningError: likewise, but its socket is gone for some seconds.
        ProcessStopError: something does not end, not even by SIGKILL.
    """
    if not paths.state.is_dir():  # lost: the marks of its processes lead here; else it may lie on a read-only disk
        private_directory(paths.state)
    with ExitStack() as held:
        for socket in (paths.node_socket, paths.bootstrap_socket):
            held.enter_context(_no_daemon(paths, socket))
        ray = LocalRay(config, paths, clock)
        broker = broker_process(paths, SessionLauncher(), clock)
        parts = OverlayParts(
            config=config,
            paths=paths,
            conditions=ConditionSet(clock, ("OverlayUp",), ("OverlayCpuNormal",)),
            clock=clock,
            board=board_of(config),
            machine=ThisMachine(),
            launcher=SessionLauncher(),
        )
        ray.adopt()
        count = len(ray.node.owned_pids())
        found = [f"Ray ({count} processes)"] if count else []
        found += [
            f"{process.name} (pid {known.pid})" for process in (broker, parts.process) if (known := process.adopt())
        ]
        await end_all(ray.stop, broker.stop, parts.stop)
        remove_files(paths)
        for socket in (paths.node_socket, paths.bootstrap_socket):
            socket.unlink(missing_ok=True)
        return found


def _no_daemon(paths: Paths, socket: Path) -> ExitStack:
    held, kind = ExitStack(), socket.stem
    try:
        held.enter_context(only_one(paths.lock_of(kind)))
    except UsageError as error:
        if pid := daemon_without_socket(socket):
            raise without_socket(socket, pid) from error
        raise UsageError(
            f"a daemon of this machine holds {paths.lock_of(kind)}, but it does not answer",
            hint="find it with `fuser` on that file and end it with SIGKILL; `edgelink stop` then ends what it leaves",
            reason="DaemonSilent",
        ) from error
    return held

"""Supervise foreign processes that outlive the daemon: launch, identity, adoption, end, stop ladder."""

from edgelink.process.identity import Identity, ProcessUsage, identify, is_alive, marked_pids, usage
from edgelink.process.launcher import Launcher, ProcessSpec, SessionLauncher
from edgelink.process.supervised import SupervisedProcess

__all__ = [
    "Identity",
    "Launcher",
    "ProcessSpec",
    "ProcessUsage",
    "SessionLauncher",
    "SupervisedProcess",
    "identify",
    "is_alive",
    "marked_pids",
    "usage",
]

"""Supervise foreign processes that outlive the daemon: launch, identity, adoption, end, stop ladder."""

from edgelink.process.identity import Identity, ProcessUsage, identify, is_alive, marked_pids, marked_pids_of, usage
from edgelink.process.launcher import Launcher, ProcessSpec, SessionLauncher
from edgelink.process.supervised import SupervisedProcess
from edgelink.process.systemd_launcher import choose_launcher

__all__ = [
    "Identity",
    "Launcher",
    "ProcessSpec",
    "ProcessUsage",
    "SessionLauncher",
    "SupervisedProcess",
    "choose_launcher",
    "identify",
    "is_alive",
    "marked_pids",
    "marked_pids_of",
    "usage",
]

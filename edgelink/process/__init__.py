"""Supervise foreign processes that outlive the daemon: launch, identity, adoption, end, stop ladder.

What is exported is imported when it is asked for: a command that reads a child's answer needs no supervisor.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_ELSEWHERE = {
    "Launcher": "launcher",
    "ProcessSpec": "launcher",
    "SessionLauncher": "launcher",
    "SupervisedProcess": "supervised",
    "choose_launcher": "systemd_launcher",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'identity')}"), name)

"""Become Ray's user where root may not do what a driver does, as in a container without CAP_DAC_OVERRIDE."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from edgelink.cli.layout import say
from edgelink.config.paths import Paths
from edgelink.errors import UsageError
from edgelink.process.procfs import has_capability

if TYPE_CHECKING:
    from edgelink.config import Config

_CAP_DAC_OVERRIDE = 1


def step_down(paths: Paths) -> None:
    """Go on as Ray's user if we are a root who may not enter that user's files: Ray's token and Ray's directory."""
    if not _is_shut_out():
        return
    from edgelink.ray_cluster.interpreter import user_of
    from edgelink.ray_cluster.local_ray import noted_user_uid

    uid = noted_user_uid(paths)
    if not uid:
        return
    user = user_of(uid)
    os.setgroups(user.groups)
    os.setgid(user.gid)
    os.setuid(user.uid)
    os.environ.update({"HOME": str(user.home), "USER": user.name, "LOGNAME": user.name})
    say(f"without CAP_DAC_OVERRIDE root may not use {user.name}'s Ray: going on as {user.name}")


def require_root_may_drive(config: Config) -> None:
    """Refuse a command that has to stay root, to end its daemon, where a driver has to be Ray's user.

    Raises:
        UsageError: root may not use this machine's Ray.
        ConfigError, MissingDependencyError: there is no Ray, or nobody to run it as.
    """
    if not _is_shut_out():
        return
    from edgelink.ray_cluster.interpreter import inspect_interpreter, named_asker, resolve_user

    user = named_asker(config.ray) or resolve_user(config.ray, asyncio.run(inspect_interpreter(config.ray.python)))
    if user.uid:
        raise UsageError(
            f"without CAP_DAC_OVERRIDE root may not use {user.name}'s Ray, and CMD would run as root",
            hint="start the daemon by `edgelink head`, and CMD by `edgelink run -- CMD`, which goes on as that user",
        )


def _is_shut_out() -> bool:
    return os.geteuid() == 0 and not has_capability(_CAP_DAC_OVERRIDE)

"""Become Ray's user where root may not do what a driver does, as in a container without CAP_DAC_OVERRIDE."""

from __future__ import annotations

import os

import click

from edgelink.config.paths import Paths
from edgelink.process.procfs import has_capability

_CAP_DAC_OVERRIDE = 1


def step_down(paths: Paths) -> None:
    """Go on as Ray's user if we are a root who may not enter that user's files: Ray's token and Ray's directory."""
    if os.geteuid() != 0 or has_capability(_CAP_DAC_OVERRIDE):
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
    click.echo(
        f"edgelink: without CAP_DAC_OVERRIDE root may not use {user.name}'s Ray: going on as {user.name}", err=True
    )

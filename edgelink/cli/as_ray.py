"""A program of ours that the head's Ray interpreter runs beside a run, as the user whom Ray runs as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgelink.errors import ConfigError
from edgelink.ray_cluster.interpreter import RayUser, identity_arguments, named_user, user_of
from edgelink.training.driver import END_WITH_US


def as_ray(granted: Mapping[str, Any], *argv: str) -> dict[str, Any]:
    """What :class:`subprocess.Popen` is told, for ``argv`` behind the interpreter; it ends with us, whatever happens.

    Args:
        granted: the head daemon's answer to the run. Its user counts where we are root.

    Raises:
        KeyError: the answer names no interpreter.
        EdgelinkError: there is no such user here.
    """
    environment = {**granted.get("of_ray", {}), **granted["environment"]}
    identity = identity_arguments(_user(environment["USER"])) if "USER" in environment else {}
    return {
        "args": [*END_WITH_US, environment["EDGELINK_RAY_PYTHON"], *argv],
        "env": environment,
        "cwd": "/",
        **identity,
    }


def _user(name: str) -> RayUser:
    """A user id without an account, as containers have them, is its own name."""
    try:
        return named_user("USER of Ray", name)
    except ConfigError:
        if not name.isdecimal():
            raise
        return user_of(int(name))

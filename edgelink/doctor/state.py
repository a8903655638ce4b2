"""What lies in the state directory: the membership, and secrets that only root may read."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from edgelink.doctor.check import NOT_ROOT, Finding, Surroundings, failed, listed, ok, refused, skipped
from edgelink.errors import EdgelinkError
from edgelink.protocol.membership import HOW_TO_JOIN, Membership
from edgelink.ray_cluster.temp_dir import why_replaceable

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def membership(surroundings: Surroundings) -> Finding:
    """Is this machine a member of a network, and is what it keeps of it whole?

    The lease's signature is checked, as at each start of the daemon.
    """
    if not surroundings.may_read_state:
        return NOT_ROOT
    try:
        found = Membership.load(surroundings.paths)
    except EdgelinkError as error:
        return refused(error)
    if found is None:
        if surroundings.is_relay:
            return skipped("the first relay is the registry's own")
        return failed(
            f"this machine has not joined a network ({surroundings.paths.membership} does not exist)",
            HOW_TO_JOIN,
        )
    lease = found.lease
    return ok(f"{lease.hostname} holds {lease.overlay_ip} in network {lease.network_id}")


def secrets_private(surroundings: Surroundings) -> Finding:
    """Are this node's secrets readable for nobody else, and replaceable by nobody else?

    The state directory is 0700, keys, credentials and the registry in it are 0600; Ray's token is its user's. State and
    runtime directory lie where nobody else may put another one in their place.
    """
    if not surroundings.is_there(surroundings.paths.state):
        return skipped(f"{surroundings.paths.state} is not there yet")
    wrong = []
    for path in _secrets(surroundings):
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(path.lstat().st_mode)
            if mode & _OTHERS:
                wrong.append((path, mode))
    if wrong:
        told = listed([f"{path} ({mode:04o})" for path, mode in wrong])
        return failed(
            f"others may read {told}",
            f"chmod go= {shlex.join(str(path) for path, _ in wrong)}; if others can log in here, also `edgelink renew`",
        )
    if not surroundings.may_read_state:
        return NOT_ROOT
    for directory in (surroundings.paths.state, surroundings.paths.runtime):
        if surroundings.is_there(directory) and (why := why_replaceable(directory, os.geteuid())):
            return failed(
                f"another user may put something else in the place of {directory}: {why}",
                "stop the daemon, move the directory below one that nobody else may write to, and join again",
            )
    return ok("key files are readable by root only")


def _secrets(surroundings: Surroundings) -> Iterator[Path]:
    paths = surroundings.paths
    yield paths.state
    if not surroundings.may_read_state:
        return
    yield from (paths.node_key, paths.membership, paths.easytier_config, paths.run_lock)
    yield from (paths.ray_token_copy, paths.broker_admin_key, paths.authority_keys)
    yield from paths.state.glob(f"{paths.registry_database.name}*")
    if paths.authority_keys.is_dir():
        yield from (path for path in paths.authority_keys.iterdir() if path.suffix != ".pem")

"""Take this machine out of its network: what it was given is removed here, what it changed on the host is put back.

The lease stays with the registry: only the operator takes one away (promise 1, ADR 0014).
"""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import ExitStack, suppress
from itertools import pairwise, product
from pathlib import Path

from edgelink.api.server import only_one, user_name
from edgelink.clock import Clock
from edgelink.config import Config, Paths
from edgelink.errors import EdgelinkError, NotRecordedError, RegistryError, UsageError
from edgelink.facts.board import Board
from edgelink.facts.facts import Facts
from edgelink.member.enrol_request import ANY_MACHINE, Machine
from edgelink.process import host_tcp, hosts_file
from edgelink.protocol.membership import HOW_TO_JOIN, Membership
from edgelink.protocol.payloads import LEFT, Lease, NodeStatus
from edgelink.protocol.tls import client_context
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Login
from edgelink.ray_cluster.local_ray import LocalRay
from edgelink.ray_cluster.temp_dir import remove_sessions, sessions_in, temp_dir_here
from edgelink.runs.run_lock import RunInProgressError, RunLock
from edgelink.service.units import ROLES

_TELLING_S = 5.0


def refuse_to_leave(config: Config, paths: Paths, clock: Clock) -> None:
    """Before anybody is asked whether they mean it.

    Raises:
        UsageError: this user may not change the state; this machine is in no network, or holds the registry.
        RunInProgressError: see :func:`refuse_during_run`.
    """
    if paths.state.exists() and not os.access(paths.state, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        owner = user_name(paths.state.stat().st_uid)
        raise UsageError(
            f"the user {user_name(os.geteuid())} may not do this: {paths.state} is {owner}'s",
            hint="use sudo" if owner == "root" else f"run it as {owner}, or with sudo",
            reason="NotPrivileged",
        )
    if paths.registry_database.exists():
        raise UsageError(
            "this relay holds the network's registry and keys: without them no machine could join or be recognised",
            hint=f"`edgelink stop` ends it; to give up the network for good, remove {paths.state} afterwards",
            reason="IsTheRelay",
        )
    if not paths.node_key.exists() and not paths.membership.exists():
        raise UsageError("this machine is not a member of a network", hint=HOW_TO_JOIN)
    refuse_during_run(config, paths, clock)


def refuse_beside_container(first_process: Path = Path("/proc/1/cmdline")) -> None:
    """A container of ours ends with its daemon, and this command with it; Docker then starts the same node again.

    Args:
        first_process: what the container runs, as the kernel tells it.

    Raises:
        UsageError: this is such a container, whether its daemon is there or about to be started again.
    """
    try:
        words = first_process.read_text(errors="replace").split("\0")
    except OSError:
        return
    role = next((then for word, then in pairwise(words) if Path(word).name == "edgelink-container"), "")
    if role in ROLES:
        service = "relay" if role == "bootstrap" else role
        compose = f"docker compose -f docker/compose.{service}.yaml"
        raise UsageError(
            f"this container ends with the {service}'s daemon, before the node would have left",
            hint=f"on its host: `{compose} stop`, then `{compose} run --rm {service} leave --yes`",
            reason="EndsWithContainer",
        )


def refuse_during_run(config: Config, paths: Paths, clock: Clock) -> None:
    """Raises RunInProgressError: a run is in progress, and with it what it has not saved."""
    holder = RunLock(Board(Facts()), paths.run_lock, clock, lambda: None).holder
    ray = LocalRay(config, paths, clock)
    ray.adopt()
    workers = ray.node.workers_in_use()
    if holder or workers:
        what = holder or f"its workers are here: {', '.join(workers)}"
        raise RunInProgressError(
            f"a run is in progress: {what}",
            hint="wait for its end or stop it, then leave: what it has not saved is lost",
        )


def lease_of(paths: Paths) -> Lease | None:
    """What this machine holds; None where that cannot be read any more, which keeps nobody from leaving."""
    try:
        membership = Membership.load(paths)
    except EdgelinkError:
        return None
    return membership.lease if membership else None


def holder_elsewhere(paths: Paths) -> str:
    """Where the holder of this machine's lease is, when the registry refused this one as its copy; else empty."""
    try:
        return paths.refused_as_copy.read_text()
    except OSError:
        return ""


def say_goodbye(paths: Paths) -> bool:
    """Tell the registry that this node leaves, once its daemon has ended. Return whether it knows.

    A copy of a node says nothing.
    """
    try:
        membership = Membership.load(paths)
    except EdgelinkError:
        return False
    if membership is None or holder_elsewhere(paths):
        return False
    return asyncio.run(tell_left(membership))


async def tell_left(membership: Membership, machine: Machine = ANY_MACHINE) -> bool:
    """Leave word with the registry's broker, wherever it answers. Return False where it does not."""
    status = NodeStatus(node_id=membership.lease.node_id, online=False, phase=LEFT)
    topic = Topics(membership.network_id).status(status.node_id)
    transport = machine.transport(client_context(membership.ca_pem, membership.network_id))
    for address, password in product(membership.addresses, membership.broker_passwords):
        login = Login(membership.secrets.broker_username, password)
        with suppress(RegistryError):
            async with transport.connect(address, login, timeout_s=_TELLING_S) as session:
                await session.publish(topic, status.model_dump_json().encode(), retain=True)
                return True
    return False


def forget_network(paths: Paths) -> None:
    """Put the host's settings back and remove key, lease, credentials and all else but the logs. No daemon runs.

    Raises:
        UsageError: a daemon was started meanwhile.
    """
    with ExitStack() as held:
        for socket in (paths.node_socket, paths.bootstrap_socket):
            held.enter_context(only_one(paths.lock_of(socket.stem)))
        host_tcp.restore(paths.host_tcp)
        if paths.hosts is not None:
            with suppress(NotRecordedError):  # read-only or gone: then there is nothing of ours in it, or no way
                hosts_file.set_names(paths.hosts, {})
        if paths.ray_temp_dir.exists() and temp_dir_here(paths, None) == sessions_in(None):
            with suppress(OSError):  # another network's Ray may run there
                remove_sessions()
        _empty(paths.runtime)
        _empty(paths.state, keep=paths.logs)


def _empty(directory: Path, keep: Path | None = None) -> None:
    """What lies in ``directory``: it may itself be a mount, or belong to a service manager."""
    if not directory.exists():
        return
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            if entry != keep:
                shutil.rmtree(entry)
        else:
            entry.unlink()

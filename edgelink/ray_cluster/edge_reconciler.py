"""An edge's Ray: joins the cluster that the head's signed spec describes, once the overlay carries it there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from ipaddress import IPv4Address
from typing import Any

from edgelink.config import Config
from edgelink.errors import EdgelinkError, HeadUnreachableError, RayClusterError, VersionMismatchError
from edgelink.ray_cluster import command, environment
from edgelink.ray_cluster.interpreter import Interpreter
from edgelink.ray_cluster.local_ray import RayTools
from edgelink.ray_cluster.node import RayLaunch, RayRecord, hash_of
from edgelink.ray_cluster.ray_reconciler import RayInputs, RayReconciler
from edgelink.registry.payloads import ClusterMember, ClusterSpec, Lease

_REACH_TIMEOUT_S = 3.0


class RayEdgeReconciler(RayReconciler):
    """Joins the Ray cluster that the head's signed spec describes."""

    def __init__(self, inputs: RayInputs, *, cluster_spec: Callable[[], ClusterSpec | None]) -> None:
        super().__init__(inputs)
        self._cluster_spec = cluster_spec

    async def reconcile(self) -> float:
        lease, spec = self._lease(), self._cluster_spec()
        self.ray.adopt()
        await self.ray.protect(spec.ray_port if spec else self._config.ray.port)
        if lease is None:
            return self._wait("NoLease", "this node is not enrolled yet")
        await self._clear_away_dead()
        tools = await self.ray.prepare()
        record = self.ray.node.record
        if spec is None:
            if record is not None:  # adopted while the registry is away
                return await self._confirm(tools, lease, record, token_auth=tools.capabilities.token_auth)
            return self._wait("HeadNotSeen", "waiting for the head: it has published no cluster spec yet")
        return await self._follow(tools, lease, spec)

    async def _follow(self, tools: RayTools, lease: Lease, spec: ClusterSpec) -> float:
        record, member = self.ray.node.record, spec.member(lease.node_id)
        if member is None:
            if record is not None:
                await self._replace(record, "the head's cluster spec no longer lists this node")
            return self._wait("NotAMember", "waiting for the head to take this node into its cluster spec")
        wanted = hash_of(edge_identity(self._config, lease, spec, member))
        if record is not None and record.config_hash != wanted:
            same_life = record.incarnation == spec.incarnation
            await self._replace(record, why_replaced(record, spec, member), farewell=same_life)
            record = None
        if record is None and not self._overlay_ready():
            return self._wait("WaitingForOverlay", "Ray starts once the overlay is up and head and relay answer")
        if record is not None and record is self._verified:
            return await self._confirm(tools, lease, record, token_auth=spec.token_auth)
        return await self._while_current(spec, self._be_joined(tools, lease, spec, member, record, wanted))

    async def _be_joined(
        self,
        tools: RayTools,
        lease: Lease,
        spec: ClusterSpec,
        member: ClusterMember,
        record: RayRecord | None,
        config_hash: str,
    ) -> float:
        record = record or await self._join(tools, lease, spec, member, config_hash)
        return await self._confirm(tools, lease, record, token_auth=spec.token_auth)

    async def _while_current(self, spec: ClusterSpec, joining: Coroutine[Any, Any, float]) -> float:
        """Join, unless the head's Ray becomes another meanwhile: `ray start` would wait half a minute for the old one.

        Raises:
            RayClusterError: it did, or joining failed.
        """
        failure: EdgelinkError | None = None
        delay_s, was_woken = 0.0, False

        async def watch_head() -> None:
            nonlocal was_woken
            while (now := self._cluster_spec()) is None or now.incarnation == spec.incarnation:
                await self.wakeup.wait(None)
                was_woken = True
            raise RayClusterError(
                "the head's Ray became a new one while this node was joining; joining that", reason="HeadReplaced"
            )

        try:
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(watch_head(), name="another-head")
                delay_s = await joining
                watch.cancel()
        except* EdgelinkError as group:
            failure = next(error for error in group.exceptions if isinstance(error, EdgelinkError))
        finally:
            if was_woken:  # it was meant for the reconciler
                self.wakeup.set()
        if failure is None:
            return delay_s
        if failure.condition_reason == "HeadReplaced":
            await self.ray.node.stop(farewell=False)
        raise failure

    async def _join(
        self, tools: RayTools, lease: Lease, spec: ClusterSpec, member: ClusterMember, config_hash: str
    ) -> RayRecord:
        check_versions(tools.interpreter, spec)
        token_path = None
        if spec.token_auth:
            if member.sealed_ray_token is None:
                raise RayClusterError("the head's cluster spec holds no Ray token for this node", reason="NoRayToken")
            token_path = self.ray.write_token(self._key.unseal(member.sealed_ray_token).decode(), tools.user)
        await check_reach(spec.head_ip, spec.ray_port, lease.overlay_ip)
        head = f"{spec.head_ip}:{spec.ray_port}"
        self._conditions.set_false(self.condition, "Joining", f"`ray start` to join {head} is running")
        argv = command.worker_argv(
            self._config.ray,
            tools.capabilities,
            python=tools.python,
            ip=lease.overlay_ip,
            node_id=lease.node_id,
            node_rank=member.node_rank,
            head=head,
        )
        return await self.ray.node.start(
            RayLaunch(
                argv=argv,
                env=environment.ray_environment(
                    python=tools.python,
                    user=tools.user,
                    capabilities=tools.capabilities,
                    marker=self.ray.node.marker,
                    node_rank=member.node_rank,
                    device=self._config.overlay.device,
                    token_path=token_path,
                ),
                user=tools.user,
                head=head,
                node_rank=member.node_rank,
                incarnation=spec.incarnation,
                is_head=False,
                config_hash=config_hash,
                ports=command.listening_ports(self._config.ray, is_head=False),
            )
        )


def edge_identity(config: Config, lease: Lease, spec: ClusterSpec, member: ClusterMember) -> Mapping[str, object]:
    """What an edge's Ray was started with, as far as a change of it asks for a restart; pure.

    Of the configuration only what differs from the defaults: a new key in a new release restarts nobody.
    """
    return {
        "incarnation": spec.incarnation,
        "head": f"{spec.head_ip}:{spec.ray_port}",
        "rank": member.node_rank,
        "ip": str(lease.overlay_ip),
        "device": config.overlay.device,
        "ray": config.ray.model_dump(mode="json", exclude_defaults=True, exclude={"port"}),
    }


def why_replaced(record: RayRecord, spec: ClusterSpec, member: ClusterMember) -> str:
    """In words; pure."""
    if record.incarnation != spec.incarnation:
        return "the head's Ray is a new one"
    if record.node_rank != member.node_rank:
        return f"node rank {record.node_rank} has become {member.node_rank}"
    return "the head's address or the configuration of this node has changed"


def check_versions(interpreter: Interpreter, spec: ClusterSpec) -> None:
    """Ray must be the same on all nodes, and Python but for its last number.

    Raises:
        VersionMismatchError: naming both sides.
    """
    head_series = ".".join(spec.python_version.split(".")[:2])
    if interpreter.ray_version == spec.ray_version and interpreter.python_series == head_series:
        return
    raise VersionMismatchError(
        f"{interpreter.python} has Ray {interpreter.ray_version} on Python {interpreter.python_version}, "
        f"the head has Ray {spec.ray_version} on Python {spec.python_version}",
        hint=f"make an interpreter of Python {head_series} with ray=={spec.ray_version} here and name it in ray.python",
    )


async def check_reach(head_ip: IPv4Address, port: int, source: IPv4Address) -> None:
    """Raises HeadUnreachableError unless the head's Ray port answers our overlay address."""
    try:
        async with asyncio.timeout(_REACH_TIMEOUT_S):
            _, writer = await asyncio.open_connection(str(head_ip), port, local_addr=(str(source), 0))
    except (OSError, TimeoutError) as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise HeadUnreachableError(
            f"Ray on the head, {head_ip} port {port}, cannot be reached from {source}: {why}",
            hint="is `edgelink head` running there? `edgelink status` on the head says what its Ray waits for",
        ) from error
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()

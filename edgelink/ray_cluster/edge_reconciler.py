"""An edge's Ray: joins the cluster that the head's signed spec describes, once the overlay carries it there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from ipaddress import IPv4Address
from typing import Any

from edgelink.config import Config
from edgelink.errors import EdgelinkError, HeadUnreachableError, RayClusterError, VersionMismatchError
from edgelink.log import get_logger
from edgelink.protocol.payloads import ClusterMember, ClusterSpec, Lease
from edgelink.ray_cluster import command
from edgelink.ray_cluster.helper_runner import RayTools
from edgelink.ray_cluster.interpreter import Interpreter
from edgelink.ray_cluster.local_ray import Cluster
from edgelink.ray_cluster.ray_reconciler import NOT_RAYS, RayInputs, RayReconciler, restarts_identity
from edgelink.ray_cluster.record import RayLaunch, RayRecord, hash_of
from edgelink.ray_cluster.ride_through import check_agreement, ride_through_identity
from edgelink.ray_cluster.versions import Versions, differences, refusal
from edgelink.timeouts import timeout

_REACH_TIMEOUT_S = 3.0
_ASK_HEAD_S = 5.0  # at most so often, whatever wakes us
_log = get_logger("ray")


class RayEdgeReconciler(RayReconciler):
    """Joins the Ray cluster that the head's signed spec describes."""

    def __init__(self, inputs: RayInputs) -> None:
        super().__init__(inputs)
        self._joining = ""  # the cluster that is being joined, as its own GCS names it
        self._followed: tuple[object, ...] = ()  # which head, and what it wished, when that was last looked at
        self._was_ready = True
        self._asked_head_s = -_ASK_HEAD_S

    @property
    def _is_overlay_ready(self) -> bool:
        """Also once this machine's TCP is adjusted: Ray's sockets keep what they were made with."""
        known = self._known
        return super()._is_overlay_ready and known.host_patience_s == known.ride_through_s

    async def reconcile(self) -> float:
        known = self._known
        lease, spec = known.lease, known.cluster_spec
        self.ray.adopt()
        await self.ray.protect(spec.ray_port if spec else self._config.ray.port, lease)
        if lease is None:
            return self._wait("NoLease", "this node is not enrolled yet")
        await self._clear_away_dead()
        if not self.is_enabled:
            return await self._do_without()
        tools = await self.prepare()
        await self._leave_a_stranger(tools, lease)
        record = self.ray.node.record
        if spec is None:
            if record is not None:  # adopted while the registry is away
                return await self._confirm(tools, lease, record, token_auth=tools.capabilities.token_auth)
            return self._wait("HeadNotSeen", "waiting for the head; this is normal until `edgelink head` runs there")
        return await self._follow(tools, lease, spec)

    async def _follow(self, tools: RayTools, lease: Lease, spec: ClusterSpec) -> float:
        record, member = self.ray.node.record, spec.member(lease.node_id)
        wished = (spec.incarnation, spec.ray_wanted, member and member.ray_restarts)
        if wished != self._followed:
            self._restarts.forgive()  # another head, or told to restart: what went wrong before says nothing
            self._followed = wished
        if not spec.ray_wanted:
            return await self._rest("the head has stopped Ray on every node")
        if member is None:
            if record is not None:
                await self._replace(record, "the head's cluster spec no longer lists this node")
            return self._wait(
                "NotAMember",
                "waiting for the head to take this node into its cluster spec: it is new there, or the run in progress "
                "did not ask for it (--nodes)",
            )
        self._note_environment(tools, member.node_rank, token_auth=spec.token_auth)
        wanted = hash_of(edge_identity(self._config, lease, spec, member))
        if asked := self._take_restart():
            self._restarts.forgive()  # whoever asks does not want to wait for the next try
            if record is not None:
                await self._replace(record, asked)
                record = None
        if record is not None and (why := why_replaced(record, spec, member, wanted)):
            self._restarts.forgive()
            await self._replace(record, why, farewell=record.belongs_to(spec.incarnation))
            record = None
        if record is None and not self._is_overlay_ready:
            await self.ray.helper.get_ready(tools, token_auth=spec.token_auth)
            return self._wait(
                "WaitingForOverlay",
                "Ray starts once the overlay is up, head and relay answer, and the head proves who it is",
            )
        if record is None and (pause_s := self._pause_s()) > 0:
            return pause_s
        if record is not None and record is self._verified:
            return await self._confirm(tools, lease, record, token_auth=spec.token_auth)
        if not self._is_overlay_ready:
            return self._wait("WaitingForOverlay", "Ray runs; the head is asked about it once the overlay is up")
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
        self._joining = ""

        async def watch_head() -> None:
            nonlocal was_woken
            head = f"{spec.head_ip}:{spec.ray_port}"
            while (now := self._known.cluster_spec) is None or (
                now.ray_wanted and now.incarnation in (spec.incarnation, self._joining)
            ):
                if await self.wakeup.wait(_ASK_HEAD_S):
                    was_woken = True
                if self._joining and await self.ray.is_refused(head, self._joining, token_auth=spec.token_auth):
                    break  # whatever the spec says, that GCS is gone
            what = "became a new one" if now is None or now.ray_wanted else "was stopped"
            raise RayClusterError(f"the head's Ray {what} while this node was joining", reason="HeadReplaced")

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
        tools = self._noted(await self.ray.prepare_start())
        self._note_environment(tools, member.node_rank, token_auth=spec.token_auth)
        try:
            check_versions(tools.interpreter, spec)
        except VersionMismatchError:
            self.ray.doubt_interpreter()  # people install the right one while we wait
            raise
        check_agreement(self._config.ride_through, spec.ride_through_s)
        if spec.token_auth:
            if member.sealed_ray_token is None:
                raise RayClusterError("the head's cluster spec holds no Ray token for this node", reason="NoRayToken")
            self.ray.write_token(self._key.unseal(member.sealed_ray_token).decode(), tools.user)
        await check_reach(spec.head_ip, spec.ray_port, lease.overlay_ip)
        head = f"{spec.head_ip}:{spec.ray_port}"
        await self.ray.node.stop()  # whatever a predecessor left behind must not register after the burial
        cluster = await self._bury_own(tools, lease, head, token_auth=spec.token_auth)
        self._joining = cluster.cluster_id
        if cluster.temp_dir is not None:
            await self.ray.make_directory(cluster.temp_dir, tools)
        argv = command.worker_argv(
            self._config.ray,
            tools.capabilities,
            python=tools.python,
            ip=lease.overlay_ip,
            node_id=lease.node_id,
            node_rank=member.node_rank,
            head=head,
        )
        self._take_restart()  # asked for since we began: what is started now is a new one
        return await self._start(
            RayLaunch(
                argv=argv,
                env=self.ray.wanted_environment,
                user=tools.user,
                head=head,
                node_rank=member.node_rank,
                incarnation=spec.incarnation,
                restarts=member.ray_restarts,
                is_head=False,
                temp_dir=cluster.temp_dir,
                config_hash=config_hash,
                ports=command.listening_ports(self._config.ray, is_head=False),
            ),
            lambda: self._conditions.set_false(self.condition, "Joining", f"`ray start` to join {head} is running"),
        )

    async def _bury_own(self, tools: RayTools, lease: Lease, head: str, *, token_auth: bool) -> Cluster:
        """Take out of Ray all that was this node, whoever forgot it: none of it runs. The cluster.

        So there are never two under one address and rank, also after the loss of all state.

        Raises:
            RayClusterError: Ray does not answer, or still lists one.
        """
        whom = ("--ip", str(lease.overlay_ip), "--node", lease.node_id)
        return await self.ray.bury(tools, *whom, token_auth=token_auth, head=head)

    async def _tell_of_end(self, record: RayRecord) -> None:
        known = self._known
        lease, spec = known.lease, known.cluster_spec
        try:
            tools = await self.prepare()
            token_auth = spec.token_auth if spec else tools.capabilities.token_auth
            if lease is not None:
                await self._bury_own(tools, lease, record.head, token_auth=token_auth)
        except EdgelinkError as error:  # it is tried again before the next start
            _log.info("ray.not_buried", raylet=record.raylet.pid, why=str(error))

    async def _leave_a_stranger(self, tools: RayTools, lease: Lease) -> None:
        """End a Ray that belongs to a cluster that is no more, also while no cluster spec can tell of the new one.

        The new GCS does not let an old raylet in, and that goes on asking for ever (measured on 2.60).
        """
        record, spec = self.ray.node.record, self._known.cluster_spec
        is_ready = self._is_overlay_ready
        is_back, self._was_ready = is_ready and not self._was_ready, is_ready
        if record is None or record is not self._verified or not is_ready:
            return
        token_auth = spec.token_auth if spec else tools.capabilities.token_auth
        if not is_back:
            now_s = self._clock.monotonic_s()
            if now_s - self._asked_head_s < _ASK_HEAD_S:
                return
            self._asked_head_s = now_s
            cluster_id = record.cluster_id
            if cluster_id is None or not await self.ray.is_refused(record.head, cluster_id, token_auth=token_auth):
                return
        try:
            joined = await self.ray.verify(
                tools,
                token_auth=token_auth,
                head=record.head,
                ip=lease.overlay_ip,
                node_rank=record.node_rank,
                timeout_s=0,
            )
        except RayClusterError:
            return  # nobody to say so
        if joined is None:
            self._restarts.forgive()
            await self._replace(record, "the head's Ray does not know it (any more)", farewell=False)


def edge_identity(config: Config, lease: Lease, spec: ClusterSpec, member: ClusterMember) -> Mapping[str, object]:
    """What an edge's Ray was started with besides its cluster, as far as a change of it asks for a restart; pure.

    Of the configuration only what differs from the defaults: a new key in a new release restarts nobody.
    """
    return {
        "head": f"{spec.head_ip}:{spec.ray_port}",
        "rank": member.node_rank,
        "ip": str(lease.overlay_ip),
        "device": config.overlay.device,
        "ray": config.ray.model_dump(mode="json", exclude_defaults=True, exclude={"port", *NOT_RAYS}),
        **ride_through_identity(spec.ride_through_s),
        **restarts_identity(member.ray_restarts),
    }


def why_replaced(record: RayRecord, spec: ClusterSpec, member: ClusterMember, config_hash: str) -> str | None:
    """In words; None when what runs is as it should be. Pure."""
    if not record.belongs_to(spec.incarnation):
        return "the head's Ray is a new one"
    if record.config_hash == config_hash:
        return None
    if record.restarts != member.ray_restarts:
        return "the head wants it restarted"
    if record.node_rank != member.node_rank:
        return f"node rank {record.node_rank} has become {member.node_rank}"
    return "the head's address, this node's own or its configuration has changed"


def check_versions(interpreter: Interpreter, spec: ClusterSpec) -> None:
    """Raises VersionMismatchError, naming both sides, where Ray or Python keeps this node out of the cluster."""
    head = Versions(spec.ray_version, spec.python_version)
    if not refusal(differences(interpreter.versions, head)):
        return
    raise VersionMismatchError(
        f"{interpreter.python} has Ray {interpreter.ray_version} on Python {interpreter.python_version}, "
        f"the head has Ray {spec.ray_version} on Python {spec.python_version}",
        hint=f"make an interpreter of Python {head.python_series} with ray=={spec.ray_version} here and name it in "
        "ray.python",
    )


async def check_reach(head_ip: IPv4Address, port: int, source: IPv4Address) -> None:
    """Raises HeadUnreachableError unless the head's Ray port answers our overlay address."""
    try:
        async with timeout(_REACH_TIMEOUT_S):
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

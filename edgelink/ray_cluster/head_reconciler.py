"""The head's Ray: runs it, watches who is a member, and writes the cluster spec for the role to sign."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence

from edgelink.config import Config
from edgelink.files import private_directory, write_atomic
from edgelink.log import get_logger, hide
from edgelink.ray_cluster import command, environment
from edgelink.ray_cluster.cluster_spec import SpecBook, write_spec
from edgelink.ray_cluster.local_ray import RayTools
from edgelink.ray_cluster.membership import MembershipWatch, RayMember
from edgelink.ray_cluster.node import RayLaunch, RayRecord, hash_of
from edgelink.ray_cluster.ray_reconciler import RayInputs, RayReconciler
from edgelink.registry.payloads import ClusterSpec, DirectoryEntry, Lease

_WATCH_INTERVAL_S = "0.5"
_log = get_logger("ray")


class RayHeadReconciler(RayReconciler):
    """Runs Ray's head, watches its members, and writes the cluster spec that the role signs and publishes."""

    def __init__(
        self,
        inputs: RayInputs,
        *,
        members: Callable[[], list[tuple[DirectoryEntry, int]]],
        publish: Callable[[ClusterSpec], None],
        on_members: Callable[[Sequence[RayMember]], None],
    ) -> None:
        super().__init__(inputs)
        self._ranks = members
        self._publish = publish
        self._book = SpecBook(inputs.paths.state / "cluster_spec.json")
        self._published: ClusterSpec | None = None
        self._watch = MembershipWatch(self._start_watch, on_members, inputs.clock)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run(), name="ray-processes")
            tasks.create_task(self._watch.run(), name="ray-members")

    def driver_variables(self) -> dict[str, str]:
        """What a driver on this head needs; see :func:`environment.driver_environment`.

        Raises:
            RayClusterError: Ray is not running here.
        """
        tools, ip, port = self._running()
        lease = self._lease()
        assert lease is not None  # Ray does not run without one
        return environment.driver_variables(
            python=tools.python,
            capabilities=tools.capabilities,
            head_ip=ip,
            ray_port=port,
            token_path=self._token_path(tools),
            device=self._config.overlay.device,
            cidr=lease.cidr,
        )

    async def reconcile(self) -> float:
        lease = self._lease()
        self.ray.adopt()
        await self.ray.protect(self._config.ray.port)
        if lease is None:
            return self._wait("NoLease", "this node is not enrolled yet")
        await self._clear_away_dead()
        tools = await self.ray.prepare()
        token = self._ray_token() if tools.capabilities.token_auth else None
        if token is not None:
            self.ray.write_token(token, tools.user)
        record = await self._running_head(tools, lease)
        if record is None:
            return self._wait("WaitingForOverlay", "Ray starts once the overlay is up and the relay answers")
        requeue_s = await self._confirm(tools, lease, record, token_auth=token is not None)
        self._publish_spec(tools, lease, record, token)
        return requeue_s

    async def _running_head(self, tools: RayTools, lease: Lease) -> RayRecord | None:
        """The record of a head that runs as configured; None while it cannot be started."""
        record = self.ray.node.record
        wanted = hash_of(head_identity(self._config, lease))
        if record is not None and record.config_hash == wanted:
            return record
        if record is not None:
            await self._replace(record, "the configuration of this node has changed")
        if not self._overlay_ready():
            return None
        self._conditions.set_false(self.condition, "Starting", "`ray start --head` is running")
        return await self.ray.node.start(self._launch(tools, lease, wanted))

    def _launch(self, tools: RayTools, lease: Lease, config_hash: str) -> RayLaunch:
        config, has_client = self._config.ray, tools.interpreter.has_client
        return RayLaunch(
            argv=command.head_argv(
                config,
                tools.capabilities,
                python=tools.python,
                ip=lease.overlay_ip,
                node_id=lease.node_id,
                has_client=has_client,
            ),
            env=environment.ray_environment(
                python=tools.python,
                user=tools.user,
                capabilities=tools.capabilities,
                marker=self.ray.node.marker,
                node_rank=0,
                device=self._config.overlay.device,
                token_path=self._token_path(tools),
            ),
            user=tools.user,
            head=f"{lease.overlay_ip}:{config.port}",
            node_rank=0,
            incarnation=uuid.uuid4().hex,
            is_head=True,
            config_hash=config_hash,
            ports=command.listening_ports(config, is_head=True, has_client=has_client),
        )

    def _ray_token(self) -> str:
        """The cluster's token: made once, kept for ever."""
        path = self._paths.state / "ray_token"
        try:
            token = path.read_text()
        except FileNotFoundError:
            token = secrets.token_hex(32)
            private_directory(path.parent)
            write_atomic(path, token)
        hide(token)
        return token

    def _publish_spec(self, tools: RayTools, lease: Lease, record: RayRecord, token: str | None) -> None:
        ranks = self._ranks()
        if not any(entry.node_id == lease.node_id for entry, _ in ranks):
            return  # the directory has not come yet; what was published before still holds
        draft = write_spec(
            lease=lease,
            incarnation=record.incarnation,
            ray_port=self._config.ray.port,
            ray_version=tools.interpreter.ray_version,
            python_version=tools.interpreter.python_version,
            ranks=ranks,
            token_auth=token is not None,
        )
        spec = self._book.number(draft, {entry.node_id: entry.verify_key for entry, _ in ranks}, token)
        if spec != self._published:
            self._publish(spec)
            self._published = spec
            _log.info("ray.spec_published", epoch=spec.epoch, incarnation=spec.incarnation, members=len(spec.members))

    async def _start_watch(self) -> asyncio.subprocess.Process | None:
        record, tools = self._verified, self.ray.tools
        if record is None or record is not self.ray.node.record or tools is None:
            return None
        arguments = ("watch", "--address", record.head, "--interval", _WATCH_INTERVAL_S)
        return await self.ray.start_helper(tools, *arguments, token_auth=tools.capabilities.token_auth)


def head_identity(config: Config, lease: Lease) -> Mapping[str, object]:
    """The same for the head."""
    return {
        "ip": str(lease.overlay_ip),
        "device": config.overlay.device,
        "ray": config.ray.model_dump(mode="json", exclude_defaults=True),
    }

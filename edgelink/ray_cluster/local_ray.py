"""Ray on this machine, whatever its part in the cluster: interpreter, user, firewall, token file, helper, processes."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from edgelink.clock import Clock
from edgelink.config import Config, Paths
from edgelink.errors import HeadUnreachableError, RayClusterError
from edgelink.files import AT_ONCE, Files, private_directory, write_atomic
from edgelink.log import get_logger, hide
from edgelink.overlay.nft import Table
from edgelink.overlay.table_keeper import TableKeeper
from edgelink.process import Launcher, SessionLauncher
from edgelink.process.port_ranges import listed, merged
from edgelink.protocol.payloads import Lease
from edgelink.ray_cluster import command
from edgelink.ray_cluster.drift import Snapshot, StartBook, take_snapshot
from edgelink.ray_cluster.firewall import ray_guard
from edgelink.ray_cluster.helper import grpc_call
from edgelink.ray_cluster.helper_runner import HelperRunner, RayTools
from edgelink.ray_cluster.interpreter import RayUser, inspect_interpreter, named_asker, resolve_user
from edgelink.ray_cluster.node import RayNode
from edgelink.ray_cluster.ray_capabilities import RayCapabilities
from edgelink.ray_cluster.record import RayLaunch, RayRecord
from edgelink.ray_cluster.rendezvous import closed_ranges, own_ports
from edgelink.ray_cluster.run_listeners import RunListeners
from edgelink.ray_cluster.temp_dir import check_temp_dir, temp_dir_of, usable

_HELPER_MARGIN_S = 15.0
_REFUSAL_TIMEOUT_S = 3.0
_LEFT_TIMEOUT_S = 5.0  # a run waits for it
_NO_WORD = "it does not say why"
_KNOWN_S = 60.0  # asked so long ago, an interpreter is asked again before a start
_CHECK_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"  # of nobody: only whether we are spoken to counts
_log = get_logger("ray")


@dataclass(frozen=True)
class Joined:
    """As what Ray lists this node: its own id for it, and the id of the cluster, which is one GCS's for its life."""

    ray_node_id: str
    cluster_id: str


@dataclass(frozen=True)
class Cluster:
    """What its GCS says of itself; ``temp_dir``: the head's, None where this Ray does not say."""

    cluster_id: str
    temp_dir: Path | None


def noted_user_uid(paths: Paths) -> int | None:
    """The user that Ray runs as on this machine; None when no daemon has found that out yet."""
    try:
        return int(paths.ray_user.read_text())
    except (OSError, ValueError):
        return None


class LocalRay:
    """Ray on this machine, whatever its part in the cluster."""

    def __init__(
        self, config: Config, paths: Paths, clock: Clock, launcher: Launcher | None = None, files: Files = AT_ONCE
    ) -> None:
        self.config = config
        self.tools: RayTools | None = None
        self.node = RayNode(paths, launcher or SessionLauncher(), clock, config.ray.temp_dir, files)
        self._paths = paths
        self._files = files
        self._directory = paths.ray_token_copy.parent
        self._preparing = asyncio.Lock()
        self._is_adopted = False
        self._clock = clock
        self._is_in_doubt = False  # what is known of the interpreter
        self._asked_at_s = 0.0
        self._orphans: list[int] = []
        self.guard = TableKeeper(
            None,
            clock,
            open_without="Ray may be open to every network of this machine",
            enabled=config.firewall.enabled,
        )
        self._closed_ports: tuple[tuple[int, int], ...] | None = None  # beside Ray's own; None: not known yet
        self._gcs_port = config.ray.port
        self._members: IPv4Network | None = None  # where they are, if others are on the overlay's device, too
        self._run_ports: tuple[tuple[int, int], ...] = ()  # of a run's processes, beside all those
        self._run_listeners = RunListeners()
        self.starts = StartBook(paths.processes / "ray_start.json", files)
        self.helper = HelperRunner(self._directory, self.token_path)
        self.wanted_environment: Mapping[str, str] = {}  # that a `ray start` at this moment would get; empty: not known

    @property
    def closed_ranges(self) -> tuple[tuple[int, int], ...] | None:
        """The ports that the firewall closes beside Ray's own; None while that is not known, or it is off."""
        return self._closed_ports

    @property
    def token_auth(self) -> bool | None:
        """Whether this Ray asks for a token. None: its version is not known."""
        return None if self.tools is None else self.tools.capabilities.token_auth

    @property
    def token_path(self) -> Path:
        """The copy of the Ray token that Ray's user can read."""
        return self._paths.ray_token_copy

    def doubt_interpreter(self) -> None:
        """Ask it again next time: what it lacks may be installed by then."""
        self._is_in_doubt = True

    async def prepare(self) -> RayTools:
        """Find interpreter and user; the answer is kept, a failure is not.

        Raises:
            ConfigError, MissingDependencyError: there is no Ray to run, or nobody to run it as.
        """
        async with self._preparing:
            if self.tools is None or self._is_in_doubt:
                interpreter = await inspect_interpreter(self.config.ray.python, asker=named_asker(self.config.ray))
                capabilities = RayCapabilities.for_version(interpreter.ray_version)
                user = resolve_user(self.config.ray, interpreter)
                if user.uid != interpreter.owner_uid:  # whoever is to run it must be able to
                    interpreter = await inspect_interpreter(interpreter.python, asker=user)
                self.tools, self._is_in_doubt = RayTools(interpreter, user, capabilities), False
                self._asked_at_s = self._clock.monotonic_s()
                self._note(user)
                self.node.uids = frozenset({os.geteuid(), user.uid})
                _log.info("ray.found", python=str(interpreter.python), ray=interpreter.ray_version, user=user.name)
            return self.tools

    async def prepare_start(self) -> RayTools:
        """As :meth:`prepare`, right before a start: Ray may have been upgraded since this daemon asked first."""
        if self._clock.monotonic_s() - self._asked_at_s > _KNOWN_S:
            self.doubt_interpreter()
        return await self.prepare()

    def _note(self, user: RayUser) -> None:
        """For whoever reads Ray's logs later, also without a daemon."""
        self._files.keep(self._paths.ray_user, f"{user.uid}\n")

    def adopt(self) -> None:
        """Look once for the Ray of a predecessor."""
        if not self._is_adopted:
            self._is_adopted = True
            if record := self.node.adopt():
                _log.info("ray.adopted", raylet=record.raylet.pid, node_rank=record.node_rank)
                if directory := temp_dir_of(record.outputs):
                    self.node.note_temp_dir(directory)
            elif self.node.record is None:
                self._orphans = self.node.owned_pids()

    @property
    def has_ended(self) -> bool:
        """No Ray of this node runs, and none of a predecessor is left to be adopted."""
        return self._is_adopted and not self.node.is_running

    def take_orphans(self) -> list[int]:
        """Processes of a Ray of this node that no record tells of; once."""
        orphans, self._orphans = self._orphans, []
        return orphans

    async def make_directory(self, sessions: Path, tools: RayTools) -> None:
        """Make the directory that Ray is to keep its sessions in, before a start.

        Raises:
            ConfigError: Ray cannot use it.
        """
        self.node.note_temp_dir(sessions)  # also for whoever looks why it cannot be used
        await check_temp_dir(sessions, tools.python, tools.user)

    async def start(self, launch: RayLaunch, on_begin: Callable[[], None]) -> RayRecord:
        """`ray start`, and a note of what it was started from; the rest, and errors, as :meth:`RayNode.start`."""
        tools = await self.prepare()
        snapshot = await asyncio.to_thread(take_snapshot, tools.interpreter, launch.env)
        record = await self.node.start(launch, on_begin)
        self.starts.note(record.raylet, snapshot)
        return record

    def snapshot(self) -> Snapshot | None:
        """What a `ray start` at this moment would start from; None while no interpreter is known."""
        return take_snapshot(self.tools.interpreter, self.wanted_environment) if self.tools else None

    async def protect(self, gcs_port: int, lease: Lease | None) -> None:
        """Have the firewall in place, or, where it is switched off, out of the way.

        On the device of an existing overlay there may be others than the members: it is open to the lease's network.

        Raises:
            MissingDependencyError, FirewallError: it cannot be, and no Ray runs yet; one that runs is left alone.
        """
        if self._closed_ports is None and self.config.firewall.enabled:
            owned = frozenset(self.node.owned_pids())
            ray_uid = self.tools.user.uid if self.tools else noted_user_uid(self._paths)
            self._closed_ports = await asyncio.to_thread(closed_ranges, self.config, owned.__contains__, ray_uid)
            await self._look_at_run_ports()
        self._gcs_port = gcs_port
        self._members = lease.cidr if self.config.overlay.kind == "existing" and lease else None
        self.guard.want(self._table())
        if self.guard.is_in_doubt and not self.node.is_running:
            await self.guard.apply()  # no rest before a start
        else:
            await self.guard.keep()
        if self.guard.failure is not None and not self.node.is_running:
            raise self.guard.failure

    async def close_run_ports(self) -> None:
        """Have the firewall close what a run's processes listen on by now, and nothing that they have left."""
        if self.guard.is_wanted and self._closed_ports is not None:
            await self._look_at_run_ports()
            self.guard.want(self._table())

    async def _look_at_run_ports(self) -> None:
        if self.config.firewall.rendezvous_ports == ():
            return
        elsewhere = (*self._rays_ports(), *(self._closed_ports or ()), *own_ports(self.config))
        found = await asyncio.to_thread(self._run_listeners.look, elsewhere, self.node.owned_pids)
        if found != self._run_ports:
            _log.info("firewall.run_ports", closed=listed(found))
        self._run_ports = found

    def _rays_ports(self) -> tuple[tuple[int, int], ...]:
        return command.firewalled_ports(self.config.ray, self._gcs_port, also=(self.config.web.port,))

    def _table(self) -> Table:
        return ray_guard(
            self._rays_ports(),
            [self.config.overlay.device],
            rendezvous_ports=merged([*(self._closed_ports or ()), *self._run_ports]),
            allow_from=self.config.ray.allow_from,
            robots=self.config.ray.robot_ip,
            members=self._members,
        )

    def write_token(self, token: str, user: RayUser) -> Path:
        """Put the Ray token where Ray's user, and nobody else, can read it."""
        hide(token)
        private_directory(self._directory, mode=0o755)
        with suppress(OSError):
            if self.token_path.read_text() == token and self.token_path.stat().st_uid == user.uid:
                return self.token_path
        write_atomic(self.token_path, token, uid=user.uid, gid=user.gid)
        return self.token_path

    async def _ask(
        self, tools: RayTools, *arguments: str, token_auth: bool, timeout_s: float
    ) -> tuple[int | None, dict[str, Any]]:
        """Ask the helper, as :meth:`HelperRunner.ask`; on the head no longer than its GCS lives.

        Ray's client waits for a dead one until the time is up, and who asks here is to start it again.
        """
        question = self.helper.ask(tools, *arguments, token_auth=token_auth, timeout_s=timeout_s)
        if self.node.record is None or self.node.record.gcs is None:
            return await question
        answer: tuple[int | None, dict[str, Any]] = (1, {"failure": "the GCS has ended"})
        failure: RayClusterError | None = None

        async def ask() -> None:
            nonlocal answer, failure
            try:
                answer = await question
            except RayClusterError as error:
                failure = error
            finally:
                watch.cancel()

        async def watch_gcs() -> None:
            await self.node.wait_for_end()
            asking.cancel()

        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(ask(), name="question")
            watch = tasks.create_task(watch_gcs(), name="gcs-of-question")
        if failure is not None:
            raise failure
        return answer

    async def verify(
        self, tools: RayTools, *, token_auth: bool, head: str, ip: IPv4Address, node_rank: int, timeout_s: float
    ) -> Joined | None:
        """As what Ray lists us alive, with this address and rank; None when it answers that it does not.

        Raises:
            RayClusterError: it cannot be asked.
        """
        arguments = ("--address", head, "--ip", str(ip), "--rank", str(node_rank), "--timeout", f"{timeout_s:g}")
        status, answer = await self._ask(
            tools, "wait-alive", *arguments, token_auth=token_auth, timeout_s=timeout_s + _HELPER_MARGIN_S
        )
        if status == 0:
            return Joined(str(answer["node_id"]), str(answer["cluster_id"]))
        if "nodes" in answer:
            _log.warning("ray.not_listed", head=head, ip=str(ip), node_rank=node_rank, nodes=answer["nodes"])
            return None
        raise RayClusterError(
            f"Ray at {head} does not say whether it lists this node as alive with {ip} and node rank {node_rank}: "
            f"{answer.get('failure', _NO_WORD)}",
            hint=f"see {self.node.log_path} and Ray's own logs in {self.node.ray_logs}",
            reason="NotListedByRay",
        )

    async def bury(self, tools: RayTools, *arguments: str, token_auth: bool, head: str) -> Cluster:
        """Take dead nodes out of Ray, see ``helper.py bury``; the cluster that they are out of.

        Raises:
            RayClusterError: Ray does not answer, or still lists one of them as alive.
        """
        status, answer = await self._ask(
            tools, "bury", "--address", head, *arguments, token_auth=token_auth, timeout_s=_HELPER_MARGIN_S
        )
        if buried := answer.get("buried"):
            _log.info("ray.buried", ray_node_ids=buried)
        if status == 0:
            return Cluster(str(answer["cluster_id"]), usable(str(answer.get("temp_dir", ""))))
        if left := answer.get("left"):
            raise RayClusterError(
                f"Ray at {head} still lists a former Ray of this node as alive ({', '.join(left)}): "
                f"{answer.get('failure') or _NO_WORD}",
                hint="Ray's own health checks find out in some minutes; this node waits until then",
                reason="FormerRayAlive",
            )
        raise HeadUnreachableError(
            f"Ray at {head} does not answer when asked which nodes it lists as alive: {answer.get('failure', _NO_WORD)}"
        )

    async def left_actors(self, tools: RayTools, *, token_auth: bool, head: str) -> list[dict[str, Any]]:
        """The detached actors of jobs that have ended, see ``helper.py detached``; none where Ray does not tell."""
        _, answer = await self._ask(
            tools, "detached", "--address", head, token_auth=token_auth, timeout_s=_LEFT_TIMEOUT_S
        )
        if failure := answer.get("failure"):
            _log.info("ray.left_actors_unknown", why=failure)
        return [actor for actor in answer.get("actors", ()) if isinstance(actor, dict)]

    async def is_refused(self, head: str, cluster_id: str, *, token_auth: bool) -> bool:
        """Whether the GCS at ``head`` says that it is another cluster's. One packet each way, no Ray."""
        headers = {"ray_cluster_id": cluster_id}
        try:
            if token_auth:
                headers["authorization"] = f"Bearer {self.token_path.read_text().strip()}"
            return not await asyncio.to_thread(grpc_call, head, _CHECK_ALIVE, b"", headers, _REFUSAL_TIMEOUT_S)
        except OSError:
            return False  # nobody there to say so

    async def stop(self) -> None:
        """End this node's Ray, then take away the firewall: in this order there is no moment without it."""
        self.adopt()
        await self.helper.close()
        await self.node.stop()
        self.starts.forget()
        for directory in (self._directory, self._paths.import_hook):
            shutil.rmtree(directory, ignore_errors=True)
        self._run_ports = ()
        self.guard.want(self._table())
        await self.guard.remove()

"""What the reconcilers of edge and head share; see :mod:`edgelink.ray_cluster.reconcilers`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, ClassVar, Final

from edgelink.clock import Clock
from edgelink.condition_table.required import RAY_JOINED
from edgelink.conditions import ConditionSet
from edgelink.config import Config, Paths
from edgelink.errors import EdgelinkError, NoRayError, PortBusyError, ProcessStopError, RayClusterError
from edgelink.facts.board import Board, Fact
from edgelink.files import AT_ONCE, Files
from edgelink.log import get_logger
from edgelink.process import import_hook, is_alive
from edgelink.process.restart_policy import RestartPolicy
from edgelink.protocol.held_secret import NetworkTold
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import ClusterSpec, Directory, Lease
from edgelink.ray_cluster import ray_environment
from edgelink.ray_cluster.drift import DriftReconciler
from edgelink.ray_cluster.held_run import HeldRun
from edgelink.ray_cluster.helper_runner import RayTools
from edgelink.ray_cluster.interpreter import named_asker
from edgelink.ray_cluster.last_words import last_words
from edgelink.ray_cluster.local_ray import LocalRay
from edgelink.ray_cluster.no_ray import NO_RAY, NO_RAY_IN_WORDS
from edgelink.ray_cluster.record import RayLaunch, RayRecord
from edgelink.ray_cluster.slow_agent import TOO_BUSY, gave_up_on_agent, too_busy
from edgelink.ray_cluster.versions import Versions
from edgelink.reconcile import Wakeup

NOT_RAYS = {"allow_from", "robot_ip"}  # keys below `ray:` that are the firewall's: a change of them restarts no Ray
_LOOK_S = 10.0
_WAIT_S = 30.0  # for something that wakes us when it comes
_VERIFY_S = 20.0
_PATIENT_VERIFY_S = 120.0  # on a machine that is too busy for the 30 s of `ray start`
_log = get_logger("ray")

VERSIONS: Final[Fact[Versions]] = Fact("versions")
DEAD_RAY: Final[Fact[str | None]] = Fact("dead_ray")


@dataclass(frozen=True)
class RayReads:
    """What a node's Ray depends on, whatever its part in the cluster."""

    running: Membership | None
    coming_lease: Lease | None
    directory: Directory | None
    cluster_spec: ClusterSpec | None
    network: NetworkTold
    peers_connected: bool
    host_patience_s: int | None
    standstills: int
    ride_through_s: int
    run: HeldRun | None

    @property
    def lease(self) -> Lease | None:
        """The lease that Ray is to run with. None: this node is not enrolled."""
        return self.coming_lease or (self.running.lease if self.running is not None else None)


@dataclass(frozen=True)
class RayInputs:
    """What a node gives to the reconciler of its Ray, whatever its part in the cluster."""

    board: Board[Any]
    config: Config
    paths: Paths
    conditions: ConditionSet
    clock: Clock
    key: NodeKey
    ray: LocalRay
    files: Files = AT_ONCE


class RayReconciler:
    """What edge and head have in common: Ray runs here, is confirmed, watched, replaced and stopped."""

    name: ClassVar[str] = "ray"
    condition: ClassVar[str] = RAY_JOINED.name
    reads: ClassVar[type[RayReads]] = RayReads

    def __init__(self, inputs: RayInputs) -> None:
        self.wakeup = Wakeup()
        self.ray = inputs.ray
        self._config = inputs.config
        self._paths = inputs.paths
        self._conditions = inputs.conditions
        self._clock = inputs.clock
        self._key = inputs.key
        self._verified: RayRecord | None = None
        self._restarts = RestartPolicy(inputs.clock, first_s=1.0, cap_s=60.0)
        self._start_failure: RayClusterError | None = None  # shown while the next start is waited for
        self._put_versions = inputs.board.claim(VERSIONS, self.name)
        self._put_dead_ray = inputs.board.claim(DEAD_RAY, self.name)
        self._board = inputs.board
        self._board.read(self.reads, self.name, self.wakeup)
        self._restart_why = ""
        if not self.is_enabled:  # said before the first status goes out: by it the head keeps this node out of Ray
            self._wait(NO_RAY, NO_RAY_IN_WORDS)
        self.drift = DriftReconciler(
            raylet=lambda: self.ray.node.record.raylet if self.ray.node.record and self.ray.node.is_running else None,
            book=self.ray.starts,
            now=self.ray.snapshot,
            conditions=inputs.conditions,
        )

    @property
    def _known(self) -> RayReads:
        return self._board.select(RayReads)

    @property
    def _is_overlay_ready(self) -> bool:
        """The overlay is up under the address that is to stay, and peers answer: from here on Ray may start."""
        known = self._known
        return known.coming_lease is None and known.peers_connected

    @property
    def user_uid(self) -> int:
        """The user that Ray, or without Ray what other nodes run here, runs as; root while that is not known."""
        if not self.is_enabled and (named := named_asker(self._config.ray)) is not None:
            return named.uid
        return self.ray.tools.user.uid if self.ray.tools else 0

    @property
    def is_enabled(self) -> bool:
        """Whether this node runs Ray at all, by its configuration."""
        return self._config.ray.enabled

    def require_enabled(self) -> None:
        """Raises NoRayError where this node's configuration says `ray: off`."""
        if not self.is_enabled:
            raise NoRayError(
                "this node has no Ray, by its configuration (`ray: off`)",
                hint="programs run here without Ray; to have Ray, take `ray: off` out of edgelink.yaml, name "
                "`ray.python`, and start the daemon anew",
            )

    async def prepare(self) -> RayTools:
        """Find that user, and all else that Ray needs here.

        Raises:
            NoRayError: this node has no Ray, and none is looked for.
            ConfigError, MissingDependencyError: there is no Ray to run, or nobody to run it as.
        """
        self.require_enabled()
        return self._noted(await self.ray.prepare())

    def _noted(self, tools: RayTools) -> RayTools:
        self._put_versions(tools.interpreter.versions)
        return tools

    def program_environment(self, uid: int) -> dict[str, str]:
        """Variables for a program of the user ``uid`` that needs no Ray: the import hook, and gRPC's patience."""
        return ray_environment.program_environment(self._known.ride_through_s, self.import_hook(uid))

    def command_environment(self, uid: int) -> dict[str, str]:
        """Variables for Ray's own commands, run by the user ``uid``.

        Raises:
            RayClusterError: Ray is not running here.
        """
        tools, ip, port = self._running()
        return ray_environment.command_environment(
            python=tools.python,
            capabilities=tools.capabilities,
            head_ip=ip,
            ray_port=port,
            ride_through_s=self._known.ride_through_s,
            token_path=self._token_path(tools),
            hook=self.import_hook(uid),
        )

    async def run(self) -> None:
        """Wake the reconciler when raylet or GCS ends; ends by cancellation only."""
        with suppress(EdgelinkError):  # the reconciler meets it again and reports it
            await self.prepare()  # 0.1 s that are over before the overlay is up
        while True:
            record = self.ray.node.record
            if record is not None:
                await self.ray.node.wait_for_end()
                self.wakeup.set()
            await self.ray.node.wait_for_change(record)

    def restart(self, why: str) -> None:
        """Replace the Ray that runs now by a new one, in order; ``why`` is told in the condition."""
        self._restart_why = why
        self.wakeup.set()

    def _take_restart(self) -> str:
        why, self._restart_why = self._restart_why, ""
        return why

    async def stop(self) -> None:
        """End this node's Ray, and nothing else; then the firewall."""
        await self.ray.stop()

    def _wait(self, reason: str, message: str) -> float:
        """Nothing is wrong, but something has not come yet; it wakes us when it does."""
        self._conditions.set_false(self.condition, reason, message)
        return _WAIT_S

    async def _rest(self, why: str) -> float:
        """No Ray is wanted: end the one that runs, and stay without."""
        self._take_restart()  # it would be done to the Ray that is wanted next
        if (record := self.ray.node.record) is not None:
            _log.info("ray.rests", raylet=record.raylet.pid, why=why)
            self._conditions.set_false(self.condition, "RayStopping", f"Ray is being stopped: {why}")
            self._restarts.forgive()
            await self.ray.node.stop()
        return self._wait("RayStopped", f"{why}; `edgelink restart-ray --all` on the head starts it again")

    async def _do_without(self) -> float:
        """Have no Ray here. The Ray of a daemon that ran with another configuration is ended."""
        if (record := self.ray.node.record) is not None:
            _log.info("ray.ended", raylet=record.raylet.pid, why="this node's configuration says `ray: off`")
            await self.ray.node.stop()
        return self._wait(NO_RAY, NO_RAY_IN_WORDS)

    def _running(self) -> tuple[RayTools, IPv4Address, int]:
        self.require_enabled()
        record, tools = self.ray.node.record, self.ray.tools
        if record is None or tools is None or not self.ray.node.is_running:
            raise RayClusterError(
                "Ray does not run on this node yet",
                hint="`edgelink status` says what it waits for",
                reason="RayNotRunning",
            )
        ip, _, port = record.head.rpartition(":")
        return tools, IPv4Address(ip), int(port)

    def _note_environment(self, tools: RayTools, node_rank: int, *, token_auth: bool) -> None:
        """That of a `ray start` at this moment."""
        self.ray.wanted_environment = ray_environment.ray_environment(
            python=tools.python,
            user=tools.user,
            capabilities=tools.capabilities,
            marker=self.ray.node.marker,
            node_rank=node_rank,
            device=self._config.overlay.device,
            ride_through_s=self._known.ride_through_s,
            token_path=self.ray.token_path if token_auth else None,
            own=self._config.ray.environment,
            hook=self.import_hook(tools.user.uid),
        )

    def import_hook(self, uid: int) -> Path | None:
        """The folder of a user's import hook, made whole if somebody cleared it. None: switched off, or no room."""
        return import_hook.provide(self._paths.import_hook, uid) if self._config.process.import_hook else None

    def _token_path(self, tools: RayTools) -> Path | None:
        return self.ray.token_path if tools.capabilities.token_auth else None

    async def _clear_away_dead(self) -> None:
        """A Ray of which a part has died is no Ray, and one without a record is nobody's: end what there is of it."""
        node = self.ray.node
        if orphans := self.ray.take_orphans():
            _log.warning(
                "ray.orphans_ended", pids=orphans, why="no record of this node tells of them; was its state lost?"
            )
            await node.stop()
        record = node.record
        if record is not None and not node.is_running:
            self._note_end(record)
            failure: ProcessStopError | None = None
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tell_of_end(record), name="tell-of-end")
                try:
                    await node.stop()
                except ProcessStopError as error:
                    failure = error
            if failure is not None:
                raise failure

    def _note_end(self, record: RayRecord) -> None:
        self._put_dead_ray(record.ray_node_id)
        if record.ray_node_id is None and gave_up_on_agent(record.outputs, self.user_uid):
            self._restarts.note_too_busy()
            self._start_failure = too_busy(self.ray.node.ray_logs)
            self._conditions.set_error(self.condition, self._start_failure)
            return
        self._restarts.note_end(served=record.ray_node_id is not None)
        self._start_failure = None
        part = "the raylet" if record.gcs is None or is_alive(record.gcs) else "the GCS"
        words = last_words(record.outputs, self.user_uid) or "none"
        _log.warning("ray.exited", part=part, raylet=record.raylet.pid, last_words=words)
        if self._restarts.is_crash_loop:
            pause_s = self._restarts.wait_s
            message = (
                f"Ray ends again and again; next start in {pause_s:.0f} s. {part} ended last; its last words: {words}"
            )
            self._conditions.set_false(self.condition, "CrashLoop", message)
        else:
            self._conditions.set_false(self.condition, "RayExited", f"{part} has ended; its last words: {words}")

    async def _tell_of_end(self, record: RayRecord) -> None:
        """Tell Ray that this raylet is dead, which it would find out itself minutes later."""

    async def _start(self, launch: RayLaunch, on_begin: Callable[[], None]) -> RayRecord:
        """`ray start`, its failures counted; ``on_begin`` tells of it, and what hinders it stays told until then."""
        try:
            record = await self.ray.start(launch, on_begin)
        except PortBusyError:
            raise  # nothing was started
        except RayClusterError as error:
            if error.condition_reason == TOO_BUSY:
                self._restarts.note_too_busy()
                message = f"{error.message}; next start in {self._restarts.wait_s:.0f} s"
                error = RayClusterError(message, hint=error.hint, reason=TOO_BUSY)
            else:
                self._restarts.note_end(served=False)
            if error.condition_reason != TOO_BUSY and self._restarts.is_crash_loop:
                error = RayClusterError(error.message, hint=error.hint, reason="CrashLoop")
            self._start_failure = error
            raise error from None
        self._start_failure = None
        return record

    def _pause_s(self) -> float:
        """Seconds to wait before the next start; 0 when it is due.

        Raises:
            RayClusterError: the last start failed; it stays visible while the next one is waited for.
        """
        wait_s = self._restarts.wait_s
        if wait_s > 0 and self._start_failure is not None:
            raise self._start_failure
        return wait_s

    async def _replace(self, record: RayRecord, why: str, *, farewell: bool = True) -> None:
        _log.info("ray.replaced", raylet=record.raylet.pid, why=why)
        self._conditions.set_false(self.condition, "RayReplaced", f"Ray is started anew: {why}")
        await self.ray.node.stop(farewell=farewell)

    async def _confirm(self, tools: RayTools, lease: Lease, record: RayRecord, *, token_auth: bool) -> float:
        """Once in the life of a raylet, ask Ray whether it lists us; from then on the processes are watched."""
        verify_s = _PATIENT_VERIFY_S if self.ray.node.is_slow else _VERIFY_S
        if self._verified is not record:
            joined = await self.ray.verify(
                tools,
                token_auth=token_auth,
                head=record.head,
                ip=lease.overlay_ip,
                node_rank=record.node_rank,
                timeout_s=verify_s,
            )
            if joined is None:
                self._restarts.note_end(served=False)
                await self._replace(record, "Ray answers, but does not list it", farewell=False)
                raise RayClusterError(
                    f"Ray at {record.head} did not list this node as alive with {lease.overlay_ip} and node rank "
                    f"{record.node_rank} within {verify_s:g} s; it is started anew",
                    hint=f"see {self.ray.node.log_path} and Ray's own logs in {self.ray.node.ray_logs}",
                    reason="NotListedByRay",
                )
            self._verified = self.ray.node.note_joined(joined.ray_node_id, joined.cluster_id)
            self.drift.wakeup.set()
            _log.info("ray.joined", ray_node_id=joined.ray_node_id, node_rank=record.node_rank)
        alive = f"alive in Ray at {record.head} as {lease.overlay_ip} with node rank {record.node_rank}"
        self._conditions.set_true(self.condition, "AliveInRay", alive + self._also(record))
        return _LOOK_S

    def _also(self, _record: RayRecord) -> str:
        """What else to say of a Ray that runs as it should."""
        return ""


def restarts_identity(restarts: int) -> dict[str, int]:
    """The part of a Ray's identity that the head's wishes make; pure. Empty at first: an upgrade restarts nobody."""
    return {"restarts": restarts} if restarts else {}

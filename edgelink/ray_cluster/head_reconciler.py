"""The head's Ray: runs it, watches who is a member, and states the cluster spec."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edgelink.config import Config
from edgelink.errors import NotRecordedError, PortBusyError, RayClusterError
from edgelink.facts.board import Fact
from edgelink.log import get_logger
from edgelink.protocol.payloads import ClusterSpec, EdgesOpenTo, Envelope, Lease
from edgelink.ray_cluster import command, ray_environment
from edgelink.ray_cluster.burials import DEPARTURE_S, Burials
from edgelink.ray_cluster.cluster_spec import (
    FILE_NAME,
    Draft,
    OwnEpoch,
    SpecBook,
    edges_open_to,
    with_restarts,
    without_ray,
    write_spec,
)
from edgelink.ray_cluster.gcs_keeper import GcsKeeper, GcsLostError
from edgelink.ray_cluster.gcs_store import FULL, GcsStore
from edgelink.ray_cluster.held_run import Meeting, Ranks
from edgelink.ray_cluster.helper_runner import RayTools
from edgelink.ray_cluster.ray_members import RAY_MEMBERS, MembershipWatch, RayMember
from edgelink.ray_cluster.ray_reconciler import NOT_RAYS, RayInputs, RayReads, RayReconciler, restarts_identity
from edgelink.ray_cluster.ray_token import RayTokenFile
from edgelink.ray_cluster.record import RayLaunch, RayRecord, hash_of
from edgelink.ray_cluster.ride_through import ride_through_identity
from edgelink.ray_cluster.slow_agent import TOO_BUSY
from edgelink.ray_cluster.temp_dir import gcs_store_in, sessions_in
from edgelink.ray_cluster.wishes import WishBook, Wishes
from edgelink.wording import printable

_WATCH_INTERVAL_S = "0.5"
_ROOM_S = 1.0  # until the disk of the GCS is looked at again
_GCS_STARTS_S = 0.2
EDGES_STOP_S = 60.0  # raylet's own farewell takes 2 s, workers that do not end 15 s
_STOPPED = "Ray was stopped on every node by `edgelink stop --all`"
_log = get_logger("ray")

STATED_CLUSTER: Final[Fact[Envelope | None]] = Fact("stated_cluster")


@dataclass(frozen=True)
class HeadReads(RayReads):
    """What a head's Ray depends on."""

    publishable: Ranks
    ray_members: tuple[RayMember, ...]
    reported_dead: frozenset[tuple[str, str]]
    wishes: Wishes
    meeting: Meeting
    own_epoch: OwnEpoch
    stated_cluster: Envelope | None


class RayHeadReconciler(RayReconciler):
    """Runs Ray's head, watches its members, and states the cluster spec, which the registry's client publishes."""

    reads = HeadReads

    def __init__(self, inputs: RayInputs) -> None:
        super().__init__(inputs)
        self._burials = Burials(inputs.clock)
        self._token = RayTokenFile(inputs.paths.state)
        self._book = SpecBook(inputs.paths.state / FILE_NAME, inputs.key, inputs.files)
        self._state = self._board.claim_durable(STATED_CLUSTER, self.name, self._book.number)
        self.wishes = WishBook(self._board, inputs.paths.state / "ray_wishes.json")
        self._rests_at_s: float | None = None
        self.left_alive: list[str] | None = None  # the addresses of others when our Ray was last stopped; None: unknown
        self._kept: RayRecord | None = None  # does not fit the configuration, but a run relies on it
        put_members = self._board.claim(RAY_MEMBERS, self.name)
        self._watch = MembershipWatch(self._start_watch, put_members, inputs.clock, lambda: self._is_gcs_away)
        store = GcsStore(gcs_store_in(inputs.config.ray.temp_dir), inputs.paths.state / "gcs_store.json", inputs.files)
        self._gcs = GcsKeeper(self.ray.node, store, inputs.clock, is_wanted=inputs.config.ray.gcs_store)

    @property
    def _known(self) -> HeadReads:
        return self._board.select(HeadReads)

    @property
    def _gone(self) -> frozenset[str]:
        """The node ids of those whom the operator has put out. They keep their rank for the run in progress only.

        Who is only missing from the directory may be a healthy member that a registry of an older backup does not know.
        """
        state = self._known.network.state
        return frozenset() if state is None else frozenset(state.revoked)

    @property
    def _secret_epoch(self) -> int:
        """The epoch of the network's secret."""
        running = self._known.running
        return 1 if running is None else running.held.epoch

    @property
    def is_wanted(self) -> bool:
        """Whether this network's Ray is to run at all."""
        return self._known.wishes.ray_wanted

    async def _do_without(self) -> float:
        """Tell the nodes, too, that a Ray of an earlier configuration is gone."""
        if (spec := self._book.newest) is not None:
            self._give_out(without_ray(spec), {}, None)
        return await super()._do_without()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run(), name="ray-processes")
            tasks.create_task(self._watch.run(), name="ray-members")

    def driver_variables(self, uid: int) -> dict[str, str]:
        """What a driver of the user ``uid`` on this head needs; see :mod:`edgelink.training.driver_environment`.

        Raises:
            RayClusterError: Ray is not running here.
        """
        tools, ip, port = self._running()
        lease = self._known.lease
        assert lease is not None  # Ray does not run without one
        return ray_environment.driver_variables(
            python=tools.python,
            capabilities=tools.capabilities,
            head_ip=ip,
            ray_port=port,
            ride_through_s=self._known.ride_through_s,
            token_path=self._token_path(tools),
            device=self._config.overlay.device,
            cidr=lease.cidr,
            hook=self.import_hook(uid),
        )

    def driver_grant(self, uid: int) -> dict[str, Any]:
        """The same, with what else decides about a driver's environment, as JSON.

        Raises:
            RayClusterError: Ray is not running here.
        """
        alive = [member for member in self._known.ray_members if member.alive]
        return {
            "environment": self.driver_variables(uid),
            "of_ray": ray_environment.of_machine(self.ray.wanted_environment, self._config.ray.environment),
            "pass_env": list(self._config.driver.pass_env),
            "accelerators": sorted({member.accelerator for member in alive if member.accelerator_count}),
        }

    async def left_actors(self) -> list[str]:
        """What former jobs have left in Ray, in words."""
        record, tools = self.ray.node.record, self.ray.tools
        if record is None or tools is None:
            return []
        token_auth = tools.capabilities.token_auth
        found = await self.ray.left_actors(tools, token_auth=token_auth, head=record.head)
        return [printable(f"{a['name'] or a['class']} (namespace {a['namespace']}, on {a['ip']})") for a in found]

    async def reconcile(self) -> float:
        lease = self._known.lease
        self.ray.adopt()
        await self.ray.protect(self._config.ray.port, lease)
        if lease is None:
            return self._wait("NoLease", "this node is not enrolled yet")
        if (delay_s := await self._keep_gcs()) > 0:
            return delay_s
        await self._clear_away_dead()
        if not self.is_enabled:
            return await self._do_without()
        tools = await self.prepare()
        token = self._token.read(self._secret_epoch) if tools.capabilities.token_auth else None
        if token is not None:
            self.ray.write_token(token, tools.user)
        self._note_environment(tools, 0, token_auth=token is not None)
        if not self.is_wanted:
            return await self._end_cluster(tools, lease)
        self._rests_at_s = None
        record = await self._running_head(tools, lease)
        tools = await self.prepare()  # a start may have found another Ray, and made another token
        token = self._token.read(self._secret_epoch) if tools.capabilities.token_auth else None
        if record is None and not self._is_overlay_ready:
            return self._wait("WaitingForOverlay", "Ray starts once the overlay is up and the relay answers")
        if record is None:
            return max(0.1, self._pause_s())
        is_kept = record is self._kept
        requeue_s = await self._confirm(tools, lease, record, token_auth=token is not None)
        record = self.ray.node.record or record
        if is_kept:
            self._publish_restarts(token)
        else:
            self._publish_spec(tools, lease, record, token)
        return min(requeue_s, await self._bury_the_dead(tools, record, token_auth=token is not None))

    @property
    def _is_gcs_away(self) -> bool:
        """Whether only the GCS has ended: the members that it listed last go on."""
        record = self.ray.node.record
        return (
            record is not None
            and self.ray.node.is_running
            and (self.ray.node.gcs_has_ended or (record.gcs_start is not None and record is not self._verified))
        )

    async def _keep_gcs(self) -> float:
        """Start the GCS again if it alone has ended; return after how many seconds to look again, 0 to go on."""
        record = self.ray.node.record
        try:
            self._gcs.check_patience()
            if record is None or not self.ray.node.is_running or not self.ray.node.gcs_has_ended:
                return 0.0
            return await self._gcs.restart((await self.prepare()).user)
        except GcsLostError as error:
            assert record is not None
            await self._replace(record, str(error), farewell=False)
            await asyncio.to_thread(self._gcs.store.remove, str(error))
            return 0.0
        except RayClusterError as error:
            if error.condition_reason != FULL:
                raise
            self._conditions.set_error(self.condition, error)
            return _ROOM_S

    async def _confirm(self, tools: RayTools, lease: Lease, record: RayRecord, *, token_auth: bool) -> float:
        try:
            delay_s = await super()._confirm(tools, lease, record, token_auth=token_auth)
        except RayClusterError:
            if not self._gcs.is_awaited and not self.ray.node.gcs_has_ended:
                raise
            return _GCS_STARTS_S  # it reads its tables, or has just ended again: what was said of Ray holds
        self._gcs.note_answer()
        return delay_s

    def _also(self, record: RayRecord) -> str:
        return self._gcs.what_is_missing(record)

    async def _end_cluster(self, tools: RayTools, lease: Lease) -> float:
        """Say that no Ray is wanted, wait until the edges' has ended, with a deadline, then end our own."""
        if (spec := self._book.newest) is not None:  # also without a Ray of ours: a relay may have forgotten it
            self._give_out(without_ray(spec), {}, None)
        record = self.ray.node.record
        if record is None:
            return await self._rest(_STOPPED)
        if self._rests_at_s is None:
            self._rests_at_s = self._clock.monotonic_s() + EDGES_STOP_S
        with suppress(RayClusterError):  # a GCS that does not answer is not waited for beyond the deadline
            if self._verified is not record:  # adopted: it has to be asked who is left
                await self._confirm(tools, lease, record, token_auth=tools.capabilities.token_auth)
            await self._bury_the_dead(tools, record, token_auth=tools.capabilities.token_auth)
        left_s = self._rests_at_s - self._clock.monotonic_s()
        others = self.others_alive(lease)
        if left_s > 0 and (others is None or others):
            waits_for = "to be told who is left" if others is None else f"for the Ray of {', '.join(others)} to end"
            self._conditions.set_false(self.condition, "RayStopping", f"{_STOPPED}; waiting {waits_for}")
            return min(left_s, DEPARTURE_S)
        self.left_alive = others
        return await self._rest(_STOPPED)

    def others_alive(self, lease: Lease) -> list[str] | None:
        """The addresses that Ray lists as alive, our own aside; None while Ray does not tell."""
        alive = {member.ip for member in self._known.ray_members if member.alive}
        return sorted(alive - {str(lease.overlay_ip)}) if str(lease.overlay_ip) in alive else None

    async def _running_head(self, tools: RayTools, lease: Lease) -> RayRecord | None:
        """The record of a head that runs as configured; None while it cannot be started."""
        record = self.ray.node.record
        restarts = self._known.wishes.restarts_of(lease.node_id)
        wanted = hash_of(head_identity(self._config, lease, restarts, self._config.ride_through_s))
        if record is not None and record.config_hash == wanted:
            return record
        is_asked = record is not None and record.restarts != restarts
        run = self._known.run
        if record is not None and not is_asked and run is not None and run.is_granted:
            self._keep(record, run.holder)
            return record
        if record is not None:
            self._gcs.require(tools.capabilities)  # before the Ray that runs is ended for nothing
            self._restarts.forgive()
            await self._replace(
                record, "it was asked for" if is_asked else "the configuration of this node has changed"
            )
        if not self._is_overlay_ready or self._pause_s() > 0:
            return None
        # Under a run it gets the value that the others have; what is configured comes after the run.
        started_as = hash_of(head_identity(self._config, lease, restarts, self._known.ride_through_s))
        tools = self._noted(await self.ray.prepare_start())
        self._gcs.require(tools.capabilities)
        if tools.capabilities.token_auth:
            self._token.renew(self._secret_epoch)
            self.ray.write_token(self._token.read(self._secret_epoch), tools.user)
        self._note_environment(tools, 0, token_auth=tools.capabilities.token_auth)
        token = self._token.read(self._secret_epoch) if tools.capabilities.token_auth else ""
        await self.ray.make_directory(sessions_in(self._config.ray.temp_dir), tools)
        store = await self._gcs.prepare(
            {
                "node": lease.node_id,
                "ray": tools.interpreter.ray_version,
                "token": hashlib.sha256(token.encode()).hexdigest(),
                "started_as": started_as,
            }
        )
        try:
            started = await self._start(
                self._launch(tools, lease, started_as, store),
                lambda: self._conditions.set_false(self.condition, "Starting", "`ray start --head` is running"),
            )
        except RayClusterError as error:
            if not isinstance(error, PortBusyError) and error.condition_reason != TOO_BUSY:
                self._gcs.store.note_start(has_failed=True)
            raise
        self._gcs.store.note_start(has_failed=False)
        return started

    def _keep(self, record: RayRecord, holder: str) -> None:
        """Leave a Ray that does not fit any more to the run that uses it; of what is published only restarts change."""
        if self._kept is not record:
            self._kept = record
            why = "a change of this node's configuration waits for the end of the run"
            _log.info("ray.kept", raylet=record.raylet.pid, why=why, holder=holder)

    def _launch(self, tools: RayTools, lease: Lease, config_hash: str, gcs_store: Path | None) -> RayLaunch:
        config, has_client = self._config.ray, tools.interpreter.has_client
        return RayLaunch(
            argv=command.head_argv(
                config,
                tools.capabilities,
                python=tools.python,
                ip=lease.overlay_ip,
                node_id=lease.node_id,
                has_client=has_client,
                gcs_store=gcs_store,
            ),
            env=self.ray.wanted_environment,
            user=tools.user,
            head=f"{lease.overlay_ip}:{config.port}",
            node_rank=0,
            incarnation="",  # its cluster's id, which its GCS has yet to make
            restarts=self._known.wishes.restarts_of(lease.node_id),
            is_head=True,
            temp_dir=sessions_in(config.temp_dir),
            gcs_store=gcs_store,
            config_hash=config_hash,
            ports=command.listening_ports(config, is_head=True, has_client=has_client),
        )

    def _publish_spec(self, tools: RayTools, lease: Lease, record: RayRecord, token: str | None) -> None:
        ranks = self._known.publishable
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
            ride_through_s=self._known.ride_through_s,
            wishes=self._known.wishes,
        )
        self._give_out(draft, self._verify_keys(), token)

    def _verify_keys(self) -> dict[str, str]:
        """Of those to whom the token is sealed."""
        gone = self._gone
        return {entry.node_id: entry.verify_key for entry, _ in self._known.publishable if entry.node_id not in gone}

    def _publish_restarts(self, token: str | None) -> None:
        """What was published before, but for the restarts that somebody asked for since."""
        spec, verify_keys = self._book.newest, self._verify_keys()
        if spec is None or not verify_keys:
            return  # the directory has not come yet
        if any(member.node_id not in verify_keys.keys() | self._gone for member in spec.members):
            return
        self._give_out(with_restarts(spec, self._known.wishes), verify_keys, token)

    def _give_out(self, draft: ClusterSpec, verify_keys: Mapping[str, str], token: str | None) -> None:
        now, draft = self._known, draft.model_copy(update={"edges_open_to": self.edges_open_to(self._book.newest)})
        try:
            stated = self._state(Draft(draft, verify_keys, token, now.own_epoch))
        except NotRecordedError:  # StateRecorded tells of it; what was given out before holds, and we are back soon
            return
        if stated != now.stated_cluster and (spec := self._book.newest) is not None:
            _log.info("ray.spec_published", epoch=spec.epoch, incarnation=spec.incarnation, members=len(spec.members))

    def edges_open_to(self, before: ClusterSpec | None) -> EdgesOpenTo:
        """Whom edges answer beside head and relays; ``before``: the last cluster spec, also of a former daemon's."""
        now = self._known
        return edges_open_to(self._config.access, now.run, now.meeting, before, self._clock.monotonic_s())

    async def _bury_the_dead(self, tools: RayTools, record: RayRecord, *, token_auth: bool) -> float:
        """Tell Ray of deaths that others know of; after how many seconds to look again."""
        now = self._known
        if whom := self._burials.due(now.ray_members, now.publishable, self._gone, now.reported_dead):
            arguments = [part for ray_id in sorted(whom) for part in ("--id", ray_id)]
            try:
                await self.ray.bury(tools, *arguments, token_auth=token_auth, head=record.head)
            except RayClusterError as error:
                self._burials.note_failure(whom)
                _log.warning("ray.not_buried", ray_node_ids=sorted(whom), why=str(error))
        return DEPARTURE_S

    async def _start_watch(self) -> asyncio.subprocess.Process | None:
        record, tools = self._verified, self.ray.tools
        if record is None or record is not self.ray.node.record or tools is None:
            return None
        arguments = ("watch", "--address", record.head, "--interval", _WATCH_INTERVAL_S)
        return await self.ray.helper.start(tools, *arguments, token_auth=tools.capabilities.token_auth)


def head_identity(config: Config, lease: Lease, restarts: int, ride_through_s: int) -> Mapping[str, object]:
    """The same for the head."""
    return {
        "ip": str(lease.overlay_ip),
        "device": config.overlay.device,
        "ray": config.ray.model_dump(mode="json", exclude_defaults=True, exclude=NOT_RAYS),
        **ride_through_identity(ride_through_s),
        **restarts_identity(restarts),
    }

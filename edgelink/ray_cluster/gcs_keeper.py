"""Start the head's GCS again alone when it has ended: raylets, workers and the driver go on meanwhile (ADR 0046)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from edgelink.clock import Clock
from edgelink.errors import ProcessStartError
from edgelink.log import get_logger
from edgelink.process import Identity
from edgelink.process.output import read_end
from edgelink.process.restart_policy import HEALTHY_LIFE_S, RestartPolicy
from edgelink.ray_cluster.gcs_store import GcsStore
from edgelink.ray_cluster.interpreter import RayUser
from edgelink.ray_cluster.last_words import last_words
from edgelink.ray_cluster.node import RayNode
from edgelink.ray_cluster.ray_capabilities import RayCapabilities
from edgelink.ray_cluster.record import RayRecord, hash_of

_PATIENCE_S = 120.0  # for one that reads its tables, as long as `ray start` waits for it
_BROKEN, _NO_SPACE, _SERVES = b"Failed to open RocksDB", b"No space left", b"listening on port"
_ABORTED = re.compile(rb"^\[[-\d]+ [:,\d]+ [CF] ", re.MULTILINE)  # critical, fatal: it has ended itself
_log = get_logger("ray")


class GcsLostError(Exception):
    """The GCS does not come back with what it knew: the cluster is to start anew."""


class GcsKeeper:
    """Restarts the GCS of ``node``, which keeps its tables in ``store``. ``is_wanted`` is `ray.gcs_store`."""

    def __init__(self, node: RayNode, store: GcsStore, clock: Clock, *, is_wanted: bool) -> None:
        self.store = store
        self._is_wanted = is_wanted
        self._why_not_there = f"{store.directory} cannot hold it"  # more exactly once this daemon has looked
        self._node = node
        self._clock = clock
        self._restarts = RestartPolicy(clock, first_s=0.5, cap_s=10.0)
        self._ended: Identity | None = None  # told of already
        self._started: Identity | None = None  # by us, and has not answered yet
        self._started_s = 0.0
        self._serves_since_s: float | None = None
        self._uid = 0  # of Ray's user, who owns what the GCS writes
        self._sizes: dict[str, int] = {}  # of what was written before the present one began

    @property
    def is_awaited(self) -> bool:
        """Whether the GCS was started again and has not answered yet."""
        record = self._node.record
        return record is not None and record.gcs is not None and record.gcs is self._started

    def require(self, capabilities: RayCapabilities) -> None:
        """Raise ConfigError where `ray.gcs_store` asks for what this Ray cannot do."""
        if self._is_wanted:
            capabilities.require_gcs_store()

    async def prepare(self, identity: Mapping[str, str]) -> Path | None:
        """Make ready for a `ray start`; return where its GCS keeps its tables, None: in memory.

        Args:
            identity: what tells this Ray from one that cannot go on with the same tables.

        Raises:
            RayClusterError: there is no room for them, or a former Ray's cannot be removed.
        """
        why = "" if self._is_wanted else "ray.gcs_store is off"
        if self._is_wanted and (why := await asyncio.to_thread(self.store.why_not_here)):
            self._why_not_there = why
            _log.warning("ray.gcs_store_off", directory=str(self.store.directory), why=why)
        if why:
            await asyncio.to_thread(self.store.remove, why)
            return None
        await asyncio.to_thread(self.store.prepare, hash_of(identity))
        await asyncio.to_thread(self.store.check_room)
        return self.store.directory

    def what_is_missing(self, record: RayRecord) -> str:
        """Say why the GCS of this Ray keeps its tables in memory all the same. Empty where it keeps them on disk."""
        if not self._is_wanted or record.gcs_start is not None:
            return ""
        return f"; without ray.gcs_store, because {self._why_not_there}"

    async def restart(self, user: RayUser) -> float:
        """Start the GCS again, now that it has ended; return after how many seconds to try instead, 0 when it runs.

        Raises:
            GcsLostError: it ends again and again by itself, or cannot read its tables.
            RayClusterError: the disk has no room for it.
            ProcessStopError: threads of the former GCS do not end.
        """
        record = self._node.record
        assert record is not None
        assert record.gcs is not None
        outputs, self._uid = _outputs(record), user.uid
        if record.gcs != self._ended:
            words = self._new_words(outputs, user.uid)
            has_failed, self._ended = self._has_failed(words), record.gcs
            self._started = self._serves_since_s = None
            _log.warning("ray.gcs_ended", pid=record.gcs.pid, last_words=last_words(outputs, user.uid) or "none")
            await asyncio.to_thread(self.store.check_room)  # what a full disk did is no crash
            if has_failed and _BROKEN in words and _NO_SPACE not in words:
                raise GcsLostError("its GCS cannot read its tables")
            self._restarts.note_end(served=False) if has_failed else self._restarts.forgive()
        await asyncio.to_thread(self.store.check_room)
        if self._restarts.is_crash_loop:
            raise GcsLostError("its GCS ended, or did not start, three times in a row")
        if self._restarts.wait_s > 0:
            return self._restarts.wait_s
        await asyncio.to_thread(self.store.prune)
        for path in outputs:
            with suppress(OSError):
                self._sizes[path] = Path(path).stat().st_size
        try:
            record = await self._node.restart_gcs(user)
        except ProcessStartError as error:
            raise GcsLostError(f"its GCS cannot be started again: {error.message}") from error
        self._started, self._started_s = record.gcs, self._clock.monotonic_s()
        _log.warning("ray.gcs_restarted", pid=record.gcs.pid if record.gcs else None)
        return 0.0

    def note_answer(self) -> None:
        """Take note that the GCS answers."""
        if self._started is not None:
            _log.info("ray.gcs_answers", after_s=round(self._clock.monotonic_s() - self._started_s, 2))
        if self._started is not None or self._serves_since_s is None:
            self._started, self._serves_since_s = None, self._clock.monotonic_s()

    def check_patience(self) -> None:
        """Raise GcsLostError when the GCS was started again long ago and does not serve."""
        record = self._node.record
        if record is None or not self.is_awaited or self._clock.monotonic_s() - self._started_s < _PATIENCE_S:
            return
        if _SERVES not in self._new_words(_outputs(record), self._uid):  # else nobody here can ask it
            raise GcsLostError(f"its GCS did not answer within {_PATIENCE_S:g} s of its start")

    def _has_failed(self, words: bytes) -> bool:
        """Whether the GCS that has ended says something of the next one: it never served, or soon ended itself."""
        if self._serves_since_s is None:
            return self._started is not None and (_SERVES not in words or _ABORTED.search(words) is not None)
        was_short = self._clock.monotonic_s() - self._serves_since_s < HEALTHY_LIFE_S
        return was_short and _ABORTED.search(words) is not None

    def _new_words(self, outputs: Iterable[str], uid: int) -> bytes:
        """What the GCS that has ended wrote, where we have started it; all their GCSes write into the same files."""
        words = b""
        for path in outputs:
            with suppress(OSError):
                if path in self._sizes and (more := Path(path).stat().st_size - self._sizes[path]) > 0:
                    words += read_end(Path(path), owner_uid=uid)[-more:]
        return words


def _outputs(record: RayRecord) -> list[str]:
    """The files that the GCS writes its output to, one life after the other."""
    return [path for path in record.outputs if Path(path).name.startswith("gcs_server")]

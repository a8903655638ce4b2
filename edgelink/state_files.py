"""The files of the state directory that a running daemon writes: a full disk costs what it has to, and no daemon.

There are two kinds. What the next daemon or a person reads later is *kept*: if it cannot be written now, the daemon
goes on with what it has in memory and writes it as soon as it can. What has to be on disk before something is done,
because a promise depends on it, is *required*: then that is not done. The condition ``StateRecorded`` tells of both.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from edgelink.condition_table.informing import STATE_RECORDED
from edgelink.conditions import ConditionSet
from edgelink.errors import NotRecordedError
from edgelink.files import NO_ROOM, Files
from edgelink.reconcile import Wakeup

_LOOK_S = 60.0  # nothing to do; a failure wakes us


class StateFiles(Files):
    """Sets ``StateRecorded``; its reconcile loop tries again what could not be written."""

    name: ClassVar[str] = "state-files"
    condition: ClassVar[str] = STATE_RECORDED.name

    def __init__(self, conditions: ConditionSet) -> None:
        self.wakeup = Wakeup()
        self._conditions = conditions
        self._waiting: dict[Path, bytes | str | None] = {}
        self._failed: dict[Path, NotRecordedError] = {}

    def keep(self, path: Path, content: bytes | str | None) -> None:
        """Never raises; the newest content of each file is what is written later."""
        self._waiting[path] = content
        try:
            self._settle(path)
        except NotRecordedError:
            self.wakeup.set()

    def require(self, path: Path, content: bytes | str) -> None:
        self._waiting.pop(path, None)
        try:
            super().require(path, content)
        except NotRecordedError as error:
            self._failed[path] = error
            self.wakeup.set()
            raise
        self._note_written(path)

    def refused(self, path: Path, why: str) -> None:
        self._failed[path] = NotRecordedError(f"{path}: cannot be written: {why}", hint=NO_ROOM[errno.ENOSPC])
        self.wakeup.set()

    async def reconcile(self) -> float:
        for path in {**self._failed, **self._waiting}:
            with suppress(NotRecordedError):
                if path in self._waiting:
                    self._settle(path)
                else:
                    self._probe(path)
        if self._failed:
            raise self._problem()
        self._conditions.set_true(self.condition, "Recorded", "all that this daemon has to remember is on disk")
        return _LOOK_S

    def _settle(self, path: Path) -> None:
        try:
            super().keep(path, self._waiting[path])
        except NotRecordedError as error:
            self._failed[path] = error
            raise
        del self._waiting[path]
        self._note_written(path)

    def _probe(self, path: Path) -> None:
        """Whoever required ``path`` may never ask again: see whether there is room for it now."""
        probe = path.with_name(f".{path.name}.probe")
        super().require(probe, b"?")
        self.remove(probe)
        self._note_written(path)

    def _note_written(self, path: Path) -> None:
        if self._failed.pop(path, None) is not None:
            self.wakeup.set()

    def _problem(self) -> NotRecordedError:
        first, *others = self._failed
        error = self._failed[first]
        more = f"; nor {', '.join(map(str, others))}" if others else ""
        why = "this daemon goes on with what it has in memory, and what has to be on disk first waits"
        return NotRecordedError(f"{error.message}{more}; {why}", hint=error.hint)

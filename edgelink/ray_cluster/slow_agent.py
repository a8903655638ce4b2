"""Help a raylet through a slow start of its dashboard agent.

A raylet aborts when its agent has not written its HTTP port to a file within 15 s. That time is a constant in Ray
(`WaitForPersistedPort`, 2.60; ADR 0037) that no setting changes, and `ray start` does not give the port to the raylet.
EdgeLink pins this port. So it writes the file itself when the agent is late, and the raylet goes on without the agent.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path

from edgelink.clock import Clock
from edgelink.errors import RayClusterError
from edgelink.log import get_logger
from edgelink.process import procfs
from edgelink.process.answer import answer_of, end
from edgelink.process.output import read_end
from edgelink.ray_cluster.interpreter import SYSTEM_PATH, RayUser, identity_arguments
from edgelink.ray_cluster.last_words import output_files
from edgelink.timeouts import timeout

RAYLET_WAITS_S = 15.0  # for its agent
AGENT_IS_LATE_S = 6.0  # it needs 2 to 4 s; the rest is for this daemon, which may be late itself
TOO_BUSY = "TooBusyForRay"
PORT_KEY = "ray.dashboard_agent_listen_port"
_FILE = "dashboard_agent_listen_port"
_LOOK_S = 0.5
_WRITE_TIMEOUT_S = 5.0
_NODE_ID = re.compile(r"[0-9a-f]+")
_TIMED_OUT = re.compile(rb"Timed out waiting for file \S*_port_[0-9a-f]+")
# As Ray writes it: whole or not at all, since the raylet reads it as soon as it is there. The agent's own file wins.
_WRITE = 'printf %s "$1" > "$2.edgelink" && mv -n "$2.edgelink" "$2"; rm -f "$2.edgelink"'


class AgentWatch:
    """The raylet of one `ray start`, watched from its first moment.

    Attributes:
        outputs: the files that the raylet writes its output to; empty before it was seen.
    """

    def __init__(self, session: int, port: int | None, user: RayUser, clock: Clock) -> None:
        """``session``: the one of `ray start`. ``port``: the agent's pinned port, None where there is none."""
        self.outputs: tuple[str, ...] = ()
        self._session = session
        self._port = port
        self._user = user
        self._clock = clock

    async def run(self) -> None:
        """Write the port file once the agent is late. Ends by cancellation, or when nothing is left to do."""
        while (raylet := self._raylet()) is None:
            await self._clock.sleep(_LOOK_S)
        self.outputs = output_files(raylet)
        path = _port_file(raylet)
        if self._port is None or path is None:
            return
        late_at_s = self._clock.monotonic_s() + AGENT_IS_LATE_S
        while self._clock.monotonic_s() < late_at_s:
            with suppress(OSError):
                if path.exists():
                    return
            await self._clock.sleep(_LOOK_S)
        get_logger("ray").warning("ray.agent_late", raylet=raylet, late_s=AGENT_IS_LATE_S, port=self._port)
        await self._write(path, self._port)

    @property
    def raylet_gave_up(self) -> bool:
        """Whether the raylet aborted because its agent was late."""
        return gave_up_on_agent(self.outputs, self._user.uid)

    def _raylet(self) -> int | None:
        for pid in procfs.session_members(self._session):
            with suppress(ProcessLookupError):
                if Path(procfs.executable_of(pid)).name == "raylet":
                    return pid
        return None

    async def _write(self, path: Path, port: int) -> None:
        """Write the file as Ray's user: the directory is that user's, who could put a link anywhere."""
        with suppress(OSError, TimeoutError):
            process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", _WRITE, "sh", str(port), str(path)),
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                cwd="/",
                env={"PATH": SYSTEM_PATH},
                start_new_session=True,
                **identity_arguments(self._user),
            )
            try:
                async with timeout(_WRITE_TIMEOUT_S):
                    await answer_of(process, 0)
            finally:
                await end(process)


def too_busy(logs: Path) -> RayClusterError:
    """Return the error of a raylet that gave up on its agent. ``logs``: the directory of Ray's own logs."""
    return RayClusterError(
        f"this machine was too busy for Ray's agent: it needed more than {RAYLET_WAITS_S:g} s",
        hint=f"stop what else runs here, or wait: see `uptime`, and raylet.out in {logs}",
        reason=TOO_BUSY,
    )


def gave_up_on_agent(outputs: tuple[str, ...], owner_uid: int) -> bool:
    """Whether a raylet that wrote to ``outputs`` aborted because one of its agents was late."""
    return any(_TIMED_OUT.search(read_end(Path(path), owner_uid=owner_uid)) for path in outputs)


def _port_file(raylet: int) -> Path | None:
    """Return the file that this raylet waits for, as its command line says. None where it does not say."""
    try:
        words = (Path("/proc") / str(raylet) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    options = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
    directory, node_id = options.get("session_dir", ""), options.get("node_id", "")
    if not directory.startswith("/") or not _NODE_ID.fullmatch(node_id):
        return None
    return Path(directory) / f"{_FILE}_{node_id}"

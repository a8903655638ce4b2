"""Ask this machine's own hook before its overlay is restarted: a robot in motion may want a moment (``robot.hold``).

What is run, and as whom, comes from local configuration only. The hook says by its exit status: 0, go on; 75, ask me
again in two seconds; anything else counts as 0 and is told. It is ended after ``robot.hold_for``.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress

from edgelink.clock import Clock
from edgelink.config import Config
from edgelink.config.models import RobotConfig
from edgelink.errors import ConfigError, ExitCode
from edgelink.log import get_logger
from edgelink.ray_cluster.interpreter import SYSTEM_PATH, RayUser, named_user

ASK_AGAIN_S = 2.0
_MAX_OUTPUT = 500  # characters of its last line, for the log and for the relay

log = get_logger("robot")


class HoldHook:
    """The hook of one machine; :meth:`wait` is a task of its own, never a part of a reconciler's step."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config: RobotConfig = config.robot
        self._clock = clock

    @property
    def is_set(self) -> bool:
        """Whether there is anybody to ask."""
        return bool(self._config.hold)

    async def wait(self, reason: str, patience_s: float) -> str:
        """Return when the overlay may be restarted: why the hook did not say so itself, empty when it did.

        Args:
            reason: why it is to be restarted, for the hook's EDGELINK_REASON.
            patience_s: how long the network waits; ``robot.hold_for`` bounds it, too.
        """
        patience_s = min(patience_s, float(self._config.hold_for))
        try:
            user = named_user("robot.user", self._config.user) if self._config.user else None
            if user is None and os.geteuid() == 0:
                raise ConfigError(
                    "robot.hold needs robot.user: whom the hook runs as", hint="name a user of this robot"
                )
            async with asyncio.timeout(patience_s):
                return await self._ask(reason, patience_s, user)
        except TimeoutError:
            return self._told(f"the hook was ended after {patience_s:g} s")
        except (ConfigError, OSError) as error:
            return self._told(f"the hook cannot be run: {error}")

    async def _ask(self, reason: str, patience_s: float, user: RayUser | None) -> str:
        environment = {
            "PATH": SYSTEM_PATH,
            "LANG": "C.UTF-8",
            "EDGELINK_EVENT": "before-overlay-restart",
            "EDGELINK_REASON": reason,
            "EDGELINK_HOLD_FOR_S": f"{patience_s:g}",
        }
        while True:
            status, words = await self._run(environment, user)
            if status == ExitCode.TRY_AGAIN:
                log.info("robot.holding", words=words)
                await self._clock.sleep(ASK_AGAIN_S)
                continue
            return "" if status == 0 else self._told(f"the hook ended with status {status}: {words or 'no output'}")

    async def _run(self, environment: Mapping[str, str], user: RayUser | None) -> tuple[int, str]:
        if user is not None:
            environment = {**environment, "HOME": str(user.home), "USER": user.name}
        process = await asyncio.create_subprocess_exec(
            *self._config.hold,
            env=dict(environment),
            cwd="/",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=user.groups if user else None,
        )
        try:
            output, _ = await process.communicate()
        finally:  # of whatever it left behind, too
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        lines = output.decode(errors="replace").strip().splitlines()
        assert process.returncode is not None
        return process.returncode, lines[-1][:_MAX_OUTPUT] if lines else ""

    def _told(self, why: str) -> str:
        log.warning("robot.hold_ended", why=why)
        return why

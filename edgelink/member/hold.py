"""Ask this machine's own hook before its overlay is restarted: a robot in motion may want a moment (``robot.hold``).

What is run, and as whom, comes from local configuration only. The hook says by its exit status: 0, go on; 75, ask me
again in two seconds; anything else counts as 0 and is told. It is ended after ``robot.hold_for``. Under systemd it is
not in the daemon's unit: a sandbox in which it fails would leave a robot in motion without its say.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from edgelink.clock import Clock
from edgelink.config import Config
from edgelink.config.models import RobotConfig
from edgelink.errors import ConfigError, ExitCode
from edgelink.log import get_logger
from edgelink.process.answer import AnswerTooLongError, answer_of, end
from edgelink.process.outside import outside_of_unit
from edgelink.process.service_manager import in_a_sandbox_of_systemds
from edgelink.ray_cluster.interpreter import SYSTEM_PATH, RayUser, named_user
from edgelink.timeouts import timeout

ASK_AGAIN_S = 2.0
_ROOT: dict[str, Any] = {"uid": None, "gid": None, "groups": ()}
_MAX_ANSWER_BYTES = 16 << 20
_MAX_OUTPUT = 500  # characters of its last line, for the log and for the relay

log = get_logger("robot")


class HoldHook:
    """The hook of one machine; :meth:`wait` is a task of its own, never a part of a reconciler's step."""

    def __init__(
        self, config: Config, clock: Clock, is_confined: Callable[[], bool] = in_a_sandbox_of_systemds
    ) -> None:
        """``is_confined``: whether a program that we start would be in our unit's sandbox."""
        self._config: RobotConfig = config.robot
        self._clock = clock
        self._is_confined = is_confined

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
            async with timeout(patience_s):
                return await self._ask(reason, patience_s, user)
        except TimeoutError:
            return self._told(f"the hook was ended after {patience_s:g} s")
        except AnswerTooLongError:
            return self._told(f"the hook was ended: it printed more than {_MAX_ANSWER_BYTES >> 20} MiB")
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
        began_s = self._clock.monotonic_s()
        while True:
            left_s = patience_s - (self._clock.monotonic_s() - began_s)
            status, words = await self._run(environment, user, left_s)
            if status == ExitCode.TRY_AGAIN:
                log.info("robot.holding", words=words)
                await self._clock.sleep(ASK_AGAIN_S)
                continue
            return "" if status == 0 else self._told(f"the hook ended with status {status}: {words or 'no output'}")

    async def _run(self, environment: Mapping[str, str], user: RayUser | None, left_s: float) -> tuple[int, str]:
        if user is not None:
            environment = {**environment, "HOME": str(user.home), "USER": user.name}
        argv, identity = list(self._config.hold), dict[str, Any]()
        if self._is_confined():
            who = {"uid": user.uid, "gid": user.gid, "groups": user.groups} if user else _ROOT
            argv = outside_of_unit(argv, environment, **who, for_at_most_s=left_s)
        elif user is not None:
            identity = {"user": user.uid, "group": user.gid, "extra_groups": user.groups}
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(environment),
            cwd="/",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            **identity,
        )
        try:
            output, _ = await answer_of(process, _MAX_ANSWER_BYTES)
        finally:  # of whatever it left behind, too
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await end(process)
        lines = output.decode(errors="replace").strip().splitlines()
        assert process.returncode is not None
        return process.returncode, lines[-1][:_MAX_OUTPUT] if lines else ""

    def _told(self, why: str) -> str:
        log.warning("robot.hold_ended", why=why)
        return why

"""Runs ``helper.py``, which asks Ray, with the user's interpreter and as Ray's user."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from edgelink.errors import RayClusterError
from edgelink.files import private_directory, write_atomic
from edgelink.log import redact
from edgelink.process.answer import AnswerTooLongError, answer_of, end
from edgelink.ray_cluster import ray_environment
from edgelink.ray_cluster.interpreter import (
    MAX_ANSWER_BYTES,
    TOO_LONG,
    TOO_LONG_HINT,
    Interpreter,
    RayUser,
    identity_arguments,
    too_long,
)
from edgelink.ray_cluster.ray_capabilities import RayCapabilities
from edgelink.timeouts import timeout
from edgelink.wording import printable

_LINE_CHARACTERS = 300


@dataclass(frozen=True)
class RayTools:
    """What was found on this machine to run Ray with; found once in the life of the daemon."""

    interpreter: Interpreter
    user: RayUser
    capabilities: RayCapabilities

    @property
    def python(self) -> Path:
        return self.interpreter.python


@dataclass(frozen=True)
class _Waiting:
    """A helper that has Ray imported and waits for its question."""

    process: asyncio.subprocess.Process
    tools: RayTools
    token_auth: bool


class HelperRunner:
    """Each helper is a process of its own that answers one question, and ends when its stdin does.

    Args:
        directory: where the helper's copy lies, for Ray's user to read.
        token_path: the Ray token, as a file that Ray's user can read.
    """

    def __init__(self, directory: Path, token_path: Path) -> None:
        self._directory = directory
        self._token_path = token_path
        self._waiting: _Waiting | None = None
        self._is_next_ready = False

    async def start(
        self, tools: RayTools, *arguments: str, token_auth: bool, complaints: int = asyncio.subprocess.DEVNULL
    ) -> asyncio.subprocess.Process:
        """``complaints``: where its standard error goes.

        Raises:
            RayClusterError: it cannot be run, for the interpreter is gone, say.
        """
        program = self._install()
        try:
            return await asyncio.create_subprocess_exec(
                tools.python,
                program,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=complaints,
                cwd="/",
                limit=MAX_ANSWER_BYTES,
                start_new_session=True,
                env=ray_environment.helper_environment(
                    python=tools.python,
                    user=tools.user,
                    capabilities=tools.capabilities,
                    token_path=self._token_path if token_auth else None,
                ),
                **identity_arguments(tools.user),
            )
        except OSError as error:
            raise RayClusterError(
                f"{tools.python} cannot be run: {error.strerror or error}",
                hint="was its environment removed, or is it being made anew? It is tried again",
            ) from error

    async def get_ready(self, tools: RayTools, *, token_auth: bool) -> None:
        """Have the next question answered at once: importing Ray takes half a second, which others may wait for.

        Once for each question: a helper that was not asked for a minute ends, and is not started again meanwhile.
        """
        if not self._is_next_ready:
            self._is_next_ready = True
            process = await self.start(tools, "later", token_auth=token_auth, complaints=asyncio.subprocess.PIPE)
            self._waiting = _Waiting(process, tools, token_auth)

    async def ask(
        self, tools: RayTools, *arguments: str, token_auth: bool, timeout_s: float
    ) -> tuple[int | None, dict[str, Any]]:
        """The helper's exit status and its answer; when there is none, why, as ``failure``.

        Raises:
            RayClusterError: it printed more than any answer.
        """
        output, words = b"", ""
        if process := await self._take(tools, arguments, token_auth=token_auth):
            output, words = await self._answer(process, tools, timeout_s)
        if process is None or not output:  # none waited, or it went just then
            process = await self.start(tools, *arguments, token_auth=token_auth, complaints=asyncio.subprocess.PIPE)
            output, words = await self._answer(process, tools, timeout_s)
        for line in reversed(output.splitlines()):  # the user's interpreter may print things of its own
            with suppress(ValueError):
                if isinstance(answer := json.loads(line), dict):
                    return process.returncode, answer
        return process.returncode or 1, {"failure": words}

    async def _answer(
        self, process: asyncio.subprocess.Process, tools: RayTools, timeout_s: float
    ) -> tuple[bytes, str]:
        """What it printed, and the last line of what it complained of."""
        try:
            async with timeout(timeout_s):
                output, complaint = await answer_of(process, MAX_ANSWER_BYTES)
                return output, _last_line(complaint)
        except TimeoutError:
            return b"", f"no answer within {timeout_s:g} s"
        except AnswerTooLongError:
            raise RayClusterError(too_long(tools.python), hint=TOO_LONG_HINT, reason=TOO_LONG) from None
        finally:
            await end(process)

    async def _take(
        self, tools: RayTools, arguments: tuple[str, ...], *, token_auth: bool
    ) -> asyncio.subprocess.Process | None:
        """The helper that waits, with its question; None where there is none, or it is not the right one."""
        waiting, self._waiting, self._is_next_ready = self._waiting, None, False
        if waiting is None:
            return None
        stdin = waiting.process.stdin
        if stdin is not None and (waiting.tools, waiting.token_auth) == (tools, token_auth):
            with suppress(ConnectionError):
                stdin.write(json.dumps(arguments).encode() + b"\n")
                await stdin.drain()
                return waiting.process
        await end(waiting.process)
        return None

    async def close(self) -> None:
        """End the helper that waits, if there is one."""
        waiting, self._waiting, self._is_next_ready = self._waiting, None, False
        if waiting is not None:
            await end(waiting.process)

    def _install(self) -> Path:
        """A copy that Ray's user can read; our own files may lie where it may not look."""
        source = resources.files("edgelink.ray_cluster").joinpath("helper.py").read_bytes()
        path = self._directory / "helper.py"
        private_directory(self._directory, mode=0o755)
        with suppress(FileNotFoundError):
            if path.read_bytes() == source:
                return path
        write_atomic(path, source, mode=0o644)
        return path


def _last_line(complaint: bytes) -> str:
    lines = complaint.decode(errors="replace").strip().splitlines()
    return printable(redact(lines[-1][-_LINE_CHARACTERS:])) if lines else "it does not say why"

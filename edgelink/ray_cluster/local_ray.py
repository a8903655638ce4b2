"""Ray on this machine, whatever its part in the cluster: interpreter, user, firewall, token file, helper, processes."""

from __future__ import annotations

import asyncio
import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from ipaddress import IPv4Address
from pathlib import Path

from edgelink.clock import Clock
from edgelink.config import Config, Paths
from edgelink.errors import MissingDependencyError, RayClusterError
from edgelink.files import private_directory, write_atomic
from edgelink.log import get_logger, hide
from edgelink.overlay.nft import Table
from edgelink.process import Launcher, SessionLauncher
from edgelink.ray_cluster import command, environment
from edgelink.ray_cluster.capabilities import RayCapabilities
from edgelink.ray_cluster.firewall import ray_guard
from edgelink.ray_cluster.interpreter import (
    Interpreter,
    RayUser,
    identity_arguments,
    inspect_interpreter,
    resolve_user,
)
from edgelink.ray_cluster.membership import MAX_LINE_BYTES
from edgelink.ray_cluster.node import DEFAULT_TEMP_DIR, RayNode

_HELPER_MARGIN_S = 15.0  # a GCS client takes 5 s to say that nobody answers
_log = get_logger("ray")


@dataclass(frozen=True)
class RayTools:
    """What was found on this machine to run Ray with; found once in the life of the daemon."""

    interpreter: Interpreter
    user: RayUser
    capabilities: RayCapabilities

    @property
    def python(self) -> Path:
        return self.interpreter.python


class LocalRay:
    """Ray on this machine, whatever its part in the cluster."""

    def __init__(
        self, config: Config, paths: Paths, clock: Clock, node_id: str, launcher: Launcher | None = None
    ) -> None:
        self.config = config
        self.tools: RayTools | None = None
        self.node = RayNode(
            paths,
            f"{environment.MARKER_NAME}={node_id}",
            launcher or SessionLauncher(),
            clock,
            config.ray.temp_dir or DEFAULT_TEMP_DIR,
        )
        self._directory = paths.runtime / "ray"
        self._preparing = asyncio.Lock()
        self._is_adopted = False

    @property
    def token_path(self) -> Path:
        """The copy of the Ray token that Ray's user can read."""
        return self._directory / "token"

    @property
    def versions(self) -> tuple[str | None, str | None]:
        if self.tools is None:
            return (None, None)
        return (self.tools.interpreter.ray_version, self.tools.interpreter.python_version)

    async def prepare(self) -> RayTools:
        """Find interpreter and user; the answer is kept, a failure is not.

        Raises:
            ConfigError, MissingDependencyError: there is no Ray to run, or nobody to run it as.
        """
        async with self._preparing:
            if self.tools is None:
                interpreter = await inspect_interpreter(self.config.ray.python)
                capabilities = RayCapabilities.for_version(interpreter.ray_version)
                user = resolve_user(self.config.ray, interpreter)
                if user.uid != interpreter.owner_uid:  # whoever is to run it must be able to
                    interpreter = await inspect_interpreter(interpreter.python, asker=user)
                self.tools = RayTools(interpreter, user, capabilities)
                _log.info("ray.found", python=str(interpreter.python), ray=interpreter.ray_version, user=user.name)
            return self.tools

    def adopt(self) -> None:
        """Look once for the Ray of a predecessor."""
        if not self._is_adopted:
            self._is_adopted = True
            if record := self.node.adopt():
                _log.info("ray.adopted", raylet=record.raylet.pid, node_rank=record.node_rank)

    async def protect(self, gcs_port: int) -> None:
        """Have the firewall in place, or, where it is switched off, out of the way.

        Raises:
            MissingDependencyError, FirewallError: it cannot be.
        """
        guard = self._guard(gcs_port)
        if self.config.firewall.enabled:
            await guard.apply()
        else:
            with suppress(MissingDependencyError):
                await guard.remove()

    def _guard(self, gcs_port: int) -> Table:
        return ray_guard(command.firewalled_ports(self.config.ray, gcs_port), [self.config.overlay.device])

    def write_token(self, token: str, user: RayUser) -> Path:
        """Put the Ray token where Ray's user, and nobody else, can read it."""
        hide(token)
        private_directory(self._directory, mode=0o755)
        with suppress(OSError):
            if self.token_path.read_text() == token and self.token_path.stat().st_uid == user.uid:
                return self.token_path
        write_atomic(self.token_path, token, uid=user.uid, gid=user.gid)
        return self.token_path

    async def start_helper(self, tools: RayTools, *arguments: str, token_auth: bool) -> asyncio.subprocess.Process:
        """Run ``helper.py`` with the user's interpreter, as Ray's user; it ends when its stdin does."""
        token_path = self.token_path if token_auth else None
        return await asyncio.create_subprocess_exec(
            tools.python,
            self._install_helper(),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd="/",
            limit=MAX_LINE_BYTES,
            env=environment.helper_environment(
                python=tools.python, user=tools.user, capabilities=tools.capabilities, token_path=token_path
            ),
            **identity_arguments(tools.user),
        )

    async def verify(
        self, tools: RayTools, *, token_auth: bool, head: str, ip: IPv4Address, node_rank: int, timeout_s: float
    ) -> str:
        """The id under which Ray lists us alive, with this address and rank.

        Raises:
            RayClusterError: it does not, or cannot be asked.
        """
        arguments = ("--address", head, "--ip", str(ip), "--rank", str(node_rank), "--timeout", f"{timeout_s:g}")
        process = await self.start_helper(tools, "wait-alive", *arguments, token_auth=token_auth)
        try:
            async with asyncio.timeout(timeout_s + _HELPER_MARGIN_S):
                answer, _ = await process.communicate()
        except TimeoutError:
            answer = b""
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode == 0:
            return str(json.loads(answer)["node_id"])
        raise RayClusterError(
            f"Ray at {head} does not list this node as alive with {ip} and node rank {node_rank}"
            + (f"; it lists {answer.decode().strip()}" if answer else "; it does not answer"),
            hint=f"see {self.node.log_path} and Ray's own logs in /tmp/ray/session_latest/logs",
            reason="NotListedByRay",
        )

    async def stop(self) -> None:
        """End this node's Ray, then take away the firewall: in this order there is no moment without it."""
        self.adopt()
        await self.node.stop()
        shutil.rmtree(self._directory, ignore_errors=True)
        if self.config.firewall.enabled:
            with suppress(MissingDependencyError):
                await self._guard(self.config.ray.port).remove()

    def _install_helper(self) -> Path:
        """A copy that Ray's user can read; our own files may lie where it may not look."""
        source = resources.files("edgelink.ray_cluster").joinpath("helper.py").read_bytes()
        path = self._directory / "helper.py"
        private_directory(self._directory, mode=0o755)
        with suppress(FileNotFoundError):
            if path.read_bytes() == source:
                return path
        write_atomic(path, source, mode=0o644)
        return path

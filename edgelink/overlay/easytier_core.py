"""easytier-core as a child: its configuration file, its start without public STUN servers, its secret-free output."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from edgelink.config import Paths
from edgelink.errors import EasyTierNotFoundError, PrivateFilesError
from edgelink.files import private_directory, write_atomic
from edgelink.log import get_logger
from edgelink.overlay import config_file, stun
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.easytier_capabilities import NEWEST_KNOWN, Capabilities
from edgelink.process import Identity, ProcessSpec, SupervisedProcess, output

_LOG_MAX_BYTES = 4 << 20
_NEWEST = ".".join(map(str, NEWEST_KNOWN))
_log = get_logger("overlay")


class Core:
    """What is particular to easytier-core about starting and keeping its process; when to do so is not decided here.

    ``caveat`` is what is not as it should be although EasyTier runs; empty as a rule.
    """

    def __init__(
        self,
        process: SupervisedProcess,
        binary: Callable[[], EasyTierBinary],
        paths: Paths,
        private_hosts: stun.PrivateHosts,
    ) -> None:
        self.process = process
        self.caveat = ""
        self.private_hosts = private_hosts
        self._binary = binary
        self.paths = paths

    @property
    def log_path(self) -> Path:
        return self.paths.logs / "easytier.log"

    def capabilities(self) -> Capabilities:
        """Of the easytier-core on this machine. Raises EasyTierNotFoundError."""
        return Capabilities.for_version(self._binary().version)

    @property
    def version_note(self) -> str:
        """What there is to say of this version of EasyTier; empty as a rule."""
        try:
            binary, capabilities = self._binary(), self.capabilities()
        except EasyTierNotFoundError:
            return ""  # removed under a running one
        if not capabilities.is_newer_than_known:
            return ""
        return f"EasyTier {binary.version} is newer than any that this EdgeLink knows, and used like {_NEWEST}"

    async def prepare(self, spec: OverlaySpec) -> None:
        """Do beforehand what the next :meth:`start` may fail at or wait for.

        Raises as :meth:`capabilities`; NotRecordedError: the disk has no room for another configuration.
        """
        self._write_config(spec, self.capabilities())  # a running one read it at its start and never again

    async def start(self, spec: OverlaySpec) -> Identity:
        """Write the configuration and start the process.

        Raises:
            EasyTierNotFoundError: there is none that can be used.
            NotRecordedError: the disk has no room for another configuration.
            ProcessStartError: it cannot be executed, or is gone at once.
        """
        binary = self._binary()
        capabilities = Capabilities.for_version(binary.version)  # of this very one: it may be exchanged at any moment
        if capabilities.is_newer_than_known:
            _log.warning("overlay.unknown_easytier", version=binary.version, used_like=_NEWEST)
        private_directory(self.paths.logs)
        output.bound(self.log_path, _LOG_MAX_BYTES)
        return await self._launch(
            ProcessSpec(
                name="easytier",
                argv=config_file.argv(binary.core, self.paths.easytier_config, spec),
                env=config_file.environment(),
                cwd=self.paths.logs,  # where it would leave easytier-panic.log
                log_path=self.log_path,
                config_hash=spec.config_hash,
                umask=0o077,
                sandbox="tun",
            ),
            spec,
            capabilities,
        )

    async def _launch(self, process: ProcessSpec, spec: OverlaySpec, capabilities: Capabilities) -> Identity:
        """With the hosts file that keeps it from public STUN servers; where the machine does not let us, without."""
        self.caveat = ""
        self._write_config(spec, capabilities)
        try:
            return await self.process.start(replace(process, private_files=self.private_hosts.prepare()))
        except PrivateFilesError as error:
            if self.private_hosts.give_up():
                self._note_stun(str(error))
            return await self.process.start(process)

    def _write_config(self, spec: OverlaySpec, capabilities: Capabilities) -> None:
        """Write the configuration file, unless it says so already: the disk may be full."""
        private_directory(self.paths.state)
        text = config_file.render(spec, capabilities)
        if not _is_private_with(self.paths.easytier_config, text.encode()):
            write_atomic(self.paths.easytier_config, text)

    async def upkeep(self) -> None:
        """What a running one needs from time to time: a bounded log, a hosts file that follows the machine's own."""
        self.bound_log()
        identity = self.process.identity
        if identity is None:
            return
        try:
            self.private_hosts.renew(identity)
        except PrivateFilesError as error:
            if not self.caveat:
                self._note_stun(str(error))
        except ProcessLookupError:
            pass  # its end is noticed elsewhere

    def bound_log(self) -> None:
        """Keep the output of a running EasyTier from filling the disk."""
        output.bound(self.log_path, _LOG_MAX_BYTES)

    def hide_secret(self, spec: OverlaySpec) -> None:
        """Overwrite the secret in EasyTier's output, where an unreadable file shows it, and in its crash report."""
        for path in (self.log_path, self.paths.logs / "easytier-panic.log"):
            output.scrub(path, spec.secrets)

    def last_words(self, lines: int = 6) -> str:
        """The end of its output, redacted; ``none`` when it said nothing."""
        return output.tail(self.log_path, lines) or "none"

    def _note_stun(self, why: str) -> None:
        self.caveat = f"EasyTier may ask public STUN servers: {why}"
        _log.warning("overlay.stun_not_prevented", why=why, names=stun.NAMES)


def _is_private_with(path: Path, data: bytes) -> bool:
    """Whether this is a plain file of ours, for nobody else to read, that holds exactly ``data``."""
    try:
        status = path.lstat()
        is_private = stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o600
        return is_private and status.st_uid == os.geteuid() and path.read_bytes() == data
    except OSError:
        return False

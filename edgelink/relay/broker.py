"""Mosquitto as a managed child: its files, its start, its adoption.

The broker keeps nothing of its own: at each start its directory is made anew from the registry, which alone is true.
A broker that outlived its daemon is adopted if it was started with the same settings and lets our admin in; the
admin's password, made anew at each start as well, lies beside the directory, where the broker's user cannot read it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pwd
import resource
import secrets
import shutil
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from edgelink.clock import Clock
from edgelink.config import Paths
from edgelink.errors import EdgelinkError, MissingDependencyError, ProcessExitedError, ProcessStartError, RegistryError
from edgelink.files import AT_ONCE, Files, private_directory, write_atomic
from edgelink.log import get_logger, hide
from edgelink.process import Launcher, ProcessSpec, SessionLauncher, SupervisedProcess
from edgelink.process.ports import is_port_free, port_holder
from edgelink.process.restart_policy import RestartPolicy
from edgelink.protocol.payloads import MAX_PAYLOAD_BYTES
from edgelink.protocol.tls import client_context
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import MAX_QUEUED_MESSAGES, Login, MqttTransport
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.dynamic_security import ADMIN, acl_file, document, shared_roles
from edgelink.relay.passwords import broker_password_hash
from edgelink.relay.records import BrokerUser

START_TIMEOUT_S = 10.0
_ADOPT_TIMEOUT_S = 3.0
_LOOK_S = 0.02
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # mosquitto is in sbin: not on every PATH
_PLUGIN = "mosquitto_dynamic_security.so"
_LIBRARY_DIRECTORIES = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64")
_USER = "mosquitto"
PROCESS_NAME = "mosquitto"
_MAX_QUEUED_BYTES = 64 * 1024 * 1024
_DESCRIPTORS = 65536
_INSTALL = "apt-get install mosquitto"

log = get_logger("broker")


def render_conf(port: int, plugin: Path, directory: Path) -> str:
    """``mosquitto.conf``; pure.

    Sizes: a payload's limit is ours, a packet adds its topic; who sends more is disconnected. For a client that does
    not read, as many messages are queued as a relay is sent when it connects to a large network: a status a node. A
    session that wants to outlive its connection (none of ours does) is kept for the shortest time there is. The
    broker's own statistics ($SYS) are nobody's business.
    """
    return "\n".join(
        (
            f"listener {port}",  # of IPv4 and, where the kernel has it, IPv6
            f"certfile {directory / 'tls.pem'}",
            f"keyfile {directory / 'tls.key'}",
            "tls_version tlsv1.2",
            "allow_anonymous false",
            f"plugin {plugin}",
            f"plugin_opt_config_file {directory / 'dynamic-security.json'}",
            f"acl_file {directory / 'own-topics.acl'}",
            "persistence false",
            "persistent_client_expiration 1h",
            f"max_packet_size {MAX_PAYLOAD_BYTES + 1024}",
            "max_inflight_messages 20",
            f"max_queued_messages {MAX_QUEUED_MESSAGES}",
            f"max_queued_bytes {_MAX_QUEUED_BYTES}",
            "sys_interval 0",
            "set_tcp_nodelay true",
            "log_dest stderr",
            "log_type error",
            "log_type warning",
            "log_type notice",
            "log_timestamp_format %Y-%m-%dT%H:%M:%S",
            "connection_messages false",
            "",
        )
    )


def find_mosquitto(library_directories: Iterable[str] = _LIBRARY_DIRECTORIES) -> tuple[Path, Path]:
    """The broker's program and its dynamic security plugin. Raises MissingDependencyError."""
    program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:{_PATH}")
    if program is None:
        raise MissingDependencyError("mosquitto is not installed on this relay", hint=f"install it: `{_INSTALL}`")
    for directory in map(Path, library_directories):
        for plugin in (*directory.glob(_PLUGIN), *sorted(directory.glob(f"*/{_PLUGIN}"))):
            return Path(program), plugin
    raise MissingDependencyError(
        f"mosquitto's plugin {_PLUGIN} is not in {', '.join(library_directories)}",
        hint=f"it comes with Mosquitto 2.0 and later: `{_INSTALL}`",
    )


class Broker:
    """One Mosquitto on this machine's ``port``. ``users`` says, at each start, who may connect."""

    def __init__(
        self,
        *,
        keys: AuthorityKeys,
        port: int,
        paths: Paths,
        users: Callable[[], Iterable[BrokerUser]],
        clock: Clock,
        on_change: Callable[[], None],
        launcher: Launcher | None = None,
        files: Files = AT_ONCE,
    ) -> None:
        self.address = f"127.0.0.1:{port}"
        self.last_error: EdgelinkError | None = None
        self._keys = keys
        self._port = port
        self._paths = paths
        self._users = users
        self._clock = clock
        self._on_change = on_change
        self._topics = Topics(keys.network_id)
        self._process = broker_process(paths, launcher or SessionLauncher(), clock, files)
        self._lock = asyncio.Lock()
        self._password = ""

    @property
    def login(self) -> Login:
        """The registry's own credentials; they change with each start of the broker."""
        return Login(ADMIN, self._password)

    @property
    def context(self) -> ssl.SSLContext:
        return client_context(self._keys.ca_pem, self._keys.network_id)

    @property
    def pid(self) -> int | None:
        return self._process.identity.pid if self._process.identity else None

    async def run(self) -> None:
        """Keep the broker running; ends by cancellation, which leaves it running."""
        restarts = RestartPolicy(self._clock, first_s=0.1, cap_s=5.0)
        while True:
            try:
                await self.ensure_running()
            except EdgelinkError as error:
                if str(error) != str(self.last_error):
                    log.warning("broker.failed", reason=error.condition_reason, error=str(error))
                restarts.note_end(served=False)
                self.last_error = error
            else:
                self.last_error = None
                self._on_change()
                status = await self._process.wait()
                async with self._lock:
                    if self._process.is_running:
                        continue  # restart() did it
                restarts.note_end(served=True)
                words = self._process.last_words(5)
                log.warning("broker.ended", status=status, last_words=words)
                self.last_error = ProcessExitedError(
                    f"mosquitto ended with status {status} and is being restarted; its last words: {words or 'none'}",
                    reason="CrashLoop" if restarts.is_crash_loop else None,
                )
            self._on_change()
            await self._clock.sleep(restarts.wait_s)

    async def ensure_running(self) -> None:
        """Adopt or start the broker; idempotent. On return it serves us.

        Raises:
            MissingDependencyError: Mosquitto or its plugin is not installed.
            ProcessStartError: it cannot be started; says why.
        """
        async with self._lock:
            if self._process.is_running and self._password:
                return
            if self._process.adopt() is not None:
                if await self._can_be_adopted():
                    log.info("broker.adopted", pid=self.pid)
                    return
                log.info("broker.replaced", pid=self.pid, why="started with other settings, or does not answer")
                await self._process.stop()
            await self._start()

    async def restart(self) -> None:
        """Start anew with the registry's present users."""
        async with self._lock:
            await self._process.stop()
            await self._start()

    async def stop(self) -> None:
        """End the broker and remove its files. Idempotent."""
        async with self._lock:
            self._process.adopt()
            await self._process.stop()
            self._password = ""
            remove_files(self._paths)

    async def _can_be_adopted(self) -> bool:
        try:
            self._password = self._paths.broker_admin_key.read_text().strip()
        except FileNotFoundError:
            return False
        hide(self._password)
        program, plugin = find_mosquitto()
        if self._process.config_hash != self._config_hash(program, plugin):
            return False
        try:
            await self._sign_in(_ADOPT_TIMEOUT_S)
        except EdgelinkError:
            return False
        return True

    async def _start(self) -> None:
        program, plugin = find_mosquitto()
        if not is_port_free("tcp", "0.0.0.0", self._port):
            raise ProcessStartError(
                f"port {self._port} of the MQTT broker is taken by {port_holder('tcp', self._port)}",
                hint="stop that process, or set relay.broker_port",
                reason="PortBusy",
            )
        uid, gid = _owner()
        _allow_many_connections()
        self._password = secrets.token_urlsafe(32)
        hide(self._password)
        self._write_files(plugin, uid, gid)
        directory = self._paths.broker
        spec = ProcessSpec(
            name="mosquitto",
            argv=(str(program), "-c", str(directory / "mosquitto.conf")),
            env={"PATH": _PATH, "LANG": "C.UTF-8"},
            cwd=directory,
            log_path=self._paths.logs / "mosquitto.log",
            config_hash=self._config_hash(program, plugin),
            uid=uid,
            gid=gid,
            umask=0o077,
            sandbox="server",
        )
        await self._process.start(spec)
        await self._wait_until_serving()

    def _write_files(self, plugin: Path, uid: int | None, gid: int | None) -> None:
        directory = self._paths.broker
        private_directory(directory.parent, mode=0o755)
        shutil.rmtree(directory, ignore_errors=True)
        private_directory(directory)
        write_atomic(self._paths.broker_admin_key, self._password)
        files = {
            "mosquitto.conf": render_conf(self._port, plugin, directory).encode(),
            "dynamic-security.json": document(
                broker_password_hash(self._password), self._users(), self._topics
            ).encode(),
            "own-topics.acl": acl_file(self._topics).encode(),
            "tls.pem": self._keys.tls_certificate_path.read_bytes(),
            "tls.key": self._keys.tls_key_path.read_bytes(),
        }
        owner = {} if uid is None or gid is None else {"uid": uid, "gid": gid}
        for name, data in files.items():
            write_atomic(directory / name, data, mode=0o600, **owner)
        if uid is not None and gid is not None:
            os.chown(directory, uid, gid)

    def _config_hash(self, program: Path, plugin: Path) -> str:
        """Of all that a running broker cannot be told; users can be told."""
        stated = [
            str(program),
            render_conf(self._port, plugin, self._paths.broker),
            self._keys.tls_certificate_path.read_text(),
            shared_roles(self._topics),
            acl_file(self._topics),
        ]
        return hashlib.sha256(json.dumps(stated).encode()).hexdigest()[:32]

    async def _wait_until_serving(self) -> None:
        deadline_s = self._clock.monotonic_s() + START_TIMEOUT_S
        while True:
            try:
                await self._sign_in(START_TIMEOUT_S)
            except RegistryError as error:
                if self._process.is_running and self._clock.monotonic_s() < deadline_s:
                    await self._clock.sleep(_LOOK_S)
                    continue
                last_words = self._process.last_words(5) or "none"
                await self._process.stop()
                raise ProcessStartError(
                    f"mosquitto does not serve on port {self._port}: {error.message}; its last words: {last_words}",
                    hint=f"see {self._paths.logs / 'mosquitto.log'}",
                ) from error
            else:
                return

    async def _sign_in(self, timeout_s: float) -> None:
        async with MqttTransport(self.context).connect(self.address, self.login, timeout_s=timeout_s):
            pass


def remove_files(paths: Paths) -> None:
    """What the broker had for the length of its life. Idempotent."""
    shutil.rmtree(paths.broker, ignore_errors=True)
    paths.broker_admin_key.unlink(missing_ok=True)


def broker_process(paths: Paths, launcher: Launcher, clock: Clock, files: Files = AT_ONCE) -> SupervisedProcess:
    """Mosquitto, to be started, adopted or ended; it is root for a moment, then its own user."""
    uids = {os.geteuid()}
    with suppress(KeyError):
        uids.add(pwd.getpwnam(_USER).pw_uid)
    return SupervisedProcess(PROCESS_NAME, paths.processes / f"{PROCESS_NAME}.json", launcher, clock, uids, files)


def _allow_many_connections() -> None:
    """Each node takes a descriptor of the broker's, which has as many as we: often 1024, although more are allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _owner() -> tuple[int | None, int | None]:
    """Whom the broker runs as: its own user if we are root, else ourselves."""
    if os.geteuid() != 0:
        return None, None
    try:
        entry = pwd.getpwnam(_USER)
    except KeyError:
        raise MissingDependencyError(
            f"there is no user {_USER} for the broker to run as", hint=f"install the package: `{_INSTALL}`"
        ) from None
    return entry.pw_uid, entry.pw_gid

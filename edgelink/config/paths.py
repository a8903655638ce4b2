"""Where things lie on a node."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DEFAULT_CONFIG_FILE = Path("/etc/edgelink/edgelink.yaml")


class _In:
    """A file or directory below one of a node's two directories."""

    def __init__(self, directory: Literal["state", "runtime"], name: str) -> None:
        self._directory = directory
        self._name = name

    def __get__(self, paths: Paths, _owner: type[Paths]) -> Path:
        return (paths.state if self._directory == "state" else paths.runtime) / self._name


@dataclass(frozen=True)
class Paths:
    """The directories of one node.

    ``state`` (0700) survives reboots: keys, leases, registry, process records. ``runtime`` (0755, so that the local
    API can be reached by its users) does not: sockets, generated configuration of children. ``hosts``: the machine's
    hosts file, where it may be touched.
    """

    state: Path = Path("/var/lib/edgelink")
    runtime: Path = Path("/run/edgelink")
    hosts: Path | None = None

    node_key = _In("state", "node.key")
    membership = _In("state", "membership.json")
    """Signed lease, network secret and broker credentials of this node."""
    refused_as_copy = _In("state", "refused-as-copy.txt")
    """Hold what the registry said when it refused this machine as a copy. An acceptance removes it."""
    registry_database = _In("state", "registry.sqlite3")
    authority_keys = _In("state", "authority")
    """Hold the keys of the network CA, of TLS and of the registry. Only the relay has them."""
    processes = _In("state", "processes")
    """Directory of the identity records of children."""
    logs = _In("state", "logs")
    """Directory of the children's output, and of the log of a daemon on a terminal."""
    ray_user = _In("state", "ray_user")
    """The id of the user that Ray runs as, once it is known."""
    ray_temp_dir = _In("state", "ray_temp_dir")
    """The directory that this node's Ray keeps its session in, once it is known."""
    ray_token_copy = _In("runtime", "ray/token")
    """Hold Ray's token for Ray's user, who owns the file and not its directory."""
    import_hook = _In("runtime", "import-hook")
    """The folders, one for each user, that Python programs of EdgeLink have at the front of their PYTHONPATH."""
    easytier_peer_id = _In("state", "easytier_peer_id")
    """Under which id this node's EasyTier is, or was last, known to the others."""
    pair_restart = _In("runtime", "pair-restart")
    """When EasyTier was last restarted for a dead pair, in seconds since this machine was booted."""
    host_tcp = _In("state", "host_tcp.json")
    """Hold the host's TCP settings of before, as far as they were changed."""
    recorder = _In("state", "recorder")
    """Directory of the flight recorder of this node's daemon."""
    run_lock = _In("state", "run-lock.json")
    """Name who holds the run lock on the head."""
    easytier_config = _In("state", "easytier.toml")
    broker = _In("runtime", "broker")
    """The broker's directory: made anew at each start of the broker, owned by its user."""
    web_key = _In("runtime", "web.key")
    """Hold the key that signs sessions of the web page. The machine's next boot ends them all."""
    bootstrap_socket = _In("runtime", "bootstrap.sock")
    broker_admin_key = _In("runtime", "broker-admin.key")
    """The registry's own password at the broker; where the broker's user cannot read it."""
    node_socket = _In("runtime", "node.sock")

    @classmethod
    def from_environment(cls) -> Paths:
        """Defaults, or ``EDGELINK_STATE_DIR`` and ``EDGELINK_RUNTIME_DIR``."""
        return cls(
            state=Path(os.environ.get("EDGELINK_STATE_DIR", cls.state)),
            runtime=Path(os.environ.get("EDGELINK_RUNTIME_DIR", cls.runtime)),
            hosts=Path("/etc/hosts"),
        )

    def daemon_log(self, role: str) -> Path:
        """The log of the relay's, head's or edge's daemon while it runs on a terminal."""
        return self.logs / f"{role}.log"

    def lock_of(self, daemon: str) -> Path:
        """What the running daemon ``daemon`` (the stem of its socket's name) holds.

        Beside the state that only one may write; not in the runtime directory, which may be cleared under it.
        """
        return self.state / f"{daemon}.lock"

    def left_open_of(self, daemon: str) -> Path:
        """The ports that stay open on the overlay for now: relay and head may share a state directory."""
        return self.state / f"{daemon}-left-open.json"

    def socket_of(self, role: str) -> Path:
        """Where the daemon of that role answers."""
        return self.bootstrap_socket if role == "bootstrap" else self.node_socket

"""Where things lie on a node."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DEFAULT_CONFIG_FILE = Path("/etc/edgelink/edgelink.yaml")


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

    @classmethod
    def from_environment(cls) -> Paths:
        """Defaults, or ``EDGELINK_STATE_DIR`` and ``EDGELINK_RUNTIME_DIR``."""
        return cls(
            state=Path(os.environ.get("EDGELINK_STATE_DIR", cls.state)),
            runtime=Path(os.environ.get("EDGELINK_RUNTIME_DIR", cls.runtime)),
            hosts=Path("/etc/hosts"),
        )

    @property
    def node_key(self) -> Path:
        return self.state / "node.key"

    @property
    def membership(self) -> Path:
        """Signed lease, network secret and broker credentials of this node."""
        return self.state / "membership.json"

    @property
    def refused_as_copy(self) -> Path:
        """What the registry said when it refused this machine as a copy of a node; gone once it has accepted it."""
        return self.state / "refused-as-copy.txt"

    @property
    def registry_database(self) -> Path:
        return self.state / "registry.sqlite3"

    @property
    def authority_keys(self) -> Path:
        """Directory of the network CA, TLS and registry keys; on the relay only."""
        return self.state / "authority"

    @property
    def processes(self) -> Path:
        """Directory of the identity records of children."""
        return self.state / "processes"

    @property
    def logs(self) -> Path:
        """Directory of the children's output, and of the log of a daemon on a terminal."""
        return self.state / "logs"

    def daemon_log(self, role: str) -> Path:
        """The log of the relay's, head's or edge's daemon while it runs on a terminal."""
        return self.logs / f"{role}.log"

    @property
    def ray_user(self) -> Path:
        """The id of the user that Ray runs as, once it is known."""
        return self.state / "ray_user"

    @property
    def ray_temp_dir(self) -> Path:
        """The directory that this node's Ray keeps its session in, once it is known."""
        return self.state / "ray_temp_dir"

    @property
    def ray_token_copy(self) -> Path:
        """The Ray token where Ray's user can read it; the file is that user's, its directory is not."""
        return self.runtime / "ray" / "token"

    @property
    def import_hook(self) -> Path:
        """The folders, one for each user, that Python programs of EdgeLink have at the front of their PYTHONPATH."""
        return self.runtime / "import-hook"

    @property
    def easytier_peer_id(self) -> Path:
        """Under which id this node's EasyTier is, or was last, known to the others."""
        return self.state / "easytier_peer_id"

    @property
    def pair_restart(self) -> Path:
        """When EasyTier was last restarted for a dead pair, in seconds since this machine was booted."""
        return self.runtime / "pair-restart"

    @property
    def host_tcp(self) -> Path:
        """What of the host's TCP settings was changed, and what was there before."""
        return self.state / "host_tcp.json"

    @property
    def recorder(self) -> Path:
        """Directory of the flight recorder of this node's daemon."""
        return self.state / "recorder"

    @property
    def run_lock(self) -> Path:
        """Who holds the run lock, on the head."""
        return self.state / "run-lock.json"

    @property
    def easytier_config(self) -> Path:
        return self.state / "easytier.toml"

    @property
    def broker(self) -> Path:
        """The broker's directory: made anew at each start of the broker, owned by its user."""
        return self.runtime / "broker"

    @property
    def web_key(self) -> Path:
        """Signs the sessions of the web page; gone with the machine's next boot, and all sessions with it."""
        return self.runtime / "web.key"

    @property
    def bootstrap_socket(self) -> Path:
        return self.runtime / "bootstrap.sock"

    def lock_of(self, daemon: str) -> Path:
        """What the running daemon ``daemon`` (the stem of its socket's name) holds.

        Beside the state that only one may write; not in the runtime directory, which may be cleared under it.
        """
        return self.state / f"{daemon}.lock"

    def left_open_of(self, daemon: str) -> Path:
        """The ports that stay open on the overlay for now: relay and head may share a state directory."""
        return self.state / f"{daemon}-left-open.json"

    @property
    def broker_admin_key(self) -> Path:
        """The registry's own password at the broker; where the broker's user cannot read it."""
        return self.runtime / "broker-admin.key"

    @property
    def node_socket(self) -> Path:
        return self.runtime / "node.sock"

    def socket_of(self, role: str) -> Path:
        """Where the daemon of that role answers."""
        return self.bootstrap_socket if role == "bootstrap" else self.node_socket

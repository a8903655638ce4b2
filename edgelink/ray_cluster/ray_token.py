"""The head's Ray token: kept until the network's secret is another one and Ray starts anew."""

from __future__ import annotations

import secrets
from pathlib import Path

from edgelink.files import private_directory, write_atomic
from edgelink.log import get_logger, hide

_log = get_logger("ray")


class RayTokenFile:
    """The token in the head's state directory, and beside it the epoch of the secret in which it was made."""

    def __init__(self, state: Path) -> None:
        self._path, self._epoch = state / "ray_token", state / "ray_token_epoch"

    def read(self, secret_epoch: int) -> str:
        """Return the token, a new one where there is none."""
        try:
            token = self._path.read_text()
        except FileNotFoundError:
            token = self._make(secret_epoch)
        hide(token)
        return token

    def renew(self, secret_epoch: int) -> None:
        """Before a start: who was put out of the network knows the former token. Never under a Ray that runs."""
        try:
            epoch = int(self._epoch.read_text())
        except (FileNotFoundError, ValueError):
            epoch = 1
        if epoch < secret_epoch:
            self._make(secret_epoch)
            _log.info("ray.token_renewed", why="the network's secret was changed")

    def _make(self, secret_epoch: int) -> str:
        token = secrets.token_hex(32)
        private_directory(self._path.parent)
        write_atomic(self._path, token)
        write_atomic(self._epoch, str(secret_epoch))
        return token

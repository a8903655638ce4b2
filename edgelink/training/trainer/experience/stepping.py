"""The way between a rollout worker and the env worker next to it: a Unix socket, much faster than a call of Ray's.

One thread of the env worker serves one rollout worker. The socket lies in a directory that only this user may enter,
and is removed as soon as the two are connected, so that nothing is left of a worker that is killed.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

_PATH_BYTES = 107  # of a Unix socket: unix(7)
_NAME = "socket"


class StepServer:
    """The env worker's end; a thread of it calls ``handle`` with a method's name and its arguments."""

    def __init__(self, handle: Callable[..., Any]) -> None:
        self._handle = handle
        self._directory = _directory()
        self.address = str(self._directory / _NAME)
        self._listener = Listener(self.address, family="AF_UNIX")
        threading.Thread(target=self._serve, name="steps", daemon=True).start()

    def _serve(self) -> None:
        try:
            connection = self._listener.accept()
        except OSError:
            return
        finally:
            self.close()
        with connection:
            while self._answer(connection):
                pass

    def _answer(self, connection: Connection[Any, Any]) -> bool:
        try:
            method, arguments = connection.recv()
        except (EOFError, OSError):  # the rollout worker has ended
            return False
        try:
            answer: tuple[bool, Any] = True, self._handle(method, *arguments)
        except Exception as error:  # told to the one who asked, whatever it is
            answer = False, _sendable(error)
        try:
            connection.send(answer)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Take no one in any more."""
        self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def _sendable(error: Exception) -> Exception:
    """``error``, or what it says where it does not come out of a pipe as it went in, as some of simulators do not."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _directory() -> Path:
    """A new one of this user's alone: under TMPDIR, unless a batch job's is too deep for a socket."""
    made = Path(tempfile.mkdtemp(prefix="edgelink-env-"))
    if len(os.fsencode(made / _NAME)) <= _PATH_BYTES:
        return made
    made.rmdir()
    return Path(tempfile.mkdtemp(prefix="edgelink-env-", dir="/tmp"))


class StepClient:
    """The rollout worker's end."""

    def __init__(self, address: str) -> None:
        self._connection = Client(address, family="AF_UNIX")

    def call(self, method: str, *arguments: Any) -> Any:
        """What the env worker answers, or the exception that it met.

        Raises:
            EOFError: the env worker has ended.
        """
        try:
            self._connection.send((method, arguments))
            is_right, value = self._connection.recv()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise EOFError(str(error)) from error
        if not is_right:
            raise value
        return value

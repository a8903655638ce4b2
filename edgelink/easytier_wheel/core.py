"""``easytier-core``: a node of the wheel's module as a process, told and asked like EasyTier's own program.

It ends with status 0 when it is told to end, 1 when it cannot start, 2 when its command line is not understood.
RPC is a line of JSON each way for every connection, and listens only where ``-r`` says (see ``cli.py``).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import socketserver
import sys
import threading
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from edgelink.easytier_wheel import DEFAULT_RPC_PORT, DESCRIPTION, DISTRIBUTION
from edgelink.easytier_wheel.answers import Node, answer
from edgelink.easytier_wheel.arguments import Arguments, parse
from edgelink.easytier_wheel.events import line, lines_of

_NAME = "easytier-core"  # as the kernel and `ps` are to show the process, which is Python's
_RPC_PORTS = range(DEFAULT_RPC_PORT, DEFAULT_RPC_PORT + 12)  # of who names none: the first that is free
_REQUEST_TIMEOUT_S = 5.0
_MAX_REQUEST_BYTES = 1 << 16
_BACKLOG = 64
_EVENT_TIMEOUT_S = 30.0


class Rpc(socketserver.ThreadingTCPServer):
    """Answers for ``node`` whoever connects to ``listener``."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, node: Node) -> None:
        super().__init__(listener.getsockname(), _Request, bind_and_activate=False)
        self.socket.close()
        self.socket, self.node = listener, node


class _Request(socketserver.StreamRequestHandler):
    timeout = _REQUEST_TIMEOUT_S

    def handle(self) -> None:
        with suppress(OSError):  # who asked is gone
            request = self.rfile.readline(_MAX_REQUEST_BYTES)
            if not request:
                return
            self.wfile.write(json.dumps(self._answer(request)).encode() + b"\n")

    def _answer(self, request: bytes) -> dict[str, Any]:
        assert isinstance(self.server, Rpc)
        try:
            asked = json.loads(request)
            return {"ok": answer(self.server.node, asked["words"], is_verbose=bool(asked.get("verbose")))}
        except Exception as error:  # the module's, of any kind: whoever asked is told, and the node goes on
            return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Entry of the program."""
    if {"-V", "--version"} & {*sys.argv[1:]}:
        sys.stdout.write(f"{_version()}\n")
        return
    # In every thread: the module's own are made later, and the main one waits for these.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    with suppress(OSError):
        Path("/proc/self/comm").write_text(_NAME)
    arguments = parse(sys.argv[1:], "")
    config = _config(arguments)
    listener = _listen(arguments.rpc_portal)
    import easytier_pyo3

    try:
        node = easytier_pyo3.Node(config)
        node.start()
    except Exception as error:  # whatever the module raises, the start has failed
        _fail(f"{type(error).__name__}: {error}")
    _say(line(datetime.now(UTC), "CORE", _version()))  # where its output is all that one has, as in a report
    threading.Thread(target=_tell, args=(node, config["instance_id"]), daemon=True).start()
    threading.Thread(target=Rpc(listener, node).serve_forever, daemon=True).start()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    _say(line(datetime.now(UTC), "CORE", "Stopping easytier..."))
    os._exit(0)  # the kernel removes the device with the process; the module's threads are not waited for


def _version() -> str:
    from importlib.metadata import version as version_of

    from easytier_pyo3 import version

    return f"{_NAME} {version()} (wheel {DISTRIBUTION} {version_of(DISTRIBUTION)}, {DESCRIPTION})"


def _config(arguments: Arguments) -> dict[str, Any]:
    text = ""
    try:
        if arguments.config_file is not None:
            text = Path(arguments.config_file).read_text()
        config = arguments.config(text)
    except (OSError, ValueError) as error:
        _fail(f"{arguments.config_file}: {error}")
    config.setdefault("instance_id", str(uuid.uuid4()))
    config.setdefault("instance_name", "default")
    config.setdefault("hostname", socket.gethostname())
    return config


def _listen(portal: str | None) -> socket.socket:
    host, ports = "127.0.0.1", [*_RPC_PORTS]
    if portal is not None:
        host, _, port = portal.rpartition(":")
        if not port.isdigit():
            _fail(f"--rpc-portal {portal}: no ADDRESS:PORT")
        host, ports = host or "127.0.0.1", [int(port)]
    while True:
        port_number = ports.pop(0)
        try:
            return socket.create_server((host, port_number), backlog=_BACKLOG)
        except OSError as error:
            if not ports:
                _fail(f"failed to listen on rpc portal {host}:{port_number}: {error}")


def _tell(node: Any, instance_id: str) -> None:
    while True:
        try:
            event = node.next_event(timeout=_EVENT_TIMEOUT_S)
        except Exception as error:  # the node is no more
            _fail(f"{type(error).__name__}: {error}")
        if event is not None:
            try:
                _say(*lines_of(event, instance_id, datetime.now(UTC)))
            except (ValueError, TypeError, KeyError, AttributeError):  # another shape than this module knows
                _say(line(datetime.now(UTC), "CORE::INSTANCE", f"[{instance_id}] an event of an unknown shape"))


def _say(*lines: str) -> None:
    with suppress(OSError):  # nobody reads it, or the disk is full: the network goes on
        sys.stdout.write("".join(lines))
        sys.stdout.flush()


def _fail(why: str) -> NoReturn:
    with suppress(OSError):
        sys.stderr.write(f"Error: {why}\n")
        sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()

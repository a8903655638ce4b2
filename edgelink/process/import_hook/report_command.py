"""Tells the `edgelink run` that started this program with which words Python did, and waits for its answer.

Run by sitecustomize.py, once a program imports a framework. It never raises, but for the end of a program that `run`
refuses: `run` itself says why.
"""

import json
import os
import socket
import sys
import time

REFUSED = 78  # configuration
WAIT_S = 2.0


def report(package: str) -> None:
    """Report once; a process that this one starts has nothing to report."""
    path = os.environ.pop("EDGELINK_RUN_SOCKET")
    try:
        with open("/proc/self/cmdline", "rb") as file:  # noqa: PTH123 - pathlib may not be imported yet
            words = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
        if "--multiprocessing-fork" in words or os.path.basename(sys.argv[0]) == "default_worker.py":  # noqa: PTH119
            return
        may_go_on = ask(path, {"package": package, "python": sys.executable, "words": words})
    except Exception:  # nobody listens any more, or not in time: `run` ends us if it has to
        return
    if not may_go_on:
        raise SystemExit(REFUSED)


def ask(path: str, message: "dict[str, object]") -> bool:
    """Whether the program may go on."""
    deadline_s = time.monotonic() + WAIT_S
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(path)
        connection.sendall(json.dumps(message).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            connection.settimeout(max(0.01, deadline_s - time.monotonic()))
            received = connection.recv(4096)
            if not received:
                return True
            answer += received
    return bool(json.loads(answer)["go_on"])

"""A learner and an actor that speak plain gRPC, as LeRobot's do: one call each way that lasts, and ends for good.

    grpc_pair.py learner RECORD ADDRESS      ADDRESS is where it listens: host:port
    grpc_pair.py actor RECORD ADDRESS        ADDRESS is the learner's

Parameters go to the actor every half second, transitions to the learner ten times a second. Who gets them writes a
JSON line into RECORD, and so does the actor when one of its calls has ended. ``at_s`` is the monotonic clock.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

PARAMETERS, TRANSITIONS = "/pair/parameters", "/pair/transitions"
PARAMETERS_EVERY_S, TRANSITIONS_EVERY_S = 0.5, 0.1
PARAMETER_BYTES = 200_000


class Record:
    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def add(self, event: str, **values: Any) -> None:
        self._file.write(json.dumps({"event": event, "at_s": time.monotonic(), "pid": os.getpid(), **values}) + "\n")


def for_ever(message: bytes, every_s: float) -> Iterator[bytes]:
    while True:
        yield message
        time.sleep(every_s)


class Learner(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, record: Record) -> None:
        self._record = record

    def service(self, details: Any) -> Any:
        if details.method == PARAMETERS:
            return grpc.unary_stream_rpc_method_handler(self._parameters)
        return grpc.stream_unary_rpc_method_handler(self._transitions)

    def _parameters(self, _request: bytes, _context: Any) -> Iterator[bytes]:
        return for_ever(bytes(PARAMETER_BYTES), PARAMETERS_EVERY_S)

    def _transitions(self, requests: Iterator[bytes], _context: Any) -> bytes:
        for _ in requests:
            self._record.add("transitions")
        return b""


def learn(record: Record, address: str) -> None:
    server = grpc.server(ThreadPoolExecutor(4), handlers=(Learner(record),))
    server.add_insecure_port(address)
    server.start()
    record.add("ready")
    server.wait_for_termination()


def act(record: Record, address: str) -> None:
    channel = grpc.insecure_channel(address)

    def receive() -> None:
        for _ in channel.unary_stream(PARAMETERS)(b"", wait_for_ready=True):
            record.add("parameters")

    def send() -> None:
        channel.stream_unary(TRANSITIONS)(for_ever(b"x", TRANSITIONS_EVERY_S), wait_for_ready=True)

    def run(name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except grpc.RpcError as error:
            record.add("ended", call=name, why=str(error))

    threads = [threading.Thread(target=run, args=(call.__name__, call)) for call in (receive, send)]
    for thread in threads:
        thread.start()
    record.add("ready")


if __name__ == "__main__":
    {"learner": learn, "actor": act}[sys.argv[1]](Record(Path(sys.argv[2])), sys.argv[3])

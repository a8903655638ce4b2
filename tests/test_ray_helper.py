"""The helper's own gRPC call, against a server that says what it was sent. Real Rays are in the netns tests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from edgelink.ray_cluster.helper import describe, grpc_call

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING = b"\0\0\0\4\0\0\0\0\0", b"\0\0\x08\6\0\0\0\0\0pingpong"
ACKNOWLEDGED = b"\0\0\0\4\1\0\0\0\0", b"\0\0\x08\6\1\0\0\0\0pingpong"
MESSAGE = b"\0\0\5\0\0\0\0\0\1\0\0\0\0\0"
TRAILERS = b"\0\0\0\1\5\0\0\0\1"


@contextmanager
def server(*answers: bytes) -> Iterator[tuple[str, bytearray]]:
    """Address of a server that answers one caller with these bytes, and what it was sent."""
    received = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"".join(answers))
                connection.shutdown(socket.SHUT_WR)
                while data := connection.recv(4096):
                    received.extend(data)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", received
        thread.join()


def test_a_call_carries_method_metadata_and_message() -> None:
    """Literal header fields, also long ones; the message with gRPC's own prefix; what HTTP/2 wants answered is."""
    token = "Bearer " + "x" * 200
    with server(SETTINGS, PING, MESSAGE, TRAILERS) as (address, received):
        assert grpc_call(address, "/a.B/C", b"hello", {"Authorization": token}, 20)
    assert received.startswith(PREFACE)
    assert b"\x06/a.B/C" in received
    assert b"\0\x0dauthorization\x7f\x50" + token.encode() in received  # 127 + 80 bytes
    assert b"\0\0\0\0\5hello" in received
    for frame in ACKNOWLEDGED:
        assert frame in received


def test_headers_alone_are_a_refusal() -> None:
    """As Ray answers whoever speaks to another cluster, or without its token."""
    with server(SETTINGS, TRAILERS) as (address, _):
        assert not grpc_call(address, "/a.B/C", b"", {}, 20)


@pytest.mark.parametrize("said", [SETTINGS, SETTINGS + TRAILERS[:4]])
def test_whoever_hangs_up_says_nothing(said: bytes) -> None:
    """Neither yes nor no, wherever it does."""
    with server(said) as (address, _), pytest.raises(ConnectionError):
        grpc_call(address, "/a.B/C", b"", {}, 20)


@pytest.mark.parametrize(
    ("resources", "accelerator"),
    [
        ({"CPU": 8.0}, "NO_ACCEL"),
        ({"GPU": 2.0, "accelerator_type:H100": 1.0}, "NV_GPU"),
        ({"GPU": 2.0, "accelerator_type:AMD-Instinct-MI300X": 1.0}, "AMD_GPU"),
        ({"GPU": 2.0, "accelerator_type:Intel-GPU-Max-1550": 1.0}, "INTEL_GPU"),
        ({"NPU": 2.0, "accelerator_type:Ascend910B": 1.0}, "NPU"),
    ],
)
def test_a_nodes_accelerator_has_rlinfs_name(resources: dict[str, float], accelerator: str) -> None:
    """Ray counts the GPUs of three makers alike, and tells them apart by their type."""
    info = SimpleNamespace(
        node_id=b"\x01", node_manager_address="10.10.0.3", labels={}, state=0, node_manager_hostname="x",
        resources_total=resources, start_time_ms=0,
    )  # fmt: skip
    assert describe(info)["accelerator"] == accelerator
    assert describe(info)["accelerator_count"] == (0 if accelerator == "NO_ACCEL" else 2)

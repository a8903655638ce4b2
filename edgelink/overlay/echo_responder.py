"""Answer the other nodes' echoes: a process of its own, so that a restart of the daemon is no silence.

``python -I …/echo_responder.py ADDRESS DEVICE NETWORK KEY INSTANCE``. It proves its answers
(:mod:`edgelink.overlay.echo_proof`) by a key that it draws at its start and that dies with it. The node's own key, in
the file ``KEY``, signs that one once, in a child: the process that reads packets never holds the node's key.

A question counts only if it came in by the overlay's device from an address of the overlay's network, and its answer
leaves by the device that it came in by: neither can be had through another way.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from uuid import UUID

from edgelink.overlay.echo_proof import Prover, certified, draw_keys, sign
from edgelink.overlay.echo_wire import MOST_BYTES, NOBODY, PORT, Answer, parse_question

_IP_PKTINFO = getattr(socket, "IP_PKTINFO", 8)  # named by Python from 3.14 on
_IP_FREEBIND = 15  # linux/in.h
_PKTINFO = struct.Struct("@I4s4s")  # struct in_pktinfo: interface, local address, destination
_LOST_ROUTE_S = 0.05  # while the device is away nothing can be sent; do not spin on what is queued


def serve(address: IPv4Address, device: str, network: IPv4Network, prover: Prover) -> None:
    """Answer for ever. Raises OSError when the port is taken."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        # The address comes and goes with EasyTier's device.
        end.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        end.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        end.bind((str(address), PORT))
        _give_up_rights()
        while True:
            _answer_one(end, device, network, prover)


def _give_up_rights() -> None:
    """Become nobody: what reads packets from the network needs no right of root's. Where that is not allowed, stay."""
    with suppress(PermissionError):
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def _answer_one(end: socket.socket, device: str, network: IPv4Network, prover: Prover) -> None:
    packet, ancillary, _, (source, port) = end.recvmsg(MOST_BYTES, socket.CMSG_SPACE(_PKTINFO.size))
    received_ns = time.time_ns()
    question = parse_question(packet)
    arrived_by = next((data for _, kind, data in ancillary if kind == _IP_PKTINFO), b"")
    if question is None or len(arrived_by) < _PKTINFO.size or IPv4Address(source) not in network:
        return
    index, _, local = _PKTINFO.unpack(arrived_by[: _PKTINFO.size])
    own = source == socket.inet_ntoa(local)  # a machine that asks itself does so by lo
    try:
        if not own and socket.if_indextoname(index) != device:
            return
        answer = Answer(question, received_ns, time.time_ns())
        extension = prover.extension(answer, IPv4Address(source), IPv4Address(local), time.monotonic())  # noqa: TID251 (as below)
        answer = replace(answer, question=replace(question, extension=extension))
        info = _PKTINFO.pack(index, local, b"\0\0\0\0")
        end.sendmsg([answer.pack(len(packet))], [(socket.IPPROTO_IP, _IP_PKTINFO, info)], 0, (source, port))
    except OSError:
        time.sleep(_LOST_ROUTE_S)  # noqa: TID251 (a process of its own, without our Clock)


def _sign_apart(key: Path, text: bytes) -> bytes:
    """Return the node's signature, made by a child of ours. Empty: there is none, and the child says why."""
    ours, childs = os.pipe()
    if os.fork() == 0:
        try:
            os.write(childs, sign(key.read_bytes(), text))
        except (OSError, ValueError) as error:
            sys.stderr.write(f"{key}: {error}\n")
            sys.stderr.flush()
        finally:
            os._exit(0)
    os.close(childs)
    signature = os.read(ours, len(text))
    os.close(ours)
    os.wait()
    return signature


def main(words: list[str]) -> int:
    """Entry of the process; its exit status. What went wrong is the last line of its output."""
    address, device, network, key, instance = words
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, signal.SIG_DFL)
    keys = draw_keys()
    signature = _sign_apart(Path(key), certified(keys[0], UUID(instance), IPv4Address(address)))
    if not signature:
        return 1
    try:
        serve(IPv4Address(address), device, IPv4Network(network), Prover(keys, signature))
    except OSError as error:
        sys.stderr.write(f"udp port {PORT} of {address}: {error.strerror}\n")
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

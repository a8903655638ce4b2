"""Sends a signed request for a program three times: where it is meant for, there again, and to another node.

exec_replayer.py SOCKET NODE OTHER      as root of the head; prints where the program has run
"""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

from nacl.public import PrivateKey

from edgelink.api.client import call
from edgelink.launch import remote_channel as channel
from edgelink.launch.remote_channel import Seal, agreed_key, framed
from edgelink.launch.remote_program import hello_of

_ANSWER_S = 20.0


async def sent(node: str, ip: str, own: PrivateKey, request: str, socket: Path) -> tuple[bool, str]:
    """Return whether the program runs with a request on a new connection, and the request.

    Without one, it is the one that the daemon signs for this connection.
    """
    reader, writer, hello, frames = await hello_of(node, ip)
    try:
        if not request:
            order = {
                "node": node,
                "hello": hello.decode(),
                "asker_key": b64encode(bytes(own.public_key)).decode(),
                "argv": ["true"],
                "env": {},
                "cwd": None,
                "has_input": False,
            }
            signed: Any = await asyncio.to_thread(call, socket, "POST", "/exec/sign", order)
            request = signed["request"]
        node_key = json.loads(json.loads(hello)["body"])["key"]
        seal = Seal(agreed_key(own, b64decode(node_key)), is_asker=True)
        writer.write(framed(bytes(own.public_key)) + seal.seal(channel.REQUEST, request.encode()))
        async with asyncio.timeout(_ANSWER_S):
            while data := await reader.read(65536):
                for frame in frames.feed(data):
                    return seal.open(frame)[0] == channel.STARTED, request
        return False, request
    finally:
        writer.close()


async def main() -> None:
    socket, node, other = Path(sys.argv[1]), *sys.argv[2:4]
    ips = {}
    for name in (node, other):
        found: Any = await asyncio.to_thread(call, socket, "POST", "/exec/look", {"node": name})
        ips[name] = found["overlay_ip"]
    own = PrivateKey.generate()
    first, request = await sent(node, ips[node], own, "", socket)
    again, _ = await sent(node, ips[node], own, request, socket)
    elsewhere, _ = await sent(other, ips[other], own, request, socket)
    print(json.dumps({"first": first, "again": again, "elsewhere": elsewhere}))


asyncio.run(main())

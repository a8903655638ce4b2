"""Says to everybody what it is given, on a broker that lets everyone say anything: ``speak.py ADDRESS CA NETWORK_ID``.

Standard input: JSON ``{"listeners": [node id…], "words": [[topic, payload as base64]…]}``. It waits until all listeners
are online, then says each word, retained, and ends.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

from edgelink.protocol.payloads import NodeStatus
from edgelink.protocol.tls import client_context
from edgelink.protocol.topics import ANY, Topics
from edgelink.protocol.transport import Login, MqttTransport


async def main(address: str, ca: Path, network_id: str, said: dict[str, Any]) -> None:
    topics, missing = Topics(network_id), set(said["listeners"])
    transport = MqttTransport(client_context(ca.read_text(), network_id))
    async with transport.connect(address, Login("anyone", "anything")) as session:
        await session.subscribe(topics.status(ANY))
        async for message in session.messages():
            if message.payload and NodeStatus.model_validate_json(message.payload).online:
                missing.discard(topics.parse_status(message.topic))
            if not missing:
                break
        for topic, payload in said["words"]:
            await session.publish(topic, base64.b64decode(payload), retain=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], json.load(sys.stdin)))

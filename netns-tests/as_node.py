"""Speaks to the broker with what a node has on disk: ``as_node.py STATE_DIRECTORY login|record``.

``login`` says whether the broker lets it in. ``record`` prints a JSON line for each document on the network's secret
that the broker sends it, as it came, until it is ended.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path

from edgelink.config import Paths
from edgelink.errors import RegistryAuthError
from edgelink.protocol.membership import Membership
from edgelink.protocol.tls import client_context
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Login, MqttTransport


async def main(state: Path, what: str) -> None:
    membership = Membership.load(Paths(state=state, runtime=Path("/nowhere")))
    assert membership is not None
    secrets, topics = membership.secrets, Topics(membership.network_id)
    transport = MqttTransport(client_context(membership.ca_pem, membership.network_id))
    login = Login(secrets.broker_username, secrets.broker_password)
    try:
        async with transport.connect(membership.addresses[0], login) as session:
            if what == "login":
                print("let in")
                return
            await session.subscribe(topics.network, topics.secrets(membership.lease.node_id))
            async for message in session.messages():
                payload = base64.b64encode(message.payload).decode()
                print(json.dumps({"topic": message.topic, "payload": payload}), flush=True)
    except RegistryAuthError:
        print("refused")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))

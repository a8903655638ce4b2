"""Look for secrets where none may be: command lines, environments, logs, outputs, retained messages."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

from edgelink.config import Paths
from edgelink.lab import CLOUD, RELAY, Lab

__all__ = ["Place", "find", "places", "retained_messages", "secrets_of"]

Place = tuple[str, bytes]

# What a new subscriber is told who may read everything: an auditor whom the broker's administrator lets in.
_READ_RETAINED = """
import asyncio, json, sys
from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.dynamic_security import ADMIN
from edgelink.protocol.tls import client_context
from edgelink.protocol.transport import Login, MqttTransport

async def main():
    paths = Paths()
    keys = AuthorityKeys.load(paths.authority_keys)
    password = (paths.runtime / "broker-admin.key").read_text().strip()
    transport = MqttTransport(client_context(keys.ca_pem, keys.network_id))
    async with transport.connect("127.0.0.1:8883", Login(ADMIN, password)) as session:
        acls = [{"acltype": kind, "topic": "#", "allow": True} for kind in ("subscribePattern", "publishClientReceive")]
        auditor = {"command": "createClient", "username": "auditor", "password": "audit-of-a-test",
                   "roles": [{"rolename": "auditor"}]}
        commands = [{"command": "createRole", "rolename": "auditor", "acls": acls}, auditor]
        await session.publish("$CONTROL/dynamic-security/v1", json.dumps({"commands": commands}).encode())
    async with transport.connect("127.0.0.1:8883", Login("auditor", "audit-of-a-test")) as session:
        await session.subscribe("#")
        try:
            async with asyncio.timeout(1.5):
                async for message in session.messages():
                    print(json.dumps([message.topic, message.payload.decode(errors="replace")]), flush=True)
        except TimeoutError:
            pass

asyncio.run(main())
"""


def secrets_of(lab: Lab, nodes: Iterable[str], tokens: Iterable[str]) -> dict[str, str]:
    """Every long-lived secret of the installation, by a name that may be shown."""
    paths = Paths()
    found = {f"token {index}": token for index, token in enumerate(tokens)}
    for node in nodes:
        membership = json.loads(lab.host_path(node, paths.membership).read_text())
        found["network secret"] = membership["secrets"]["network_secret"]
        if membership.get("next_secret"):
            found[f"next network secret of {node}"] = membership["next_secret"]
        found[f"broker password of {node}"] = membership["secrets"]["broker_password"]
        found[f"node key of {node}"] = lab.host_path(node, paths.node_key).read_text().strip()
    found["Ray token"] = lab.host_path(CLOUD, paths.state / "ray_token").read_text().strip()
    found["broker admin password"] = lab.host_path(RELAY, paths.runtime / "broker-admin.key").read_text().strip()
    authority = lab.host_path(RELAY, paths.authority_keys)
    for file in authority.glob("*.key"):
        found[f"authority's {file.name}"] = (
            file.read_text().strip().splitlines()[1 if "BEGIN" in file.read_text() else 0]
        )
    return found


def places(lab: Lab) -> Iterator[Place]:
    """What other users, logs and the network could see of the lab's nodes, with a name for each."""
    for node in lab.topology.machines:
        for pid in sorted(lab.pids(node.name)):
            for kind in ("cmdline", "environ"):
                try:
                    yield f"{node.name}: {kind} of {pid}", Path(f"/proc/{pid}/{kind}").read_bytes()
                except (FileNotFoundError, ProcessLookupError):
                    continue
        for file in lab.node_directory(node.name).rglob("*"):
            if file.is_file() and (file.suffix in (".log", ".out", ".err") or "logs" in file.parts):
                yield f"{node.name}: {file.relative_to(lab.directory)}", file.read_bytes()


def retained_messages(lab: Lab) -> list[Place]:
    answer = lab.exec(RELAY, ["python", "-c", _READ_RETAINED], capture=True, check=True)
    messages = [json.loads(line) for line in answer.stdout.splitlines()]
    return [(f"topic {topic}", payload.encode()) for topic, payload in messages]


def find(secrets: dict[str, str], where: Iterable[Place]) -> list[str]:
    """Which secret stands where, in the clear, in base64 (whatever it is embedded in) or URL-escaped."""
    needles = {name: _forms(secret) for name, secret in secrets.items()}
    return [
        f"{name} in {place}"
        for place, content in where
        for name, forms in needles.items()
        if any(form in content for form in forms)
    ]


def _forms(secret: str) -> set[bytes]:
    raw = secret.encode()
    forms = {raw, quote(secret, safe="").encode()}
    for shift in range(3):  # base64 of a text that holds the secret at any offset, less the digits at its rim
        encoded = base64.b64encode(b"x" * shift + raw)
        core = encoded[4 if shift else 0 : -4]
        forms |= {core, core.replace(b"+", b"-").replace(b"/", b"_")}
    return forms

"""The users of the running broker, read and changed through the dynamic security plugin's control topic.

One object belongs to one session of the registry's admin. What the plugin says is learnt once, when the session
begins; after that this is the only one who changes it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from edgelink.errors import RegistryError, RegistryUnavailableError
from edgelink.log import get_logger
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Session
from edgelink.relay.dynamic_security import ADMIN, CONTROL_TOPIC, create_commands, delete_commands, fingerprint
from edgelink.relay.records import BrokerUser
from edgelink.timeouts import timeout

_TIMEOUT_S = 10.0
_BATCH = 60  # commands a message: well below the broker's size limit

log = get_logger("broker")


class BrokerUsers:
    """Keeps the running broker's users in step with the store."""

    def __init__(self, session: Session, topics: Topics) -> None:
        self._session = session
        self._topics = topics
        self._numbers = count()
        self._waiting: dict[str, asyncio.Future[list[dict[str, Any]]]] = {}
        self._live: dict[str, str] | None = None  # username → fingerprint

    def receive(self, payload: bytes) -> None:
        """A message of the plugin's response topic."""
        responses = json.loads(payload).get("responses", [])
        waiting = self._waiting.pop(responses[0].get("correlationData", ""), None) if responses else None
        if waiting is not None and not waiting.done():
            waiting.set_result(responses)

    async def sync(self, wanted: Iterable[BrokerUser], passwords: Mapping[str, str]) -> bool:
        """Make the broker's users those of the store.

        ``passwords`` are the ones known in clear text, of users made just now. False when a user is missing whose
        password is not known: then only a start with fresh files helps.
        """
        if self._live is None:
            self._live = await self._list()
        wanted = list(wanted)
        names = {user.username for user in wanted}
        stale = [name for name in self._live if name not in names and name != ADMIN]
        return await self._change(stale, wanted, passwords)

    async def put(self, users: Iterable[BrokerUser], passwords: Mapping[str, str]) -> bool:
        """Like :meth:`sync` of these users alone, in a session that began with that: all others stay as they are."""
        return await self._change([], users, passwords)

    async def _change(self, stale: list[str], users: Iterable[BrokerUser], passwords: Mapping[str, str]) -> bool:
        live = {} if self._live is None else self._live
        prints = [(user, fingerprint(user, self._topics)) for user in users]
        changed = [(user, stated) for user, stated in prints if live.get(user.username) != stated]
        if any(user.username not in passwords for user, _ in changed):
            return False
        gone = [*stale, *(user.username for user, _ in changed if user.username in live)]
        commands = [command for name in gone for command in delete_commands(name)]
        for user, _ in changed:
            commands += create_commands(user, passwords[user.username], self._topics)
        await self._execute(commands)
        for name in stale:
            del live[name]
        live.update({user.username: stated for user, stated in changed})
        if stale or changed:
            log.info("broker.users_changed", added=[user.username for user, _ in changed], removed=stale)
        return True

    async def _list(self) -> dict[str, str]:
        (response,) = await self._ask([{"command": "listClients", "verbose": True}])
        clients = response.get("data", {}).get("clients", [])
        return {client["username"]: client.get("textdescription", "") for client in clients}

    async def _execute(self, commands: list[dict[str, Any]]) -> None:
        for start in range(0, len(commands), _BATCH):
            for response in await self._ask(commands[start : start + _BATCH]):
                # What is to be deleted may never have been there.
                if "error" in response and not response["command"].startswith("delete"):
                    raise RegistryError(f"the broker refused {response['command']}: {response['error']}")

    async def _ask(self, commands: list[dict[str, Any]]) -> list[dict[str, Any]]:
        number = f"edgelink-{next(self._numbers)}"
        numbered = [{**command, "correlationData": number} for command in commands]
        answer: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with timeout(_TIMEOUT_S):
                await self._session.publish(CONTROL_TOPIC, json.dumps({"commands": numbered}).encode())
                return await answer
        except TimeoutError as error:
            raise RegistryUnavailableError(f"the broker did not obey within {_TIMEOUT_S:g} s") from error
        finally:
            self._waiting.pop(number, None)

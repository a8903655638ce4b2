"""Signs what this node's users ask of other nodes: programs, and the keys of their sshd. See ADR 0044."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from edgelink.api.server import Caller, Route, route, user_name
from edgelink.clock import Clock
from edgelink.duration import brief
from edgelink.errors import EdgelinkError, ExitCode, UsageError
from edgelink.facts.board import Board
from edgelink.facts.facts import Facts
from edgelink.launch.remote_request import ExecHello, ExecRequest, open_hello
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.payloads import DirectoryEntry, Envelope, Role
from edgelink.ray_cluster.ray_reconciler import RayReconciler
from edgelink.runs.ray_commands import require_ray_user

_SILENT_S = 3.0


class NodePausedError(EdgelinkError):
    """The node that was asked for does not answer at this moment."""

    reason = "NodePaused"
    retryable = True
    exit_code = ExitCode.TRY_AGAIN


def network_id_of(facts: Facts) -> str:
    """Return the network that this node is a member of. Raises UsageError."""
    if facts.running is None:
        raise UsageError("this node has not joined a network yet", hint="`edgelink status`")
    return facts.running.network_id


class ExecAsking:
    """One node's users, who ask other nodes."""

    def __init__(self, key: NodeKey, board: Board[Facts], clock: Clock, ray: RayReconciler) -> None:
        self._key = key
        self._board = board
        self._clock = clock
        self._ray = ray

    def routes(self) -> Iterator[Route]:
        """The local API: for root and Ray's user of this machine."""
        yield route("POST", "/exec/look", self._look)
        yield route("POST", "/exec/sign", self._sign)
        yield route("POST", "/exec/ssh-keys", self._ssh_keys)

    async def _look(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``POST /exec/look``: where a node is reached.

        Raises:
            UsageError: there is no such node, it is this one, or this user may not ask.
            NodePausedError: it does not answer at this moment.
        """
        await require_ray_user(caller, self._ray)
        entry = self._entry(str(body["node"]))
        facts, now_s = self._board.facts, self._clock.monotonic_s()
        if entry.node_id in facts.stopped:
            raise NodePausedError(f"{entry.hostname} was switched off", hint="start it, and try again")
        pause = facts.paused.get(entry.node_id)
        since_s = pause.since_s if pause is not None else facts.silent.get(entry.hostname)
        if since_s is not None and (pause is not None or now_s - since_s >= _SILENT_S):
            raise NodePausedError(
                f"{entry.hostname} is paused: no answer over the overlay for {brief(now_s - since_s)}",
                hint="try again when its link is back; `edgelink nodes` shows it",
            )
        return {"overlay_ip": str(entry.overlay_ip), "ride_through_s": self._board.facts.ride_through_s}

    async def _sign(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``POST /exec/sign``: the request that a node's hello asks for, signed.

        Raises:
            UsageError: this user may not ask.
            UntrustedError: another node said hello.
        """
        await require_ray_user(caller, self._ray)
        entry = self._entry(str(body["node"]))
        hello = self._opened(entry, str(body["hello"]))
        try:
            request = ExecRequest(
                network_id=network_id_of(self._board.facts),
                node_id=entry.node_id,
                challenge=hello.challenge,
                node_key=hello.key,
                asker_key=body["asker_key"],
                argv=tuple(body.get("argv", ())),
                connections=body.get("connections"),
                env=body.get("env", {}),
                cwd=body.get("cwd"),
                has_input=body.get("has_input", False),
                asked_by=user_name(caller.uid),
            )
        except ValidationError as error:
            raise UsageError(f"the request has {error.error_count()} unusable fields") from error
        return {"request": self._key.sign(Kind.EXEC_REQUEST, request).model_dump_json(), "node_key": hello.key}

    async def _ssh_keys(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``POST /exec/ssh-keys``: what a node's hello says of its sshd. Raises UntrustedError, UsageError."""
        await require_ray_user(caller, self._ray)
        return {"ssh_keys": list(self._opened(self._entry(str(body["node"])), str(body["hello"])).ssh_keys)}

    def _opened(self, entry: DirectoryEntry, hello: str) -> ExecHello:
        try:
            return open_hello(Envelope.model_validate_json(hello), entry, network_id_of(self._board.facts))
        except ValidationError as error:
            raise UsageError(
                f"{entry.hostname} and this node do not understand each other",
                hint="compare `edgelink version` on both",
            ) from error

    def _entry(self, node: str) -> DirectoryEntry:
        directory = self._board.facts.directory
        known: list[DirectoryEntry] = [
            each for each in (directory.entries if directory else ()) if each.node_id != self._key.node_id
        ]
        found = next((each for each in known if node in (each.hostname, str(each.overlay_ip))), None)
        if found is None or found.role is Role.RELAY:
            names = ", ".join(sorted(each.hostname for each in known if each.role is not Role.RELAY)) or "none"
            raise UsageError(f"there is no other node {node!r} that runs programs", hint=f"other nodes are: {names}")
        return found

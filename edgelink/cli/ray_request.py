"""Ask this node's daemon for something that takes the nodes a while, and show live who has followed."""

from __future__ import annotations

import sys
from typing import Any

from edgelink.api.client import EventStream
from edgelink.cli.layout import say
from edgelink.cli.patience import DAEMON, saying
from edgelink.cli.status import who
from edgelink.cli.waiting import WaitingList
from edgelink.config.paths import Paths
from edgelink.errors import EdgelinkError, UsageError


def ray_request(path: str, body: dict[str, Any], *, goal: str) -> list[str]:
    """Returns, when it is done, the names of the nodes that are away, and follow when they are back.

    Raises:
        DaemonNotRunningError: no daemon of a node runs here, or it ended meanwhile.
        DaemonError: it refuses, or not everybody has followed in time.
    """
    socket = Paths.from_environment().node_socket
    with WaitingList(sys.stderr, goal) as waiting:
        for event in saying(DAEMON, lambda: EventStream(socket, "POST", path, body)):
            if event["event"] == "done":
                return list(event["absent"])
            if event["event"] == "told":
                say(event["message"])
            else:
                waiting.show(event)
    raise EdgelinkError("the daemon ended meanwhile", hint="`edgelink status` and its log say why")


def require_head(status: dict[str, Any], what: str) -> None:
    """Refuse where the node with this status is none, naming the head. Raises UsageError."""
    if status["role"] == "head":
        return
    head = status.get("head") or {}
    raise UsageError(
        f"{what} is for the head; this machine is {who(status)}",
        hint=f"run it on {head['hostname']} ({head['overlay_ip']})" if head else "run it on the head",
        reason="NotTheHead",
    )

"""Ask the relay's daemon for a change of the network's secret, and show live how far each node is."""

from __future__ import annotations

import json
from typing import Any

import click

from edgelink.api.client import EventStream
from edgelink.cli.patience import saying
from edgelink.config.paths import Paths
from edgelink.errors import DeadlineError, EdgelinkError


def rotation_request(path: str, body: dict[str, Any], *, as_json: bool) -> dict[str, Any]:
    """The last answer, which names who is behind.

    Raises:
        DaemonNotRunningError: no relay's daemon runs here, or it ended meanwhile: what was begun goes on with the next.
        DaemonError: it refuses, or gave up.
    """
    said: dict[str, str] = {}
    socket = Paths.from_environment().bootstrap_socket
    for event in saying("waiting for the registry to answer", lambda: EventStream(socket, "POST", path, body)):
        if as_json:
            click.echo(json.dumps(event))
        if event["event"] == "done":
            return dict(event)
        if event["event"] == "revoked" and not as_json:
            where = (
                "off the broker" if event.get("off_broker", True) else "out, and off the broker as soon as that answers"
            )
            click.echo(f"{event['hostname']} ({event['node_id']}) is {where}", err=True)
        if event["event"] == "nodes" and not as_json:
            for node in event["nodes"]:
                if said.get(node["hostname"]) != node["state"]:
                    said[node["hostname"]] = node["state"]
                    click.echo(f"{event['after_s']:6.1f} s  {node['hostname']:<20} {node['state']}", err=True)
    raise EdgelinkError(
        "the daemon ended meanwhile", hint="the next one goes on with what was begun; `edgelink status` shows it"
    )


def raise_for(behind: list[dict[str, Any]], what: str) -> None:
    """Raises DeadlineError, which names the relays among those who are behind first."""
    if not behind:
        return
    names = ", ".join(
        node["hostname"] + (" (a relay)" if node["relay"] else "") + ("" if node["online"] else " (offline)")
        for node in behind
    )
    raise DeadlineError(
        f"{what}, but not on the new secret yet: {names}",
        hint="each follows by itself when its daemon is back; until then its EasyTier, if that runs without a daemon, "
        "goes on with the old secret: start the daemon there, or stop that EasyTier",
        reason="OldSecretInUse",
    )

"""The members of the network as any of them knows them: whom the registry names, how each is reached, who answers."""

from __future__ import annotations

from typing import Any

from edgelink.api.client import call_here
from edgelink.cli.layout import table, wrapped
from edgelink.cli.status import way_in_words
from edgelink.cli.watch import Fact
from edgelink.errors import ExitCode
from edgelink.wording import presence_in_words, role_in_words

_HEADER = ("NODE", "ROLE", "RANK", "OVERLAY IP", "STATE", "PATH")
_YIELDING = (0, 5)
_WAY = ("path", "via", "protocol", "latency_ms", "loss", "loses_full_packets")


def members_here() -> list[dict[str, Any]]:
    """Return this machine's own row, then those of the others. Raises DaemonNotRunningError, DaemonError."""
    return members(call_here("GET", "/status"), call_here("GET", "/peers")["peers"])


def members(status: dict[str, Any], peers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that a daemon's status and peers make; pure.

    ``state`` is the phase that the node itself tells to the relay ("paused" where the head says so), or whether it
    answers this machine; None where nothing is known.
    """
    rank = status["node_rank"]
    said = {lease["hostname"]: lease for lease in status.get("nodes", ())}  # the registry's relay alone has them
    own = {
        "hostname": status["hostname"],
        "overlay_ip": status["overlay_ip"],
        "node_rank": status.get("preferred_rank") if rank is None else rank,
        "role": role_in_words(status["role"]),
        "state": status["phase"].lower(),
        **dict.fromkeys(_WAY),
        "path": "self",
    }
    return [own, *({**_known(peer), "state": _state(peer, said.get(peer["hostname"]))} for peer in peers)]


def _known(peer: dict[str, Any]) -> dict[str, Any]:
    return {key: peer[key] for key in ("hostname", "overlay_ip", "node_rank", "role", *_WAY)}


def _state(peer: dict[str, Any], lease: dict[str, Any] | None) -> str | None:
    if lease is not None:
        return presence_in_words(lease).lower()
    answers = peer.get("answers")
    return None if answers is None else "answers" if answers else "silent"


def exit_status(rows: list[dict[str, Any]]) -> ExitCode:
    """Return 75 if a node is paused, or else 1 if a node is known to be away; pure.

    A node that was switched off on purpose does not count.
    """
    states = {row["state"] for row in rows}
    if "paused" in states:
        return ExitCode.TRY_AGAIN
    return ExitCode.FAILED if states & {"offline", "silent"} else ExitCode.OK


def lines(found: dict[str, Any], width: int) -> list[str]:
    """For people, no line wider than ``width``; pure."""
    rows = [
        (
            row["hostname"] or "-",
            row["role"] or "-",
            "-" if row["node_rank"] is None else str(row["node_rank"]),
            row["overlay_ip"] or "-",
            row["state"] or "-",
            "-" if row["path"] is None else way_in_words(row),
        )
        for row in found["members"]
    ]
    head = next((row["hostname"] for row in found["members"] if row["role"] == "head"), "the head")
    return table([_HEADER, *rows], width, _YIELDING) + wrapped(
        "", f"Ray is known to the head alone: `edgelink nodes` on {head}", width
    )


def facts(found: dict[str, Any]) -> dict[str, Fact]:
    """What ``--watch`` tells the changes of; pure."""
    told = {}
    for row in found["members"]:
        way = "" if row["path"] is None else f", {way_in_words(row)}"
        text = f"{row['state'] or 'no word of it'}{way}"
        told[row["hostname"] or "this machine"] = Fact(text, text)
    return told

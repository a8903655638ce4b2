"""What the daemons on this machine say of themselves."""

from __future__ import annotations

from edgelink.api.client import how_to_start
from edgelink.condition_table.informing import NODES_READY
from edgelink.conditions import Status
from edgelink.doctor.check import Finding, Surroundings, failed, limited, ok, skipped
from edgelink.protocol.payloads import Role
from edgelink.wording import role_in_words


def daemon_ready(surroundings: Surroundings) -> Finding:
    """Does a daemon run here, and is it ready?"""
    if not surroundings.daemons:
        return failed("no EdgeLink daemon runs on this machine", how_to_start())
    if surroundings.silent:
        remedy = (
            "start it again, or `edgelink stop` where it is to be away; its last words are in `edgelink logs` where it "
            "is a service, else where it was started"
        )
        return failed("; ".join(surroundings.silent), remedy)
    unmet = [
        f"{role_in_words(daemon['role'])}: {condition['type']} {condition['reason']}"
        for daemon in surroundings.daemons
        if not daemon["ready"]
        for condition in daemon["conditions"]
        if condition["status"] != "True"
    ]
    phases = ", ".join(f"the {role_in_words(daemon['role'])} is {daemon['phase']}" for daemon in surroundings.daemons)
    if all(daemon["ready"] for daemon in surroundings.daemons):
        return ok(phases)
    return failed(f"{phases}: {'; '.join(unmet)}", "`edgelink status` says what to do")


def nodes_answer(surroundings: Surroundings) -> Finding:
    """Does every node of the cluster answer the head?

    Ray lists a node that is cut off as alive for as long as it rides through; the head's daemon asks each.
    """
    heads = [daemon for daemon in surroundings.daemons if daemon["role"] == Role.HEAD.value]
    said = [one for head in heads for one in head["conditions"] if one["type"] == NODES_READY.name]
    if not said:
        return skipped("the head knows")
    message, remedy = said[0]["message"], "`edgelink nodes` names each, for how long, and what to do"
    if said[0]["status"] == Status.TRUE.value:
        return ok(message)
    return (failed if said[0]["reason"] == "NodesPaused" else limited)(message, remedy)

"""What the daemons on this machine say of themselves."""

from __future__ import annotations

from edgelink.doctor.check import Finding, Surroundings, Verdict


def daemon_ready(surroundings: Surroundings) -> Finding:
    """Does a daemon run here, and is it ready?"""
    if not surroundings.daemons:
        return Finding(
            Verdict.FAILED,
            "no EdgeLink daemon runs on this machine",
            remedy="start `edgelink bootstrap`, `edgelink head` or `edgelink edge`",
        )
    if surroundings.silent:
        remedy = (
            "start it again, or `edgelink stop` where it is to be away; its last words are in `edgelink logs` where it "
            "is a service, else where it was started"
        )
        return Finding(Verdict.FAILED, "; ".join(surroundings.silent), remedy=remedy)
    unmet = [
        f"{daemon['role']}: {condition['type']} {condition['reason']}"
        for daemon in surroundings.daemons
        if not daemon["ready"]
        for condition in daemon["conditions"]
        if condition["status"] != "True"
    ]
    phases = ", ".join(f"{daemon['role']} {daemon['phase']}" for daemon in surroundings.daemons)
    if all(daemon["ready"] for daemon in surroundings.daemons):
        return Finding(Verdict.OK, phases)
    return Finding(Verdict.FAILED, f"{phases}: {'; '.join(unmet)}", remedy="`edgelink status` says what to do")

"""Is the promise of ``ride_through`` kept on this machine, and if not in full, what holds instead?"""

from __future__ import annotations

import platform

from edgelink.doctor.check import Finding, Surroundings, failed, limited, ok, skipped
from edgelink.duration import in_words
from edgelink.errors import ConfigError
from edgelink.process import host_tcp
from edgelink.process.host_tcp import TcpValues
from edgelink.ray_cluster.ride_through import check_agreement, check_collectives, patience_s


def ride_through_agrees(surroundings: Surroundings) -> Finding:
    """Is this node's `ride_through` the network's?"""
    network_s = surroundings.ride_through_s
    try:
        check_agreement(surroundings.config.ride_through, network_s)
    except ConfigError as error:
        return failed(error.message, error.hint, in_words(network_s))
    return ok(f"outages of up to {in_words(network_s)} cost a pause, not the run")


def tcp_resumes(surroundings: Surroundings) -> Finding:
    """How late do connections go on after an outage?"""
    now = host_tcp.observe(surroundings.proc_sys)
    late_s = now.resumes_after_s(surroundings.ride_through_s)
    figure = f"{late_s:g} s late after {in_words(surroundings.ride_through_s)}"
    wanted = host_tcp.wanted(now, patience_s(surroundings.ride_through_s))
    if now.rto_max_ms is None:
        return limited(
            f"Linux {platform.release()} lets TCP wait up to 120 s between tries: the gap is up to twice the outage",
            "nodes and state survive all the same; Linux 6.15 and later have net.ipv4.tcp_rto_max_ms",
            figure,
        )
    if now.rto_max_ms != wanted.rto_max_ms:
        return limited(
            "TCP waits longer between two tries than it has to: the gap is up to twice the outage",
            _how_to_set(surroundings, now, wanted),
            figure,
        )
    return ok("connections go on as soon as the path is back", figure)


def tcp_outlives(surroundings: Surroundings) -> Finding:
    """Does TCP itself live through an outage?"""
    now = host_tcp.observe(surroundings.proc_sys)
    patience = patience_s(surroundings.ride_through_s)
    figure = f"gives up after {now.gives_up_after_s:.0f} s"
    if now.gives_up_after_s >= patience:
        return ok(f"connections outlive the {patience} s that are needed", figure)
    wanted = host_tcp.wanted(now, patience)
    return (failed if now.gives_up_after_s < surroundings.ride_through_s else limited)(
        f"{patience} s are needed: gloo and NCCL lose their connections in longer outages",
        _how_to_set(surroundings, now, wanted),
        figure,
    )


def tcp_probes(surroundings: Surroundings) -> Finding:
    """Does TCP find out what a narrow uplink carries?

    Behind LTE, PPPoE or another VPN full packets may be dropped without a word. With `tcp_mtu_probing` a connection
    that stands still tries smaller ones; it has to be set on both ends.
    """
    now = host_tcp.observe(surroundings.proc_sys)
    if now.mtu_probing is None:
        return skipped("the kernel does not say")
    if now.mtu_probing:
        return ok("TCP finds its way through a smaller MTU", str(now.mtu_probing))
    return limited(
        "where an uplink drops full packets without a word, every connection through it stands still",
        _how_to_set(surroundings, now, host_tcp.wanted(now, patience_s(surroundings.ride_through_s))),
        "0",
    )


def collectives_wait(surroundings: Surroundings) -> Finding:
    """Do the time-outs in the caller's environment wait for the end of an outage?"""
    try:
        check_collectives(surroundings.environ, surroundings.ride_through_s)
    except ConfigError as error:
        return failed(error.message, error.hint)
    return ok("no collective time-out of this environment is shorter than an outage may be")


def _how_to_set(surroundings: Surroundings, now: TcpValues, wanted: TcpValues) -> str:
    """All that differs, the cap after the retries: alone it would have TCP give up sooner."""
    if not surroundings.daemons:
        return "a running daemon sets it"
    values = {
        host_tcp.SYN_RETRIES: (now.syn_retries, wanted.syn_retries),
        host_tcp.RETRIES2: (now.retries2, wanted.retries2),
        host_tcp.RTO_MAX: (now.rto_max_ms, wanted.rto_max_ms),
        host_tcp.MTU_PROBING: (now.mtu_probing, wanted.mtu_probing),
    }
    new = [f"{name.replace('/', '.')}={target}" for name, (value, target) in values.items() if value != target]
    command = f"sysctl {' '.join(new)}"
    if surroundings.config.host.tcp == "leave":
        return f"`host.tcp: adjust` lets EdgeLink set it, or do it yourself: {command}"
    return f"the daemon may not set it here (read-only /proc/sys?): on the host, {command}"

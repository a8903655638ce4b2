"""What gets into the way of this node's Ray: other Rays, taken ports, left-over tokens, the caller's environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import IPv4Network, ip_address, ip_network
from pathlib import Path

from edgelink.doctor.check import NOT_ROOT, Finding, Surroundings, failed, limited, listed, ok, skipped, text_of
from edgelink.doctor.own_ports import own_ports
from edgelink.errors import EdgelinkError

_RAY_PROCESSES = ("raylet", "gcs_server")
_LARGE_ENVIRONMENT_BYTES = 64 * 1024
_ARGUMENT_BYTES = 128 * 1024  # MAX_ARG_STRLEN: Ray hands its workers the environment in one argument
_OVERLAY_NAMES = ("RLINF_COMM_NET_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def foreign_ray(surroundings: Surroundings) -> Finding:
    """Does another Ray run on this machine?

    Plain `ray.init()` may find that one, and `ray stop` ends both.
    """
    found = surroundings.probes.processes(*_RAY_PROCESSES)
    own = set(surroundings.own_pids.values())
    if found.keys() - own and not surroundings.probes.is_root:
        return NOT_ROOT
    if found.keys() - own:
        own |= surroundings.probes.own_ray(surroundings.paths)
    foreign = [f"{name} (pid {pid})" for pid, name in sorted(found.items()) if pid not in own]
    if foreign:
        return limited(
            f"a Ray that EdgeLink did not start runs here: {listed(foreign)}",
            "end it by whoever started it; until then use `edgelink run` and `edgelink exec`, and never `ray stop`",
        )
    return ok("no Ray runs but this node's own" if found else "no Ray runs")


def ports_free(surroundings: Surroundings) -> Finding:
    """Are the ports that EdgeLink and Ray need here theirs, or free?"""
    wanted = own_ports(surroundings)
    held = surroundings.probes.holders(wanted)
    ours = set(surroundings.own_pids.values())
    strangers = {key: pid for key, pid in held.items() if pid not in ours}
    if strangers and not surroundings.probes.is_root:
        return NOT_ROOT
    if strangers:
        ours |= surroundings.probes.own_ray(surroundings.paths)
    taken = [
        f"{protocol} {port} ({wanted[protocol, port]}) by "
        + (f"{surroundings.probes.command_of(pid)} (pid {pid})" if pid else "another process")
        for (protocol, port), pid in sorted(strangers.items())
        if pid not in ours
    ]
    if taken:
        return failed(
            f"taken by others: {listed(taken)}", "end that process, or set the key in parentheses to another port"
        )
    return ok(f"{len(wanted)} ports free, or this node's own")


def leftover_ray_token(surroundings: Surroundings) -> Finding:
    """Does a left-over token file change how Ray's programs log in?

    Ray 2.52 and later turn its authentication on where `~/.ray/auth_token` exists; of another cluster, it is wrong.
    """
    if not surroundings.has_ray:
        return skipped(surroundings.why_no_ray)
    homes = {Path(surroundings.environ["HOME"])} if "HOME" in surroundings.environ else set()
    with suppress(EdgelinkError):
        homes.add(surroundings.probes.interpreter(surroundings.config)[1].home)
    ours = text_of(surroundings.paths.ray_token_copy)
    found = [
        path
        for home in sorted(homes)
        if home.is_absolute()
        for path in [surroundings.root / home.relative_to("/") / ".ray/auth_token"]
        if surroundings.is_there(path) and (not ours or text_of(path) != ours)
    ]
    if found:
        return limited(
            f"{listed(found)}: plain Ray programs of this user log in with it, and this cluster refuses them",
            "remove it, or use `edgelink exec -- ray …`, which says which token counts",
        )
    return ok("no Ray token is left in a home directory")


def ray_environment(surroundings: Surroundings) -> Finding:
    """Do Ray's variables in the caller's environment lead to this cluster?

    `edgelink run`, `exec` and `env` set them right; plain Ray programs obey what is in the shell.
    """
    environ = surroundings.environ
    wrong = []
    address = next((str(d["cluster"]["ray_address"]) for d in surroundings.daemons if d.get("cluster")), None)
    told = environ.get("RAY_ADDRESS")
    if told and told not in (address, "auto"):
        wrong.append(f"RAY_ADDRESS={told} leads elsewhere" + (f" than to {address}" if address else ""))
    if environ.get("RAY_AUTH_MODE", "token") != "token" and address:
        wrong.append(f"RAY_AUTH_MODE={environ['RAY_AUTH_MODE']}")
    ranks = {str(d["node_rank"]) for d in surroundings.daemons if d.get("node_rank") is not None}
    if (rank := environ.get("RLINF_NODE_RANK")) is not None and ranks and rank not in ranks:
        wrong.append(f"RLINF_NODE_RANK={rank}, and this node's is {ranks.pop()}")
    if wrong:
        return limited(
            listed(wrong), f"unset {' '.join(each.partition('=')[0] for each in wrong)} (~/.bashrc? ~/.profile?)"
        )
    return ok("no variable leads Ray elsewhere")


def collective_devices(surroundings: Surroundings) -> Finding:
    """Do collectives of the caller's environment use the overlay's device?

    `GLOO_SOCKET_IFNAME` and its like; a name that no device has ends gloo with "Unable to find address".
    """
    device = surroundings.config.overlay.device
    wrong = {
        name: value
        for name in _OVERLAY_NAMES
        if (value := surroundings.environ.get(name)) and value.lstrip("=^") != device
    }
    if wrong and surroundings.has_ray:
        return limited(
            f"{', '.join(f'{name}={value}' for name, value in wrong.items())}: the overlay's device is {device}",
            f"unset {' '.join(wrong)}: `edgelink run` sets what its framework needs",
        )
    return ok("no variable names another device for collectives")


def proxy(surroundings: Surroundings) -> Finding:
    """Does a proxy of the caller's environment stand before the overlay?"""
    environ = surroundings.environ
    proxies = [name for low in _PROXIES for name in (low, low.upper()) if environ.get(name)]
    if not proxies or not surroundings.is_node:
        return skipped("no proxy is set, or nothing would use it")
    head = next((d["head"]["overlay_ip"] for d in surroundings.daemons if d.get("head")), None)
    own = next((d["overlay_ip"] for d in surroundings.daemons if d.get("overlay_ip")), None)
    address = head or own
    if address is None:
        return skipped("the overlay's addresses are not known yet")
    if _is_excepted(str(address), environ):
        return ok(f"{', '.join(proxies)} leave {address} out (no_proxy)")
    return limited(
        f"{', '.join(proxies)} also stand before the overlay ({address}): plain Ray programs go through them",
        "add the overlay to no_proxy, as `edgelink run` does by itself",
    )


def environment_size(surroundings: Surroundings) -> Finding:
    """Is the caller's environment small enough for Ray's workers?

    Ray hands it to each worker in one argument, for which Linux has 128 KiB; beyond it workers never register.
    """
    environ = surroundings.environ
    size_bytes = sum(len(os.fsencode(name)) + len(os.fsencode(value)) + 2 for name, value in environ.items())
    largest = max(environ, key=lambda name: len(environ[name]), default="")
    figure = f"{size_bytes / 1024:.0f} of {_ARGUMENT_BYTES // 1024} KiB"
    remedy = f"unset what is large, first of all {largest} ({len(environ.get(largest, '')) / 1024:.0f} KiB)"
    if size_bytes >= _ARGUMENT_BYTES:
        return failed("a driver of plain Ray with this environment gets no workers", remedy, figure)
    if size_bytes >= _LARGE_ENVIRONMENT_BYTES:
        return limited("with what Ray adds to it, this environment is close to the limit", remedy, figure)
    return ok("the environment is small enough for Ray's workers", figure)


def _is_excepted(address: str, environ: Mapping[str, str]) -> bool:
    for name in ("no_proxy", "NO_PROXY"):
        for part in environ.get(name, "").replace(" ", "").split(","):
            if part in ("*", address):
                return True
            with suppress(ValueError):
                network = ip_network(part)
                if isinstance(network, IPv4Network) and ip_address(address) in network:
                    return True
    return False

"""Programs and their versions: EasyTier, Mosquitto, the user's interpreter, and what the head has."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from edgelink import __version__
from edgelink.config import Paths
from edgelink.doctor.check import Finding, Surroundings, failed, limited, listed, ok, refused, skipped
from edgelink.errors import EdgelinkError
from edgelink.overlay.easytier_capabilities import NEWEST_KNOWN, parse_version
from edgelink.ray_cluster.ray_capabilities import RayCapabilities
from edgelink.ray_cluster.versions import Versions, differences, refusal, warnings
from edgelink.wording import role_in_words

_CLOCK_IS_SET_S = 1_704_067_200.0  # 2024: a clock that shows less was never set, as of a board that has just booted


def easytier(surroundings: Surroundings) -> Finding:
    """Is there an EasyTier that can be used?

    As the daemon looks for it: `overlay.easytier_core`, `EDGELINK_EASYTIER`, PATH, the cache; 2.6.0 and later.
    """
    if surroundings.config.overlay.kind == "existing":
        return skipped("the overlay is one that was there already (overlay.kind: existing)")
    try:
        found = surroundings.probes.find_easytier(surroundings.config)
    except EdgelinkError as error:
        if "EasyTier" in surroundings.own_pids and surroundings.config.overlay.easytier_core is None:
            return ok("EasyTier runs; the daemon has found it where this shell does not look")
        return refused(error)
    newer = " (newer than the newest that was tried)" if parse_version(found.version) > NEWEST_KNOWN else ""
    if found.cli is None:
        return limited(
            f"{found.core} has no easytier-cli beside it: ways to the other nodes cannot be told",
            "install EasyTier's archive as a whole",
            found.full_version,
        )
    return ok(f"EasyTier is {found.core}{newer}", found.full_version)


def mosquitto(surroundings: Surroundings) -> Finding:
    """Is Mosquitto here, with its dynamic security plugin?"""
    if not surroundings.has_broker:
        return skipped("only the relay with the registry needs it")
    try:
        program, plugin = surroundings.probes.find_mosquitto()
    except EdgelinkError as error:
        return refused(error)
    return ok(f"Mosquitto is {program}, with {plugin.name}")


def interpreter(surroundings: Surroundings) -> Finding:
    """Can Ray be started by the user's interpreter, as its user?

    `ray.python` runs and has Ray 2.47 or later; `ray.user` is there, and not root unless that is wanted.
    """
    if not surroundings.has_ray:
        return skipped(surroundings.why_no_ray)
    try:
        found, user = surroundings.probes.interpreter(surroundings.config)
        RayCapabilities.for_version(found.ray_version)
    except EdgelinkError as error:
        return refused(error)
    figure = f"Python {found.python_version}, Ray {found.ray_version}"
    return ok(f"Ray's interpreter is {found.python}, run as {user.name}", figure)


def versions(surroundings: Surroundings) -> Finding:
    """Do Python, Ray and EdgeLink here go with the other nodes'?

    On an edge against the head's cluster; on the head each node that has told its versions.
    """
    if not surroundings.has_ray:
        return skipped(surroundings.why_no_ray)
    try:
        own = surroundings.probes.interpreter(surroundings.config)[0].versions
    except EdgelinkError:
        return skipped("the check `interpreter` says why there are none")
    refusals, told = [], []
    rows = surroundings.probes.nodes(surroundings.paths) if "head" in surroundings.roles else []
    for row in rows:
        found = row.get("versions") or {}
        if row.get("path") == "self" or not found:
            continue
        packages = {name: found[name] for name in own.packages or {} if name in found}
        of_node = Versions(found.get("ray"), found.get("python"), packages if found.get("ray") else None)
        differing = differences(of_node, own)
        refusals += [f"{row['hostname']}: {why}" for why in [refusal(differing)] if why]
        told += [f"{row['hostname']}: {why}" for why in warnings(differing)]
        if found.get("edgelink") not in (None, __version__):
            told.append(f"{row['hostname']}: EdgeLink {found['edgelink']}, here {__version__}")
    head = _cluster(surroundings)
    if not rows and head is not None:
        refusals += [
            why for why in [refusal(differences(own, Versions(head["ray_version"], head["python_version"])))] if why
        ]
    elif not rows:
        return skipped("the head has not told its versions yet")
    remedy = "install the head's versions into ray.python there; the node then joins by itself"
    if refusals:
        return failed(listed(refusals), remedy)
    if told:
        return limited(listed(told), "install the same versions on all nodes")
    return ok("versions agree with the other nodes'", f"Python {own.python}, Ray {own.ray}, EdgeLink {__version__}")


def daemon_current(surroundings: Surroundings) -> Finding:
    """Do the daemons run what is installed and configured now?

    A daemon reads its program when it starts, and its configuration then or at a reload.
    """
    if not surroundings.daemons:
        return skipped("no daemon runs here")
    old = [
        f"the {role_in_words(daemon['role'])}'s daemon runs EdgeLink {daemon['version']}, {__version__} is installed"
        for daemon in surroundings.daemons
        if daemon.get("version", __version__) != __version__
    ]
    changed_s = None
    with suppress(OSError):
        changed_s = surroundings.config_file.stat().st_mtime if surroundings.config_file else None
    for daemon in surroundings.daemons:
        who, started_s = role_in_words(daemon["role"]), _started_s(surroundings.paths, daemon["role"])
        if changed_s is not None and started_s is not None and started_s > _CLOCK_IS_SET_S and changed_s > started_s:
            old.append(f"{surroundings.config_file} was changed after the {who}'s daemon had read it")
    if old:
        return limited(
            listed(old),
            "restart the daemon, EasyTier and Ray go on meanwhile; for the configuration `systemctl reload` does",
        )
    return ok("the daemons run what is installed and configured", __version__)


def _started_s(paths: Paths, role: str) -> float | None:
    """When a daemon began to serve, in seconds since the epoch: a reload keeps the process, and makes a new socket."""
    try:
        return paths.socket_of(role).stat().st_mtime
    except OSError:
        return None


def _cluster(surroundings: Surroundings) -> dict[str, Any] | None:
    """What the head has said of its Ray."""
    return next((dict(daemon["cluster"]) for daemon in surroundings.daemons if daemon.get("cluster")), None)

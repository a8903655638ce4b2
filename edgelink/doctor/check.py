"""What a check is: it looks at its surroundings and answers, changes nothing, and needs nothing to run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from edgelink.config import Config, Paths
from edgelink.doctor.probes import Probes
from edgelink.errors import EdgelinkError
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Role
from edgelink.ray_cluster.no_ray import NO_RAY_IN_WORDS
from edgelink.wording import few, role_in_words

BOOTSTRAP = "bootstrap"


class Verdict(StrEnum):
    """``LIMITED``: it works, but holds less than it could here. ``SKIPPED``: there is nothing to judge."""

    OK = "ok"
    LIMITED = "limited"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """``figure``: the number behind the verdict, with its unit; ``remedy``: what to do, empty when nothing is to be."""

    verdict: Verdict
    message: str
    figure: str = ""
    remedy: str = ""


def ok(message: str, figure: str = "") -> Finding:
    return Finding(Verdict.OK, message, figure)


def limited(message: str, remedy: str, figure: str = "") -> Finding:
    return Finding(Verdict.LIMITED, message, figure, remedy)


def failed(message: str, remedy: str, figure: str = "") -> Finding:
    return Finding(Verdict.FAILED, message, figure, remedy)


def skipped(why: str, remedy: str = "", figure: str = "") -> Finding:
    return Finding(Verdict.SKIPPED, why, figure, remedy)


def refused(error: EdgelinkError) -> Finding:
    """``error`` as a finding: it has both the message and what to do."""
    return failed(error.message, error.hint or "the documentation's page on `edgelink doctor` explains each check")


NOT_ROOT = skipped("only root can look; run it with sudo")


@dataclass(frozen=True)
class Surroundings:
    """What the checks may look at. ``daemons``: the status of each that answers on this machine; ``silent``: what is
    to be said of each that does not, although its socket is there.

    ``root``: the machine's files; ``probes``: what is asked of the kernel, the network and programs; ``config_file``:
    where the configuration was read from, whether it is there or not.
    """

    config: Config
    paths: Paths
    environ: Mapping[str, str]
    daemons: Sequence[Mapping[str, Any]]
    proc_sys: Path
    root: Path
    probes: Probes = field(default_factory=Probes)
    config_file: Path | None = None
    silent: Sequence[str] = ()

    @property
    def ride_through_s(self) -> int:
        """As a node's daemon knows it from the head; else as configured here."""
        nodes = [daemon for daemon in self.daemons if daemon["role"] != BOOTSTRAP]
        known = [int(node["ride_through_s"]) for node in nodes if "ride_through_s" in node]
        return known[0] if known else self.config.ride_through_s

    @cached_property
    def roles(self) -> frozenset[str]:
        """``bootstrap``, ``head``, ``edge``: what this machine is, by its daemons, else by what it was enrolled as."""
        if self.daemons and not self.silent:
            return frozenset(str(daemon["role"]) for daemon in self.daemons)
        found = {BOOTSTRAP} if self.is_there(self.paths.authority_keys) else set()
        if (membership := self.membership) is not None:
            found |= {membership.lease.role.value} - {Role.RELAY.value}
            found |= {BOOTSTRAP} if membership.lease.is_relay else set()
        return frozenset(found | {str(daemon["role"]) for daemon in self.daemons})

    @property
    def is_relay(self) -> bool:
        return BOOTSTRAP in self.roles

    @property
    def has_broker(self) -> bool:
        """Whether Mosquitto belongs here: on the relay with the registry, and on no other one."""
        if self.daemons and not self.silent:
            return any("broker_pid" in daemon for daemon in self.daemons)
        return self.is_there(self.paths.authority_keys)

    @property
    def is_node(self) -> bool:
        """Whether this is head or edge; so a machine is taken to be of which nothing is known."""
        return not self.roles or bool(self.roles - {BOOTSTRAP})

    @property
    def has_ray(self) -> bool:
        """Whether a Ray belongs here: not on a relay, nor where the daemon or the configuration says `ray: off`."""
        is_off = any(daemon.get("has_ray") is False for daemon in self.daemons)
        return self.is_node and self.config.ray.enabled and not is_off

    @property
    def why_no_ray(self) -> str:
        """The reason, where no Ray belongs here."""
        return NO_RAY_IN_WORDS if self.is_node else "no Ray belongs on a relay"

    @cached_property
    def membership(self) -> Membership | None:
        """None where there is none, or it cannot be read."""
        with suppress(EdgelinkError):
            return Membership.load(self.paths)
        return None

    @property
    def peers(self) -> dict[str, str]:
        """The overlay addresses of the other nodes that this one has a way to, by hostname."""
        return {
            str(way["hostname"]): str(way["overlay_ip"]) for daemon in self.daemons for way in daemon.get("paths", ())
        }

    @cached_property
    def own_pids(self) -> dict[str, int]:
        """This node's long-lived processes by name, as far as they are known."""
        found: dict[str, int] = {}
        for daemon in self.daemons:
            for name, key in ((f"{role_in_words(daemon['role'])} daemon", "pid"), ("EasyTier", "easytier_pid")):
                if daemon.get(key):
                    found[name] = int(daemon[key])
            if daemon.get("broker_pid"):
                found["Mosquitto"] = int(daemon["broker_pid"])
        for file, name, part in (
            ("ray", "raylet", "raylet"),
            ("ray", "Ray's GCS", "gcs"),
            ("easytier", "EasyTier", ""),
        ):
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                record = json.loads((self.paths.processes / f"{file}.json").read_text())
                found.setdefault(name, int((record[part] if part else record)["pid"]))
        return {name: pid for name, pid in found.items() if self.is_there(self.proc / str(pid))}

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    def text(self, *parts: str) -> str:
        """Of one of the machine's files; empty where it cannot be read."""
        return text_of(self.root.joinpath(*parts))

    def number(self, name: str) -> int | None:
        """Of one of the kernel's settings, such as ``kernel/pid_max``; None where it has no such."""
        with suppress(ValueError):
            return int(text_of(self.proc_sys / name))
        return None

    @property
    def uplink(self) -> str | None:
        """The device of the default route with the lowest metric: it leads to the Internet."""
        rows = [line.split() for line in self.text("proc/net/route").splitlines()[1:]]
        default = [(int(row[6]), row[0]) for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"]
        return min(default)[1] if default else None

    @property
    def may_read_state(self) -> bool:
        """Whether the state directory is there for us to look into; it is root's."""
        return not self.is_there(self.paths.state) or os.access(self.paths.state, os.R_OK | os.X_OK)

    @staticmethod
    def is_there(path: Path) -> bool:
        """Whether something is there, as far as we may see."""
        try:
            return path.exists()
        except OSError:
            return False


class Check(Protocol):
    """One question. Its first docstring line says what is asked, the rest what is looked at and why."""

    __name__: str

    def __call__(self, surroundings: Surroundings, /) -> Finding:
        """Answer it; raises nothing but defects."""


def name_of(check: Check) -> str:
    """``tcp-resumes``: how people and scripts call it."""
    return check.__name__.replace("_", "-")


def text_of(path: Path) -> str:
    """What is in a file, without the spaces around it; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def listed(names: Sequence[object]) -> str:
    """Names for a finding, which is one line."""
    return few(names, most=4)

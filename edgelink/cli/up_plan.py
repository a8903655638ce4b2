"""Decide what ``edgelink up`` does, from what was typed and what is on the machine; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from pathlib import Path

from edgelink.config import Config
from edgelink.config.edit import Settings
from edgelink.errors import ConfigError, MissingDependencyError, UsageError
from edgelink.protocol.payloads import Lease, Role
from edgelink.ray_cluster.interpreter import Interpreter

_MAKE_ONE = (
    "name it: --python /path/to/bin/python; or make one: `python3 -m venv /opt/train` and "
    "`/opt/train/bin/pip install 'ray>=2.47'`, the same versions as on the head"
)


class Road(Enum):
    """The roads that ``edgelink up`` can take."""

    ASK = "ask for a token"
    JOIN = "join"
    NEW_NETWORK = "new network"
    MORE_RELAY = "one more relay"
    GO_ON = "go on"


@dataclass(frozen=True)
class Present:
    """The content of the state directory.

    Attributes:
        lease: this machine's own. None: it has none.
        holds_registry: the machine is a network's relay.
    """

    lease: Lease | None = None
    holds_registry: bool = False

    @property
    def is_node(self) -> bool:
        """Whether the machine is head or edge."""
        return self.lease is not None and self.lease.role is not Role.RELAY

    @property
    def is_relay(self) -> bool:
        return self.holds_registry or (self.lease is not None and self.lease.is_relay)


def choose_road(present: Present, *, relay: bool, has_token: bool, can_ask: bool) -> Road:
    """Return what to do.

    Args:
        relay: ``--relay`` was given.
        can_ask: a person sits at a terminal.

    Raises:
        UsageError: it is not said what this machine is to be, or it is something else already.
    """
    if relay and (present.is_node and not present.is_relay):
        assert present.lease is not None
        raise UsageError(
            f"this machine is {present.lease.hostname} ({present.lease.role.value}) in a network already",
            hint="make the relay on another machine; or take this one out of its network first: `edgelink leave`",
            reason="OtherRole",
        )
    if relay and has_token and present.holds_registry:
        raise UsageError(
            "this machine is the relay of a network of its own, and the token is for one more relay of a network",
            hint="`edgelink up --relay`, without a token, goes on with its own",
            reason="OtherRole",
        )
    if relay:
        if present.is_relay:
            return Road.GO_ON
        return Road.MORE_RELAY if has_token else Road.NEW_NETWORK
    if has_token:
        return Road.GO_ON if present.is_node else Road.JOIN
    if present.is_node or present.is_relay:
        return Road.GO_ON
    if can_ask:
        return Road.ASK
    raise UsageError(
        "this machine is in no network yet, and no token was given",
        hint="`edgelink up TOKEN`, `--token-file FILE` or `-` for stdin; `edgelink token create` on the relay makes "
        "one; `edgelink up --relay` makes this machine the relay of a new network",
        reason="TokenMissing",
    )


def choose_python(found: Sequence[Interpreter], own_programs: Path, *, can_ask: bool) -> Interpreter | None:
    """Return the one interpreter with Ray. None: there are several, and the person at the terminal chooses.

    Args:
        own_programs: the directory of EdgeLink's own interpreter, which counts only where no other one has Ray.

    Raises:
        MissingDependencyError: there is none.
        UsageError: there are several, and nobody can be asked.
    """
    found = [each for each in found if each.python.parent != own_programs] or found
    if not found:
        raise MissingDependencyError(
            "no Python with Ray was found on this machine", hint=_MAKE_ONE, reason="PythonNotFound"
        )
    if len(found) == 1:
        return found[0]
    if can_ask:
        return None
    raise UsageError(
        f"several Pythons have Ray: {', '.join(str(each.python) for each in found)}",
        hint="say which one your training uses: --python PATH",
        reason="PythonUnclear",
    )


def choose_user(asked: str | None, config: Config, owner: str, sudo_user: str, *, can_ask: bool) -> str | None:
    """Return the account that Ray is to run under. None: the person at the terminal names it.

    Args:
        owner: who can change the interpreter; empty where several users can.
        sudo_user: who has called sudo; empty where nobody has.

    Raises:
        ConfigError: it would be root, without the configuration's word for it.
        UsageError: nobody can be asked.
    """
    if "root" in (asked, config.ray.user) and not config.ray.allow_root:
        raise ConfigError(
            "Ray would run as root",
            hint="--user names the account whose training this is; `ray.allow_root: true` in edgelink.yaml accepts "
            "root",
            reason="RayAsRoot",
        )
    for name in (asked, config.ray.user, owner, sudo_user):
        if name and (name != "root" or config.ray.allow_root):
            return name
    if can_ask:
        return None
    raise UsageError(
        "it is not said under which account Ray is to run: the Python belongs to root, or to several users",
        hint="--user NAME, the account whose training this is",
        reason="UserUnclear",
    )


def choose_address(asked: Sequence[str], config: Config, guessed: str, *, can_ask: bool) -> tuple[str, ...]:
    """Return the addresses at which other machines dial this relay. Empty: the person at the terminal names one.

    Args:
        guessed: the address of the interface that leads out of this machine; empty where there is none.

    Raises:
        UsageError: only a private address is known, and nobody can be asked.
    """
    if asked or config.relay.advertise:
        return tuple(asked) or config.relay.advertise
    if guessed and ip_address(guessed).is_global:
        return (guessed,)
    if can_ask:
        return ()
    raise UsageError(
        f"other machines dial the relay at its public address, and this machine knows only {guessed or 'none'}",
        hint="--advertise HOST, its public address or DNS name",
        reason="AddressUnclear",
    )


def missing_from(config: Config, wanted: Settings) -> Settings:
    """Return what of ``wanted`` the configuration does not say yet."""
    present = config.model_dump(mode="json")
    changes = {
        section: {key: value for key, value in keys.items() if present[section][key] != value}
        for section, keys in wanted.items()
    }
    return {section: keys for section, keys in changes.items() if keys}

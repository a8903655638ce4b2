"""Make a machine a node or the relay. Each step can fail, and ``edgelink up`` can be called again after it."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from edgelink.cli import daemon, service_steps
from edgelink.cli.join import described
from edgelink.cli.layout import tell
from edgelink.cli.options import ask_token
from edgelink.cli.patience import waiting_for
from edgelink.cli.relay_request import ask_registry
from edgelink.cli.token import command_to_paste
from edgelink.cli.up_plan import (
    Present,
    Road,
    choose_address,
    choose_python,
    choose_road,
    choose_user,
    missing_from,
)
from edgelink.clock import SystemClock
from edgelink.config import Config, Paths, load_config
from edgelink.config.edit import Settings, Value, with_settings
from edgelink.config.load import override
from edgelink.config.paths import DEFAULT_CONFIG_FILE
from edgelink.errors import ConfigError, EasyTierNotFoundError, MissingDependencyError
from edgelink.files import not_recorded, write_atomic
from edgelink.member.enrolment import Enrolment
from edgelink.member.join import join, refuse_other_network
from edgelink.overlay.acquisition import CORE_VARIABLE, acquire, find_easytier
from edgelink.overlay.before_easytier import check_machine
from edgelink.protocol.membership import Membership
from edgelink.protocol.token import Token
from edgelink.ray_cluster.interpreter import SYSTEM_PATH, RayUser, inspect_interpreter, named_user, user_of
from edgelink.ray_cluster.pythons import candidates, find_pythons, owner_of
from edgelink.ray_cluster.ray_capabilities import RayCapabilities
from edgelink.relay.broker import find_mosquitto
from edgelink.relay.relay_addresses import outgoing_address, relay_addresses
from edgelink.service.installation import roles_of
from edgelink.service.look import main_pid

_INVITED_S = 3600.0
_HEADER = "# EdgeLink's configuration of this machine. The documentation's page Configuration explains every key.\n"


@dataclass(frozen=True)
class Wishes:
    """The options that were typed. ``can_ask``: a person sits at the terminal."""

    token: str | None = None
    relay: bool = False
    advertise: tuple[str, ...] = ()
    python: Path | None = None
    user: str | None = None
    no_ray: bool = False
    hostname: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    config_path: Path | None = None
    can_ask: bool = False


def bring_up(wishes: Wishes, timeout_s: float) -> None:
    """Do what is still to be done, and return when this machine is Ready.

    Raises:
        UsageError, ConfigError, TokenError, MissingDependencyError: refused, and nothing was changed.
        EasyTierNotFoundError: it could not be fetched; nothing was changed.
        RegistryError: the relay refused, or does not answer. The configuration is written.
        ServiceError, DeadlineError: the service did not start, or is not Ready yet.
    """
    _refuse_contradictions(wishes)
    token = None if wishes.token is None else Token.parse(wishes.token)
    paths = Paths.from_environment()
    membership = Membership.load(paths)
    present = Present(membership.lease if membership else None, paths.registry_database.exists())
    road = choose_road(present, relay=wishes.relay, has_token=token is not None, can_ask=wishes.can_ask)
    service_steps.require_root()
    machine = service_steps.require_systemd()
    service_steps.require_the_machines_own_node()
    config_file, config = _configuration(wishes.config_path)
    if road is Road.ASK:
        token, road = Token.parse(ask_token()), Road.JOIN
    if token is not None:
        refuse_other_network(membership, token, paths)
    enrols = token is not None and road is not Road.GO_ON
    hostname = daemon.own_hostname(wishes.hostname, config) if enrols else ""
    will_be = ["bootstrap"] if wishes.relay else roles_of(paths) if road is Road.GO_ON else ["head", "edge"]
    service_steps.require_startable(machine, will_be)

    os.environ["PATH"] = SYSTEM_PATH  # what the service finds; the caller's may lead to other programs
    _require_programs(config, has_registry=road is Road.NEW_NETWORK or present.holds_registry)
    wanted: dict[str, Mapping[str, Value]] = {}
    if wishes.relay or wishes.advertise:
        wanted |= _settle_addresses(wishes, config, is_new=road is not Road.GO_ON)
    if not wishes.relay and (present.is_node or road is Road.JOIN):
        wanted |= _settle_ray(wishes, config)
    if config.overlay.kind == "easytier":
        wanted |= _get_easytier(config)
    changes = missing_from(config, wanted)
    if changes:
        _write(config_file, changes)
        config = load_config(config_file, {})

    if token is not None and enrols:
        relay = relay_addresses(config, config.relay.advertise) if road is Road.MORE_RELAY else None
        enrolment = Enrolment(token, hostname, dict(wishes.labels), relay)
        with waiting_for(f"asking the relay at {', '.join(token.addresses)} for this machine's place"):
            lease = asyncio.run(join(enrolment, config, paths, SystemClock()))
        tell(f"joined as {described(lease)}")
    elif token is not None and membership is not None:
        tell(f"joined already as {described(membership.lease)}; the token was not used")
    role = "bootstrap" if wishes.relay else None
    roles, steps = service_steps.installing(machine, role, wishes.config_path, force=False)
    service_steps.apply(steps, machine, roles)
    is_running = all(main_pid(machine, each) for each in roles)
    service_steps.start(machine, roles, timeout_s, "start" if is_running and not steps and not changes else "restart")
    _say_what_is_next(roles)


def _refuse_contradictions(wishes: Wishes) -> None:
    if wishes.relay and (wishes.python or wishes.user or wishes.no_ray):
        raise click.UsageError("--python, --user and --no-ray are for head and edges: the relay runs no Ray")
    if wishes.no_ray and wishes.python:
        raise click.UsageError("--python names the interpreter that has Ray, and --no-ray says that none does")
    if wishes.relay and wishes.token is None and (wishes.hostname or wishes.labels):
        raise click.UsageError("--hostname and --label go with a token: edgelink.yaml names the relay of a new network")
    if wishes.advertise and not wishes.relay:
        raise click.UsageError("--advertise goes with --relay")


def _configuration(named: Path | None) -> tuple[Path, Config]:
    """The file, and what is in it. The service has none of the caller's variables, so they count for nothing."""
    variable = os.environ.get("EDGELINK_CONFIG")
    chosen = named or (Path(variable) if variable else None)
    return (chosen or DEFAULT_CONFIG_FILE).absolute(), load_config(chosen, {})


def _require_programs(config: Config, *, has_registry: bool) -> None:
    """Raises MissingDependencyError for the first program or right that the daemon would miss."""
    if config.overlay.kind == "easytier":
        check_machine()
    if config.firewall.enabled and shutil.which("nft") is None:
        raise MissingDependencyError("nftables is not installed", hint="apt-get install nftables")
    if has_registry:
        find_mosquitto()


def _settle_addresses(wishes: Wishes, config: Config, *, is_new: bool) -> Settings:
    """The addresses at which the relay is dialled. One that runs keeps those it has, unless others are named."""
    if not is_new and not wishes.advertise:
        return {}
    try:
        guessed = outgoing_address()
    except ConfigError:
        guessed = ""
    hosts = choose_address(wishes.advertise, config, guessed, can_ask=wishes.can_ask)
    if not hosts:
        hosts = (click.prompt("public address or DNS name of this relay, which other machines dial", err=True),)
    elif hosts == (guessed,) and not wishes.advertise:
        tell(f"other machines dial this relay at {guessed}; --advertise names another address", err=True)
    wanted: Settings = {"relay": {"advertise": list(hosts)}}
    checked = override(config, wanted)
    relay_addresses(checked, checked.relay.advertise)
    return wanted


def _settle_ray(wishes: Wishes, config: Config) -> Settings:
    """The interpreter and the account of this machine's Ray, tried together; without Ray the account alone."""
    caller = os.environ.get("SUDO_USER", "")
    if wishes.no_ray or not config.ray.enabled:
        programs_user = wishes.user or config.ray.user or ("" if caller == "root" else caller)
        account = _account("--user" if wishes.user else "ray.user", programs_user)
        return {"ray": {"enabled": False, **({} if account is None else {"user": account.name})}}
    person = _account("SUDO_USER", "" if caller == "root" else caller)
    named = _account("--user", wishes.user) or _account("ray.user", config.ray.user)
    python = wishes.python or config.ray.python or _find_python(wishes, named, person)
    owner = _owner(python)
    user = choose_user(wishes.user, config, owner, person.name if person and owner else "", can_ask=wishes.can_ask)
    if user is None:
        user = str(click.prompt("account that Ray is to run under", err=True))
    account = named_user("--user", user)
    if account.uid == 0 and owner != "root":
        raise ConfigError(
            f"{python}: root would run it, and {owner or 'other users'} can change it",
            hint="--user names whose training this is",
            reason="RayAsRoot",
        )
    with waiting_for(f"asking {python} for Ray"):
        found = asyncio.run(inspect_interpreter(python, asker=account))
    RayCapabilities.for_version(found.ray_version)
    tell(f"found Ray {found.ray_version} in {python} (Python {found.python_version}); it runs as {user}")
    return {"ray": {"python": str(python), "user": user}}


def _account(source: str, name: str | None) -> RayUser | None:
    return named_user(source, name) if name else None


def _find_python(wishes: Wishes, named: RayUser | None, person: RayUser | None) -> Path:
    homes = [each.home for each in (named, person) if each is not None] or sorted(Path("/home").glob("*"))
    with waiting_for("asking the Pythons of this machine for Ray"):
        found = asyncio.run(find_pythons(candidates(homes), named or person))
    if (only := choose_python(found, Path(sys.prefix, "bin"), can_ask=wishes.can_ask)) is not None:
        return only.python
    for number, each in enumerate(found, 1):
        owner = user_of(each.owner_uid).name
        click.echo(
            f"{number}: {each.python}  Ray {each.ray_version}, Python {each.python_version}, {owner}'s", err=True
        )
    number = click.prompt("which one does your training use", type=click.IntRange(1, len(found)), err=True)
    return found[number - 1].python


def _owner(python: Path) -> str:
    """Return the name of the user who can change an interpreter. It is empty where several can."""
    try:
        uid = owner_of(python)
    except OSError as error:
        raise ConfigError(
            f"--python {python}: {error.strerror}",
            hint="name the interpreter that has Ray, such as /opt/train/bin/python",
        ) from error
    return "" if uid is None else user_of(uid).name


def _get_easytier(config: Config) -> Settings:
    """Fetch EasyTier where there is none. Return the settings by which the service finds it, too."""
    cache = Path(pwd.getpwuid(0).pw_dir, ".cache/edgelink")  # the service's, whatever HOME sudo has kept
    named = os.environ.get(CORE_VARIABLE)
    try:
        find_easytier(config.overlay.easytier_core, cache)
    except EasyTierNotFoundError:
        if config.overlay.easytier_core or named:
            raise
        with waiting_for("downloading EasyTier"):
            acquire(cache)
    return {"overlay": {"easytier_core": named}} if named and config.overlay.easytier_core is None else {}


def _write(path: Path, changes: Settings) -> None:
    path = path.resolve()
    try:
        before, status = path.read_text(), path.stat()
        mode, uid, gid = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
    except FileNotFoundError:
        before, mode, uid, gid = _HEADER, 0o644, -1, -1
    text = with_settings(before, changes, str(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_recorded(path.parent, error) from error
    write_atomic(path, text, mode=mode, uid=uid, gid=gid)
    keys = ", ".join(f"{section}.{key}" for section, wanted in changes.items() for key in wanted)
    tell(f"wrote {keys} to {path}")


def _say_what_is_next(roles: list[str]) -> None:
    if "bootstrap" in roles:
        _invite()
    if "head" in roles:
        tell("next: join the robots, each with a token of its own (on the relay: `edgelink token create`)")
        click.echo("`edgelink nodes` shows them, `edgelink run -- CMD` trains on them")
    elif "edge" in roles:
        tell("next: nothing here; `edgelink status` shows this machine, `edgelink nodes` on the head all of them")


def _invite() -> None:
    """Print the commands with which others join. A token is printed only to a person, never into a log."""
    if not sys.stdout.isatty():
        click.echo(
            "next: `edgelink token create --role head` makes the token with which the head joins, --role edge a robot's"
        )
        return
    has_head = any(lease["role"] == "head" for lease in ask_registry("GET", "/leases")["leases"])
    invited = (() if has_head else (("head", "the head, the machine with the GPUs"),)) + (("edge", "a robot"),)
    for role, who in invited:
        answer = ask_registry("POST", "/tokens", {"role": role, "ttl_s": _INVITED_S, "uses": 1})
        click.echo(f"\nnext, on {who}, within the hour:\n\n{command_to_paste(answer)}")
    click.echo("\nfor each further machine: `edgelink token create --role edge`")

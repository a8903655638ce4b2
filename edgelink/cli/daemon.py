"""What the verbs that run a daemon share."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import click

from edgelink import __version__, log
from edgelink.cli.foreground import Steps
from edgelink.cli.layout import say
from edgelink.config import Config, Paths, load_config
from edgelink.config.models import hostname_like, is_hostname
from edgelink.errors import ConfigError, MissingDependencyError
from edgelink.member.enrolment import Enrolment
from edgelink.protocol.token import Token
from edgelink.wording import role_in_words


def prepare(config_path: Path | None, *, verbose: bool) -> tuple[Config, Paths]:
    """Logging, configuration and directories of a daemon; refuses what cannot work before anything starts.

    A person at a terminal sees the steps of the start, and the log goes into a file. ``verbose`` shows the log there.
    """
    is_for_people = sys.stderr.isatty() and not verbose
    paths, role = Paths.from_environment(), role_in_words(click.get_current_context().info_name or "")
    if is_for_people:
        log.configure(renderer=Steps(sys.stderr), file=paths.daemon_log(role))
    else:
        log.configure(verbose=verbose)
    if config_path is not None:  # whoever reads it again means the same file
        os.environ["EDGELINK_CONFIG"] = str(config_path.absolute())
    config = load_config(config_path)
    require_network_administrator(config)
    if is_for_people:
        click.echo(f"EdgeLink {__version__} starts the {role}. Ctrl+C stops it", err=True)
    return config, paths


def require_network_administrator(config: Config) -> None:
    """Raises MissingDependencyError when this process may not make network devices."""
    if os.geteuid() == 0 or config.overlay.kind == "existing":
        return
    raise MissingDependencyError(
        "EdgeLink's daemons need root (or NET_ADMIN and /dev/net/tun) to make the overlay device",
        hint="run it as root (sudo)",
        reason="NotPrivileged",
    )


def own_hostname(asked: str | None, config: Config) -> str:
    """Return the name that this machine asks for: ``--hostname``, ``hostname:`` in the configuration, else the OS's.

    The OS's is made fit, which people are told; what somebody chose is not changed.

    Raises:
        ConfigError: it cannot be a hostname in the network.
    """
    hostname = asked or config.hostname
    if not hostname:
        of_os = socket.gethostname().split(".")[0].lower()
        hostname = hostname_like(of_os) or of_os
        if hostname != of_os:
            say(f"no node can be called {of_os!r} as this machine is: it asks for {hostname!r}")
    if not is_hostname(hostname):
        raise ConfigError(
            f"{hostname!r} cannot be this machine's name in the network",
            hint="give another by --hostname: 1 to 32 lower-case letters, digits and, inside, dashes",
        )
    return hostname


def enrolment(
    text: str | None, hostname: str | None, labels: tuple[tuple[str, str], ...], config: Config
) -> Enrolment | None:
    """The enrolment that a token's text asks for; None without one. Raises TokenError."""
    if text is None:
        return None
    return Enrolment(Token.parse(text), own_hostname(hostname, config), dict(labels))

"""``edgelink config``: whether the configuration can be used on this machine, and what is in effect."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import click
import yaml

from edgelink.cli.layout import tell
from edgelink.cli.options import FILE, Group, json_option
from edgelink.config import Config, Paths, load_config
from edgelink.config.paths import DEFAULT_CONFIG_FILE
from edgelink.errors import ConfigError

_file = click.argument("file", required=False, type=FILE)


@click.group("config", cls=Group)
def command() -> None:
    """Check the configuration, and show what is in effect."""


@command.command("check")
@_file
def check(*, file: Path | None) -> None:
    """Check whether a daemon can use the configuration as it is now.

    FILE is EDGELINK_CONFIG by default, then /etc/edgelink/edgelink.yaml. Users, programs and addresses that it names
    are looked for on this machine, and Ray in ray.python. Exit status 78: a daemon cannot use it; each mistake is told
    by its key.
    """
    config = usable(file)
    ray = _ray_in_words(config)
    tell(f"{_source(file)}: ok{f'; {ray}' if ray else ''}")


@command.command("show")
@_file
@json_option
def show(*, file: Path | None, as_json: bool) -> None:
    """Show the configuration in effect: FILE, variables and defaults.

    FILE is EDGELINK_CONFIG by default, then /etc/edgelink/edgelink.yaml. Secrets are masked. A daemon of systemd's does
    not see the variables of this shell.
    """
    from edgelink.telemetry.report import mask

    text = mask(load_config(file).model_dump_json(indent=2))
    if as_json:
        click.echo(text)
        return
    click.echo(f"# {_source(file)}")
    click.echo(yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True), nl=False)


def usable(file: Path | None) -> Config:
    """Return the configuration. Raises ConfigError where this machine's daemon cannot use it, naming all mistakes."""
    from edgelink.daemon.usable import require_usable
    from edgelink.process.service_manager import ServiceManager

    config = load_config(file)
    require_usable(config, Paths.from_environment(), ServiceManager.of_this_process())
    return config


def _ray_in_words(config: Config) -> str:
    """Which Ray ``ray.python`` has. Raises ConfigError, MissingDependencyError: none that can be used."""
    from edgelink.ray_cluster.interpreter import inspect_interpreter, named_asker
    from edgelink.ray_cluster.no_ray import NO_RAY_IN_WORDS
    from edgelink.ray_cluster.pythons import NOBODY_UID, asker_of
    from edgelink.ray_cluster.ray_capabilities import RayCapabilities

    if not config.ray.enabled:
        return NO_RAY_IN_WORDS
    python, user = config.ray.python, named_asker(config.ray)
    if python is None:
        return ""
    asker = asker_of(python, None if user is None or user.uid == 0 else user)
    if asker is None:
        return f"ray.python {python} was not asked for Ray, because several users can change it"
    try:
        found = asyncio.run(inspect_interpreter(python, asker=asker))
    except ConfigError as error:
        is_shut = asker.uid == NOBODY_UID and isinstance(error.__cause__, PermissionError)
        if not (is_shut and config.ray.allow_root):  # else Ray itself runs as root, who may
            raise
        return f"ray.python {python} was not asked for Ray, because only root may run it"
    capabilities = RayCapabilities.for_version(found.ray_version)
    if config.ray.gcs_store:
        capabilities.require_gcs_store()
    return f"Ray {found.ray_version} in {python} (Python {found.python_version})"


def _source(file: Path | None) -> str:
    """The file, and the variables that count more than what it says."""
    sections = tuple(f"EDGELINK_{name.upper()}" for name in Config.model_fields)
    names = [each for each in sorted(os.environ) if each.partition("__")[0] in sections]
    path = file or Path(os.environ.get("EDGELINK_CONFIG") or DEFAULT_CONFIG_FILE)
    return ", ".join([str(path) if path.exists() else f"{path} (absent)", *names])

"""``edgelink version``."""

from __future__ import annotations

import json
from typing import Any

import click

from edgelink import __version__
from edgelink.cli.options import json_option


@click.command("version")
@json_option
def command(*, as_json: bool) -> None:
    """Print EdgeLink's version; with --json also those of all it stands on, and of what it reads and writes.

    Works without a daemon and without a configuration, asks nobody over the network and changes nothing.
    """
    click.echo(json.dumps(_found(), indent=2) if as_json else __version__)


def _found() -> dict[str, Any]:
    import platform
    import sys

    from edgelink.api.json_version import VERSION
    from edgelink.protocol.payloads import PROTOCOL_VERSION
    from edgelink.relay.database import SCHEMA_VERSION

    return {
        "schema": VERSION,
        "edgelink": __version__,
        "python": platform.python_version(),
        "interpreter": sys.executable,
        "platform": f"{sys.platform}-{platform.machine()}",
        "protocol": PROTOCOL_VERSION,
        "registry_schema": SCHEMA_VERSION,
        **_configured(),
    }


def _configured() -> dict[str, Any]:
    """What the configuration decides; each that cannot be told is null, and why is in ``problems``."""
    import asyncio

    from edgelink.cli.patience import waiting_for
    from edgelink.config import Config, load_config
    from edgelink.errors import EdgelinkError
    from edgelink.overlay.acquisition import default_cache_dir, find_easytier
    from edgelink.ray_cluster.interpreter import inspect_interpreter, named_asker
    from edgelink.ray_cluster.no_ray import NO_RAY_IN_WORDS

    problems: dict[str, str] = {}
    easytier = ray = None
    try:
        config = load_config(None)
    except EdgelinkError as error:
        problems["config"], config = str(error), Config()
    try:
        binary = find_easytier(config.overlay.easytier_core, default_cache_dir())
        easytier = {"version": binary.full_version, "core": str(binary.core)}
    except EdgelinkError as error:
        problems["easytier"] = str(error)
    if not config.ray.enabled:
        problems["ray"] = NO_RAY_IN_WORDS
        return {"easytier": easytier, "ray": None, "problems": problems}
    try:
        with waiting_for(f"asking {config.ray.python or 'python3'} for Ray"):
            found = asyncio.run(inspect_interpreter(config.ray.python, asker=named_asker(config.ray)))
        ray = {
            "version": found.ray_version,
            "python": found.python_version,
            "interpreter": str(found.python),
            "packages": dict(found.packages),
        }
    except EdgelinkError as error:
        problems["ray"] = str(error)
    return {"easytier": easytier, "ray": ray, "problems": problems}

"""Whether a configuration can be used on this machine, as far as its models cannot know.

For who asks, or is about to give up a daemon that works. A start finds these out where it comes to need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path

from edgelink.config import Config, Paths
from edgelink.errors import ConfigError, RegistryError
from edgelink.process.service_manager import ServiceManager
from edgelink.process.systemd_launcher import require_launcher
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Role
from edgelink.ray_cluster.interpreter import named_user
from edgelink.relay.allocator import check_ranges
from edgelink.relay.backup import has_registry
from edgelink.relay.relay_addresses import relay_addresses, require_own_overlay


def require_usable(config: Config, paths: Paths, manager: ServiceManager | None) -> None:
    """Whether a daemon of this machine would accept ``config``.

    Args:
        manager: what runs the daemon, where that is known.

    Raises:
        ConfigError: naming all mistakes.
    """
    mistakes: list[ConfigError] = []
    for check in _checks(config, paths, manager):
        try:
            check()
        except ConfigError as error:
            mistakes.append(error)
    if mistakes:
        hints = dict.fromkeys(error.hint for error in mistakes if error.hint)
        raise ConfigError("; ".join(error.message for error in mistakes), hint="; ".join(hints))


def _checks(config: Config, paths: Paths, manager: ServiceManager | None) -> Iterator[Callable[[], None]]:
    yield partial(require_launcher, config.process.launcher, manager)
    core = config.overlay.easytier_core
    if config.overlay.kind == "easytier" and not isinstance(core, str):
        yield partial(_require_file, "overlay.easytier_core", core)
    try:
        membership, holds_registry = Membership.load(paths), has_registry(paths)
    except (RegistryError, PermissionError):
        return  # damaged, or not ours to see: which of the settings matter here is not known
    lease = membership.lease if membership is not None else None
    if config.ray.enabled and (lease is None or lease.role is not Role.RELAY):
        yield partial(_require_user, "ray.user", config.ray.user)
        yield partial(_require_file, "ray.python", config.ray.python)
    if lease is not None and lease.is_relay and not holds_registry:
        yield partial(require_own_overlay, config)
    if holds_registry and lease is not None:
        yield partial(_require_ranges, config, lease.cidr)  # what the registry has, whatever relay.cidr says by now
    elif lease is None and not holds_registry:
        yield partial(_require_ranges, config, config.relay.cidr)
    if config.relay.advertise and (lease is None or lease.is_relay):
        yield partial(_require_addresses, config)
    if config.robot.hold:
        yield partial(_require_user, "robot.user", config.robot.user)


def _require_file(key: str, path: Path | None) -> None:
    try:
        if path is not None:
            path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last of a path that cannot be one
        raise ConfigError(f"{key}: there is no {path} on this machine") from None
    except OSError:
        pass  # not ours to see


def _require_user(key: str, name: str | None) -> None:
    if name is not None:
        named_user(key, name)


def _require_ranges(config: Config, cidr: IPv4Network) -> None:
    check_ranges({Role(name): pair for name, pair in (config.relay.ranges or {}).items()}, cidr)


def _require_addresses(config: Config) -> None:
    relay_addresses(config, config.relay.advertise)

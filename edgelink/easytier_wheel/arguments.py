"""The command line and the file of ``easytier-core``, put together into one configuration of the module's; pure."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LISTENERS = ("tcp://0.0.0.0:11010", "udp://0.0.0.0:11010")  # of who starts it without a file and names none
# Flags of the command line, and the key under [flags] that each of them sets.
_VALUES = {"--dev-name": "dev_name", "--relay-network-whitelist": "relay_network_whitelist"}
_SWITCHES = {
    "--private-mode": "private_mode",
    "--disable-p2p": "disable_p2p",
    "--disable-udp-hole-punching": "disable_udp_hole_punching",
    "--latency-first": "latency_first",
    "--multi-thread": "multi_thread",
    "--no-tun": "no_tun",
    "--enable-kcp-proxy": "enable_kcp_proxy",
    "--enable-quic-proxy": "enable_quic_proxy",
    "--disable-kcp-input": "disable_kcp_input",
    "--disable-quic-input": "disable_quic_input",
    "--bind-device": "bind_device",
}
_NEGATED_SWITCHES = {"--disable-ipv6": "enable_ipv6", "--disable-encryption": "enable_encryption"}


@dataclass(frozen=True)
class Arguments:
    """What ``easytier-core`` was started with: its file, where its RPC listens, and what the other flags say."""

    config_file: str | None
    rpc_portal: str | None
    settings: Mapping[str, Any]
    peers: tuple[str, ...]
    listeners: tuple[str, ...] | None

    def config(self, text: str) -> dict[str, Any]:
        """The file's configuration (``text``) with the command line's in its place.

        Raises:
            ValueError: ``text`` is no TOML. Its message holds nothing of the text, which has the network's secret.
        """
        try:
            config = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            raise ValueError("the configuration is no TOML") from None
        config.pop("rpc_portal", None)  # as since 2.5.0: only the command line says where RPC listens
        for key, value in self.settings.items():
            config[key] = {**config.get(key, {}), **value} if isinstance(value, Mapping) else value
        if self.peers:
            config["peer"] = [*config.get("peer", []), *({"uri": uri} for uri in self.peers)]
        if self.listeners is not None:
            config["listeners"] = list(self.listeners)
        elif self.config_file is None:
            config["listeners"] = list(_LISTENERS)
        return config


def parse(words: Sequence[str], version: str) -> Arguments:
    """Read the command line; SystemExit 2 for a flag that is not known, as EasyTier does."""
    parser = argparse.ArgumentParser("easytier-core", allow_abbrev=False)
    parser.add_argument("-V", "--version", action="version", version=version)
    parser.add_argument("-c", "--config-file", help="TOML; the flags below win over it")
    parser.add_argument("-r", "--rpc-portal", help="where easytier-cli is answered, as 127.0.0.1:15888")
    parser.add_argument("--disable-env-parsing", action="store_true", help="nothing is expanded in the file anyway")
    for name in ("--hostname", "--instance-name"):
        parser.add_argument(name)
    parser.add_argument("-i", "--ipv4")
    parser.add_argument("--network-name")
    parser.add_argument("--network-secret")
    parser.add_argument("-p", "--peers", action="append", default=[])
    parser.add_argument("-l", "--listeners", action="append", help="a URL, or a port for tcp and udp")
    parser.add_argument("--no-listener", action="store_true")
    parser.add_argument("--mtu", type=int)
    for name in _VALUES:
        parser.add_argument(name)
    for name in (*_SWITCHES, *_NEGATED_SWITCHES):
        parser.add_argument(name, nargs="?", const=True, type=_boolean)
    found = vars(parser.parse_args(words))

    def given(flags: Mapping[str, str]) -> dict[str, Any]:
        values = {key: found[flag.lstrip("-").replace("-", "_")] for flag, key in flags.items()}
        return {key: value for key, value in values.items() if value is not None}

    flags = given({**_VALUES, **_SWITCHES, "--mtu": "mtu"})
    flags |= {key: not value for key, value in given(_NEGATED_SWITCHES).items()}
    identity = given({"--network-name": "network_name", "--network-secret": "network_secret"})
    settings = given({"--hostname": "hostname", "--instance-name": "instance_name", "--ipv4": "ipv4"})
    settings |= {"network_identity": identity} if identity else {}
    settings |= {"flags": flags} if flags else {}
    return Arguments(
        config_file=found["config_file"],
        rpc_portal=found["rpc_portal"],
        settings=settings,
        peers=tuple(found["peers"]),
        listeners=() if found["no_listener"] else _listeners(found["listeners"]),
    )


def _listeners(words: Sequence[str] | None) -> tuple[str, ...] | None:
    if words is None:
        return None
    return tuple(
        url
        for word in words
        for url in ((word,) if "://" in word else (f"tcp://0.0.0.0:{word}", f"udp://0.0.0.0:{word}"))
    )


def _boolean(word: str) -> bool:
    if word not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{word!r} is neither true nor false")
    return word == "true"

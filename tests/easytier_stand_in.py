"""Stands in for easytier-core and easytier-cli, 2.6.0 and later: the traps for a supervisor, nothing of the network.

What it plays is in docs/reference/easytier.md. "read": known from the tagged sources of the versions; "run": seen on a
real one. ``install`` makes two programs of this file.
It imports nothing but the standard library, and little of that: it is started hundreds of times.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import sys
import time
from pathlib import Path

VERSION: tuple[int, ...] = (0, 0, 0)
FAULT = ""

# read: the keys of the file that 2.6.0 reads, and those that came later.
TOP = {
    "instance_name",
    "instance_id",
    "hostname",
    "ipv4",
    "dhcp",
    "listeners",
    "stun_servers",
    "stun_servers_v6",
    "network_identity",
    "peer",
    "flags",
}
FLAGS = {
    "dev_name",
    "mtu",
    "latency_first",
    "enable_ipv6",
    "disable_p2p",
    "disable_udp_hole_punching",
    "disable_sym_hole_punching",
    "disable_tcp_hole_punching",
    "relay_all_peer_rpc",
    "relay_network_whitelist",
    "multi_thread",
    "bind_device",
    "private_mode",
    "disable_kcp_input",
    "disable_quic_input",
}
LATER_FLAGS = {"disable_upnp": (2, 6, 2)}


def install(directory: Path, version: str, fault: str = "", *, cli_version: str | None = None) -> Path:
    """Both programs of ``version`` in ``directory``; the path of the core."""
    for name, main, numbers in (("easytier-core", "core", version), ("easytier-cli", "cli", cli_version or version)):
        program = directory / name
        # Asked for its version it imports nothing at all: most starts are for that.
        program.write_text(
            f"#!{sys.executable} -IS\nimport sys\n"
            f"if {main!r} == 'core' and sys.argv[1:] == ['--version']:\n"
            f"    print({said_version(tuple(map(int, numbers.split('.'))))!r})\n    raise SystemExit\n"
            f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            "import easytier_stand_in as program\n"
            f"program.VERSION = {tuple(map(int, numbers.split('.')))}\nprogram.FAULT = {fault!r}\n"
            f"program.{main}(sys.argv[1:])\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return directory / "easytier-core"


def said_version(version: tuple[int, ...]) -> str:
    """read and run: releases append a hash."""
    return "easytier-core " + ".".join(map(str, version)) + "-8428a89d"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# -- easytier-core


def core(words: list[str]) -> None:
    path, rpc, expand = None, None, True
    while words:
        word = words.pop(0)
        if word == "-c":
            path = words.pop(0)
        elif word == "-r":
            rpc = words.pop(0)
        elif word == "--disable-env-parsing":
            expand = False
        else:
            raise SystemExit(2)  # read: an unknown flag
    import tomllib

    assert path is not None
    text = Path(path).read_text()
    if expand:  # read and run: silently
        text = re.sub(r"\$(\w+)", lambda found: os.environ.get(found[1], found[0]), text)
    if FAULT == "bad toml":
        text += "\n["
    try:
        config = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:  # read and run: the whole file, secret and all, on stderr
        Path("easytier-panic.log").write_text(text)  # read
        sys.stderr.write(f"error: {error}: {text}\n")
        raise SystemExit(1) from error
    serve(config, rpc)


def serve(config: dict, rpc: str | None) -> None:  # type: ignore[type-arg]
    identity = config["network_identity"]
    # read and run: ET_… overrides the file
    identity["network_secret"] = os.environ.get("ET_NETWORK_SECRET", identity["network_secret"])
    config["hostname"] = os.environ.get("ET_HOSTNAME", config["hostname"])
    if not os.environ.get("RUST_LOG"):  # read and run: the banner has the secret
        say(f"############### TOML ###############\nnetwork_secret = {json.dumps(identity['network_secret'])}")
    if FAULT == "no tun":  # run
        sys.stderr.write("rust tun error Operation not permitted (os error 1)\n")
        raise SystemExit(1)
    host, _, port = (rpc or "0.0.0.0:15888").rpartition(":")  # read and run: without -r it is everybody's
    server = socket.create_server((host or "0.0.0.0", int(port)))
    flags = config.get("flags", {})
    known_flags = FLAGS | {key for key, since in LATER_FLAGS.items() if since <= VERSION}
    ignored = sorted({*config} - TOP) + [f"flags.{key}" for key in sorted({*flags} - known_flags)]
    if ignored and VERSION > (2, 6, 4):  # run: 2.6.4 ignores them without a word, what came after it does not
        raise SystemExit(f"Error: unknown {ignored}")
    told = {
        "secret": identity["network_secret"],
        "hostname": config["hostname"][:32],  # read
        # run: an absent key opens the 11010 set, or nothing, by what else is set.
        "listeners": config.get("listeners", ["tcp://0.0.0.0:11010", "udp://0.0.0.0:11010"]),
        "ignored": ignored,
        "arguments": sys.argv[1:],
    }
    event("tun device ready", dev=flags.get("dev_name"))
    if FAULT == "ignores SIGTERM":  # read: as process 1 of a container
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:  # run: ends with 0
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    Path("effective.json.new").write_text(json.dumps(told))
    Path("effective.json.new").rename("effective.json")
    while True:
        connection, _ = server.accept()
        with connection:
            connection.sendall(json.dumps({"version": VERSION, "config": config}).encode())


def event(words: str, **values: object) -> None:
    """read and run: RUST_LOG can take them away."""
    if not os.environ.get("RUST_LOG") or "CORE::INSTANCE=info" in os.environ["RUST_LOG"]:
        told = " ".join(f'{key}="{value}"' for key, value in values.items())
        say(f"{time.strftime('%Y-%m-%dT%H:%M:%S')}.639586977Z  INFO CORE::INSTANCE: [0b0e] {words} {told}")


# -- easytier-cli


def cli(words: list[str]) -> None:
    host, _, port = words[words.index("-p") + 1].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 2) as connection, connection.makefile() as file:
            answer = json.load(file)
    except OSError as error:  # run
        sys.stderr.write(f"failed to get manage client … {error.strerror}\n")
        raise SystemExit(1) from error
    if answer["version"] != list(VERSION):  # run, with versions that lie further apart: methods are counted
        sys.stderr.write("Error: Invalid method index: 7\n")
        raise SystemExit(1)
    if FAULT == "no instance":  # read: before its instance runs
        sys.stderr.write("Error: no running instances found\n")
        raise SystemExit(1)
    own, ip = answer["config"]["hostname"], answer["config"]["ipv4"].partition("/")[0]
    rows = [
        {"cidr": f"{ip}/24", "ipv4": ip, "hostname": own, "cost": "Local", "lat_ms": "-", "loss_rate": "-"},
        {"cidr": "", "ipv4": "", "hostname": "relay", "cost": "p2p", "lat_ms": "1.22", "loss_rate": "0.0%"},
    ]
    for row in rows:
        row |= {"rx_bytes": "1.93 kB", "tunnel_proto": "udp,tcp", "nat_type": "Unknown", "id": "4043431569"}
    if FAULT == "several instances":  # read
        say(json.dumps([{"instance_id": "0b0e", "instance_name": own, "result": rows}]))
    else:
        say(json.dumps(rows))

"""Stands in for easytier-core and easytier-cli of any version: the traps for a supervisor, nothing of the network.

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

# read: keys of the file and the version that reads them first, and the one from which on it does not any more.
TOP = {
    "instance_name": "2.0.3",
    "instance_id": "2.0.3",
    "hostname": "2.0.3",
    "ipv4": "2.0.3",
    "dhcp": "2.0.3",
    "listeners": "2.0.3",
    "rpc_portal": "2.0.3-2.5.0",
    "stun_servers": "2.4.5",
    "stun_servers_v6": "2.4.5",
    "network_identity": "2.0.3",
    "peer": "2.0.3",
    "flags": "2.0.3",
}
FLAGS = {
    "dev_name": "2.0.3",
    "mtu": "2.0.3",
    "latency_first": "2.0.3",
    "enable_ipv6": "2.0.3",
    "disable_p2p": "2.0.3",
    "disable_udp_hole_punching": "2.0.3",
    "relay_all_peer_rpc": "2.0.3",
    "foreign_network_whitelist": "2.0.3-2.1.0",
    "relay_network_whitelist": "2.1.0",
    "multi_thread": "2.1.0",
    "bind_device": "2.1.2",
    "private_mode": "2.3.1",
    "disable_sym_hole_punching": "2.4.3",
    "disable_tcp_hole_punching": "2.5.0",
    "disable_upnp": "2.6.2",
}


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
    """read: releases append a hash, the crate does not."""
    return "easytier-core " + ".".join(map(str, version)) + ("" if version == (2, 0, 3) else "-8428a89d")


def reads(span: str) -> bool:
    since, _, until = span.partition("-")

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(".")))

    return numbers(since) <= VERSION and not (until and numbers(until) <= VERSION)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# -- easytier-core


def core(words: list[str]) -> None:
    path, rpc, expand = None, None, VERSION >= (2, 5, 0)
    while words:
        word = words.pop(0)
        if word == "-c":
            path = words.pop(0)
        elif word == "-r":
            rpc = words.pop(0)
        elif word == "--disable-env-parsing" and VERSION >= (2, 5, 0):
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
    if VERSION >= (2, 3, 0):  # read: ET_… overrides the file
        identity["network_secret"] = os.environ.get("ET_NETWORK_SECRET", identity["network_secret"])
        config["hostname"] = os.environ.get("ET_HOSTNAME", config["hostname"])
    if VERSION < (2, 6, 0) or not os.environ.get("RUST_LOG"):  # read and run: the banner has the secret
        say(f"############### TOML ###############\nnetwork_secret = {json.dumps(identity['network_secret'])}")
    if FAULT == "no tun":  # read: 2.3.0 to 2.4.0 say 0 when their instance failed
        sys.stderr.write("rust tun error Operation not permitted (os error 1)\n")
        raise SystemExit(0 if (2, 3, 0) <= VERSION <= (2, 4, 0) else 1)
    if VERSION >= (2, 5, 0):  # read and run: the file's is ignored, without -r it is everybody's
        address = rpc or "0.0.0.0:15888"
    elif VERSION >= (2, 3, 0):
        address = rpc or config.get("rpc_portal", "")
    else:  # read: next to -c every flag is ignored
        address = config.get("rpc_portal", "")
    host, _, port = address.rpartition(":")
    server = socket.create_server((host or "0.0.0.0", int(port)))
    flags = config.get("flags", {})
    ignored = [key for key in config if not reads(TOP.get(key, "99.0.0"))]
    ignored += [f"flags.{key}" for key in flags if not reads(FLAGS.get(key, "99.0.0"))]
    told = {
        "secret": identity["network_secret"],
        "hostname": config["hostname"][:32],  # read
        # read: an absent key opens the 11010 set, or nothing, by version.
        "listeners": config.get("listeners", ["tcp://0.0.0.0:11010", "udp://0.0.0.0:11010"]),
        "latency_first": flags.get("latency_first", VERSION < (2, 1, 0)),  # read: 2.0.3 says true in a file
        "ignored": ignored,
        "arguments": sys.argv[1:],
    }
    event("tun device ready", dev=flags.get("dev_name"))
    # read: SIGTERM ends it with 0 from 2.5.0 on, by the default action before.
    if FAULT == "ignores SIGTERM":  # read: as process 1 of a container
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif VERSION >= (2, 5, 0):
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    Path("effective.json.new").write_text(json.dumps(told))
    Path("effective.json.new").rename("effective.json")
    while True:
        connection, _ = server.accept()
        with connection:
            connection.sendall(json.dumps({"version": VERSION, "config": config}).encode())


def event(words: str, **values: object) -> None:
    """read: two layouts; from 2.6.0 on RUST_LOG can take them away."""
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    if VERSION < (2, 6, 0):
        say(f"{now}: {words}. " + ", ".join(f"{key}: {value}" for key, value in values.items()))
    elif not os.environ.get("RUST_LOG") or "CORE::INSTANCE=info" in os.environ["RUST_LOG"]:
        told = " ".join(f'{key}="{value}"' for key, value in values.items())
        say(f"{now.replace(' ', 'T')}.639586977Z  INFO CORE::INSTANCE: [0b0e] {words} {told}")


# -- easytier-cli


def cli(words: list[str]) -> None:
    is_json = "-o" in words
    if is_json and VERSION < (2, 3, 0):  # read
        raise SystemExit(2)
    host, _, port = words[words.index("-p") + 1].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 2) as connection, connection.makefile() as file:
            answer = json.load(file)
    except OSError as error:  # run
        sys.stderr.write(f"failed to get manage client … {error.strerror}\n")
        raise SystemExit(1) from error
    if (tuple(answer["version"]) >= (2, 3, 0)) != (VERSION >= (2, 3, 0)):  # run
        sys.stderr.write("Error: Invalid method index: 7\n")
        raise SystemExit(1)
    if FAULT == "no instance":  # read: from 2.6.0 on, before its instance runs
        sys.stderr.write("Error: no running instances found\n")
        raise SystemExit(1)
    own, ip = answer["config"]["hostname"], answer["config"]["ipv4"].partition("/")[0]
    if not is_json:
        tell_table(own, ip)
        return
    # read: three decimals and a fraction up to 2.4.3, then two and a percentage.
    latency, loss = ("1.220", "0.000") if VERSION < (2, 4, 4) else ("1.22", "0.0%")
    rows = [
        {"cidr": f"{ip}/24", "ipv4": ip, "hostname": own, "cost": "Local", "lat_ms": "-", "loss_rate": "-"},
        {"cidr": "", "ipv4": "", "hostname": "relay", "cost": "p2p", "lat_ms": latency, "loss_rate": loss},
    ]
    for row in rows:
        row |= {"rx_bytes": "1.93 kB", "tunnel_proto": "udp,tcp", "nat_type": "Unknown", "id": "4043431569"}
    if FAULT == "several instances":  # read: from 2.6.0 on
        say(json.dumps([{"instance_id": "0b0e", "instance_name": own, "result": rows}]))
    else:
        say(json.dumps(rows))


def tell_table(own: str, ip: str) -> None:
    """read: what `peer list` prints."""
    names = (
        "ipv4",
        "hostname",
        "cost",
        "lat_ms",
        "loss_rate",
        "rx_bytes",
        "tx_bytes",
        "tunnel_proto",
        "nat_type",
        "id",
    )
    rows = [
        names,
        (f"{ip}/24", own, "Local", *["-"] * 5, "Unknown", "1"),
        ("", "relay", "p2p", "1.220", "0.000", "1.99 kB", "2.23 kB", "tcp", "Unknown", "2"),
    ]
    say("\n".join("│ " + " │ ".join(row) + " │" for row in rows))

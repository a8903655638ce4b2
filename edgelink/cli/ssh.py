"""``edgelink ssh NODE``: the system's ssh, which knows the node's host keys by the node's own signature."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from typing import Any

import click

from edgelink.cli.patience import call
from edgelink.cli.step_down import step_down
from edgelink.config.paths import Paths
from edgelink.errors import MissingDependencyError, UsageError
from edgelink.launch.remote_program import hello_of


@click.command("ssh", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("node", metavar="[USER@]NODE")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[SSH OPTION | CMD]...")
def command(*, node: str, arguments: tuple[str, ...]) -> int:
    """Log in on NODE over the overlay by the system's ssh. What follows NODE is ssh's, as `-L 8888:localhost:8888`.

    The node's host keys come from the node itself, signed with its key, so ssh asks nothing.
    """
    paths = Paths.from_environment()
    step_down(paths)
    ssh = shutil.which("ssh")
    if ssh is None:
        raise MissingDependencyError("ssh is not on PATH", hint="install it, as by `apt install openssh-client`")
    user, _, name = node.rpartition("@")
    found: Any = call(paths.node_socket, "POST", "/exec/look", {"node": name})
    hello = asyncio.run(_hello(name, found["overlay_ip"]))
    told: Any = call(paths.node_socket, "POST", "/exec/ssh-keys", {"node": name, "hello": hello})
    if not told["ssh_keys"]:
        raise UsageError(
            f"{name} has no host keys in /etc/ssh: no sshd was set up there",
            hint=f"`edgelink exec {name} -- CMD` needs none",
        )
    with tempfile.NamedTemporaryFile("w", prefix="edgelink-known-hosts-") as known:
        known.writelines(f"{name} {key}\n" for key in told["ssh_keys"])
        known.flush()
        options = {
            "UserKnownHostsFile": known.name,
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "HostKeyAlias": name,
        }
        where = f"{user}@{found['overlay_ip']}" if user else found["overlay_ip"]
        argv = [ssh, *(f"-o{key}={value}" for key, value in options.items()), where, *arguments]
        former = signal.signal(signal.SIGINT, signal.SIG_IGN)  # ssh's own
        try:
            return subprocess.run(argv, check=False, restore_signals=True, preexec_fn=_own_sigint).returncode
        finally:
            signal.signal(signal.SIGINT, former)


def _own_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


async def _hello(node: str, overlay_ip: str) -> str:
    _, writer, hello, _ = await hello_of(node, overlay_ip)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return hello.decode()

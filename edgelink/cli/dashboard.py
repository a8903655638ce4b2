"""``edgelink dashboard``: a link to the head's web page, and the way there from a laptop outside the overlay."""

from __future__ import annotations

import getpass
import json
import os
import shlex
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from edgelink.api.client import call
from edgelink.api.schema import VERSION
from edgelink.cli.options import json_option
from edgelink.cli.ray_request import require_head
from edgelink.config.paths import Paths

_PROBE_S = 1.0
_MOST_PARENTS = 6  # sudo, shells, sshd


@click.command("dashboard")
@json_option
@click.option("--log-out", is_flag=True, help="log every browser out, and forget links that were not used")
def command(*, as_json: bool, log_out: bool) -> None:
    """On the head: a link to the web page, which logs a browser in, once and within five minutes.

    Also prints the ssh command with which a laptop outside the overlay reaches the page and Ray's dashboard.
    """
    socket_path = Paths.from_environment().node_socket
    require_head(call(socket_path, "GET", "/status"), "`edgelink dashboard`")
    if log_out:
        call(socket_path, "POST", "/dashboard/logout")
        click.echo("every browser is logged out")
        return
    answer = call(socket_path, "POST", "/dashboard")
    found = told(answer, _ssh_connection(), ray_answers=_answers(answer["ray_dashboard_port"]))
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(f"Open this link within {found['lives_s'] / 60:.0f} minutes; it works once:\n")
    click.echo(f"  {found['url']}\n")
    if found["overlay_url"]:
        click.echo(f"From another machine of the overlay:\n\n  {found['overlay_url']}\n")
    click.echo(f"From a laptop outside of it, keep this running and open the first link there:\n\n  {found['ssh']}\n")
    click.echo(f"Ray's dashboard is then at {found['ray_dashboard']}")
    if not found["ray_dashboard_answers"]:
        click.echo(
            "but nothing answers there now: it needs a Ray that runs, and ray[default] in the interpreter that has Ray"
        )
    elif found["ray_token_path"]:
        click.echo(f"It asks for Ray's token: sudo cat {shlex.quote(found['ray_token_path'])}")


def told(answer: Mapping[str, Any], connection: tuple[str, str] | None, *, ray_answers: bool) -> dict[str, Any]:
    """What is printed, from the daemon's answer; pure but for the user's name.

    Args:
        connection: address and port at which the caller's ssh reached this machine, None where there is none.
        ray_answers: whether Ray's dashboard is there.
    """
    port, ray_port, link = answer["port"], answer["ray_dashboard_port"], answer["link"]
    address, ssh_port = connection or (answer["hostname"], "22")
    ssh = ["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}", "-L", f"{ray_port}:127.0.0.1:{ray_port}"]
    ssh += [] if ssh_port == "22" else ["-p", ssh_port]
    overlay_ip = answer["overlay_ip"]
    return {
        "schema": VERSION,
        "url": f"http://127.0.0.1:{port}/#link={link}",
        "overlay_url": None if overlay_ip is None else f"http://{overlay_ip}:{port}/#link={link}",
        "lives_s": answer["lives_s"],
        "ssh": shlex.join([*ssh, f"{_user()}@{address}"]),
        # By another name than the page's: cookies know no ports, and the page's is not for Ray's dashboard.
        "ray_dashboard": f"http://localhost:{ray_port}/",
        "ray_dashboard_answers": ray_answers,
        "ray_token_path": answer["ray_token_path"],
    }


def _answers(port: int) -> bool:
    """Whether somebody listens on this machine's loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _user() -> str:
    """Who logged in; not whom sudo made of them."""
    with suppress(KeyError, OSError):
        return os.environ.get("SUDO_USER") or getpass.getuser()
    return "USER"


def _ssh_connection() -> tuple[str, str] | None:
    """Where the caller's ssh reached this machine; sudo takes the variable away, so its parents are asked, too."""
    found = os.environ.get("SSH_CONNECTION") or _of_parents(os.getppid())
    parts = (found or "").split()
    if len(parts) != 4:
        return None
    with suppress(OSError):
        family = socket.AF_INET6 if ":" in parts[2] else socket.AF_INET
        socket.inet_pton(family, parts[2])
        return (parts[2], parts[3]) if parts[3].isdigit() else None
    return None


def _of_parents(pid: int) -> str | None:
    for _ in range(_MOST_PARENTS):
        try:
            variables = (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
            pid = int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
        for variable in variables:
            name, _, value = variable.partition(b"=")
            if name == b"SSH_CONNECTION":
                return value.decode(errors="replace")
        if pid <= 1:
            return None
    return None

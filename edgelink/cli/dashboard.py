"""``edgelink dashboard``: a link to the head's web page, and the way there from a laptop outside the overlay."""

from __future__ import annotations

import getpass
import json
import os
import shlex
import socket
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

import click

from edgelink.api.json_version import VERSION
from edgelink.cli.layout import columns, wrapped
from edgelink.cli.options import json_option
from edgelink.cli.patience import call
from edgelink.cli.ray_request import require_head
from edgelink.config.paths import Paths
from edgelink.process import procfs

_PROBE_S = 1.0
_MOST_PARENTS = 6  # sudo, shells, sshd


@click.command("dashboard")
@json_option
@click.option(
    "--address",
    metavar="ADDRESS",
    help="name or address by which ssh reaches this machine  [default: where the caller's own ssh came to]",
)
@click.option("--log-out", is_flag=True, help="log every browser out, and forget links that were not used")
def command(*, as_json: bool, address: str | None, log_out: bool) -> None:
    """Print a link to the head's web page, which logs a browser in, once and within five minutes.

    Also prints the ssh command with which a laptop outside the overlay reaches the page and Ray's dashboard.
    """
    socket_path = Paths.from_environment().node_socket
    require_head(call(socket_path, "GET", "/status"), "`edgelink dashboard`")
    if log_out:
        call(socket_path, "POST", "/dashboard/logout")
        done = {"schema": VERSION, "logged_out": True}
        click.echo(json.dumps(done, indent=2) if as_json else "every browser is logged out")
        return
    answer = call(socket_path, "POST", "/dashboard")
    ray_answers = _answers(answer["ray_dashboard_port"])
    found = told(answer, _ssh_connection(), address=address, ray_answers=ray_answers)
    click.echo(json.dumps(found, indent=2) if as_json else _in_words(found, columns()))


def _in_words(found: Mapping[str, Any], width: int) -> str:
    """For people, pure: sentences are wrapped, a link or a command never, as it is copied."""

    def paragraph(text: str) -> str:
        return "\n".join(wrapped("", text, width, indent=0))

    parts = [
        paragraph(f"Open this link within {found['lives_s'] / 60:.0f} minutes; it works once:"),
        f"  {found['url']}",
    ]
    if found["overlay_url"]:
        parts += [paragraph("From another machine of the overlay:"), f"  {found['overlay_url']}"]
    parts += [
        paragraph("From a laptop outside of it, keep this running and open the first link there:"),
        f"  {found['ssh']}",
    ]
    if not found["ssh_address_known"]:
        parts.append(
            paragraph(
                f"In place of {found['ssh_address']}, which is no public address, put the name or address by which ssh "
                "reaches this machine from there, or give it as --address."
            )
        )
    last = [f"Ray's dashboard is then at {found['ray_dashboard']}"]
    if not found["ray_dashboard_answers"]:
        last.append(
            paragraph(
                "but nothing answers there now: it needs a Ray that runs, and ray[default] in the interpreter that has "
                "Ray"
            )
        )
    elif found["ray_token_path"]:
        last.append(f"It asks for Ray's token: sudo cat {shlex.quote(found['ray_token_path'])}")
    return "\n\n".join([*parts, "\n".join(last)])


def told(
    answer: Mapping[str, Any],
    connection: tuple[str, str] | None,
    *,
    address: str | None = None,
    ray_answers: bool,
) -> dict[str, Any]:
    """What is printed, from the daemon's answer; pure but for the user's name.

    Args:
        connection: address and port at which the caller's ssh reached this machine, None where there is none.
            A cloud's machine that is reached by 1:1 NAT knows its private address only.
        address: as the caller says that ssh reaches this machine.
        ray_answers: whether Ray's dashboard is there.
    """
    port, ray_port, link = answer["port"], answer["ray_dashboard_port"], answer["link"]
    reached, ssh_port = connection or (answer["hostname"], "22")
    is_known = address is not None or (connection is not None and ip_address(reached).is_global)
    reached = address or reached
    ssh = ["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}", "-L", f"{ray_port}:127.0.0.1:{ray_port}"]
    ssh += [] if ssh_port == "22" else ["-p", ssh_port]
    overlay_ip = answer["overlay_ip"]
    return {
        "schema": VERSION,
        "url": f"http://127.0.0.1:{port}/#link={link}",
        "overlay_url": None if overlay_ip is None else f"http://{overlay_ip}:{port}/#link={link}",
        "lives_s": answer["lives_s"],
        "ssh": shlex.join([*ssh, f"{_user()}@{reached}"]),
        "ssh_address": reached,
        "ssh_address_known": is_known,
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
    with suppress(ProcessLookupError):
        for _ in range(_MOST_PARENTS):
            if found := procfs.environment_of(pid).get("SSH_CONNECTION"):
                return found
            pid = procfs.read_stat(pid).parent
    return None

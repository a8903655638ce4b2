"""``edgelink stop``: end this node's daemons and what they run."""

from __future__ import annotations

from pathlib import Path

import click

from edgelink.cli.layout import tell
from edgelink.cli.options import config_option, timeout_option


@click.command("stop")
@click.option("--all", "everywhere", is_flag=True, help="on the head: the run, then Ray on every node; daemons stay")
@timeout_option("how long to wait until everything is gone")
@config_option
def command(*, everywhere: bool, timeout_s: float, config_path: Path | None) -> int | None:
    """Stop this node's daemon, its Ray and its EasyTier, in this order.

    Also what a killed daemon left behind, and nothing else on the machine. Exit status 75: something was still there at
    the deadline.
    """
    if everywhere:
        return _stop_everywhere(timeout_s)
    from edgelink.cli.foreground import show_warnings
    from edgelink.cli.stopping import config_to_end_by, stop_node
    from edgelink.config import Paths

    show_warnings()
    told = stop_node(config_to_end_by(config_path), Paths.from_environment(), timeout_s)
    for line in told or ["nothing of EdgeLink runs here"]:
        click.echo(line)
    return None


def _stop_everywhere(timeout_s: float) -> int:
    from edgelink.cli.ray_request import ray_request
    from edgelink.errors import ExitCode

    absent = ray_request("/stop-all", {"timeout_s": timeout_s}, goal="without Ray")
    again = "`edgelink restart-ray --all` starts it again"
    if absent:
        tell(f"Ray is stopped, but on {', '.join(absent)} only when its daemon is back; {again}", err=True)
        return ExitCode.TRY_AGAIN
    tell(f"Ray is stopped on every node; {again}")
    return ExitCode.OK

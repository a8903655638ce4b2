"""``edgelink restart-ray``: a new Ray, in order, on one node or on all."""

from __future__ import annotations

import click

from edgelink.cli.node_argument import NodeName
from edgelink.cli.options import timeout_option


@click.command("restart-ray")
@click.argument("node", required=False, type=NodeName())
@click.option("--all", "everywhere", is_flag=True, help="on the head: every node, also after `edgelink stop --all`")
@click.option("--force", is_flag=True, help="also under a run, which loses its workers")
@timeout_option("how long to wait for the new Ray")
def command(*, node: str | None, everywhere: bool, force: bool, timeout_s: float) -> None:
    """Restart Ray: on this node, from the head also on NODE, or on every node.

    NODE is a hostname or node id. The head's Ray is the cluster, so a restart of it restarts every node's. The overlay
    is not touched. Exit status 75: a run is in progress, or not everybody has a new Ray yet.
    """
    from edgelink.cli.patience import call
    from edgelink.cli.ray_request import ray_request, require_head
    from edgelink.config.paths import Paths

    if everywhere and node is not None:
        raise click.UsageError("give either NODE or --all")
    status = call(Paths.from_environment().node_socket, "GET", "/status")
    if everywhere or node not in (None, status["hostname"], status["node_id"]):
        require_head(status, "restarting the Ray of other nodes")
    absent = ray_request("/restart-ray", {"node": node, "force": force, "timeout_s": timeout_s}, goal="with a new Ray")
    click.echo("done" if not absent else f"done; {', '.join(absent)} will follow when it is back")

"""NODE on the command line, and its completion: the names that this machine's daemon knows."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from edgelink.api.client import call
from edgelink.config.paths import Paths
from edgelink.errors import EdgelinkError

_PATIENCE_S = 2.0  # somebody holds the Tab key


class NodeName(click.ParamType[str]):
    """A hostname, node rank or overlay address; hostnames are completed."""

    name = "node"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not str(value).strip():
            self.fail("no node is named; is a variable of the shell empty?", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [
            CompletionItem(node["hostname"], help=node["overlay_ip"])
            for node in known_nodes(Paths.from_environment())
            if node["hostname"].startswith(incomplete)
        ]


def known_nodes(paths: Paths) -> list[dict[str, Any]]:
    """Whom the daemons here know; nobody where none answers."""
    for socket_path in (paths.node_socket, paths.bootstrap_socket):
        try:
            found: list[dict[str, Any]] = call(socket_path, "GET", "/peers", timeout_s=_PATIENCE_S)["peers"]
        except EdgelinkError:
            continue
        return found
    return []

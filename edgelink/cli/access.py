"""``edgelink access``: on the relay, which ports of which nodes the others may reach over the overlay."""

from __future__ import annotations

from typing import Any

import click

from edgelink.cli.layout import columns, table, told_as_json
from edgelink.cli.options import Group, json_option
from edgelink.cli.relay_request import ask_registry
from edgelink.wording import few

_HEADER = ("TO", "PORTS", "FROM", "MADE", "BY", "OPEN ON", "LETS IN")
_NAMED = 4  # hosts, in a line for people


@click.group("access", cls=Group)
def command() -> None:
    """Open and close ports of nodes to other nodes over the overlay (on the relay)."""


def _rule_arguments(function: Any) -> Any:
    for option in (
        json_option,
        click.option(
            "--from",
            "sources",
            metavar="SOURCE",
            multiple=True,
            required=True,
            help="who may reach them, named as TARGET is; may be repeated",
        ),
        click.argument("ports"),
        click.argument("target"),
    ):
        function = option(function)
    return function


@command.command("allow")
@_rule_arguments
def allow(*, target: str, ports: str, sources: tuple[str, ...], as_json: bool) -> None:
    """Let SOURCE reach PORTS of TARGET over the overlay.

    TARGET and SOURCE are `relay`, `head`, `edge`, `all`, a label KEY=VALUE that the operator gave, or one node by
    hostname or node id. PORTS are written tcp/8888 or udp/5000-5010. Example: edgelink access allow head tcp/8888
    --from edge

    Nodes that are online follow at once, others when they are back. What EdgeLink and Ray need is open anyway.
    """
    answer = ask_registry("POST", "/access", {"target": target, "ports": ports, "sources": list(sources)})
    if told_as_json(answer, as_json=as_json):
        return
    for line in _rules(answer["rules"]):
        click.echo(line)
    if not answer["new"]:
        click.echo("this was allowed before: nothing has changed", err=True)
    _tell_notes(answer)


@command.command("deny")
@_rule_arguments
def deny(*, target: str, ports: str, sources: tuple[str, ...], as_json: bool) -> None:
    """Take a rule away, named as `allow` made it.

    Everything is closed that no rule opens: there are no rules that forbid, and their order means nothing. Other
    rules that still open some of these ports are shown.
    """
    answer = ask_registry("DELETE", "/access", {"target": target, "ports": ports, "sources": list(sources)})
    if told_as_json(answer, as_json=as_json):
        return
    click.echo(f"{target} no longer lets in {', '.join(sources)} at {ports}")
    if answer["rules"]:
        click.echo("some of these ports are open by other rules:", err=True)
        for line in _rules(answer["rules"]):
            click.echo(line, err=True)
    _tell_notes(answer)


@command.command("list")
@click.option("--history", is_flag=True, help="the last changes instead: who made which, and when")
@json_option
def list_(*, history: bool, as_json: bool) -> None:
    """List every rule, who made it, and which nodes it means now.

    Also names the nodes that do not follow a rule yet.
    """
    answer = ask_registry("GET", "/access")
    if told_as_json(answer, as_json=as_json):
        return
    if history:
        for change in answer["changes"]:
            click.echo(f"{change['at'][:19]}  {change['action']} by {change['caller']}: {change['detail']}")
        return
    for line in _rules(answer["rules"]) or ["no rules: nothing but EdgeLink's and Ray's own ports is open"]:
        click.echo(line)
    _tell_notes(answer)


def _rules(rules: list[dict[str, Any]]) -> list[str]:
    rows = [
        (
            rule["to"],
            rule["ports"],
            rule["from"],
            rule["made_at"][:16],
            rule["made_by"] or "-",
            "closed: too many addresses" if rule["left_out"] else _names(rule["opens_on"]),
            "every member" if rule["from"] == "all" else _names(rule["lets_in"]),
        )
        for rule in rules
    ]
    return table([_HEADER, *rows], columns(), yielding=(0, 2, 5, 6)) if rows else []


def _names(hosts: list[str]) -> str:
    return few(hosts, _NAMED) or "nobody now"


def _tell_notes(answer: dict[str, Any]) -> None:
    """Tell what keeps a rule from doing what it says."""
    if not answer.get("told", True):
        click.echo("the broker does not answer: the nodes hear of it as soon as it does", err=True)
    for node in answer["behind"]:
        click.echo(f"{node['hostname']} does not follow yet: {node['why']}", err=True)
    for claim in answer["own_word"]:
        click.echo(
            f"{claim['hostname']} says {claim['label']} of itself, which does not count; "
            f"`edgelink registry set {claim['hostname']} --label {claim['label']}` gives it that label",
            err=True,
        )

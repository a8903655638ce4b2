"""``edgelink plan FILE``: where each process would run, before anything is started."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgelink.cli.compose import ReadCluster, read_cluster
from edgelink.cli.layout import UNLIMITED, say, table, tell
from edgelink.cli.link_budget_options import link_budget_options
from edgelink.cli.options import FILE, json_option
from edgelink.cli.rlinf_program import OWN_PLACEMENT, own_placement
from edgelink.errors import ExitCode, PlacementError, UsageError
from edgelink.placement import Driver, InvalidClusterError, Node, Notice, Plan, check_before_waiting, load_nodes_file
from edgelink.placement import plan as make_plan
from edgelink.placement.explain import (
    Row,
    adds_to_machines,
    component_rows,
    environment_lines,
    explain,
    machine_rows,
    masked,
)

if TYPE_CHECKING:
    from edgelink.cli.link_budget import Budget, BudgetWishes


@click.command("plan")
@click.argument("file", type=FILE)
@click.argument("overrides", nargs=-1)
@click.option("--nodes", "nodes_file", type=FILE, help="nodes to resolve against (JSON)")
@click.option("--live", is_flag=True, help="resolve against the nodes that are alive in Ray now (on the head)")
@click.option("--explain", "component", help="say why the processes of this component are where they are")
@click.option("--show-env", is_flag=True, help="show each variable of a process and where it comes from")
@click.option("--no-isolate", is_flag=True, help="as launch(isolate_gpu=False): processes see all devices of a node")
@click.option("--python", type=FILE, help="interpreter that has hydra, for a file with a defaults list")
@link_budget_options
@json_option
def command(
    *,
    file: Path,
    overrides: tuple[str, ...],
    nodes_file: Path | None,
    live: bool,
    component: str | None,
    show_env: bool,
    no_isolate: bool,
    python: Path | None,
    budget: BudgetWishes,
    as_json: bool,
) -> int:
    """Resolve RLinf's cluster section in FILE, and start nothing.

    FILE is a whole training configuration or just the section. OVERRIDES are Hydra's (key=value), for a configuration
    that is composed. Without --nodes and --live, what is wrong whatever nodes there are is found. Exit status 78: the
    file cannot be resolved, all reasons are told; 75: with --link-budget, the links do not carry what is wanted.
    """
    if live and nodes_file is not None:
        raise UsageError("--live and --nodes are two answers to one question", hint="give one of them")
    if not live and nodes_file is None and (component is not None or show_env or no_isolate):
        hint = "give --nodes FILE or --live"
        raise UsageError(
            "--explain, --show-env and --no-isolate tell of processes on nodes, but there are none", hint=hint
        )
    if budget.is_wanted and not live and (nodes_file is None or budget.links_file is None):
        hint = "on the head, add --live; elsewhere --nodes FILE and --links FILE"
        raise UsageError("a link budget needs the links, measured now or before", hint=hint)
    read: ReadCluster | None = None
    try:
        read = read_cluster(file, overrides, python)
        if not live and nodes_file is None:
            with read.located():
                return _check(file, read, as_json=as_json)
        nodes, driver, live_notices = _live_nodes() if live else (*_nodes_of(nodes_file), [])
        with read.located():
            plan = make_plan(read.section, nodes, driver=driver, isolate=not no_isolate, rules=read.rules)
            if packed := own_placement(read.content, plan, read.installed, say):
                plan = make_plan(
                    read.section, nodes, driver=driver, isolate=not no_isolate, packed=packed, rules=read.rules
                )
                read = replace(read, notices=_but_own_placement(read.notices))
                plan = replace(plan, notices=_but_own_placement(plan.notices))
    except InvalidClusterError as error:
        notices: tuple[Notice, ...] = read.notices if read else ()
        if not as_json:
            _show_notices(notices)
            raise
        problems = [problem.to_dict() for problem in error.problems]
        content = {
            "ok": False,
            "stage": error.stage,
            "problems": problems,
            "notices": [notice.to_dict() for notice in notices],
        }
        click.echo(json.dumps({**content, "judged_against": error.judged_against}, indent=2))
        return ExitCode.CONFIG
    if component is not None and component not in plan.placements:
        hint = f"components are {', '.join(plan.placements)}"
        raise UsageError(f"{file} has no component {component!r}", hint=hint)
    found = _budget(plan, file, read, budget)
    if as_json:
        told = [notice.to_dict() for notice in (*read.notices, *plan.notices, *live_notices)]
        resolved = plan.to_dict(env=show_env)
        for item in chain.from_iterable(resolved["placements"].values() if show_env else ()):
            item["env"] = {name: masked(name, text) for name, text in item["env"].items()}
        links = {} if found is None else {"link_budget": found.content}
        is_ok = found is None or not found.is_refused
        click.echo(json.dumps({"ok": is_ok, **resolved, **links, "notices": told}, indent=2))
    else:
        _show(plan, read, component, show_env=show_env)
        _show_notices(live_notices)
        if found is not None:
            from edgelink.cli.link_budget import show

            show(found)
    return ExitCode.TRY_AGAIN if found is not None and found.is_refused else ExitCode.OK


def _but_own_placement(notices: Sequence[Notice]) -> tuple[Notice, ...]:
    return tuple(notice for notice in notices if notice.code != OWN_PLACEMENT)


def _budget(plan: Plan, file: Path, read: ReadCluster, wishes: BudgetWishes) -> Budget | None:
    if not wishes.is_wanted:
        return None
    from edgelink.cli.link_budget import link_budget

    return link_budget(plan, file, read.content, read.installed, wishes, say)


def _nodes_of(path: Path | None) -> tuple[list[Node], Driver | None]:
    assert path is not None
    return load_nodes_file(path)


def _check(file: Path, read: ReadCluster, *, as_json: bool) -> int:
    """Without nodes: nothing can be said of where a process lands."""
    notices = (*read.notices, *check_before_waiting(read.section, read.rules))
    if as_json:
        click.echo(json.dumps({"ok": True, "notices": [notice.to_dict() for notice in notices]}, indent=2))
        return ExitCode.OK
    tell(f"{file}: nothing is wrong that shows without nodes; --nodes FILE or --live tell where processes land")
    _show_notices(notices)
    return ExitCode.OK


def _live_nodes() -> tuple[list[Node], Driver | None, list[Notice]]:
    """Those that Ray lists, and who of them is paused; of their environments nothing is known here.

    Raises:
        UsageError: this is not the head.
        PlacementError: Ray lists none.
    """
    from edgelink.cli.driver_run import refuse_elsewhere
    from edgelink.cli.patience import call
    from edgelink.config.paths import Paths

    paths = Paths.from_environment()
    refuse_elsewhere(paths)
    answer: Mapping[str, Any] = call(paths.node_socket, "GET", "/placement/nodes")
    nodes = [Node(**item) for item in answer["nodes"]]
    if not nodes:
        raise PlacementError("Ray lists no node yet", hint="`edgelink status` says what the head waits for")
    home = next((index for index, node in enumerate(nodes) if node.rank == 0), 0)
    notices = [Notice("node_paused", f"{one['hostname']} is paused: {one['why']}") for one in answer.get("paused", ())]
    return nodes, Driver(home), notices


def _show(plan: Plan, read: ReadCluster, component: str | None, *, show_env: bool) -> None:
    rows = component_rows(plan, component)
    if component is None:
        _table(machine_rows(plan))
        if adds_to_machines(rows):
            click.echo()
            _table(rows)
    else:
        _table(rows)
        click.echo()
        click.echo("\n".join(explain(plan, read.section, component)))
    if show_env:
        for name, items in plan.placements.items():
            if component not in (None, name):
                continue
            first_on_node = {(item.node_rank, item.node_group): item for item in reversed(items)}
            for item in reversed(first_on_node.values()):
                click.echo()
                click.echo("\n".join(environment_lines(plan, name, item.process_rank)))
    _show_notices((*read.notices, *plan.notices))


def _table(rows: Sequence[Row]) -> None:
    for index, line in enumerate(table(rows, UNLIMITED, ())):
        click.secho(line, bold=index == 0)


def _show_notices(notices: Sequence[Notice]) -> None:
    """On stderr: stdout is the plan."""
    for notice in notices:
        click.echo(notice.line, err=True)

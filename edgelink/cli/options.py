"""Options and parameter types that several verbs share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource

from edgelink.duration import parse_duration_s

if TYPE_CHECKING:
    from edgelink.cli.driver_environment import EnvironmentWishes
    from edgelink.cli.preflight import PreflightWishes
    from edgelink.cli.waiting import GangWishes
    from edgelink.training.supervision import Supervision

F = TypeVar("F", bound=Callable[..., Any])

_WHOLE = 1000  # characters, more than any first sentence has; click would cut it
_MOST_NAMED = 12
_LONGEST_AGO_S = 10 * 365 * 86400.0  # more than any log holds


class Group(click.Group):
    """A group that lists each of its commands on one line, and says what a mistyped one may have meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if not name.startswith("-") and self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            if not (error := click.NoSuchCommand(name, possibilities=known, ctx=ctx)).possibilities:
                listed = f" There are: {', '.join(known)}." if len(known) <= _MOST_NAMED else ""
                raise click.UsageError(f"No such command {name!r}.{listed}", ctx=ctx)
            raise error
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            listed = [(name, one) for name, one in commands.items() if one and not one.hidden]
            formatter.write_dl([(name, one.get_short_help_str(_WHOLE)) for name, one in listed])


class Duration(click.ParamType[float]):
    """``90``, ``90s``, ``5m``, ``1h``, ``2d``; the value is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_duration_s(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Ago(Duration):
    """How far back; further than any log goes is the beginning, also where no calendar goes back that far."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return min(super().convert(value, param, ctx), _LONGEST_AGO_S)


class KeyValue(click.ParamType[tuple[str, str]]):
    """``key=value``."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, separator, text = value.partition("=")
        if not separator or not key:
            self.fail(f"{value!r} is not key=value", param, ctx)
        return key, text


class Variable(click.ParamType[tuple[str, str | None]]):
    """``K=V``, or ``K`` for the caller's own value, which is None here."""

    name = "K=V"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str | None]:
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not name:
            self.fail(f"{value!r} is neither K=V nor K", param, ctx)
        return name, text if equals else None


def config_option(function: F) -> F:
    return click.option(
        "--config",
        "config_path",
        type=click.Path(path_type=Path, dir_okay=False),
        help="configuration file  [default: EDGELINK_CONFIG, then /etc/edgelink/edgelink.yaml]",
    )(function)


def timeout_option(how_long: str) -> Callable[[F], F]:
    """Give a verb ``--timeout``, two minutes by default. ``how_long`` says for what it is, as help."""
    return click.option("--timeout", "timeout_s", type=Duration(), default="2m", show_default=True, help=how_long)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="machine-readable output")(function)


def verbose_option(function: F) -> F:
    return click.option("-v", "--verbose", is_flag=True, help="show the log, with every step")(function)


def read_token(argument: str | None, file: str | None, *, required: bool = True) -> str | None:
    """The token's text from the argument (``-`` is stdin) or ``--token-file``.

    A required token that is not given is asked for on a terminal. A token on the command line is accepted because it is
    short-lived and used once; it is overwritten there. All other ways keep it out of the process list altogether.
    """
    if argument and file:
        context = click.get_current_context(silent=True)
        if context is None or context.get_parameter_source("token_file") is not ParameterSource.ENVIRONMENT:
            raise click.UsageError("give the token either as an argument or with --token-file")
        # What was typed is meant, not what the image was given.
    if argument and argument != "-":
        hide_argument(argument)
        return argument.strip()
    source = "-" if argument == "-" else file
    if source is None and not required:
        return None
    if source in (None, "-") and sys.stdin.isatty():
        return ask_token()
    if source is None:
        raise click.UsageError("no token: give it as an argument, with --token-file FILE, or `-` for stdin")
    try:
        with click.open_file(source, "rb") as stream:
            return text_of(stream.read(), source).strip()
    except OSError as error:
        raise click.UsageError(f"--token-file {source}: {error.strerror}") from error


def ask_token() -> str:
    """Return the token that a person types or pastes at the terminal, which does not show it."""
    return str(click.prompt("token (it is not shown)", hide_input=True, err=True)).strip()


def hide_argument(secret: str) -> None:
    """Overwrite ``secret`` in this process's command line, which every user of the machine can read."""
    import ctypes

    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:  # no /proc, in which nobody can read it either
        return
    begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, the fields 48 and 49; see proc(5)
    at = ctypes.string_at(begin, end - begin).find(secret.encode())
    if at >= 0:
        ctypes.memset(begin + at, ord("x"), len(secret.encode()))


def text_of(content: bytes, source: str) -> str:
    """Raises click.UsageError where it is none."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{source}: is no text: byte {error.start} is not UTF-8") from error


def token_file_option(function: F) -> F:
    return click.option(
        "--token-file", envvar="EDGELINK_TOKEN_FILE", metavar="FILE", help="read the token from FILE; - is stdin"
    )(function)


def hostname_option(function: F) -> F:
    return click.option("--hostname", help="name to enrol under  [default: configuration, then the OS hostname]")(
        function
    )


def no_ray_option(function: F) -> F:
    return click.option(
        "--no-ray", is_flag=True, help="have no Ray on this machine, as with `ray: off` in the configuration"
    )(function)


def labels_option(function: F) -> F:
    return click.option(
        "--label", "labels", type=KeyValue(), multiple=True, help="key=value to enrol with; may be repeated"
    )(function)


def cluster_option(function: F) -> F:
    return click.option(
        "--cluster",
        "cluster_file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="RLinf configuration with a `cluster:` section, or just the section, that CMD is for",
    )(function)


class RequiredPath(click.ParamType[tuple[str | None, str]]):
    """``/path``, or ``NAME:/path`` for the nodes of one component or node group; the name is None for all nodes."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str | None, str]:
        if isinstance(value, tuple):
            return value
        name, colon, path = value.partition(":/")
        if value.startswith("/"):
            return None, value
        if not colon or not name:
            self.fail(f"{value!r} is neither an absolute path nor NAME:/PATH", param, ctx)
        return name, f"/{path}"


class Selectors(click.ParamType[tuple[str, ...]]):
    """``edge-1,edge-3`` or ``site=lab-a``."""

    name = "names or labels"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        found = tuple(part.strip() for part in value.split(","))
        if not all(found) or any(part.startswith("=") for part in found):
            self.fail(f"{value!r} is no list of node names and key=value, with commas between them", param, ctx)
        return found


def gang_options(function: F) -> F:
    """``--nodes``, ``--timeout`` and ``--json``, of the wait for the nodes."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="tell of the wait in JSON lines, on stderr"),
        click.option(
            "--timeout",
            "timeout_s",
            type=Duration(),
            default="10m",
            show_default=True,
            help="how long to wait for the nodes before CMD",
        ),
        click.option(
            "--nodes",
            type=Selectors(),
            default=(),
            metavar="NAME|KEY=VALUE,…",
            help="who takes part beside the head, by name or label, for the length of the run  [default: all]",
        ),
    ):
        function = option(function)
    return function


def supervision_options(function: F) -> F:
    """``--retries`` and ``--on-node-loss``."""
    for option in (
        click.option(
            "--on-node-loss",
            type=click.Choice(["wait", "relaunch", "stop"]),
            default="wait",
            show_default=True,
            help="when Ray on a node died under CMD: leave CMD alone, run it again, or end it with status 69",
        ),
        click.option(
            "--retries",
            type=click.IntRange(min=0),
            help="how often CMD is run again after it failed or a node was lost  "
            "[default: 0; 3 with --on-node-loss relaunch]",
        ),
    ):
        function = option(function)
    return function


def framework_options(function: F) -> F:
    """``--framework`` and ``--env``."""
    for option in (
        click.option(
            "--env",
            "given",
            type=Variable(),
            multiple=True,
            help="variable for CMD; K alone: the caller's own value; may be repeated",
        ),
        click.option(
            "--framework",
            type=click.Choice(["rlinf", "openrlhf", "verl", "plain"]),
            help="what CMD is, for its environment  [default: seen from CMD where that is sure, else plain]",
        ),
    ):
        function = option(function)
    return function


def preflight_options(function: F) -> F:
    """Add the options that say what `run` checks before it starts CMD."""
    for option in (
        click.option(
            "--no-resource-check",
            "ignores_resources",
            is_flag=True,
            help="start CMD although its options ask for more than the cluster has",
        ),
        click.option(
            "--require-path",
            "required_paths",
            type=RequiredPath(),
            multiple=True,
            metavar="[NAME:]/PATH",
            help="what has to be there before CMD: on every node, or on those of the component or node group NAME; "
            "may be repeated",
        ),
        click.option(
            "--no-preflight",
            "skips_preflight",
            is_flag=True,
            help="do not try first whether the nodes can talk over the overlay",
        ),
    ):
        function = option(function)
    return function


@dataclass(frozen=True)
class RunWishes:
    """What is asked for of a run, beside CMD itself."""

    cluster_file: Path | None
    gang: GangWishes
    supervision: Supervision
    environment: EnvironmentWishes
    preflight: PreflightWishes


def run_options(function: F) -> F:
    """The options of a run, which ``function`` gets as one ``wishes: RunWishes``."""

    @wraps(function)
    def with_wishes(
        *,
        cluster_file: Path | None,
        timeout_s: float,
        nodes: tuple[str, ...],
        as_json: bool,
        framework: str | None,
        given: tuple[tuple[str, str | None], ...],
        retries: int | None,
        on_node_loss: str,
        skips_preflight: bool,
        ignores_resources: bool,
        required_paths: tuple[tuple[str | None, str], ...],
        **others: Any,
    ) -> Any:
        from edgelink.cli.driver_environment import EnvironmentWishes
        from edgelink.cli.preflight import PreflightWishes
        from edgelink.cli.waiting import GangWishes
        from edgelink.training.supervision import Supervision

        wishes = RunWishes(
            cluster_file,
            GangWishes(timeout_s, nodes, as_json),
            Supervision.of(retries, on_node_loss),
            EnvironmentWishes(framework, given),
            PreflightWishes(skips_preflight, required_paths, ignores_resources),
        )
        return function(wishes=wishes, **others)

    command = cast(F, with_wishes)
    for option in (supervision_options, preflight_options, framework_options, gang_options, cluster_option):
        command = option(command)
    return command

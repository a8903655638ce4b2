"""Options and parameter types that several verbs share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce, wraps
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
T = TypeVar("T")

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


class Parsed(click.ParamType[T]):
    """A value that ``parse`` makes of the text. It raises ValueError, which says what is wrong."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):  # it is one already
            return cast(T, value)
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _ago(text: str) -> float:
    """How far back; further than any log goes is the beginning, also where no calendar goes back that far."""
    return min(parse_duration_s(text), _LONGEST_AGO_S)


def _key_value(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise ValueError(f"{text!r} is not key=value")
    return key, value


def _variable(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not name:
        raise ValueError(f"{text!r} is neither K=V nor K")
    return name, value if equals else None


def _required_path(text: str) -> tuple[str | None, str]:
    name, colon, path = text.partition(":/")
    if text.startswith("/"):
        return None, text
    if not colon or not name:
        raise ValueError(f"{text!r} is neither an absolute path nor NAME:/PATH")
    return name, f"/{path}"


def _selectors(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(","))
    if not all(found) or any(part.startswith("=") for part in found):
        raise ValueError(f"{text!r} is no list of node names and key=value, with commas between them")
    return found


FILE = click.Path(path_type=Path, dir_okay=False)
DURATION = Parsed("duration", parse_duration_s)  # ``90``, ``90s``, ``5m``, ``1h``, ``2d``, in seconds
AGO = Parsed("duration", _ago)
KEY_VALUE = Parsed("key=value", _key_value)
VARIABLE = Parsed("K=V", _variable)  # ``K=V``, or ``K`` for the caller's own value, which is None here
# ``/path``, or ``NAME:/path`` for the nodes of one component or node group; the name is None for all nodes.
REQUIRED_PATH = Parsed("path", _required_path)
SELECTORS = Parsed("names or labels", _selectors)  # ``edge-1,edge-3`` or ``site=lab-a``

config_option = click.option(
    "--config",
    "config_path",
    type=FILE,
    help="configuration file  [default: EDGELINK_CONFIG, then /etc/edgelink/edgelink.yaml]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="machine-readable output")
verbose_option = click.option("-v", "--verbose", is_flag=True, help="show the log, with every step")
token_file_option = click.option(
    "--token-file", envvar="EDGELINK_TOKEN_FILE", metavar="FILE", help="read the token from FILE; - is stdin"
)
hostname_option = click.option("--hostname", help="name to enrol under  [default: configuration, then the OS hostname]")
no_ray_option = click.option(
    "--no-ray", is_flag=True, help="have no Ray on this machine, as with `ray: off` in the configuration"
)
labels_option = click.option(
    "--label", "labels", type=KEY_VALUE, multiple=True, help="key=value to enrol with; may be repeated"
)
hold_option = click.option(
    "--hold", "hold_s", type=DURATION, default="60s", show_default=True, help="patience with moving robots"
)


def timeout_option(how_long: str | None, default: str = "2m") -> Callable[[F], F]:
    """Give a verb ``--timeout``. ``how_long`` says for what it is, as help."""
    return click.option("--timeout", "timeout_s", type=DURATION, default=default, show_default=True, help=how_long)


def options(*each: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return one decorator for several options. ``--help`` lists them in this order."""

    def add(function: F) -> F:
        return reduce(lambda done, option: option(done), reversed(each), function)

    return add


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


framework_options = options(
    click.option(
        "--framework",
        type=click.Choice(["rlinf", "openrlhf", "verl", "plain"]),
        help="what CMD is, for its environment  [default: seen from CMD where that is sure, else plain]",
    ),
    click.option(
        "--env",
        "given",
        type=VARIABLE,
        multiple=True,
        help="variable for CMD; K alone: the caller's own value; may be repeated",
    ),
)
_options_of_a_run = options(
    click.option(
        "--cluster",
        "cluster_file",
        type=FILE,
        help="RLinf configuration with a `cluster:` section, or just the section, that CMD is for",
    ),
    click.option(
        "--nodes",
        type=SELECTORS,
        default=(),
        metavar="NAME|KEY=VALUE,…",
        help="who takes part beside the head, by name or label, for the length of the run  [default: all]",
    ),
    timeout_option("how long to wait for the nodes before CMD", "10m"),
    click.option("--json", "as_json", is_flag=True, help="tell of the wait in JSON lines, on stderr"),
    framework_options,
    click.option(
        "--no-preflight",
        "skips_preflight",
        is_flag=True,
        help="do not try first whether the nodes can talk over the overlay",
    ),
    click.option(
        "--require-path",
        "required_paths",
        type=REQUIRED_PATH,
        multiple=True,
        metavar="[NAME:]/PATH",
        help="what has to be there before CMD: on every node, or on those of the component or node group NAME; "
        "may be repeated",
    ),
    click.option(
        "--no-resource-check",
        "ignores_resources",
        is_flag=True,
        help="start CMD although its options ask for more than the cluster has",
    ),
    click.option(
        "--retries",
        type=click.IntRange(min=0),
        help="how often CMD is run again after it failed or a node was lost  "
        "[default: 0; 3 with --on-node-loss relaunch]",
    ),
    click.option(
        "--on-node-loss",
        type=click.Choice(["wait", "relaunch", "stop"]),
        default="wait",
        show_default=True,
        help="when Ray on a node died under CMD: leave CMD alone, run it again, or end it with status 69",
    ),
)


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

    return _options_of_a_run(cast(F, with_wishes))

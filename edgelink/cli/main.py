"""Entry point of ``edgelink``: picks the verb, turns errors into messages and exit codes.

Verbs are listed here with their one-line help and imported only when called, so that ``edgelink --help`` costs an
interpreter start and click, nothing more.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

import click

from edgelink import __version__
from edgelink.cli.options import Group
from edgelink.errors import EdgelinkError, ExitCode

GROUPS = {
    "Set up": {
        "up": "make this machine a node or, with --relay, the relay",
        "down": "stop this machine's service; `up` starts it again",
        "join": "enrol this machine with a token, without a service",
        "leave": "remove this machine from its network",
        "token": "make and revoke the tokens that machines join with (relay)",
        "config": "check the configuration file, show what is in effect",
        "service": "install, remove and inspect the systemd service",
        "lab": "try all of it on one machine, in network namespaces",
        "completion": "print the completion script for bash, zsh or fish",
        "version": "print EdgeLink's version",
    },
    "Run": {
        "relay": "run the relay's daemon",
        "head": "run the head's daemon, for good or for one command",
        "edge": "run an edge's daemon",
        "run": "run a training command on the cluster (head)",
        "train": "run the built-in trainer; give it to `run` as its command",
        "plan": "show where each process of a cluster file would run",
        "wait": "wait until this node or the cluster is ready",
        "robot": "stop, resume and replay this machine's robots",
        "env": "print the variables with which Ray's own tools work here",
        "exec": "run a command with these variables, here or on other nodes",
        "ssh": "log in on another node over the overlay",
    },
    "Look": {
        "status": "show this node's state",
        "nodes": "list every node and what is wrong with it",
        "ip": "print the overlay address of a node",
        "ping": "measure the way to a node over the overlay",
        "doctor": "check this machine and say what to do",
        "logs": "show the log of the daemon, EasyTier or Ray",
        "dashboard": "print a link to the web page (head)",
        "report": "collect what this node recorded into one file",
        "debug": "show what the daemon knows; for EdgeLink's developers",
    },
    "Operate": {
        "stop": "stop this node's daemon, Ray and EasyTier",
        "restart-ray": "restart Ray on this node or, from the head, on others",
        "registry": "show, change and free leases; back up, restore (relay)",
        "access": "open and close ports between nodes (relay)",
        "revoke": "put a node out of the network for ever (relay)",
        "rotate-secret": "change the network's secret on all nodes (relay)",
        "renew": "renew this node's broker password; no token is needed",
    },
}
_VERBS = [verb for verbs in GROUPS.values() for verb in verbs]
_NAME_WIDTH = max(map(len, _VERBS))  # the groups' columns are one
_ALIASES = {"bootstrap": "relay"}  # units, images and scripts of before have it
_MODULES = {"relay": "bootstrap"}


class _LazyGroup(Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return _VERBS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = _ALIASES.get(cmd_name, cmd_name)
        if verb not in _VERBS:
            return None
        module = _MODULES.get(verb, verb).replace("-", "_")
        command = importlib.import_module(f"edgelink.cli.{module}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(verb.ljust(_NAME_WIDTH), text) for verb, text in verbs.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="edgelink")
def edgelink() -> None:
    """One Ray cluster from a cloud GPU box and robots or simulators behind NAT."""


def main() -> NoReturn:
    """Run the command line and exit with its status, whether or not what it complains of can be written."""
    _open_what_is_closed()
    code = _run()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # Python tries again at its end, and would exit with 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def _open_what_is_closed() -> None:
    """A supervisor may start us without one: nobody reads it then, and the next file must not take its place."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115, PTH123 - as long as we live
            if stream.fileno() != descriptor:
                os.dup2(stream.fileno(), descriptor)
            setattr(sys, name, stream)


def _run() -> int:
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a terminal that has no ✓ gets a question mark
    try:
        color = False if os.environ.get("NO_COLOR") else None  # None: as the terminal has it; click does not look
        status = edgelink.main(standalone_mode=False, prog_name="edgelink", color=color)
        code = status if isinstance(status, int) else ExitCode.OK
    except click.ClickException as error:
        told = io.StringIO()
        error.show(told)
        _complain(told.getvalue())
        code = ExitCode.USAGE
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 130  # as a shell reports a command ended by SIGINT
    except BrokenPipeError:
        code = ExitCode.FAILED
    except EdgelinkError as error:
        code = show(error)
    except PermissionError as error:
        code = show(_not_allowed(error))
    except Exception as error:  # the CLI is the other place where the unexpected ends
        if isinstance(error, OSError) and (refusal := _no_room(error)) is not None:
            return show(refusal)
        if os.environ.get("EDGELINK_TRACEBACK"):
            traceback.print_exc()
        _complain(f"edgelink: unexpected {type(error).__name__}: {error}")
        _complain("  this is a defect; EDGELINK_TRACEBACK=1 shows where")
        code = ExitCode.FAILED
    return code


def _complain(text: str) -> None:
    """Write to stderr, as wide as a terminal is. A path or a command's word stays whole, however long."""
    from edgelink.cli.layout import tell

    with suppress(OSError):  # a log that is full; the exit status tells, too
        for line in text.splitlines():
            tell(line, err=True)


def _not_allowed(error: PermissionError) -> EdgelinkError:
    return EdgelinkError(
        f"{error.filename or 'the system'}: {error.strerror}", hint="EdgeLink's daemons and files are root's: use sudo"
    )


def _no_room(error: OSError) -> EdgelinkError | None:
    """What a disk that is full or read-only means here: mostly that the command's output goes there."""
    from edgelink.files import NO_ROOM

    hint = NO_ROOM.get(error.errno or 0)
    return None if hint is None else EdgelinkError(f"{error.filename or 'the output'}: {error.strerror}", hint=hint)


def show(error: EdgelinkError) -> ExitCode:
    """Print an error the way people should read it, with the name that docs and scripts know it by.

    Returns its exit code.
    """
    _complain(f"edgelink: {error.message}")
    if error.hint:
        _complain(f"  what to do: {error.hint}")
    if error.condition_reason != EdgelinkError.reason:
        _complain(f"  reason: {error.condition_reason}")
    return error.exit_code


if __name__ == "__main__":
    main()

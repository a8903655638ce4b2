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
from edgelink.errors import EdgelinkError, ExitCode

_VERBS = {
    "up": "make this machine a node, or with --relay the relay: enrol, configure, install the service, wait",
    "down": "stop this machine's service and do not start it at boot; `up` brings it back",
    "bootstrap": "relay: make the network on first start, then serve registry, broker and overlay",
    "token": "create, list and revoke the tokens with which machines join",
    "registry": "show and change leases, free those of nodes that are gone; check, backup and restore",
    "access": "open ports of nodes to other nodes over the overlay, and close them (on the relay)",
    "revoke": "put a node out of the network at once, and change the secret that it knows (on the relay)",
    "rotate-secret": "change the network's secret on all nodes (on the relay)",
    "join": "enrol this machine with a token",
    "renew": "a new password of this node at the broker, without a token",
    "edge": "run the edge daemon: overlay, then Ray",
    "head": "run the head daemon; with CMD: wait for the nodes, run CMD, exit with its code",
    "run": "the same with a head daemon that is already running",
    "plan": "where each process of a cluster file would run; starts nothing",
    "restart-ray": "a new Ray on this node; on the head also on another, or on all",
    "stop": "end this node's daemon, its Ray and its EasyTier; --all: everybody's Ray",
    "train": "the built-in trainer (placed like any driver)",
    "robot": "this machine's robots: status, stop, resume; recordings as a dataset",
    "status": "what this node's daemon sees; exit status 0 means ready",
    "nodes": "on the head: every node, what Ray has of it, what is wrong with it",
    "ping": "does a node answer over the overlay, how fast, directly or through whom",
    "dashboard": "on the head: a link to its web page, and the way to it and to Ray's dashboard",
    "wait": "until this node is ready, or the cluster has so many nodes or GPUs; 75: not in time",
    "doctor": "check this machine: what holds, what does not, what to do",
    "logs": "the log of this machine's daemon, of its EasyTier, of a node's Ray; secrets are masked",
    "report": "bundle what this node saw of itself, for whoever helps; secrets are masked",
    "env": "print the environment in which plain `ray status` and friends work here",
    "exec": "run a command in that environment",
    "debug": "what this machine's daemon knows, and what it decided by; for its developers",
    "service": "install, remove and look at EdgeLink as a service of systemd",
    "leave": "take this machine out of its network; its lease is the operator's to free",
    "lab": "all of it on one machine: relay, cloud and NAT'd edges in namespaces",
    "completion": "print the completion script for bash, zsh or fish",
    "version": "print EdgeLink's version",
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command = importlib.import_module(f"edgelink.cli.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))


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
        with suppress(OSError):
            error.show()
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


def _complain(line: str) -> None:
    with suppress(OSError):  # a log that is full; the exit status tells, too
        click.echo(line, err=True)


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

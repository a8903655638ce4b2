"""``edgelink head``: the head daemon, alone or for one command."""

from __future__ import annotations

from pathlib import Path

import click

from edgelink.cli.options import (
    RunWishes,
    config_option,
    hostname_option,
    read_token,
    run_options,
    token_file_option,
    verbose_option,
)


@click.command("head", context_settings={"ignore_unknown_options": True})
@token_file_option
@hostname_option
@run_options
@config_option
@verbose_option
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
def command(
    *,
    token_file: str | None,
    hostname: str | None,
    wishes: RunWishes,
    config_path: Path | None,
    verbose: bool,
    argv: tuple[str, ...],
) -> int | None:
    """Run the head daemon. With CMD: start it, wait for the nodes, run CMD, stop it, exit with CMD's code."""
    from edgelink.cli import daemon
    from edgelink.cli.daemon_threads import run_daemon
    from edgelink.clock import SystemClock
    from edgelink.daemon.head import run_head

    if argv:
        from edgelink.cli.head_for_command import run_head_for_command

        return run_head_for_command(argv, wishes, config_path=config_path, token_file=token_file, hostname=hostname)
    for flag, value in (("--cluster FILE", wishes.cluster_file), ("--nodes NAMES", wishes.gang.nodes)):
        if value:
            raise click.UsageError(f"{flag.split()[0]} goes with a command: edgelink head {flag} -- CMD…")
    config, paths = daemon.prepare(config_path, verbose=verbose)
    enrolment = None
    if not paths.membership.exists():
        enrolment = daemon.enrolment(read_token(None, token_file, required=False), hostname, (), config)
    run_daemon(run_head(config, paths, SystemClock(), enrolment))
    return None

"""Write ``docs/reference/command-line.md`` from the commands: ``python -m edgelink.cli.reference > FILE``."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator

import click

from edgelink.cli.main import edgelink

_WIDTH = 160
_HEAD = """# The command line: every command and option

As `edgelink COMMAND --help` tells it. [Commands](commands.md) is the short form: what is for which machine, and what
the exit codes mean.

This page is generated from the commands (`python -m edgelink.cli.reference`).
"""


def commands(group: click.Group = edgelink, words: tuple[str, ...] = ("edgelink",)) -> Iterator[click.Context]:
    """A context for each command that does something, in the order in which `--help` lists them."""
    context = click.Context(group, info_name=" ".join(words))
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        elif not command.hidden:
            yield click.Context(command, info_name=" ".join((*words, name)), **command.context_settings)


def render() -> str:
    """The page."""
    lines = [_HEAD]
    for context in commands():
        lines += [f"## {context.info_name}", "", f"`{_usage(context)}`", ""]
        for paragraph in inspect.cleandoc(context.command.help or "").replace("\b\n", "").split("\n\n"):
            text = re.sub(r"\s+", " ", paragraph)
            lines += [*textwrap.wrap(_plain(text), _WIDTH, break_on_hyphens=False, break_long_words=False), ""]
        options = [each for each in context.command.params if isinstance(each, click.Option)]
        if rows := [record for option in options if (record := option.get_help_record(context))]:
            lines += ["| option | meaning |", "|---|---|"]
            lines += [f"| `{_cell(names)}` | {_cell(_plain(meaning))} |" for names, meaning in rows]
            lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _usage(context: click.Context) -> str:
    pieces = " ".join(context.command.collect_usage_pieces(context))
    return f"{context.info_name} {pieces}".rstrip()


def _plain(text: str) -> str:
    """Without what Markdown would take for something else."""
    quoted = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<>\[\]*])", r"\\\1", part) for part in quoted)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(render())

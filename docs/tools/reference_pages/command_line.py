"""Make ``docs/reference/command-line.md`` from the commands."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator

import click

from edgelink.cli.main import GROUPS, edgelink

_WIDTH = 160
_HEAD = """# Commands

`edgelink COMMAND --help` says the same on a terminal. What each [exit status](errors.md#exit-status) means, and what
`--json` [prints](json.md).

This page is generated (`make reference`).
"""
_HOW_TO = {
    "access": "access",
    "completion": "look",
    "dashboard": "dashboard",
    "env": "driver-environment",
    "lab": "lab",
    "logs": "look",
    "nodes": "look",
    "ping": "look",
    "plan": "plan",
    "registry": "registry",
    "relay": "second-relay",
    "report": "report",
    "revoke": "revoke",
    "robot": "robots",
    "rotate-secret": "revoke",
    "run": "wait-for-nodes",
    "service": "systemd",
    "train": "train",
    "up": "up",
    "wait": "wait-for-nodes",
}  # the page below docs/how-to that shows a command at work


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
    lines = [_HEAD, *_overview()]
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


def _overview() -> Iterator[str]:
    """A table for each group of `edgelink --help`."""
    for title, verbs in GROUPS.items():
        yield from (f"**{title}**", "", "| command | what it does |", "|---|---|")
        for verb, text in verbs.items():
            how = f" ([how](../how-to/{_HOW_TO[verb]}.md))" if verb in _HOW_TO else ""
            yield f"| [`{verb}`](#{_anchor(verb)}) | {_cell(_plain(text))}{how} |"
        yield ""


def _anchor(verb: str) -> str:
    """The first section of a command: a group has one for each of its own."""
    first = next(each.info_name or "" for each in commands() if f"{each.info_name} ".startswith(f"edgelink {verb} "))
    return first.replace(" ", "-")


def _usage(context: click.Context) -> str:
    pieces = " ".join(context.command.collect_usage_pieces(context))
    return f"{context.info_name} {pieces}".rstrip()


def _plain(text: str) -> str:
    """Without what Markdown would take for something else."""
    quoted = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<>\[\]*])", r"\\\1", part) for part in quoted)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")

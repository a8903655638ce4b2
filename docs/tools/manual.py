"""Man pages, from what the commands say of themselves: one for each, and edgelink(1) that lists them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import click
from reference_pages.command_line import commands

from edgelink import __version__
from edgelink.cli.main import edgelink

_FILES = {
    "/etc/edgelink/edgelink.yaml": "the configuration; EDGELINK_CONFIG names another one",
    "/var/lib/edgelink": "keys, lease, and on the relay the registry: who loses them loses the node, or the network",
    "/run/edgelink": "the sockets on which the commands ask the daemon",
}
_ESCAPES = str.maketrans(
    {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
    | {"…": "...", "–": r"\(en", "—": r"\(em", "→": r"\(->", "≥": r"\(>=", "×": r"\(mu"}
)
_EXIT = {
    "0": "ok",
    "1": "failed",
    "2": "usage",
    "75": "timed out, or try again",
    "78": "the configuration or the machine has to be changed first",
}


def pages() -> dict[str, str]:
    """Each page by its file's name."""
    listed = [(context.info_name or "", context) for context in commands()]
    found = {f"{name.replace(' ', '-')}.1": _page(name, context) for name, context in listed}
    lines = _head("edgelink", edgelink.help or "")
    lines += [".SH SYNOPSIS", r"\fBedgelink\fR \fICOMMAND\fR [\fIARGUMENT\fR ...]", ".SH COMMANDS"]
    for name, context in listed:
        lines += [".TP", rf"\fB{_text(name.replace(' ', '-'))}\fR(1)", _text(context.command.get_short_help_str(200))]
    for title, told in (("FILES", _FILES), ("EXIT STATUS", _EXIT)):
        lines.append(f".SH {title}")
        for term, meaning in told.items():
            lines += [".TP", rf"\fB{_text(term)}\fR", _text(meaning)]
    return {"edgelink.1": "\n".join(lines) + "\n", **found}


def write(directory: Path) -> None:
    """All pages into ``directory``, which is made."""
    directory.mkdir(parents=True)
    for name, page in pages().items():
        (directory / name).write_text(page)


def _page(name: str, context: click.Context) -> str:
    command = context.command
    lines = _head(name.replace(" ", "-"), command.get_short_help_str(200))
    usage = " ".join(command.collect_usage_pieces(context))
    lines += [".SH SYNOPSIS", rf"\fB{_text(name)}\fR {_text(usage)}", ".SH DESCRIPTION"]
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        kept = paragraph.startswith("\b\n")  # lines that stay as they are
        text = paragraph.removeprefix("\b\n")
        lines += [".PP", *([".nf", *map(_text, text.splitlines()), ".fi"] if kept else [_text(text)])]
    options = [each for each in command.params if isinstance(each, click.Option)]
    if records := [record for option in options if (record := option.get_help_record(context))]:
        lines.append(".SH OPTIONS")
        for names, meaning in records:
            lines += [".TP", rf"\fB{_text(names)}\fR", _text(meaning)]
    lines += [".SH SEE ALSO", r"\fBedgelink\fR(1)"]
    return "\n".join(lines) + "\n"


def _head(name: str, short: str) -> list[str]:
    # The date is that of no day: a page is the same whenever it is made.
    title = f'.TH "{_text(name.upper())}" "1" "" "EdgeLink {_text(__version__)}" "EdgeLink"'
    return [title, ".SH NAME", rf"{_text(name)} \- {_text(short)}"]


def _text(text: str) -> str:
    """As one line of roff that says nothing but ``text``."""
    plain = re.sub(r"\s+", " ", text).strip()
    escaped = plain.translate(_ESCAPES)
    return rf"\&{escaped}" if escaped.startswith(".") else escaped

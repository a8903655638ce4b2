"""The page of the command line is what the commands say."""

from __future__ import annotations

from pathlib import Path

from reference_pages.command_line import commands

from edgelink.cli.main import edgelink

PAGE = Path(__file__).parent.parent / "docs/reference/command-line.md"


def test_every_command_is_there_with_its_options() -> None:
    """Groups are told by their commands; what `--help` says is not lost on the way."""
    page = PAGE.read_text()
    verbs = edgelink.list_commands(None)  # type: ignore[arg-type]
    assert [verb for verb in verbs if f"\n## edgelink {verb}" not in page] == []
    for context in commands():
        section = page.partition(f"\n## {context.info_name}\n")[2].partition("\n## ")[0]
        for option in context.command.params:
            for name in option.opts if option.param_type_name == "option" else ():
                assert name in section, (context.info_name, name)

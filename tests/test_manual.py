"""The man pages: one for each command, with all of its options, and nothing that groff stumbles over."""

from __future__ import annotations

import re
import shutil
import subprocess

import manual
import pytest
from reference_pages.command_line import commands

from edgelink.cli.main import edgelink

PAGES = manual.pages()


def test_each_command_has_a_page_with_its_options() -> None:
    listed = PAGES["edgelink.1"].replace("\\", "")
    assert len(PAGES) > len(edgelink.list_commands(None))  # type: ignore[arg-type]
    for context in commands():
        name = (context.info_name or "").replace(" ", "-")
        page = PAGES[f"{name}.1"].replace("\\", "")
        assert f"{name}fR(1)" in listed
        for option in context.command.params:
            for word in option.opts if option.param_type_name == "option" and not option.hidden else ():  # type: ignore[attr-defined]
                assert word in page, (name, word)


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff: `make unit` installs it")
def test_groff_sets_them_without_a_warning() -> None:
    """All in one: nothing that a command says of itself is taken for a request."""
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tascii"], input="".join(PAGES.values()), capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    text = re.sub(".\b", "", done.stdout)  # bold is written twice
    assert text.count("SEE ALSO") == len(PAGES) - 1
    assert "--cluster" in text

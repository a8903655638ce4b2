"""Every command that README and docs/ show, against the command line; every piece of YAML, against what reads it.

Nothing is run: the words are given to click's own parser, so that an option that was renamed or never was is found.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import pytest
import yaml

from edgelink.cli.main import edgelink
from edgelink.config.models import Config
from edgelink.launch.apps_file import read_apps_file
from edgelink.placement import InvalidClusterError
from edgelink.placement.early import check_before_waiting

_ROOT = Path(__file__).parent.parent
_PAGES = [_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:sudo )?edgelink [^`]+)`")
_PROMPT = re.compile(r"^\s*(?:\w+)?\$ +")
_ASSIGNED = re.compile(r"^[A-Za-z_]\w*=")
_OPERATORS = {"|", "||", "&&", ";", "&", "(", ")", "{", "}"}
# Words of the synopsis that are no words of a command line: `[-o FILE]`, `list|show`, `…`.
_SYNOPSIS = re.compile(r"[\[\]…]|\w\|\w|COMMAND")
_TYPED_IN = re.compile(r"^cloud\$ cat >\S+\.yaml <<'END'\n(.*?)^END$", re.MULTILINE | re.DOTALL)
# Whose YAML it is where it is not ours, by its first key: Docker Compose's, Prometheus's, cloud-init's.
_OTHERS = {"services", "name", "scrape_configs", "groups", "write_files", "runcmd"}
_SHELLS = ("", "sh", "bash", "console", "ini")


@dataclass(frozen=True)
class Typed:
    """A command of a page, from the word after `edgelink` on."""

    page: str
    words: tuple[str, ...]
    is_whole: bool  # not a mention in a sentence, whose values are left out

    def __str__(self) -> str:
        return f"{self.page}: edgelink {' '.join(self.words)}"


@cache
def typed() -> tuple[Typed, ...]:
    return tuple(each for page in _PAGES for each in _typed_on(page))


def _typed_on(page: Path) -> Iterator[Typed]:
    text, name = page.read_text(), page.relative_to(_ROOT).as_posix()
    for _, language, block in _FENCE.findall(text):
        if language in _SHELLS:
            for line in block.replace("\\\n", " ").splitlines():
                for words in _commands(_PROMPT.sub("", line)):
                    yield Typed(name, words, is_whole=True)
    for mention in _INLINE.findall(_FENCE.sub("", text)):
        if not _SYNOPSIS.search(mention):
            for words in _commands(mention):
                yield Typed(name, words, is_whole=False)


def _commands(line: str) -> Iterator[tuple[str, ...]]:
    """The arguments of each `edgelink` that a line of a shell, or of a unit, starts."""
    try:
        lexer = shlex.shlex(re.sub(r"^Exec\w+=", "", line), posix=True, punctuation_chars="|&;(){}")
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        return  # an apostrophe of a sentence: it is what a command says
    simple: list[str] = []
    for word in [*words, ";"]:
        if word not in _OPERATORS:
            simple.append(word)
            continue
        yield from _simple(simple)
        simple = []


def _simple(words: list[str]) -> Iterator[tuple[str, ...]]:
    while words and (_ASSIGNED.match(words[0]) or words[0] in ("sudo", "exec", "nohup")):
        words = words[1:]
    if words[:1] == ["-u"]:
        words = words[2:]
    if words and (words[0] == "edgelink" or words[0].endswith("/bin/edgelink")):
        yield tuple(word for word in words[1:] if not word.startswith((">", "<", "2>")))


def parse(words: tuple[str, ...], *, is_whole: bool) -> None:
    """Give the words to the command's own parser. Those of CMD, after `--`, are another program's.

    Raises:
        click.UsageError: there is no such command or option, or a value is none of the choices.
    """
    command: click.Command = edgelink
    context = click.Context(command, info_name="edgelink")
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        if found is None:
            raise click.UsageError(f"no command {rest[0]}")
        command, rest = found, rest[1:]
        context = click.Context(command, context, info_name=command.name, **command.context_settings)
    if (not is_whole and isinstance(command, click.Group)) or command.name == "train":
        return  # the trainer's words are tried where they are read
    context.ignore_unknown_options = False
    try:
        given, _, _ = command.make_parser(context).parse_args(rest)
    except click.BadOptionUsage:
        if is_whole:
            raise
        return
    for parameter in command.params:
        value = given.get(parameter.name or "")
        if isinstance(parameter.type, click.Choice) and isinstance(value, str) and value != "…":
            parameter.type.convert(value, parameter, context)


@pytest.mark.parametrize("page", [page.relative_to(_ROOT).as_posix() for page in _PAGES])
def test_every_command_can_be_typed(page: str) -> None:
    """No unknown command, no unknown option, no unknown choice."""
    for each in typed():
        if each.page == page:
            try:
                parse(each.words, is_whole=each.is_whole)
            except click.ClickException as error:
                pytest.fail(f"{each}: {error.format_message()}")


COOK = ("token", "create", "--role", "cook")


def test_commands_are_found_and_mistakes_are_seen() -> None:
    """The net has no holes: it sees what it is made to see."""
    pages = {each.page for each in typed()}
    assert len(typed()) > 300
    assert {"README.md", "docs/tutorial/three-machines.md", "docs/how-to/systemd.md"} <= pages
    (tutorial, *_) = [each for each in typed() if each.page.endswith("three-machines.md")]
    assert tutorial.words == ("version",)
    for wrong in (("runn",), ("run", "--no-such-option"), ("registry", "lost"), ("status", "--jsn"), COOK):
        with pytest.raises(click.ClickException):
            parse(wrong, is_whole=True)
    assert list(_commands("A=1 sudo edgelink stop --all && echo edgelink | sudo -u x /opt/bin/edgelink wait")) == [
        ("stop", "--all"),
        ("wait",),
    ]


def _yaml() -> list[tuple[str, str]]:
    """Each piece, by page: fenced, typed into a file, or a file of its own."""
    found = [(page, block) for page in _PAGES for _, kind, block in _FENCE.findall(page.read_text()) if kind == "yaml"]
    found += [(page, block) for page in _PAGES for block in _TYPED_IN.findall(page.read_text())]
    found += [(file, file.read_text()) for file in (_ROOT / "docs/examples").rglob("*.yaml")]
    return [(page.relative_to(_ROOT).as_posix(), block) for page, block in found]


@pytest.mark.parametrize(("page", "text"), _yaml())
def test_every_piece_of_yaml_is_what_its_reader_takes(tmp_path: Path, page: str, text: str) -> None:
    """Configuration by its own models, a cluster section or apps as their commands do; whose the rest is, is known."""
    content = yaml.safe_load(text)
    first = next(iter(content))
    if first in Config.model_fields:
        Config.model_validate(content)
    elif "component_placement" in content.get("cluster", {}):
        check_before_waiting(content["cluster"])
    elif first == "apps":
        for file in content.get("files", ()):
            (tmp_path / file).touch()
        (tmp_path / "apps.yaml").write_text(text)
        assert read_apps_file(tmp_path / "apps.yaml").apps
    else:
        assert first in _OTHERS or page == "docs/how-to/link-budget.md", f"whose YAML is this? {first}"


def test_yaml_is_found_and_mistakes_are_seen() -> None:
    """In each of its three forms."""
    pages = {page for page, _ in _yaml()}
    assert {"docs/tutorial/three-machines.md", "docs/how-to/registry.md", "docs/examples/cluster.yaml"} <= pages
    with pytest.raises(InvalidClusterError):
        check_before_waiting({"num_nodes": 2, "component_placement": {"actor": {"node_group": "nobody"}}})

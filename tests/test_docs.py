"""Documentation and hints against the code: what people and scripts rely on is there."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType

import click
import pytest

from edgelink.cli.main import edgelink

_ROOT = Path(__file__).parent.parent
_REFERENCE = _ROOT / "docs/reference"


@pytest.mark.parametrize("place", ["edgelink", "docs", "README.md"])
def test_commands_that_people_are_told_to_run_exist(place: str) -> None:
    """A hint or a page never names a verb that is not there."""
    path = _ROOT / place
    files = [path] if path.is_file() else [file for kind in ("py", "md") for file in path.rglob(f"*.{kind}")]
    verbs = set(edgelink.list_commands(None))  # type: ignore[arg-type]
    for file in files:
        told = set(re.findall(r"`(?:sudo )?edgelink ([a-z][a-z-]*)", file.read_text()))
        assert told <= verbs, file


def test_no_message_names_a_file_of_the_documentation() -> None:
    """It is not on a machine where EdgeLink is installed."""
    named = []
    for file in (_ROOT / "edgelink").rglob("*.py"):
        tree = ast.parse(file.read_text())
        owners = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
        docs = {id(node.body[0].value) for node in owners if node.body and isinstance(node.body[0], ast.Expr)}
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        named += [(file.name, text.value) for text in texts if "docs/" in text.value and id(text) not in docs]
    assert named == []


_NAMED = re.compile(r"\btest_\w+")


@pytest.mark.parametrize(
    ("page", "at_least"),
    [("reference/easytier.md", 30), ("reference/refusals.md", 9), ("explanation/security.md", 20)],
)
def test_the_tests_that_a_page_names_exist(page: str, at_least: int) -> None:
    """By function or by file, in comments that readers do not see; and each file of the code beside them."""
    text = (_ROOT / "docs" / page).read_text()
    files = [*(_ROOT / "tests").glob("test_*.py"), *(_ROOT / "netns-tests").glob("test_*.py")]
    known = {file.stem for file in files}
    known |= {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    named = set(_NAMED.findall(text))
    assert len(named) > at_least
    assert named - known == set()
    code = set(re.findall(r"`(\w+/\w+\.py)`", text))
    assert {name for name in code if not (_ROOT / "edgelink" / name).exists()} == set()


def test_each_promise_of_the_security_page_names_a_test() -> None:
    page = (_ROOT / "docs" / "explanation" / "security.md").read_text()
    _, _, rest = page.partition("\n| promise | rests on |\n")
    rows = [line for line in rest.partition("\n\n")[0].splitlines() if not line.startswith("|---")]
    assert len(rows) > 20
    assert [row for row in rows if not re.search(r"<!-- test_.* --> \|$", row)] == []


_MAKE = re.compile(r"`make ([^`\n]+)`")
_MAKE_LINE = re.compile(r"^(?:\w+\$ )?make ([^#\n]+)", re.MULTILINE)


def test_what_people_are_told_to_make_can_be_made() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (_ROOT / "Makefile").read_text(), re.MULTILINE))
    told = {
        (page.name, word)
        for page in (_ROOT / "README.md", *(_ROOT / "docs").rglob("*.md"))
        for found in (*_MAKE.findall(page.read_text()), *_MAKE_LINE.findall("".join(_FENCED.findall(page.read_text()))))
        for word in found.split()
        if "=" not in word and "…" not in word
    }
    assert len(told) > 20
    assert {(page, word) for page, word in told if word not in targets} == set()


def test_no_page_for_users_shows_names_of_tests_or_numbers_of_decisions() -> None:
    """They stand in comments. Pages of the project itself, such as the decisions, are for developers."""
    contents = (_ROOT / "docs/index.md").read_text().partition("\n- Project\n")
    of_project = {target for _, target in re.findall(r"\[(.*?)\]\((.*?)\)", contents[2])}
    shown = {}
    for page in (_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))):
        name = page.relative_to(_ROOT / "docs").as_posix() if page.is_relative_to(_ROOT / "docs") else page.name
        if name not in of_project and not name.startswith("decisions/"):
            text = _FENCED.sub("", re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL))
            shown[name] = re.findall(r"\btest_\w+|\bADR\b", text)
    assert len(shown) > 60
    assert {name: found for name, found in shown.items() if found} == {}


_LINK = re.compile(r"!?\[[^\]]*(?<!\\)\]\(([^)\s#]*)(?:#([^)\s]*))?\)")
_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_PAGES = [_ROOT / "README.md", _ROOT / "CHANGELOG.md", *sorted((_ROOT / "docs").rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """What its headings are called in links: lower case, without signs, `-` for each space."""
    titles = re.findall(r"^#+ +(.*)$", _FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.relative_to(_ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """To files of the repository, and to headings that are there; the site is checked when it is built."""
    for target, anchor in _LINK.findall(_FENCED.sub("", page.read_text())):
        if "://" in target or target.startswith("mailto:"):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page}: {target}"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{page}: {target}#{anchor}"


_PROMPTED = re.compile(r"^\w+\$ ", re.MULTILINE)
_PROGRAMS = ("sudo", "edgelink", "docker", "systemctl", "python", "curl", "apt", "pip", "pipx", "uv", "make")
_ANY_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def how_to(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The table of `netns-tests/test_how_to.py`."""
    monkeypatch.syspath_prepend(_ROOT / "netns-tests")
    return importlib.import_module("how_to_pages")


def source_of(file: Path) -> str:
    """A test's file, and what it has of its own folder; of the tutorial's the page that it types."""
    text = file.read_text()
    beside = [file.with_name(f"{name}.py") for name in re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)]
    beside += [_ROOT / "docs/tutorial/three-machines.md"] if file.stem == "test_tutorial" else []
    return "\n".join([text, *(path.read_text() for path in beside if path.exists())])


def test_every_command_of_a_how_to_is_run_by_a_test(how_to: ModuleType) -> None:
    """Typed by `test_how_to.py` as it stands there, or named with a test that runs the same subcommand with its options
    and the trainer's settings."""
    pages = {page.stem: how_to.steps(page) for page in sorted(how_to.HOW_TO.glob("*.md"))}
    assert sum(map(len, pages.values())) > 90
    assert set(how_to.TYPED) <= pages.keys()
    groups = {name for name, command in edgelink.commands.items() if isinstance(command, click.Group)}
    used = set()
    for page, steps in pages.items():
        for step in steps:
            test = how_to.run_elsewhere(page, step)
            if not test:
                assert page in how_to.TYPED, f"{page}: {step.command}"
                continue
            used.add((page, test))
            name, _, function = test.partition("::")
            files = [path for path in (_ROOT / "tests" / name, _ROOT / "netns-tests" / name) if path.exists()]
            file = next((path for path in files if f"def {function}(" in path.read_text()), None)
            assert file is not None, f"{page}: {test}"
            own = step.command.partition(" -- ")[0]  # what follows is another program's
            verbs = re.findall(r"(?:^|\s)edgelink ([a-z][a-z-]*)(?: ([a-z]+))?", own)
            for verb, second in verbs:
                words = [verb, second] if verb in groups else [verb]
                said = r"\W{1,4}".join(map(re.escape, words))
                assert re.search(rf"\b{said}\b", source_of(file)), f"{page}: {' '.join(words)}: {test}"
            options = re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", own if verbs else "")
            options += re.findall(r"\b([a-z_]+\.[a-z_]+)=", step.command if "edgelink train" in step.command else "")
            for option in options:
                spellings = {option, option.removeprefix("--").replace("-", "_")}  # an argument of a helper's
                assert any(each in source_of(file) for each in spellings), f"{page}: {option}: {test}"
    assert used == {(page, test) for page, tests in how_to.ELSEWHERE.items() for test in tests.values()}


def test_the_readmes_road_is_the_tutorials(how_to: ModuleType) -> None:
    """Two commands a machine, which a test types word for word on clean machines."""
    readme = re.findall(r"^(?:curl|sudo edgelink up) .*", (_ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(readme) == 4
    tutorial = {step.command for step in how_to.steps(_ROOT / "docs/tutorial/three-machines.md")}
    assert set(readme) - tutorial == set()


def test_no_command_of_a_how_to_is_without_its_machine() -> None:
    """A block with a prompt is typed; one without is a file or an excerpt, and no line of it a command."""
    for page in sorted((_ROOT / "docs/how-to").glob("*.md")):
        for language, block in _ANY_FENCE.findall(page.read_text()):
            if language in ("", "sh", "bash", "console") and not _PROMPTED.search(block):
                assert not [line for line in block.splitlines() if line.startswith(_PROGRAMS) and ": " not in line], (
                    page
                )
            assert not language or not _PROMPTED.search(block), f"{page}: a session is a block without a language"

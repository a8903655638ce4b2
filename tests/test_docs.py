"""Documentation and hints against the code: what people and scripts rely on is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgelink.cli.main import edgelink
from edgelink.registry.topics import Topics

_ROOT = Path(__file__).parent.parent
_REFERENCE = _ROOT / "docs/reference"
_PAGE = (_REFERENCE / "conditions.md").read_text()
_NAME = r"[A-Z][A-Za-z]+"
_SETS = re.compile(
    rf"""(?:_down|_wait)\(\s*"({_NAME})"|conditions\.set\w*\([^"]*(?:"{_NAME}",\s*)?(?:Status\.\w+,\s*)?"({_NAME})",\s*f?["(]"""
)


def sources() -> str:
    return "\n".join(path.read_text() for path in sorted((_ROOT / "edgelink").rglob("*.py")))


def test_every_documented_reason_is_in_the_code() -> None:
    """No page tells of a reason that nobody ever sees."""
    code = sources()
    documented = set(re.findall(rf"`({_NAME})`", _PAGE))
    assert {name for name in documented if f'"{name}"' not in code} == set()


def test_every_reason_that_a_condition_is_given_is_documented() -> None:
    """Those that are written out where a condition is set; errors bring their own."""
    found = {name for groups in _SETS.findall(sources()) for name in groups if name}
    assert len(found) > 20
    assert {name for name in found if f"`{name}`" not in _PAGE} == set()


def test_topics_are_documented() -> None:
    """Every topic is on the page, spelt as on the wire."""
    topics = Topics("N")
    token, node = "t" * 8, "n" * 26
    page = (_REFERENCE / "mqtt.md").read_text().replace("<token id>", token).replace("<node id>", node)
    page = page.replace("<page>", "P")
    for topic in (
        topics.directory,
        topics.roster("P"),
        topics.cluster,
        topics.enrol_request(token, node),
        topics.enrol_reply(token, node),
        topics.status(node),
        topics.lease(node),
        topics.report_request,
        topics.report(node),
        topics.network,
        topics.secrets(node),
        topics.answer(node),
        topics.node_request(node),
        topics.node_reply(node),
    ):
        assert f"`{topic.removeprefix('edgelink/1/N/')}`" in page


@pytest.mark.parametrize("place", ["edgelink", "docs", "README.md"])
def test_commands_that_people_are_told_to_run_exist(place: str) -> None:
    """A hint or a page never names a verb that is not there."""
    path = _ROOT / place
    files = [path] if path.is_file() else [file for kind in ("py", "md") for file in path.rglob(f"*.{kind}")]
    verbs = set(edgelink.list_commands(None))  # type: ignore[arg-type]
    for file in files:
        told = set(re.findall(r"`(?:sudo )?edgelink ([a-z][a-z-]*)", file.read_text()))
        assert told <= verbs, file


@pytest.mark.parametrize(("page", "at_least"), [("reference/easytier.md", 30), ("explanation/security.md", 20)])
def test_the_tests_that_a_page_names_exist(page: str, at_least: int) -> None:
    """By function or by file."""
    text = (_ROOT / "docs" / page).read_text()
    files = [*(_ROOT / "tests").glob("test_*.py"), *(_ROOT / "netns-tests").glob("test_*.py")]
    known = {file.stem for file in files}
    known |= {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > at_least
    assert named - known == set()


def test_what_shows_a_refusal_is_there() -> None:
    """Every test that the page of refusals names, and every file of the code."""
    page = (_REFERENCE / "refusals.md").read_text()
    tests = "\n".join(path.read_text() for place in ("tests", "netns-tests") for path in (_ROOT / place).glob("*.py"))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 9
    assert {name for name in named if f"def {name}(" not in tests} == set()
    files = set(re.findall(r"`(\w+/\w+\.py)`", page))
    assert {name for name in files if not (_ROOT / "edgelink" / name).exists()} == set()

"""Slips of the finger in each YAML example of the documentation: the answer names file, line and key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from telling import Words

from edgelink.config import Config, load_config
from edgelink.errors import EdgelinkError
from edgelink.placement import InvalidClusterError, check_before_waiting, load_nodes_file
from edgelink.placement.cluster_file import read_cluster_file, read_yaml
from edgelink.training.trainer.options import parse

_ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"^( *)```yaml[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_KEY = re.compile(r"(?P<indent>\s*(?:- )?)(?P<key>[a-z_]\w*): (?P<value>[^#\s].*)")
_LIBRARY_WORDS = re.compile(
    r"Input should|<unicode string>|while (scanning|parsing|constructing)|could not find|mapping values|expected '|"
    r"pydantic|NoneType|\bdict\b|\bstr\b|\bint\b|\btuple\b|literal for|not iterable|object is|Error\b|type=|::"
)
# Keys below these are the user's own, and optional keys of a cluster file are RLinf's to ignore.
_FREE = ("environment", "ranges", "labels", "component_placement", "env_vars")
_NEEDED = ("num_nodes", "component_placement", "label", "node_ranks")

Load = Callable[[Path], object]


def load_cluster(path: Path) -> None:
    """As the commands do."""
    file = read_cluster_file(path)
    try:
        check_before_waiting(file.section)
    except InvalidClusterError as error:  # as the command line does
        raise error.located(str(path), read_yaml(path).lines) from error


def load_edgelink(path: Path) -> Config:
    return load_config(path, environ={})


def is_read(load: Load, path: Path) -> bool:
    try:
        load(path)
    except EdgelinkError:
        return False
    return True


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Load, str]]:
    """Each YAML of the documentation that is a whole file of EdgeLink's, with what reads it."""
    texts = [path.read_text() for path in sorted((_ROOT / "docs/examples").rglob("*.yaml"))]
    for page in (_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))):
        for indent, block in _BLOCK.findall(page.read_text()):
            texts.append(re.sub(rf"^{indent}", "", block, flags=re.MULTILINE))
    path = tmp_path_factory.mktemp("examples") / "file.yaml"
    found: list[tuple[Load, str]] = []
    for text in texts:
        path.write_text(text)
        found += [(load, text) for load in (load_edgelink, load_cluster) if is_read(load, path)]
    assert {load for load, _ in found} == {load_edgelink, load_cluster}
    return found


def keys_of(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Each line ``key: value`` whose key EdgeLink knows, with its index."""
    free_below: int | None = None
    for index, line in enumerate(text.splitlines()):
        found = _KEY.fullmatch(line)
        indent = len(line) - len(line.lstrip())
        if free_below is not None and line.strip() and indent <= free_below:
            free_below = None
        if free_below is None and found is not None:
            yield index, found
        if free_below is None and line.strip().rstrip(":").split(":")[0].lstrip("- ") in _FREE:
            free_below = indent


def misspelt(key: str) -> str:
    return f"{key[:-3]}{key[-2]}{key[-3]}{key[-1]}" if key[-2] != key[-3] else key[:-1]


def answer(load: Load, path: Path, text: str, line: int, changed: str) -> str:
    """Return what is said of ``text`` with its line number ``line``, counted from 0, ``changed``."""
    lines = text.splitlines()
    path.write_text("\n".join([*lines[:line], changed, *lines[line + 1 :]]) + "\n")
    with pytest.raises(EdgelinkError) as raised:
        load(path)
    said = str(raised.value)
    assert not _LIBRARY_WORDS.search(said.replace(str(path), "")), said
    assert str(path) in said
    assert raised.value.hint
    return said


def test_a_misspelt_key_is_named_with_its_line_and_the_key_that_is_meant(
    examples: list[tuple[Load, str]], tmp_path: Path
) -> None:
    tried = 0
    for load, text in examples:
        for line, found in keys_of(text):
            key = found["key"]
            if load is load_cluster and key not in _NEEDED:
                continue
            typo = misspelt(key)
            said = answer(load, tmp_path / "file.yaml", text, line, f"{found['indent']}{typo}: {found['value']}")
            assert f"line {line + 1}: " in said
            assert typo in said
            assert re.search(rf"did you mean [\w.]*\b{key}\b", said), said
            assert "problems" not in said, "one mistake is one problem"
            tried += 1
    assert tried > 10


def test_a_key_without_its_colon_is_named_with_its_line(examples: list[tuple[Load, str]], tmp_path: Path) -> None:
    for load, text in examples:
        for line, found in keys_of(text):
            if load is load_edgelink or found["key"] in _NEEDED:
                changed = f"{found['indent']}{found['key']} {found['value']}"
                said = answer(load, tmp_path / "file.yaml", text, line, changed)
                assert re.search(rf"line ({line + 1}:? |{line}: )", said), said  # or of the section that it is in
                assert f"`{found['key']}: " in said, said


def test_a_tab_is_named_with_its_line(examples: list[tuple[Load, str]], tmp_path: Path) -> None:
    tried = 0
    for load, text in examples:
        for line, written in enumerate(text.splitlines()):
            if written.startswith(" ") and _KEY.fullmatch(written):
                said = answer(load, tmp_path / "file.yaml", text, line, "\t" + written.lstrip())
                assert f"line {line + 1} " in said
                assert "tab" in said
                tried += 1
    assert tried > 10


def test_a_value_of_the_wrong_kind_is_named_with_its_line_and_key(
    examples: list[tuple[Load, str]], tmp_path: Path
) -> None:
    for load, text in examples:
        for line, found in keys_of(text):
            if load is load_edgelink or found["key"] in ("num_nodes", "node_ranks"):
                said = answer(load, tmp_path / "file.yaml", text, line, f"{found['indent']}{found['key']}: [[{{}}]]")
                assert re.search(rf"line {line + 1}: [\w.\[\]]*{found['key']}", said), said


@pytest.mark.parametrize("value", ["[[1]]", "{a: 1}", "'\\0'", "-1.5", "2024-01-01", "''", "99999999999"])
def test_no_key_of_the_configuration_answers_in_the_words_of_a_library(tmp_path: Path, value: str) -> None:
    """Whatever is written there; what a key wants is said instead."""
    path = tmp_path / "edgelink.yaml"
    written = [(name, "") for name, field in Config.model_fields.items() if field.annotation is not None]
    for name, field in Config.model_fields.items():
        written += [(name, key) for key in getattr(field.annotation, "model_fields", {})]
    refused = 0
    for section, key in written:
        path.write_text(f"{section}:\n  {key}: {value}\n" if key else f"{section}: {value}\n")
        try:
            load_config(path, environ={})
        except EdgelinkError as error:
            refused += 1
            said = str(error).replace(str(path), "")
            assert not _LIBRARY_WORDS.search(said.partition("(got")[0]), said
            assert re.search(rf"line \d: {section}", said), said
    assert refused > len(written) / 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ray:\n  port:\t1\n", "column 8"),
        ("ray:\n  python: 'x\n  port: 1\n", "line 2 opens a quote"),
        ("ray:\n  port: 1\n user: x\n", "line 3 is indented otherwise"),
        ("ray: port: 1\n", "column 10"),
        ("ray:\n  port:6379\n", "write `port: 6379`"),
        ("ray\n  port: 1\n", "after ray"),
        ("hostname: @x\n", "line 1 has @ in column 11"),
        ("hostname: *x\n", "line 1 has x in column 11"),
        ("hostname: !x y\n", "line 1 has !x in column 11"),
        ("hostname: a\n---\nhostname: b\n", "line 2 "),
        ("hostname: a\x07\n", "line 1 has the character U+0007"),
        ("overlay: {port: 1}\n", "did you mean overlay.rpc_port?"),
        ("port: 1\n", "did you mean ray.port or web.port or metrics.port?"),
        ("ray: {zzz: 1}\n", "known are enabled, python, user"),
        ("overlay: {mtu: 1}\nride_through: x\n", "(got 1); line 2: ride_through: 'x'"),
    ],
)
def test_what_keeps_a_text_from_being_yaml_is_said_plainly(tmp_path: Path, text: str, told: str, words: Words) -> None:
    path = tmp_path / "edgelink.yaml"
    path.write_text(text)
    with pytest.raises(EdgelinkError) as raised:
        load_config(path, environ={})
    assert told in str(raised.value)
    assert "line " in str(raised.value)
    words.on("config", raised.value, FILE=path)
    assert not _LIBRARY_WORDS.search(raised.value.message.replace(str(path), ""))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("train:\n\tx: 1\n", "line 2 "),
        ("run: [\n", "line 2 is not YAML"),
        ("run: !!int x\n", "type"),
        ("run:\n  seed: [[1]]\n", "run.seed"),
        ("run:\n  seeed: 1\n", "did you mean seed?"),
        ("run: 3\n", "run"),
    ],
)
def test_the_trainers_configuration_is_judged_in_the_same_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(text)
    with pytest.raises(SystemExit):
        parse(["--config", str(path)])
    said = capsys.readouterr().err.rpartition("edgelink train: error:")[2]
    assert told in said
    assert not _LIBRARY_WORDS.search(said.replace(str(path), "")), said


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "[1e999]", '[{"rank": "x"}]', '{"nodes": 3}', "\xff"])
def test_a_file_of_nodes_is_judged_in_the_same_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "nodes.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(EdgelinkError) as raised:
        load_nodes_file(path)
    assert str(path) in raised.value.message
    assert not _LIBRARY_WORDS.search(raised.value.message.replace(str(path), "")), raised.value.message

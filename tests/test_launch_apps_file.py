"""The file of `edgelink run --apps`: what it says, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from telling import Words, refuses

from edgelink.errors import ConfigError
from edgelink.launch.app_environment import app_environment
from edgelink.launch.apps_file import Where, check_nodes, filled, order, read_apps_file
from edgelink.launch.port_progress import PortProgress

NODES = {"cloud": Where("cloud", "10.10.0.2", is_here=True), "edge-1": Where("edge-1", "10.10.0.3", is_here=False)}
PAIR = """
apps:
  actor:
    node: edge-1
    python: /opt/lerobot/bin/python
    command: [-m, lerobot.rl.actor, "--host={learner.host}", "--port={learner.port}", "{files}/train.json"]
    after: learner
  learner: {node: cloud, command: [learner, 5], listens: 50051}
"""


def write(directory: Path, text: str) -> Path:
    file = directory / "pair.yaml"
    file.write_text(text)
    return file


def test_a_pair_is_read_with_addresses_and_order(tmp_path: Path) -> None:
    """One value where several may stand, numbers in a command, braces that are no reference: as people write them."""
    file = read_apps_file(write(tmp_path, PAIR))
    actor = file.apps["actor"]
    assert order(file) == ["learner", "actor"]
    assert (file.apps["learner"].listens, file.apps["learner"].command) == ((50051,), ("learner", "5"))
    assert actor.argv[:2] == ("/opt/lerobot/bin/python", "-m")
    texts = [filled(part, file, NODES, "/srv/run") for part in actor.argv]
    assert texts[3:] == ["--host=10.10.0.2", "--port=50051", "/srv/run/train.json"]
    assert filled("{'a': {b}}", file, NODES, "") == "{'a': {b}}"
    assert app_environment("actor", file, NODES)["EDGELINK_APP_LEARNER_PORT"] == "50051"


@pytest.mark.parametrize(
    "text",
    [
        "apps: {a: {node: cloud, comand: [x]}}",
        "apps: {a: {node: cloud, command: [x]}}\nstuck: 3s",
        "apps: {a: {node: cloud, command: [x], after: b}}",
        "apps:\n  a: {node: cloud, command: [x]}\n  b: {node: cloud, command: [x], after: a}",
        "apps:\n  a: {node: c, command: [x], listens: 1, after: b}\n  b: {node: c, command: [x], listens: 2, after: a}",
        "apps:\n  a: {node: cloud, command: [x], listens: 7}\n  b: {node: cloud, command: [x], listens: [8, 7]}",
        "apps: {learner: {node: cloud, command: ['{lerner.host}']}}",
        "apps: {a: {node: cloud, command: ['{a.port}']}}",
        "apps: {A_b: {node: cloud, command: [x]}}",
        "apps: {a: {node: cloud, command: [x]}}\nfiles: [../secret]",
        "apps: {a: {node: cloud, command: [x]}}\nfiles: [none.json]",
        "apps: {a: {node: cloud, command: []}}",
        "- a",
        "apps: [",
    ],
    ids=map(str, range(14)),
)
def test_every_mistake_is_told_with_its_place(tmp_path: Path, text: str, words: Words) -> None:
    with refuses(ConfigError) as caught:
        read_apps_file(write(tmp_path, text))
    words(caught.value, DIRECTORY=tmp_path)


def test_a_node_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    path = write(tmp_path, PAIR)
    with refuses(ConfigError, "edge-1", "cloud"):
        check_nodes(path, read_apps_file(path), {"cloud": NODES["cloud"]})


def test_only_what_has_moved_and_could_move_is_stuck() -> None:
    """Neither a program that is still loading, nor one whose node is away; a cut begins the count anew."""
    one, progress = ("a:1", "b:2"), PortProgress(30.0)
    assert not progress.is_stuck({}, 0.0, all_answer=True)
    assert not progress.is_stuck({one: 0}, 100.0, all_answer=True)
    assert not progress.is_stuck({one: 5}, 110.0, all_answer=True)
    assert not progress.is_stuck({one: 5}, 139.0, all_answer=True)
    assert not progress.is_stuck({one: 5}, 200.0, all_answer=False)
    assert not progress.is_stuck({one: 5}, 229.0, all_answer=True)
    assert progress.is_stuck({}, 230.0, all_answer=True)
    progress.forget()
    assert not progress.is_stuck({one: 5}, 500.0, all_answer=True)

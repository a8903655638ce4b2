"""`edgelink version`: what a script, or who helps, sees at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import easytier_stand_in
import pytest
from click.testing import CliRunner

from edgelink import __version__
from edgelink.api import schema
from edgelink.cli.version import command
from edgelink.relay.database import SCHEMA_VERSION

pytestmark = pytest.mark.processes

TRAINS = """#!/bin/sh
echo '["3.10.12", "2.60.0", false, [], {"torch": "2.14.1"}]'
"""
TRAINS_WITHOUT_RAY = """#!/bin/sh
echo '["3.10.12", null, false, [], {}]'
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With an EasyTier and an interpreter that has Ray."""
    core = easytier_stand_in.install(tmp_path, "2.6.4")
    python = tmp_path / "python"
    python.write_text(TRAINS)
    python.chmod(0o755)
    config = tmp_path / "edgelink.yaml"
    config.write_text(f"overlay: {{easytier_core: {core}}}\nray: {{python: {python}}}\n")
    monkeypatch.setenv("EDGELINK_CONFIG", str(config))
    return config


def told(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.stdout
    return result.stdout


def document() -> dict[str, Any]:
    return json.loads(told("--json"))  # type: ignore[no-any-return]


def test_the_version_alone_is_one_word() -> None:
    assert told() == f"{__version__}\n"


def test_all_versions_are_told(config: Path) -> None:
    """Of EdgeLink, and of what the configuration leads to."""
    found = document()
    schema.Version.model_validate(found)
    assert found["edgelink"] == __version__
    assert found["registry_schema"] == SCHEMA_VERSION
    assert found["easytier"] == {"version": "2.6.4", "core": str(config.with_name("easytier-core"))}
    python = str(config.with_name("python"))
    packages = {"torch": "2.14.1"}
    assert found["ray"] == {"version": "2.60.0", "python": "3.10.12", "interpreter": python, "packages": packages}
    assert found["problems"] == {}


def test_what_is_no_release_is_called_what_it_is(config: Path) -> None:
    """As its core says of itself: a build that somebody else has made of another state."""
    build = "2.6.4-81487c36 (wheel easytier-pyo3 0.1.3, a third party's build of EasyTier's main)"
    config.with_name("easytier-core").write_text(f'#!/bin/sh\necho "easytier-core {build}"\n')
    assert document()["easytier"]["version"] == build


def test_what_is_missing_is_null_with_its_reason(config: Path) -> None:
    """The rest is told all the same, and nothing of it is an error."""
    config.with_name("python").write_text(TRAINS_WITHOUT_RAY)
    config.with_name("easytier-core").unlink()
    found = document()
    schema.Version.model_validate(found)
    assert (found["easytier"], found["ray"]) == (None, None)
    assert "no such program" in found["problems"]["easytier"]
    assert "has no Ray" in found["problems"]["ray"]


def test_a_configuration_that_cannot_be_read_hides_no_version(config: Path) -> None:
    config.write_text("nonsense: true\n")
    found = document()
    assert found["edgelink"] == __version__
    assert str(config) in found["problems"]["config"]


def test_the_page_names_every_field(config: Path) -> None:
    """`docs/how-to/install.md` has the document as an example, and each field in its table."""
    page = (Path(__file__).parent.parent / "docs/how-to/install.md").read_text()
    example = json.loads(page.partition("version --json\n")[2].partition("```")[0])
    found = document()
    assert example.keys() == found.keys()
    assert example["easytier"].keys() == found["easytier"].keys()
    assert example["ray"].keys() == found["ray"].keys()
    table = page.partition("## Which versions")[2]
    assert [field for field in found if f"`{field}`" not in table] == []

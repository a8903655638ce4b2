"""A configuration file keeps its own text when EdgeLink sets keys in it."""

from __future__ import annotations

import pytest
import yaml

from edgelink.config.edit import Value, with_settings
from edgelink.errors import ConfigError

WANTED = {"ray": {"python": "/opt/train/bin/python", "user": "alice"}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "ray:\n  python: /opt/train/bin/python\n  user: alice\n"),
        ("# mine\nhostname: robot", "# mine\nhostname: robot\nray:\n  python: /opt/train/bin/python\n  user: alice\n"),
        (
            "ray:  # the training's\n    port: 6380 # ours\nhostname: robot\n",
            "ray:  # the training's\n    python: /opt/train/bin/python\n    user: alice\n    port: 6380 # ours\n"
            "hostname: robot\n",
        ),
        ("ray: {port: 6380}\n", "ray: {python: /opt/train/bin/python, user: alice, port: 6380}\n"),
        ("ray: {}\n", "ray: {python: /opt/train/bin/python, user: alice, }\n"),
        ("ray:\nhostname: robot\n", "ray: {python: /opt/train/bin/python, user: alice}\nhostname: robot\n"),
        ("{hostname: robot}\n", "{ray: {python: /opt/train/bin/python, user: alice}, hostname: robot}\n"),
        (
            "ray:\n  python: '/old'  # was\n  user: bob\n",
            "ray:\n  python: /opt/train/bin/python  # was\n  user: alice\n",
        ),
    ],
    ids=["empty", "no-section", "block", "flow", "empty-flow", "heading", "flow-file", "replaced"],
)
def test_keys_are_set_and_the_rest_stays(before: str, after: str) -> None:
    """Byte by byte, and once more changes nothing."""
    assert with_settings(before, WANTED, "edgelink.yaml") == after
    assert yaml.safe_load(with_settings(after, WANTED, "edgelink.yaml")) == yaml.safe_load(after)


def test_a_value_is_quoted_where_yaml_needs_it() -> None:
    """Brackets, commas and what looks like a number."""
    values: dict[str, Value] = {
        "enabled": False,
        "python": "/srv/a, b}/bin/python",
        "user": "0123",
        "hosts": ["[2001:db8::1]", "a b"],
    }
    for before in ("", "ray: {port: 1}\n"):
        assert yaml.safe_load(with_settings(before, {"ray": values}, "x"))["ray"].items() >= values.items()


def test_a_file_that_cannot_be_added_to_is_refused_with_what_to_write() -> None:
    """An alias: what is set here would be set there, too."""
    with pytest.raises(ConfigError) as refused:
        with_settings("host: &a\n  port: 1\nray: *a\n", WANTED, "edgelink.yaml")
    assert "edgelink.yaml" in refused.value.message
    assert "ray: {python: /opt/train/bin/python, user: alice}" in refused.value.hint

"""What is used of paho and aiomqtt that they do not promise is listed, and their versions are exact."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import aiomqtt
import pytest
from paho.mqtt.client import Client

from edgelink.protocol import transport

_ROOT = Path(__file__).parent.parent
OF_AIOMQTT = {"_client", "_connected", "_disconnected", "_on_disconnect"}
OF_PAHO = {"_create_socket", "_sock_close"}


def test_what_is_used_is_listed_here() -> None:
    tree = ast.parse(inspect.getsource(transport._Client))
    names = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    assert {name for name in names if re.match(r"_[a-z]", name)} == OF_AIOMQTT | OF_PAHO


async def test_it_is_there() -> None:
    client = aiomqtt.Client("broker.invalid")
    assert {name for name in OF_AIOMQTT if not hasattr(client, name)} == set()
    assert {name for name in OF_PAHO if not hasattr(Client, name)} == set()


@pytest.mark.parametrize("package", ["aiomqtt", "paho-mqtt"])
def test_another_version_is_not_installed(package: str) -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    assert f"{package}=={version(package)}" in project["dependencies"]

"""Who may ask whom the head hears. The socket itself needs root: `netns-tests/test_road.py`."""

from __future__ import annotations

from ipaddress import IPv4Address
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgelink.api.server import Caller
from edgelink.errors import OverlayError, UsageError
from edgelink.roles import heard
from edgelink.roles.heard import add_heard_route
from edgelink.roles.node import Node

TRAINER, STRANGER = 61001, 61002


class Ray:
    user_uid = TRAINER

    async def prepare(self) -> None:
        """It is known who that user is."""

    def command_environment(self) -> dict[str, str]:
        return {}


@pytest.fixture
def route() -> Any:
    routes: dict[tuple[str, str], Any] = {}
    api = SimpleNamespace(add=lambda method, path, handler: routes.update({(method, path): handler}))
    add_heard_route(cast(Node, SimpleNamespace(api=api)), Ray())
    return routes["GET", "/heard"]


async def test_rays_user_is_told_whose_echoes_come(route: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pings(_timeout_s: float) -> set[IPv4Address]:
        return {IPv4Address("10.10.0.4"), IPv4Address("10.10.0.3")}

    monkeypatch.setattr(heard, "heard_echoes", pings)
    assert await route(Caller(1, TRAINER, TRAINER), {}) == {"heard": ["10.10.0.3", "10.10.0.4"]}


async def test_nobody_else_is(route: Any) -> None:
    with pytest.raises(UsageError, match="may not do this"):
        await route(Caller(1, STRANGER, STRANGER), {})


async def test_a_daemon_without_the_right_says_so(route: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(_timeout_s: float) -> set[IPv4Address]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(heard, "heard_echoes", refused)
    with pytest.raises(OverlayError, match="Operation not permitted"):
        await route(Caller(1, 0, 0), {})

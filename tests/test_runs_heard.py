"""Who may ask whom the head hears. The socket itself needs root: `netns-tests/test_road.py`."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from telling import refuses

from edgelink.api.server import Caller
from edgelink.errors import OverlayError, UsageError
from edgelink.runs import heard

TRAINER, STRANGER = 61001, 61002
WANTED = {"wanted": ["10.10.0.3", "10.10.0.4", "10.10.0.5"]}


class Ray:
    user_uid = TRAINER
    is_enabled = True

    async def prepare(self) -> None:
        """It is known who that user is."""

    def command_environment(self, uid: int) -> dict[str, str]:
        return {}

    def program_environment(self, uid: int) -> dict[str, str]:
        return {}


async def test_rays_user_is_told_whose_echoes_come(monkeypatch: pytest.MonkeyPatch) -> None:
    async def echoes(wanted: set[IPv4Address], _timeout_s: float) -> set[IPv4Address]:
        return wanted - {IPv4Address("10.10.0.5")}

    monkeypatch.setattr(heard, "heard_echoes", echoes)
    answer = await heard.listen(Caller(1, TRAINER, TRAINER), Ray(), WANTED)
    assert answer == {"heard": ["10.10.0.3", "10.10.0.4"]}


async def test_nobody_else_is() -> None:
    with refuses(UsageError, STRANGER, reason="PermissionDenied"):
        await heard.listen(Caller(1, STRANGER, STRANGER), Ray(), {})


async def test_a_daemon_without_the_right_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(_wanted: set[IPv4Address], _timeout_s: float) -> set[IPv4Address]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(heard, "heard_echoes", refused)
    with pytest.raises(OverlayError, match="Operation not permitted"):
        await heard.listen(Caller(1, 0, 0), Ray(), WANTED)

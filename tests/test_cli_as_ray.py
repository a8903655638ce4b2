"""Programs of ours beside a run, as Ray's user."""

from __future__ import annotations

import os

import pytest

from edgelink.cli.as_ray import as_ray
from edgelink.errors import ConfigError

NOBODYS_UID = "54321"


def granted(user: str) -> dict[str, dict[str, str]]:
    return {"of_ray": {"USER": user}, "environment": {"EDGELINK_RAY_PYTHON": "/opt/venv/bin/python"}}


def test_a_user_id_without_an_account_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the owner of an interpreter that was mounted into it often has none."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    told = as_ray(granted(NOBODYS_UID), "-c", "pass")
    assert (told["user"], told["group"]) == (int(NOBODYS_UID), int(NOBODYS_UID))
    with pytest.raises(ConfigError, match="no user 'nobody-at-all'"):
        as_ray(granted("nobody-at-all"), "-c", "pass")

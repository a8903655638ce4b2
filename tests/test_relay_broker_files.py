"""What the broker is started with, and what happens where it cannot be; the running one is in netns-tests."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

import pytest
from registry_world import World

from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.errors import MissingDependencyError
from edgelink.relay.broker import Broker, _allow_many_connections, find_mosquitto, render_conf


def test_conf_is_closed() -> None:
    """Only TLS, nobody without credentials, nothing on disk, no statistics. No address is named: a node that has IPv6
    alone gets through to a relay that advertises an IPv6 address."""
    lines = render_conf(8883, Path("/lib/plugin.so"), Path("/run/edgelink/broker")).splitlines()
    assert [line for line in lines if line.startswith("listener ")] == ["listener 8883"]
    assert {"allow_anonymous false", "persistence false", "sys_interval 0", "tls_version tlsv1.2"} <= set(lines)
    assert "certfile /run/edgelink/broker/tls.pem" in lines


@pytest.mark.parametrize(
    ("soft", "hard", "raised_to"),
    [(1024, 524288, 65536), (1024, 4096, 4096), (1024, resource.RLIM_INFINITY, 65536), (100_000, 524288, None)],
)
def test_a_broker_has_room_for_a_fleet(
    soft: int, hard: int, raised_to: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual 1024 descriptors, one of which each node takes, are raised as far as they may be; more stays more."""
    said: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _what, limits: said.append(limits))
    _allow_many_connections()
    assert said == ([] if raised_to is None else [(raised_to, hard)])


async def test_mosquitto_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Mosquitto the relay says which package to install, and leaves nothing half-started."""
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    world = World(tmp_path)
    paths = Paths(state=tmp_path / "state", runtime=tmp_path / "run")
    broker = Broker(
        keys=world.keys,
        port=8883,
        paths=paths,
        users=world.store.broker_users,
        clock=SystemClock(),
        on_change=lambda: None,
    )
    with pytest.raises(MissingDependencyError, match="apt-get install mosquitto"):
        await broker.ensure_running()
    assert not paths.runtime.exists()


def test_plugin_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Mosquitto without the dynamic security plugin is named as that; beside it in a library folder it is found."""
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/usr/sbin/mosquitto")
    with pytest.raises(MissingDependencyError, match=r"mosquitto_dynamic_security\.so"):
        find_mosquitto([str(tmp_path)])
    plugin = tmp_path / "aarch64-linux-gnu" / "mosquitto_dynamic_security.so"
    plugin.parent.mkdir()
    plugin.touch()
    assert find_mosquitto([str(tmp_path)]) == (Path("/usr/sbin/mosquitto"), plugin)

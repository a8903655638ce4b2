"""What a killed daemon left is ended without it: what its records and marks name, and nothing else."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_ray import FakeRay, ray_config
from telling import refuses

from edgelink.api.server import LocalApi
from edgelink.cli.stopping import stop_node
from edgelink.clock import SystemClock
from edgelink.config import Config, Paths
from edgelink.daemon.leftovers import end_leftovers
from edgelink.errors import DeadlineError, UsageError
from edgelink.overlay.nft import Table
from edgelink.process import ProcessSpec, SessionLauncher, SupervisedProcess
from edgelink.ray_cluster.interpreter import user_of
from edgelink.ray_cluster.local_ray import LocalRay
from edgelink.ray_cluster.record import RayLaunch
from edgelink.testing import eventually

_DAEMON = """
import asyncio, os, sys
from pathlib import Path
from edgelink.api.server import LocalApi, route

async def main(directory, is_stubborn):
    stop = asyncio.Event()
    api = LocalApi(directory / "run/node.sock", directory / "state/node.lock")

    async def status(_caller, _body):
        return {"role": "edge", "hostname": "robot-7", "pid": os.getpid()}

    async def request(_caller, _body):
        if not is_stubborn:
            stop.set()

    async with api.serving([route("GET", "/status", status), route("POST", "/stop", request)]):
        print("serving", flush=True)
        await stop.wait()

asyncio.run(main(Path(sys.argv[1]), len(sys.argv) > 2))
"""


@pytest.fixture(autouse=True)
def firewalls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that were taken away."""
    removed: list[str] = []

    async def remove(table: Table) -> None:
        removed.append(table.name)

    monkeypatch.setattr(Table, "remove", remove)
    return removed


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    paths = Paths(state=tmp_path / "state", runtime=tmp_path / "run")
    paths.state.mkdir()
    return paths


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as child:
        yield child
        child.kill()


async def start_children(paths: Paths, config: Config, fake: FakeRay) -> None:
    """What a daemon starts: EasyTier, broker and Ray."""
    for name in ("easytier", "mosquitto"):
        spec = ProcessSpec(name, ("sleep", "1000"), dict(os.environ), Path("/"), paths.logs / f"{name}.log", "h")
        await SupervisedProcess(name, paths.processes / f"{name}.json", SessionLauncher(), SystemClock()).start(spec)
    ray = LocalRay(config, paths, SystemClock())
    name, _, value = ray.node.marker.partition("=")
    await ray.node.start(
        RayLaunch(
            argv=(str(fake.python), "-m", "ray", "--head"),
            env={"PATH": os.environ["PATH"], name: value},
            user=user_of(os.geteuid()),
            head="10.10.0.2:6379",
            node_rank=0,
            incarnation="one",
            is_head=True,
            config_hash="h",
        ),
        on_begin=lambda: None,
    )


@pytest.mark.parametrize("lost", [False, True], ids=["records there", "state directory lost"])
async def test_children_of_a_dead_daemon_are_ended(
    tmp_path: Path, paths: Paths, firewalls: list[str], stranger: subprocess.Popen[bytes], lost: bool
) -> None:
    """All of them and their firewalls, also where the state directory with every record is gone; strangers live."""
    fake = FakeRay(tmp_path / "fake")
    config = Config(ray=ray_config(fake.python, temp_dir=tmp_path / "ray"))
    await start_children(paths, config, fake)
    paths.runtime.mkdir(exist_ok=True)
    paths.node_socket.touch()  # a killed daemon does not take it along
    if lost:
        shutil.rmtree(paths.state)

    found = await end_leftovers(config, paths, SystemClock())

    assert [name.split(" ")[0] for name in found] == ["Ray", "mosquitto", "easytier"]
    assert await end_leftovers(config, paths, SystemClock()) == []
    assert LocalRay(config, paths, SystemClock()).node.owned_pids() == []
    assert {"edgelink", "edgelink_easytier"} <= set(firewalls)
    assert not paths.node_socket.exists()
    assert stranger.poll() is None


async def test_children_of_a_living_daemon_are_not_taken_away(paths: Paths) -> None:
    """Its lock says that it lives, even where it does not answer."""
    async with LocalApi(paths.node_socket, paths.lock_of("node")).serving():
        with refuses(UsageError, paths.lock_of("node"), reason="DaemonSilent"):
            await end_leftovers(Config(), paths, SystemClock())


@pytest.mark.parametrize("is_stubborn", [False, True])
async def test_stop_waits_until_the_daemon_is_gone(tmp_path: Path, paths: Paths, is_stubborn: bool) -> None:
    """An answer is not an end: the process has to be gone, or the deadline says that it is not."""
    argv = [sys.executable, "-c", _DAEMON, str(tmp_path), *(["stubborn"] if is_stubborn else [])]
    daemon = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert daemon.stdout is not None
    try:
        assert await daemon.stdout.readline() == b"serving\n"
        if is_stubborn:
            with pytest.raises(DeadlineError, match="robot-7"):
                await asyncio.to_thread(stop_node, Config(), paths, 0.2)
            assert daemon.returncode is None
        else:
            told = await asyncio.to_thread(stop_node, Config(), paths, 20)
            assert told == [f"stopped edge robot-7 (pid {daemon.pid})"]
            await eventually(lambda: daemon.returncode == 0)
    finally:
        if daemon.returncode is None:
            daemon.kill()
            await daemon.wait()


def test_stop_where_nothing_runs_has_nothing_to_tell(paths: Paths) -> None:
    """Stopping twice is harmless."""
    assert stop_node(Config(), paths, 5) == []

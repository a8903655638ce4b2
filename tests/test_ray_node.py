"""The processes of a node's Ray, with a pretended Ray of real processes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fake_ray import FakeRay
from telling import refuses

from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.errors import PortBusyError, RayClusterError
from edgelink.process import SessionLauncher, marked_pids, procfs
from edgelink.process.procfs import command_of
from edgelink.ray_cluster.interpreter import user_of
from edgelink.ray_cluster.node import RayNode
from edgelink.ray_cluster.record import RayLaunch
from edgelink.testing.clock import eventually


@pytest.fixture
def fake(tmp_path: Path) -> FakeRay:
    return FakeRay(tmp_path / "fake")


def make_node(tmp_path: Path) -> RayNode:
    paths = Paths(state=tmp_path / "state", runtime=tmp_path / "run")
    paths.state.mkdir(exist_ok=True)
    return RayNode(paths, SessionLauncher(), SystemClock(), tmp_path / "ray")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[RayNode]:
    made = make_node(tmp_path)
    yield made
    await made.stop()


def begun() -> None:
    """Nothing is in the way of the start."""


def launch(fake: FakeRay, *, is_head: bool = True, ports: dict[str, int] | None = None) -> RayLaunch:
    name, _, value = make_node(fake.directory.parent).marker.partition("=")
    return RayLaunch(
        argv=(str(fake.python), "-m", "ray", "--head" if is_head else "--address"),
        env={"PATH": os.environ["PATH"], name: value},
        user=user_of(os.geteuid()),
        head="10.10.0.2:6379",
        node_rank=0,
        incarnation="one",
        is_head=is_head,
        config_hash="abc",
        ports=ports or {},
    )


@contextmanager
def other_process(argv: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_start_remembers_raylet_and_gcs(node: RayNode, fake: FakeRay) -> None:
    """`ray start` has exited; what it left behind is known by identity, and by session where the mark is lost."""
    record = await node.start(launch(fake), begun)
    assert command_of(record.raylet.pid) == "raylet"
    assert record.gcs is not None
    assert command_of(record.gcs.pid) == "gcs_server"
    assert sorted(command_of(pid) for pid in node.owned_pids()) == ["gcs_server", "raylet", "sleep"]
    assert node.is_running


async def test_stop_ends_all_of_it_and_nothing_else(node: RayNode, fake: FakeRay) -> None:
    """Processes without our mark and outside our session live on."""
    with other_process([str(fake.directory / "raylet"), "1000"]) as stranger:
        await node.start(launch(fake), begun)
        await node.stop()
        assert node.owned_pids() == []
        assert node.record is None
        assert stranger.poll() is None
    await node.stop()  # idempotent


async def test_a_session_with_a_strange_leader_is_not_ours(node: RayNode, fake: FakeRay) -> None:
    """Somebody who starts a shell with our mark from an own terminal loses that process, not the terminal."""
    shell = f"{node.marker} sleep 1000 & echo $!; exec sleep 1000"
    with other_process(["sh", "-c", shell]) as leader:
        assert leader.stdout is not None
        marked = int(leader.stdout.readline())
        await eventually(lambda: node.owned_pids() == [marked])
        await node.stop()
        assert leader.poll() is None


async def test_successor_adopts(tmp_path: Path, node: RayNode, fake: FakeRay) -> None:
    """The next daemon finds the same Ray, with its incarnation."""
    record = await node.start(launch(fake), begun)
    successor = make_node(tmp_path)
    assert successor.adopt() == record
    assert successor.is_running


async def test_successor_sweeps_up_what_is_not_whole(tmp_path: Path, node: RayNode, fake: FakeRay) -> None:
    """A Ray without its GCS is not adopted; its leftovers end with stop."""
    record = await node.start(launch(fake), begun)
    assert record.gcs is not None
    os.kill(record.gcs.pid, signal.SIGKILL)
    await node.wait_for_end()
    successor = make_node(tmp_path)
    assert successor.adopt() is None
    await successor.stop()
    assert successor.owned_pids() == []


async def test_a_ray_whose_state_directory_was_lost_is_still_ours(tmp_path: Path, node: RayNode, fake: FakeRay) -> None:
    """No record and no key is left; the mark names the directory, which is there anew, and all of it is ended."""
    await node.start(launch(fake), begun)
    shutil.rmtree(tmp_path / "state")
    successor = make_node(tmp_path)
    assert successor.adopt() is None
    assert "raylet" in map(command_of, successor.owned_pids())
    await successor.stop()
    assert successor.owned_pids() == node.owned_pids() == []


async def test_a_ray_of_a_node_with_the_same_paths_elsewhere_is_not_ours(
    tmp_path: Path, node: RayNode, fake: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lab node or container finds another directory under that path."""
    (tmp_path / "theirs").mkdir()
    monkeypatch.setattr(procfs, "sees", lambda _pid, path: path.samefile(tmp_path / "theirs"))
    with other_process(["env", node.marker, "sleep", "1000"]) as stranger:
        await eventually(lambda: stranger.pid in marked_pids(node.marker))
        assert node.owned_pids() == []
        await node.stop()
        assert stranger.poll() is None


async def test_start_sweeps_up_an_orphan_without_a_record(tmp_path: Path, node: RayNode, fake: FakeRay) -> None:
    """A daemon killed between `ray start` and its record leaves no Ray that nobody knows."""
    first = await node.start(launch(fake), begun)
    (tmp_path / "state/processes/ray.json").unlink()
    successor = make_node(tmp_path)
    assert successor.adopt() is None
    second = await successor.start(launch(fake), begun)
    assert second.raylet.pid != first.raylet.pid
    assert sorted(command_of(pid) for pid in successor.owned_pids()) == ["gcs_server", "raylet", "sleep"]
    await successor.stop()


async def test_busy_port_is_an_error_before_anything_starts(node: RayNode, fake: FakeRay) -> None:
    """The error names port, key and holder; `ray start` was not run."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(PortBusyError) as caught:
            await node.start(launch(fake, ports={"ray.port": port}), begun)
    assert f"{port} (ray.port)" in str(caught.value)
    assert f"pid {os.getpid()}" in str(caught.value)
    assert fake.starts == []


async def test_failed_start_leaves_nothing_and_quotes_last_words(node: RayNode, fake: FakeRay) -> None:
    """What `ray start` said last is in the error."""
    (fake.directory / "fails").touch()
    with refuses(RayClusterError, "status 1", "no such luck", reason="RayStartFailed"):
        await node.start(launch(fake), begun)
    assert node.owned_pids() == []


async def test_a_start_that_was_killed_is_told_from_one_that_failed(node: RayNode, fake: FakeRay) -> None:
    """The kernel does so where memory is short; `ray start` itself never ends with status 9."""
    fake.python.write_text("#!/bin/sh\nkill -9 $$\n")
    with refuses(RayClusterError, "signal 9 (Killed", reason="RayStartFailed"):
        await node.start(launch(fake), begun)


async def test_start_without_a_gcs_on_the_head_is_a_failure(node: RayNode, fake: FakeRay) -> None:
    """A head whose GCS is gone already is no head."""
    (fake.directory / "gcs_server").write_text("#!/bin/sh\n")
    with refuses(RayClusterError, "raylet", reason="RayStartFailed"):
        await node.start(launch(fake), begun)
    assert node.owned_pids() == []


async def test_what_others_put_in_place_of_the_note_is_left(tmp_path: Path, node: RayNode, fake: FakeRay) -> None:
    """Ray's directory is not ours: a pipe there must not hold us up, and a link is not followed."""
    note, other = tmp_path / "ray/ray_current_cluster", tmp_path / "other"
    note.parent.mkdir()
    os.mkfifo(note)
    await node.start(launch(fake), begun)
    await node.stop()
    assert note.is_fifo()
    note.unlink()
    other.write_text("10.10.0.2:6379")
    note.symlink_to(other)
    await node.start(launch(fake), begun)
    assert note.is_symlink()


async def test_note_of_a_dead_cluster_is_removed(tmp_path: Path, node: RayNode, fake: FakeRay) -> None:
    """Ray's own note of our address goes with our Ray, somebody else's stays."""
    note = tmp_path / "ray/sessions/ray_current_cluster"
    note.parent.mkdir(parents=True)
    note.write_text("10.10.0.2:6379")
    await node.start(launch(fake), begun)
    assert not note.exists()
    note.write_text("192.0.2.1:6379")
    await node.stop()
    assert note.exists()


async def test_note_in_the_directory_of_the_next_ray_is_removed(tmp_path: Path, node: RayNode, fake: FakeRay) -> None:
    """Also where the last one kept its sessions elsewhere: `ray start` looks into the one that it is given."""
    node.note_temp_dir(tmp_path / "former/sessions")
    notes = [tmp_path / name / "sessions/ray_current_cluster" for name in ("former", "next")]
    for note in notes:
        note.parent.mkdir(parents=True)
        note.write_text("10.10.0.2:6379")
    await node.start(replace(launch(fake), temp_dir=tmp_path / "next/sessions"), begun)
    assert not any(note.exists() for note in notes)

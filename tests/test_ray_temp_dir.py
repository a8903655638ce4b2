"""Where Ray keeps its session here: every node uses the head's directory, whatever its own configuration says."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray_bench import Bench, edge_bench, firewalls, gcs, head_bench, head_port  # noqa: F401

from edgelink.config import Paths
from edgelink.errors import ConfigError
from edgelink.ray_cluster.helper import temp_dir_of_head
from edgelink.ray_cluster.interpreter import user_of
from edgelink.ray_cluster.temp_dir import check_temp_dir, ray_log_directory, temp_dir_here, temp_dir_of
from edgelink.roles.report import collect


async def test_an_edge_uses_the_heads_directory(edge_bench: Bench, head_port: int, tmp_path: Path) -> None:
    """Its own key says nothing: what Ray's GCS says holds, for whoever looks for logs as well, and after a restart."""
    heads = tmp_path / "heads"
    (edge_bench.fake.directory / "temp_dir").write_text(str(heads))
    edge_bench.spec = edge_bench.make_spec(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    assert edge_bench.reason == "AliveInRay"
    assert edge.ray.node.ray_logs == heads / "session_latest" / "logs"
    own = edge_bench.config.ray.temp_dir
    assert own != heads
    assert ray_log_directory(edge_bench.paths, own) == heads / "session_latest" / "logs"
    logs = heads / "session_latest" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("of the raylet")
    edge_bench.paths.ray_user.write_text(f"{os.getuid()}\n")
    report = collect(edge_bench.paths, timedelta(hours=1), datetime.now(UTC), ray_temp=own)
    assert report["ray/raylet.out"] == "of the raylet"


async def test_an_edge_that_cannot_write_there_says_so_before_it_starts_ray(
    edge_bench: Bench, head_port: int, tmp_path: Path
) -> None:
    """Instead of the last words of a `ray start`; and doctor then looks at the right disk."""
    (tmp_path / "file").write_text("no directory")
    (edge_bench.fake.directory / "temp_dir").write_text(f"{tmp_path}/file/ray")
    edge_bench.spec = edge_bench.make_spec(head_port)
    with pytest.raises(ConfigError, match=f"{tmp_path}/file/ray cannot be used by") as caught:
        await edge_bench.edge().reconcile()
    assert caught.value.condition_reason == "RayTempDir"
    assert "ray.temp_dir on the head" in str(caught.value.hint)
    assert edge_bench.fake.starts == []
    assert temp_dir_here(edge_bench.paths, None) == tmp_path / "file" / "ray"


async def test_the_head_uses_what_is_configured(head_bench: Bench, tmp_path: Path) -> None:
    """And follows a change of it."""
    head_bench.paths.ray_temp_dir.write_text("/of/before\n")
    await head_bench.head().reconcile()
    assert head_bench.reason == "AliveInRay"
    assert temp_dir_here(head_bench.paths, None) == tmp_path / "ray"


@pytest.mark.parametrize("noted", ["", "relative", "/with\nmore", "/esc\x1b[0m"])
def test_what_is_no_directory_is_not_followed(tmp_path: Path, noted: str) -> None:
    paths = Paths(state=tmp_path, runtime=tmp_path)
    paths.ray_temp_dir.write_text(noted)
    assert temp_dir_here(paths, Path("/own")) == Path("/own")
    assert temp_dir_here(paths, None) == Path("/tmp/ray")


def test_the_directory_is_read_off_the_files_that_raylet_writes() -> None:
    """So it is known of a Ray that an older EdgeLink started, and of one that does not say."""
    logs = "/data/ray/session_2026-11-26_06-20-56_1_77/logs"
    assert temp_dir_of((f"{logs}/raylet.out", f"{logs}/raylet.err")) == Path("/data/ray")
    assert temp_dir_of(("/tmp/some.log", "/dev/null")) is None


async def test_the_directory_is_tried_as_ray_would_use_it(tmp_path: Path) -> None:
    """One that is not there yet is made; the system's own word is in the message."""
    user, python = user_of(os.geteuid()), Path(sys.executable)
    await check_temp_dir(tmp_path / "a" / "ray", python, user)
    assert (tmp_path / "a" / "ray").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"by {user.name}, as whom Ray runs here: Not a directory"):
        await check_temp_dir(tmp_path / "file" / "ray", python, user)


async def test_an_interpreter_that_is_gone_is_the_starts_to_tell(tmp_path: Path) -> None:
    """It has the better words; the directory is not to blame."""
    await check_temp_dir(tmp_path / "ray", tmp_path / "no-such-python", user_of(os.geteuid()))


def test_the_helper_asks_for_the_living_heads_directory() -> None:
    """Where Ray does not say, nothing is guessed."""
    dead = SimpleNamespace(state=1, is_head_node=True, temp_dir="/dead")
    worker = SimpleNamespace(state=0, is_head_node=False, temp_dir="/worker")
    head = SimpleNamespace(state=0, is_head_node=True, temp_dir="/heads")
    assert temp_dir_of_head([dead, worker, head]) == "/heads"
    assert temp_dir_of_head([dead, worker]) == ""
    assert temp_dir_of_head([SimpleNamespace(state=0, is_head_node=True)]) == ""

"""Where Ray keeps its session here: every node uses the head's directory, whatever its own configuration says."""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from ray_bench import Bench, edge_bench, firewalls, gcs, head_bench, head_port  # noqa: F401
from telling import Words, refuses

from edgelink.config import Paths
from edgelink.errors import ConfigError
from edgelink.ray_cluster.helper import temp_dir_of_head
from edgelink.ray_cluster.interpreter import user_of
from edgelink.ray_cluster.temp_dir import (
    check_temp_dir,
    ray_log_directory,
    temp_dir_here,
    temp_dir_of,
    why_not_private,
)
from edgelink.telemetry.report import collect


async def test_an_edge_uses_the_heads_directory(edge_bench: Bench, head_port: int, tmp_path: Path) -> None:
    """Its own key says nothing: what Ray's GCS says holds, for whoever looks for logs as well, and after a restart."""
    heads = tmp_path / "heads" / "sessions"
    (edge_bench.fake.directory / "temp_dir").write_text(str(heads))
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    assert edge_bench.reason == "AliveInRay"
    assert edge.ray.node.ray_logs == heads / "session_latest" / "logs"
    own = edge_bench.config.ray.temp_dir
    assert own != heads.parent
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
    (edge_bench.fake.directory / "temp_dir").write_text(f"{tmp_path}/file/sessions")
    edge_bench.hears(head_port)
    with refuses(ConfigError, f"{tmp_path}/file", reason="RayTempDir") as caught:
        await edge_bench.edge().reconcile()
    assert caught.value.condition_reason == "RayTempDir"
    assert "ray.temp_dir on the head" in str(caught.value.hint)
    assert edge_bench.fake.starts == []
    assert temp_dir_here(edge_bench.paths, None) == tmp_path / "file" / "sessions"


async def test_the_head_uses_what_is_configured(head_bench: Bench, tmp_path: Path) -> None:
    """And follows a change of it."""
    head_bench.paths.ray_temp_dir.write_text("/of/before\n")
    await head_bench.head().reconcile()
    assert head_bench.reason == "AliveInRay"
    assert temp_dir_here(head_bench.paths, None) == tmp_path / "ray" / "sessions"
    assert f"--temp-dir={tmp_path}/ray/sessions" in head_bench.fake.starts[-1]


@pytest.mark.parametrize("noted", ["", "relative", "/with\nmore", "/esc\x1b[0m"])
def test_what_is_no_directory_is_not_followed(tmp_path: Path, noted: str) -> None:
    paths = Paths(state=tmp_path, runtime=tmp_path)
    paths.ray_temp_dir.write_text(noted)
    assert temp_dir_here(paths, Path("/own")) == Path("/own/sessions")
    assert temp_dir_here(paths, None) == Path("/var/lib/edgelink-ray/sessions")


def test_the_directory_is_read_off_the_files_that_raylet_writes() -> None:
    """So it is known of a Ray that does not say."""
    logs = "/data/ray/session_2026-11-26_06-20-56_1_77/logs"
    assert temp_dir_of((f"{logs}/raylet.out", f"{logs}/raylet.err")) == Path("/data/ray")
    assert temp_dir_of(("/tmp/some.log", "/dev/null")) is None


USER, PYTHON = user_of(os.geteuid()), Path(sys.executable)


async def test_the_directory_is_made_for_rays_user_alone(tmp_path: Path) -> None:
    """Ray opens the sessions to every user, so what is around them is closed, also where an older Ray had opened it."""
    for name in ("new", "opened"):
        directory = tmp_path / name
        if name == "opened":
            directory.mkdir()
            directory.chmod(0o777)
        await check_temp_dir(directory / "sessions", PYTHON, USER)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        (directory / "sessions").chmod(0o777)
        assert why_not_private(directory, USER.uid) == ""


async def test_the_systems_own_word_is_in_the_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refuses(ConfigError, USER.name, "Not a directory", reason="RayTempDir"):
        await check_temp_dir(tmp_path / "file" / "ray" / "sessions", PYTHON, USER)


@pytest.fixture
def for_all() -> Iterator[Path]:
    """A directory that other users find; pytest's own are closed to them."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def linked(directory: Path) -> None:
    (directory.parent / "elsewhere").mkdir()
    directory.symlink_to(directory.parent / "elsewhere")


OPEN = {
    "open to all": lambda directory: directory.parent.chmod(0o777),
    "open to a group": lambda directory: (directory.parent.chmod(0o775), os.chown(directory.parent, -1, 65534)),
    "in another user's": lambda directory: os.chown(directory.parent, 65534, 0),
    "another user's": lambda directory: (directory.mkdir(), os.chown(directory, 65534, 0)),
    "a link": linked,
    "with another user's sessions": lambda directory: (
        (directory / "sessions").mkdir(parents=True),
        os.chown(directory / "sessions", 65534, 0),
    ),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("why", OPEN)
async def test_a_directory_that_others_can_change_is_refused_by_name(tmp_path: Path, why: str, words: Words) -> None:
    """Whoever can put something in its place, or has done so, would run code as Ray's user."""
    directory = tmp_path / "shared" / "ray"
    directory.parent.mkdir()
    OPEN[why](directory)
    with refuses(ConfigError, f"install -d -m 700 -o root {directory}", reason="RayTempDir") as caught:
        await check_temp_dir(directory / "sessions", PYTHON, USER)
    words(caught.value, DIRECTORY=tmp_path)


async def test_a_sticky_parent_lets_nobody_replace_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    await check_temp_dir(tmp_path / "ray" / "sessions", PYTHON, USER)
    assert why_not_private(tmp_path / "ray", USER.uid) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_root_makes_the_default_directory_for_rays_user_and_no_other(for_all: Path) -> None:
    """Another user of Ray than before finds nothing of the former one in it. What the head names is the user's to
    make: a head cannot have root make or give away directories."""
    nobody, daemon = user_of(65534), user_of(1)
    default = for_all / "default"
    for user in (nobody, daemon):
        await check_temp_dir(default / "sessions", Path("/usr/bin/python3"), user, default_directory=default)
        assert (default.stat().st_uid, stat.S_IMODE(default.stat().st_mode)) == (user.uid, 0o700)
        assert sorted(path.name for path in default.rglob("*")) == ["sessions"]
        (default / "sessions" / "of-before").touch()
        (default / "gcs").mkdir()
    with pytest.raises(ConfigError, match="Permission denied"):
        await check_temp_dir(for_all / "other" / "sessions", Path("/usr/bin/python3"), nobody)
    assert not (for_all / "other").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_the_directory_of_a_ray_that_runs_is_not_given_away(for_all: Path) -> None:
    """Two networks of one machine may run Ray as different users: the second is refused by name."""
    default, (nobody, daemon) = for_all / "default", (user_of(65534), user_of(1))
    await check_temp_dir(default / "sessions", Path("/usr/bin/python3"), nobody, default_directory=default)
    with socket.socket(socket.AF_UNIX) as raylet:
        raylet.bind(str(default / "sessions" / "raylet"))
        with refuses(ConfigError, default / "sessions", reason="RayTempDir"):
            await check_temp_dir(default / "sessions", Path("/usr/bin/python3"), daemon, default_directory=default)
        assert default.stat().st_uid == nobody.uid
        assert (default / "sessions" / "raylet").exists()


async def test_old_sessions_are_removed_but_the_newest(tmp_path: Path) -> None:
    """Nobody else tidies up there, as some do in /tmp."""
    sessions = tmp_path / "ray" / "sessions"
    names = [f"session_2026-11-2{day}_00-00-00_000000_1" for day in range(7)]
    for name in (*names, "session_latest"):
        (sessions / name / "logs").mkdir(parents=True)
    await check_temp_dir(sessions, PYTHON, USER)
    assert sorted(each.name for each in sessions.iterdir()) == [*names[-4:], "session_latest"]


async def test_an_interpreter_that_is_gone_is_the_starts_to_tell(tmp_path: Path) -> None:
    """It has the better words; the directory is not to blame."""
    await check_temp_dir(tmp_path / "ray", tmp_path / "no-such-python", user_of(os.geteuid()))


def test_the_helper_asks_for_the_living_heads_directory() -> None:
    """Where Ray does not say, nothing is guessed."""
    dead = SimpleNamespace(state=1, is_head_node=True, temp_dir="/dead")
    worker = SimpleNamespace(state=0, is_head_node=False, temp_dir="/worker")
    head = SimpleNamespace(state=0, is_head_node=True, temp_dir="/heads")
    keys = {(b"temp_dir", b"session"): b"/of-2.48"}
    older = SimpleNamespace(internal_kv_get=lambda key, namespace, timeout: keys.get((key, namespace)))
    silent = SimpleNamespace(internal_kv_get=lambda key, namespace, timeout: None)
    assert temp_dir_of_head([dead, worker, head], silent) == "/heads"
    assert temp_dir_of_head([dead, worker], silent) == ""
    assert temp_dir_of_head([SimpleNamespace(state=0, is_head_node=True)], silent) == ""
    assert temp_dir_of_head([SimpleNamespace(state=0, is_head_node=True)], older) == "/of-2.48"

"""The head's GCS dies alone and is started again alone, where it keeps its tables on disk; with a pretended Ray."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ray_bench import Bench, firewalls, head_bench  # noqa: F401
from telling import refuses

from edgelink.errors import ConfigError, RayClusterError
from edgelink.process import procfs
from edgelink.ray_cluster import gcs_store
from edgelink.ray_cluster.gcs_store import GcsStore
from edgelink.ray_cluster.reconcilers import RayHeadReconciler
from edgelink.ray_cluster.record import RayRecord
from edgelink.testing.clock import FakeClock, eventually


@pytest.fixture
def bench(head_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A head that keeps its GCS on disk, whatever this machine's temporary directory is on."""
    keep(head_bench, gcs_store=True)
    monkeypatch.setattr(gcs_store, "file_system_of", lambda _path: 0xEF53)
    yield head_bench


def keep(bench: Bench, **ray: object) -> None:
    changed = bench.config.ray.model_copy(update=ray)
    bench.config = bench.config.model_copy(update={"ray": changed})


def store_of(bench: Bench) -> Path:
    assert bench.config.ray.temp_dir is not None
    return bench.config.ray.temp_dir / "gcs"


def record_of(head: RayHeadReconciler) -> RayRecord:
    record = head.ray.node.record
    assert record is not None
    return record


async def kill_gcs(head: RayHeadReconciler) -> int:
    gcs = record_of(head).gcs
    assert gcs is not None
    os.kill(gcs.pid, signal.SIGKILL)
    await head.ray.node.wait_for_end()
    return gcs.pid


async def test_a_gcs_that_dies_is_started_again_alone(bench: Bench) -> None:
    """As it was, with nothing told to anybody: raylet, cluster spec and condition stay."""
    head = bench.head()
    await head.reconcile()
    before, history = record_of(head), list(bench.history)
    assert before.gcs is not None
    command, environment = procfs.arguments_of(before.gcs.pid), procfs.environment_of(before.gcs.pid)
    old = await kill_gcs(head)
    assert head.ray.node.is_running
    await head.reconcile()
    after = record_of(head)
    assert after.gcs is not None
    assert after.gcs.pid != old
    assert (procfs.arguments_of(after.gcs.pid), procfs.environment_of(after.gcs.pid)) == (command, environment)
    assert (after.raylet, after.incarnation) == (before.raylet, before.incarnation)
    assert (len(bench.fake.starts), len(bench.published), bench.history) == (1, 1, history)
    await head.stop()
    assert head.ray.node.owned_pids() == []
    assert not Path(f"/proc/{after.gcs.pid}").exists(), "no zombie is left"


async def test_the_store_goes_by_the_command_line(bench: Bench) -> None:
    """Workers inherit the environment, and RLinf compares it."""
    await bench.head().reconcile()
    settings = {"gcs_storage": "rocksdb", "gcs_storage_path": str(store_of(bench))}
    assert f"--system-config={json.dumps(settings)}" in bench.fake.starts[0]
    assert not [name for name in bench.fake.environment if "gcs_storage" in name]


async def test_without_a_store_the_end_of_the_gcs_is_the_end_of_ray(head_bench: Bench) -> None:
    """By default, and the tables that a former configuration has left are removed."""
    store_of(head_bench).mkdir(parents=True)
    head = head_bench.head()
    await head.reconcile()
    assert "--system-config" not in head_bench.fake.starts[0]
    assert not store_of(head_bench).exists()
    await kill_gcs(head)
    assert not head.ray.node.is_running


@pytest.mark.parametrize("is_noted", [True, False], ids=["dead", "started, and not noted"])
async def test_the_next_daemon_takes_the_gcs_up(bench: Bench, is_noted: bool) -> None:
    """It died without a daemon, or with one that was killed right after it had started it again."""
    head = bench.head()
    await head.reconcile()
    record_file = bench.paths.processes / "ray.json"
    noted, raylet = record_file.read_text(), record_of(head).raylet
    await kill_gcs(head)
    running = None
    if not is_noted:
        await head.reconcile()
        running = record_of(head).gcs
        record_file.write_text(noted)
    successor = bench.head()
    await successor.reconcile()
    gcs = record_of(successor).gcs
    assert gcs is not None
    assert running is None or gcs.pid == running.pid
    assert successor.ray.node.is_running
    assert (record_of(successor).raylet, len(bench.fake.starts)) == (raylet, 1)


async def test_a_gcs_that_never_answers_is_given_up(bench: Bench) -> None:
    """Three starts in a row: then a new cluster begins, on new tables. What was said of Ray holds until then."""
    clock = bench.clock = FakeClock()
    head = bench.head()
    await head.reconcile()
    tables = store_of(bench)
    tables.mkdir(parents=True)
    broken = bench.fake.directory / "broken"
    broken.write_text("ConnectionRefusedError")
    said = len(bench.history)
    for _ in range(3):
        await kill_gcs(head)
        assert len(bench.history) == said
        for _ in range(2):  # the second look is after the pause
            await clock.advance(20)
            await head.reconcile()
    await kill_gcs(head)
    broken.unlink()
    (bench.fake.directory / "cluster").write_text("gone")
    await head.reconcile()
    assert "three times" in next(c for c in bench.history if c.reason == "RayReplaced").message
    assert (len(bench.fake.starts), bench.reason) == (2, "AliveInRay")
    assert not tables.exists()


async def test_a_question_to_a_gcs_that_dies_is_not_waited_for(bench: Bench) -> None:
    """Ray's client would wait for its answer, and nobody would start it again meanwhile."""
    clock = bench.clock = FakeClock()
    head = bench.head()
    await head.reconcile()
    deaf = bench.fake.directory / "deaf"
    deaf.touch()
    await kill_gcs(head)
    look = asyncio.create_task(head.reconcile())
    await eventually(lambda: len(bench.fake.questions) > 1)
    await kill_gcs(head)
    await asyncio.wait_for(look, 10)
    deaf.unlink()
    for _ in range(2):  # the second look is after the pause
        await clock.advance(20)
        await head.reconcile()
    assert (len(bench.fake.starts), bench.reason) == (1, "AliveInRay")


async def test_a_gcs_that_served_before_anybody_asked_is_no_failure(bench: Bench) -> None:
    """On a busy machine the question takes longer than the next kill; the GCS itself says that it serves."""
    head = bench.head()
    await head.reconcile()
    words = bench.paths.logs / "gcs_server.out"
    words.touch()
    head.ray.node.record = replace(record_of(head), outputs=(str(words),))
    broken = bench.fake.directory / "broken"
    broken.write_text("no answer within 20 s")
    for _ in range(5):
        await kill_gcs(head)
        await head.reconcile()
        with words.open("a") as file:
            file.write(
                "[2026-11-28 05:39:20,425 I 1 1] (gcs_server) GcsServer server started, listening on port 6379.\n"
            )
    broken.unlink()
    await head.reconcile()
    assert (len(bench.fake.starts), [c.reason for c in bench.history]) == (1, ["Starting", "AliveInRay"])


async def test_a_gcs_that_cannot_read_its_tables_is_given_up_at_once(bench: Bench) -> None:
    head = bench.head()
    await head.reconcile()
    words = bench.paths.logs / "gcs_server.err"
    words.write_text("[2026-11-28 05:20:00,100 C 1 1] rocksdb_store_client.cc:179: Failed to open RocksDB: old\n")
    head.ray.node.record = replace(record_of(head), outputs=(str(words),))
    await kill_gcs(head)
    await head.reconcile()
    assert len(bench.fake.starts) == 1, "that was another one's word"
    broken = bench.fake.directory / "broken"
    broken.write_text("ConnectionRefusedError")
    await kill_gcs(head)
    await head.reconcile()
    with words.open("a") as file:
        file.write("[2026-11-28 05:21:00,100 C 2 2] rocksdb_store_client.cc:179: Failed to open RocksDB: corrupt\n")
    broken.unlink()
    await kill_gcs(head)
    await head.reconcile()
    assert "read its tables" in next(c for c in bench.history if c.reason == "RayReplaced").message
    assert len(bench.fake.starts) == 2


async def test_a_gcs_of_another_ray_is_not_put_beside_raylets_that_run(bench: Bench) -> None:
    """Somebody has installed Ray anew meanwhile."""
    head = bench.head()
    await head.reconcile()
    program = bench.fake.directory / "gcs_server"
    content = program.read_bytes()
    program.unlink()
    program.write_bytes(content)
    program.chmod(0o755)
    await kill_gcs(head)
    await head.reconcile()
    assert "another file" in next(c for c in bench.history if c.reason == "RayReplaced").message
    assert len(bench.fake.starts) == 2


async def test_a_full_disk_is_named_and_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long: what ended the GCS is no crash, and no new cluster is begun."""
    head = bench.head()
    await head.reconcile()
    raylet = record_of(head).raylet
    with monkeypatch.context() as full:
        full.setattr(gcs_store, "LEAST_FREE_BYTES", 2**62)
        await kill_gcs(head)
        for _ in range(4):
            assert 0 < await head.reconcile() <= 2
        assert bench.reason == "GcsStoreFull"
        assert str(store_of(bench)) in bench.history[-1].message
        assert head.ray.node.gcs_has_ended
    await head.reconcile()
    assert bench.reason == "AliveInRay"
    assert (record_of(head).raylet, len(bench.fake.starts)) == (raylet, 1)


async def test_ray_is_not_started_on_a_full_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs_store, "LEAST_FREE_BYTES", 2**62)
    with refuses(RayClusterError, store_of(bench), reason="GcsStoreFull"):
        await bench.head().reconcile()
    assert bench.fake.starts == []


async def test_an_older_ray_is_refused_before_anything_ends(head_bench: Bench) -> None:
    """It would ignore the setting in silence."""
    head_bench.fake.install(ray="2.55.1")
    await head_bench.head().reconcile()
    keep(head_bench, gcs_store=True)
    head = head_bench.head()
    with refuses(ConfigError, "ray.gcs_store", "2.55.1", "2.60.0", reason="NoGcsStore"):
        await head.reconcile()
    assert head.ray.node.is_running
    await head.stop()
    with refuses(ConfigError, "2.55.1", reason="NoGcsStore"):
        await head.reconcile()
    assert len(head_bench.fake.starts) == 1


async def test_a_network_file_system_keeps_the_tables_in_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB waits for the disk at each write; the condition says what does not hold, also the next daemon's."""
    monkeypatch.setattr(gcs_store, "file_system_of", lambda _path: 0x6969)
    for _ in range(2):
        await bench.head().reconcile()
        assert "--system-config" not in bench.fake.starts[0]
        assert bench.reason == "AliveInRay"
        assert f"without ray.gcs_store, because {store_of(bench)}" in bench.history[-1].message
    assert "NFS" in next(c for c in bench.history if c.reason == "AliveInRay").message


@pytest.mark.parametrize("what", ["nothing", "token", "ride_through", "restart", "node", "Ray"])
async def test_only_a_ray_that_is_started_alike_goes_on_with_the_tables(bench: Bench, what: str) -> None:
    """Else former nodes, jobs and actors would come back into a cluster that they do not fit."""
    head = bench.head()
    await head.reconcile()
    await head.stop()
    tables = store_of(bench) / "tables"
    tables.mkdir(parents=True)
    if what == "token":
        bench.give_secret(2)
    elif what == "ride_through":
        bench.config = bench.config.model_copy(update={"ride_through": 600})
    elif what == "restart":
        head.wishes.want_restart(bench.key.node_id)
    elif what == "node":
        bench.lease = bench.lease.model_copy(update={"node_id": "another"})
        bench.give_secret(1)
    elif what == "Ray":
        bench.fake.install(ray="2.61.0")
    await bench.head().reconcile()
    assert tables.exists() == (what == "nothing")


async def test_tables_on_which_ray_failed_to_start_twice_are_removed(bench: Bench) -> None:
    head = bench.head()
    await head.reconcile()
    await head.stop()
    tables = store_of(bench) / "tables"
    tables.mkdir(parents=True)
    (bench.fake.directory / "fails").touch()
    for _ in range(2):
        with pytest.raises(RayClusterError):
            await bench.head().reconcile()
        assert tables.exists()
    (bench.fake.directory / "fails").unlink()
    await bench.head().reconcile()
    assert not tables.exists()


async def test_a_raylet_that_gives_up_on_its_agent_says_nothing_of_the_tables(bench: Bench) -> None:
    """However often: the machine was too busy."""
    clock = bench.clock = FakeClock()
    head = bench.head()
    await head.reconcile()
    await head.stop()
    tables = store_of(bench) / "tables"
    tables.mkdir(parents=True)
    (bench.fake.directory / "late").write_text("aborts")
    for _ in range(3):
        (bench.fake.directory / "dashboard_agent_listen_port_f00d").unlink(missing_ok=True)
        look = asyncio.create_task(head.reconcile())
        while not look.done():
            await clock.advance(0.5)
            await asyncio.sleep(0.01)
        with refuses(RayClusterError, reason="TooBusyForRay"):
            await look
        await clock.advance(600)
    (bench.fake.directory / "late").unlink()
    await head.reconcile()
    assert (bench.reason, len(bench.fake.starts)) == ("AliveInRay", 5)
    assert tables.exists()


def test_what_rocksdb_leaves_at_each_start_is_bounded(tmp_path: Path) -> None:
    """The newest stay; and nothing is removed where a link leads, which Ray's user may have put there."""
    elsewhere, store = tmp_path / "elsewhere", tmp_path / "gcs"
    elsewhere.mkdir()
    (store / "kv").mkdir(parents=True)
    (store / "tables").symlink_to(elsewhere)
    for directory in (elsewhere, store / "kv"):
        for number in range(8, 13):
            (directory / f"LOG.old.{number}").touch()
            (directory / f"OPTIONS-{number:06}").touch()
        for name in ("LOG", "CURRENT", "000012.log"):
            (directory / name).touch()
    GcsStore(store, tmp_path / "note").prune()
    assert sorted(path.name for path in (store / "kv").iterdir()) == [
        *("000012.log", "CURRENT", "LOG", "LOG.old.11", "LOG.old.12", "OPTIONS-000011", "OPTIONS-000012")
    ]
    assert len(list(elsewhere.iterdir())) == 13


def test_a_link_in_place_of_the_store_is_removed_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (tmp_path / "gcs").symlink_to(elsewhere)
    GcsStore(tmp_path / "gcs", tmp_path / "note").prepare("one")
    assert not (tmp_path / "gcs").is_symlink()
    assert (elsewhere / "kept").exists()


def test_the_kernel_names_the_file_system() -> None:
    assert gcs_store.file_system_of(Path("/proc")) == 0x9FA0


def test_the_record_of_an_older_daemon_has_no_way_to_start_a_gcs() -> None:
    """Then its end is the end of Ray, as it was for that one."""
    identity = {"pid": 1, "start_ticks": 1, "boot_id": "b", "config_hash": "c"}
    values = {"session": 1, "raylet": identity, "gcs": identity, "head": "h:1", "node_rank": 0}
    record = RayRecord.from_json(json.dumps({**values, "incarnation": "i", "config_hash": "c"}))
    assert record.gcs_start is None

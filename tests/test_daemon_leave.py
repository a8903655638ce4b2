"""Leaving a network: what prevents it, what is removed, what stays."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from telling import refuses

from edgelink.api.server import Caller, LocalApi
from edgelink.clock import SystemClock
from edgelink.config import Config, Paths
from edgelink.daemon.leave import forget_network, holder_elsewhere, lease_of, refuse_beside_container, refuse_to_leave
from edgelink.errors import ExitCode, UsageError
from edgelink.process import host_tcp, hosts_file
from edgelink.ray_cluster.node import RayNode
from edgelink.runs.run_lock import RunInProgressError, RunLock
from edgelink.testing.facts import board_with


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """Of a member, with everything that a node keeps."""
    paths = Paths(state=tmp_path / "state", runtime=tmp_path / "run")
    for directory in (paths.processes, paths.logs, paths.runtime / "ray"):
        directory.mkdir(parents=True)
    for file in (paths.node_key, paths.membership, paths.logs / "easytier.log", paths.runtime / "ray/token"):
        file.write_text("of this node")
    return paths


def refuse(paths: Paths) -> None:
    refuse_to_leave(Config(), paths, SystemClock())


def test_a_member_may_leave_whatever_state_it_is_in(paths: Paths) -> None:
    """A membership that cannot be read any more is a reason to leave, not to stay."""
    refuse(paths)
    assert lease_of(paths) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else for a moment")
def test_an_ordinary_user_is_told_who_may() -> None:
    """Instead of the first file that could not be read."""
    with TemporaryDirectory() as name:  # pytest's own are closed to that user
        Path(name).chmod(0o755)
        paths = Paths(state=Path(name) / "state", runtime=Path(name) / "run")
        paths.state.mkdir(mode=0o700)
        os.seteuid(65534)
        try:
            with refuses(UsageError, "nobody", paths.state, reason="NotPrivileged"):
                refuse(paths)
        finally:
            os.seteuid(0)


def test_a_copy_leaves_the_lease_to_its_holder(paths: Paths) -> None:
    """To free it would put the other machine out."""
    assert holder_elsewhere(paths) == ""
    paths.refused_as_copy.write_text("franka-2 runs elsewhere")
    assert "franka-2" in holder_elsewhere(paths)
    forget_network(paths)
    assert holder_elsewhere(paths) == ""


@pytest.mark.parametrize(
    ("first", "service"),
    [
        (("tini", "--", "edgelink-container", "edge"), "edge"),
        (("/sbin/docker-init", "--", "tini", "--", "/usr/local/bin/edgelink-container", "head", "-v"), "head"),
        (("tini", "--", "edgelink-container", "bootstrap", "--join", "elt1_"), "relay"),
    ],
)
def test_who_ends_with_its_daemon_does_not_leave(tmp_path: Path, first: tuple[str, ...], service: str) -> None:
    """In a container that runs one; how it is done is said."""
    (tmp_path / "cmdline").write_text("\0".join(first) + "\0")
    steps = (f"compose.{service}.yaml stop`", f"run --rm {service} leave --yes`")
    with refuses(UsageError, *steps, reason="EndsWithContainer"):
        refuse_beside_container(tmp_path / "cmdline")


@pytest.mark.parametrize("first", [("tini", "--", "edgelink-container", "leave", "--yes"), ("/sbin/init",), ()])
def test_nothing_else_keeps_a_node_from_leaving(tmp_path: Path, first: tuple[str, ...]) -> None:
    """A container of its own, or a machine; or one that does not tell."""
    if first:
        (tmp_path / "cmdline").write_text("\0".join(first) + "\0")
    refuse_beside_container(tmp_path / "cmdline")


def test_who_is_no_member_cannot_leave(tmp_path: Path) -> None:
    """Nothing is removed by a command in the wrong place."""
    with pytest.raises(UsageError, match="not a member"):
        refuse(Paths(state=tmp_path / "state", runtime=tmp_path / "run"))


def test_the_registry_is_not_removed_by_leaving(paths: Paths) -> None:
    """It is the network; every other machine would lose it."""
    paths.registry_database.touch()
    with pytest.raises(UsageError, match="registry"):
        refuse(paths)


def test_a_run_in_progress_prevents_it(paths: Paths) -> None:
    """On the head by the run lock, which is on disk; it is told who holds it."""
    held = RunLock(board_with(), paths.run_lock, SystemClock(), lambda: None).held_by(Caller(os.getpid(), 0, 0))
    with held, pytest.raises(RunInProgressError, match=f"pid {os.getpid()}") as caught:
        refuse(paths)
    assert caught.value.exit_code is ExitCode.TRY_AGAIN
    refuse(paths)


def test_a_drivers_workers_prevent_it(paths: Paths) -> None:
    """On an edge, where nobody knows of the lock; Ray's own idle processes do not."""
    marker = RayNode(paths, None, SystemClock()).marker  # type: ignore[arg-type]
    for title, is_in_use in (("ray::IDLE", False), ("ray::DashboardAgent", False), ("ray::RolloutWorker.step", True)):
        argv = ["env", marker, "bash", "-c", f"exec -a {title} sleep 1000"]
        with subprocess.Popen(argv, start_new_session=True) as worker:
            try:
                while f"{title}\0".encode() not in Path(f"/proc/{worker.pid}/cmdline").read_bytes():
                    assert worker.poll() is None
                if not is_in_use:
                    refuse(paths)
                    continue
                with pytest.raises(RunInProgressError, match="RolloutWorker"):
                    refuse(paths)
            finally:
                worker.kill()


def test_all_but_the_logs_is_removed(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's settings are put back while it is still known what they were."""
    restored: list[bool] = []
    monkeypatch.setattr(host_tcp, "restore", lambda record: restored.append(record.parent.exists()))
    forget_network(paths)
    left = {str(path.relative_to(paths.state.parent)) for path in paths.state.parent.rglob("*") if path.is_file()}
    assert left == {"state/logs/easytier.log"}
    assert restored == [True]


async def test_nothing_is_removed_under_a_daemon(paths: Paths) -> None:
    """One that was started in between holds its lock."""
    async with LocalApi(paths.node_socket, paths.lock_of("node")).serving():
        with pytest.raises(UsageError, match="already serving"):
            forget_network(paths)
    assert paths.node_key.exists()


def test_the_hosts_file_is_as_it_was(paths: Paths, tmp_path: Path) -> None:
    """The overlay's names go with the overlay."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    hosts_file.set_names(hosts, {IPv4Address("10.10.0.2"): "cloud"})
    assert "cloud" in hosts.read_text()
    forget_network(replace(paths, hosts=hosts))
    assert hosts.read_text() == "127.0.0.1 localhost\n"
    forget_network(replace(paths, hosts=tmp_path / "gone"))

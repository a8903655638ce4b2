"""What a run's processes listen on beside Ray's own ports, and whose a listening socket is."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from edgelink.config import Config, Paths
from edgelink.overlay.nft import Applied, Table
from edgelink.process import ports
from edgelink.process.port_ranges import without
from edgelink.process.ports import ListeningSocket
from edgelink.ray_cluster.local_ray import LocalRay
from edgelink.ray_cluster.run_listeners import RunListeners, of_runs_alone
from edgelink.testing import FakeClock

EVERY_PORT = ((1, 65535),)
OF_A_RUN = {"EDGELINK_RUN_ID": "run-1"}

_SERVE = """
import os, socket, sys
end = socket.create_server(("0.0.0.0", 0))
print(end.getsockname()[1], flush=True)
sys.stdin.read()
"""
_SERVE_FAR_AWAY = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {_SERVE!r}], env={{}}, start_new_session=True)
"""


def on(port: int, inode: int) -> ListeningSocket:
    return ListeningSocket(inode, port, 1000)


@pytest.mark.parametrize(
    ("sockets", "runs", "closed"),
    [
        ([], set(), ()),
        ([on(8080, 1)], {1}, ((8080, 8080),)),
        ([on(7447, 1)], set(), ()),
        ([on(8080, 1), on(7447, 2)], {1}, ((8080, 8080),)),
        ([on(8080, 1), on(8080, 2)], {1, 2}, ((8080, 8080),)),
        ([on(8080, 1), on(8080, 2)], {1}, ()),
        ([on(8080, 1), on(8080, 0)], {1}, ()),
        ([on(8000, 1), on(8001, 2), on(7777, 3)], {1, 2, 3}, ((7777, 7777), (8000, 8001))),
    ],
    ids=[
        "nobody listens",
        "a run's policy server",
        "a service of the robot's own",
        "both",
        "a run, by IPv4 and IPv6",
        "a run and the robot, by their addresses",
        "a run, and the kernel itself",
        "several of a run",
    ],
)
def test_what_is_closed(sockets: list[ListeningSocket], runs: set[int], closed: tuple[tuple[int, int], ...]) -> None:
    assert of_runs_alone(sockets, runs) == closed


@contextmanager
def serving(code: str, env: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    """A process with this environment, and the port on which it, or its child, listens on all addresses."""
    command = [sys.executable, "-S", "-c", code]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.communicate()


def others(port: int) -> tuple[tuple[int, int], ...]:
    """All ports but that one: this machine has listeners of its own."""
    return without(EVERY_PORT, [(port, port)])


def nobody() -> tuple[int, ...]:
    return ()


def test_what_a_driver_starts_is_of_the_run() -> None:
    """Found by the environment that `edgelink run` gave it, and gone from the list with the process."""
    looks = RunListeners()
    with serving(_SERVE, OF_A_RUN) as (_, port):
        assert looks.look(others(port), nobody) == ((port, port),)
        assert looks.look(others(port), nobody) == ((port, port),)
    assert looks.look(others(port), nobody) == ()


def test_a_child_that_left_session_and_environment_is_still_found() -> None:
    """By who started it: a server that a worker of Ray starts with an environment of its own."""
    with serving(_SERVE_FAR_AWAY, {}) as (worker, port):
        assert RunListeners().look(others(port), lambda: [worker]) == ((port, port),)
        assert RunListeners().look(others(port), nobody) == ()


def test_a_service_of_the_robots_own_is_not_of_the_run() -> None:
    """It may run as Ray's user, and name Ray in its environment."""
    with serving(_SERVE, {"RAY_ADDRESS": "10.10.0.2:6379", "EDGELINK_CONFIG": "/etc/edgelink/edge.yaml"}) as (_, port):
        assert RunListeners().look(others(port), nobody) == ()


def test_a_socket_that_somebody_else_holds_too_is_not_of_the_run() -> None:
    """As where a robot's service starts `edgelink run` and hands its own socket on."""
    with closing(socket.create_server(("0.0.0.0", 0))) as end:
        port = end.getsockname()[1]
        os.set_inheritable(end.fileno(), True)
        command = ["/bin/cat"]
        with subprocess.Popen(command, env=OF_A_RUN, stdin=subprocess.PIPE, pass_fds=[end.fileno()]) as process:
            assert RunListeners().look(others(port), lambda: [process.pid]) == ()
            process.communicate()


def test_processes_are_looked_up_for_new_sockets_only() -> None:
    """A look is made every other second."""

    def asked() -> NoReturn:
        raise AssertionError("Ray was asked")

    looks = RunListeners()
    with closing(socket.create_server(("0.0.0.0", 0))) as end:
        port = end.getsockname()[1]
        looks.look(others(port), nobody)
        looks.look(others(port), asked)
        looks.look(EVERY_PORT, asked)


@pytest.mark.parametrize("has_inet_diag", [True, False])
@pytest.mark.parametrize(
    ("family", "address", "is_listed"),
    [
        (socket.AF_INET, "0.0.0.0", True),
        (socket.AF_INET, "127.0.0.1", False),
        (socket.AF_INET6, "::", True),
        (socket.AF_INET6, "::1", False),
    ],
)
def test_sockets_on_loopback_are_not_listed(
    monkeypatch: pytest.MonkeyPatch, has_inet_diag: bool, family: int, address: str, is_listed: bool
) -> None:
    """Whether the kernel tells of them by sock_diag, or by its table only."""
    with closing(socket.create_server((address, 0), family=family)) as end:
        if not has_inet_diag:
            monkeypatch.setattr(ports, "_NETLINK_SOCK_DIAG", 31)  # no such protocol
        me = ListeningSocket(os.fstat(end.fileno()).st_ino, end.getsockname()[1], os.geteuid())
        assert (me in ports.listening()) is is_listed


@pytest.mark.parametrize(
    ("config", "is_closed"),
    [
        ({"firewall": {"rendezvous_ports": ["29500"]}}, True),
        ({"firewall": {"rendezvous_ports": []}}, False),
        ({"firewall": {"rendezvous_ports": ["29500"]}, "relay": {"broker_port": "its"}}, False),
        ({"firewall": {"rendezvous_ports": ["29500"]}, "overlay": {"listeners": ["tcp://0.0.0.0:its"]}}, False),
    ],
    ids=[
        "outside of what is closed anyway",
        "the operator leaves a training's ports open",
        "the broker's port",
        "EasyTier's port",
    ],
)
async def test_rays_table_closes_it_from_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: dict[str, Any], is_closed: bool
) -> None:
    """A daemon that starts while a run is under way, and once nothing of the run is left. Its own ports stay open."""
    asked: list[str] = []

    async def apply(table: Table) -> Applied:
        asked.append(table.script)
        return Applied("", is_made=False)

    monkeypatch.setattr(Table, "apply", apply)
    with serving(_SERVE, OF_A_RUN) as (_, port):
        said = Config.model_validate_json(json.dumps(config).replace('"its"', str(port)).replace("its", str(port)))
        paths = Paths(state=tmp_path / "state", runtime=tmp_path / "run")
        paths.state.mkdir()
        ray = LocalRay(said, paths, FakeClock())
        await ray.protect(6379, None)
        assert (re.search(rf"\b{port}\b", asked[-1]) is not None) is is_closed
    await ray.close_run_ports()
    await ray.guard.keep()
    assert re.search(rf"\b{port}\b", asked[-1]) is None

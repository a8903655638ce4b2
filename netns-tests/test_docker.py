"""The images and compose files on a real Docker engine: roles with the host's network, and the demo of all of them.

The engine lives in the network namespace of a lab's edge: "the host's network" is that machine's, behind NAT and
without a way out. Relay and cloud of the lab are processes, as elsewhere. The tests build on each other, in order.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import docker_engine
import pytest
import yaml
from conftest import MakeLab
from docker_engine import BASE, FILES, Engine, own_python, wheel
from machines import Result, assert_healthy, told_by_doctor, wait_until, wrong
from typed_page import DOCS

from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.lab.namespaces import netns_path
from edgelink.lab.road import Road, write_demo_cluster
from edgelink.overlay.acquisition import default_cache_dir, find_easytier
from edgelink.overlay.stun import NAMES

EDGE, OTHER_EDGE = "edge-1", "edge-2"
GRACE_S = 45  # as in the compose files
QUICK = {"healthcheck": {"interval": "1s", "timeout": "15s", "test": ["CMD", "edgelink", "wait", "--timeout", "2s"]}}
SHORT = "run.iterations=2", "run.eval_episodes=2", "env.kinds=sim"
SMALL_RAY = {
    "EDGELINK_RAY__NUM_CPUS": "2",
    "EDGELINK_RAY__NUM_GPUS": "0",
    "EDGELINK_RAY__OBJECT_STORE_MEMORY": "125829120",
}

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("easytier"), pytest.mark.story, pytest.mark.long]
if reason := docker_engine.reason_to_skip():
    pytestmark.append(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def lab(make_shared_lab: MakeLab) -> Lab:
    lab = make_shared_lab()
    lab.up(edges=2)
    return lab


@pytest.fixture(scope="module")
def engine(lab: Lab) -> Iterator[Engine]:
    """With the images of relay, head and edge."""
    engine = Engine(netns_path(lab.name, EDGE))
    try:
        engine.start()
        engine.build(find_easytier(None, default_cache_dir()))
        yield engine
    finally:
        engine.close()


def test_the_images_are_small(engine: Engine) -> None:
    """EdgeLink's environment and EasyTier beside what the base has: 98 MB when docs/how-to/docker.md was written."""
    sizes = {
        name: int(engine.docker("image", "inspect", "--format", "{{.Size}}", name).stdout) / 1e6
        for name in (BASE, "edgelink-relay", "edgelink-head", "edgelink-edge")
    }
    print({name: f"{size_mb:.0f} MB" for name, size_mb in sizes.items()})
    assert max(sizes.values()) - sizes[BASE] < 130


class Role:
    """The service of one of the compose files for a role, on the edge's network."""

    def __init__(self, engine: Engine, name: str, *, env: dict[str, str], **more: object) -> None:
        self.engine = engine
        self.name = name
        self._env = env
        self._files = [FILES / f"compose.{name}.yaml", engine.override(name, {name: {**QUICK, **more}})]

    @property
    def container(self) -> str:
        """Its id."""
        return self._compose("ps", "--quiet", self.name).strip()

    def up(self) -> str:
        """Start it; returns its container once the health check is content."""
        self._compose("up", "--no-build", "--detach")
        container = self.container
        self.engine.wait_ready(container)
        wait_until("it is healthy", lambda: self.engine.health(container), wanted=lambda health: health == "healthy")
        return container

    def exec(self, *command: str, directory: str = "/") -> str:
        """What it says on its standard output, in the running container."""
        return self._compose("exec", "-T", "-w", directory, self.name, *command)

    def down(self) -> None:
        self._compose("down")  # volumes stay

    def _compose(self, *argv: str) -> str:
        return self.engine.compose("--project-name", "role", *argv, files=self._files, env=self._env).stdout


@pytest.fixture(scope="module")
def edge(engine: Engine, lab: Lab) -> Role:
    """Not started yet; relay and cloud are Ready, and its token is in a file."""
    road = Road(lab, SystemClock(), print)
    lab.start(RELAY)
    road.wait_ready(RELAY)
    road.enrol(CLOUD)
    lab.start(CLOUD)
    made = lab.exec(RELAY, ["edgelink", "token", "create", "--role", "edge"], capture=True, check=True)
    token = engine.directory / "token"
    token.touch(0o600)
    token.write_text(made.stdout)
    python = own_python()
    python["environment"] |= SMALL_RAY | {"EDGELINK_HOSTNAME": EDGE}
    return Role(engine, "edge", env={"EDGELINK_TOKEN_FILE": str(token)}, **python)


def lease(status: dict[str, object]) -> tuple[object, ...]:
    return status["overlay_ip"], status["preferred_rank"], status["node_rank"]


def has_device(lab: Lab) -> bool:
    return lab.exec(EDGE, ["ip", "link", "show", "et0"], capture=True).returncode == 0


def assert_no_zombies(engine: Engine, container: str) -> None:
    """None that stays: whoever ends is one until its parent has taken leave of it."""

    def zombies() -> set[str]:
        lines = engine.docker("top", container, "-eo", "pid,stat,comm").stdout.splitlines()[1:]
        return {line.split()[0] for line in lines if line.split()[1].startswith("Z")}

    first = zombies()
    wait_until("they are taken leave of", lambda: zombies() & first, 30, wanted=lambda left: not left)


def assert_doctor_is_content(engine: Engine, container: str, lab: Lab, *judged: str) -> None:
    """Nothing is found but what a container's daemon cannot set, as its /proc/sys is read-only; nor that, once the host
    has done what doctor says."""

    def ask() -> Result:
        return engine.docker("exec", container, "edgelink", "doctor", "--json", check=False)

    found = wrong(told_by_doctor(ask()))
    assert found.keys() <= {"tcp-resumes", "tcp-probes"}, found
    for finding in found.values():
        lab.exec(EDGE, shlex.split(finding["remedy"].partition("on the host, ")[2]), capture=True, check=True)
    assert_healthy(ask(), *judged)


def test_a_relay_makes_its_network_once(engine: Engine, lab: Lab) -> None:
    """Healthy, serving tokens; a stop ends all of it in time with 0; the next one goes on with the same network."""
    relay = Role(engine, "relay", env={"RELAY": "192.168.11.2"})
    first = relay.up()
    status = engine.status(first)
    assert status is not None
    assert (status["role"], status["overlay_ip"]) == ("bootstrap", "10.10.0.1")
    made = engine.docker("exec", first, "edgelink", "token", "create", "--role", "edge")
    assert made.stdout.startswith("elt1_")
    assert_doctor_is_content(engine, first, lab, "easytier", "mosquitto", "ports-free", "tun")
    host = engine.inspect(first)["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "3"}}
    assert engine.docker("exec", first, "stat", "--format=%A %U", "/run/edgelink").stdout == "drwxr-xr-x root\n"
    assert_no_zombies(engine, first)

    code, took_s = engine.stop(first, GRACE_S)
    print(f"the relay's container stopped in {took_s:.1f} s")
    assert code == 0
    assert took_s < GRACE_S / 2
    assert not has_device(lab)

    relay.down()
    second = relay.up()
    assert second != first
    again = engine.status(second)
    assert again is not None
    assert (again["network_id"], again["node_id"]) == (status["network_id"], status["node_id"])
    relay.down()


def test_compose_builds_with_the_packages_that_are_named(engine: Engine, tmp_path: Path) -> None:
    """`up --build`, with the variables in docker/.env: the packages are in Ray's interpreter and not in the daemon's,
    also once the image went to another machine as a file. An image of one's own is run, and never built over."""
    file = engine.context / "docker/compose.edge.yaml"
    packages = {"my_robot_driver": "1.2", "my_robot_model": "3.4"}
    for module, version in packages.items():
        folder = tmp_path / module.replace("_", "-")
        folder.mkdir()
        wheel(folder, module, version, f"version = {version!r}\n")
    (file.parent / "token").touch(0o600)
    image, others = "my-edge", "edgelink-edge"
    engine.docker("tag", others, "kept")

    def compose(*argv: str, check: bool = True, **env: str) -> Result:
        return engine.compose("--project-name", "made", *argv, files=[file], env=env, check=check, timeout_s=300)

    with engine.index(tmp_path) as url:
        variables = {
            "EDGELINK_BASE": BASE,
            "EDGELINK_EDGE_IMAGE": image,  # not there yet
            "EDGELINK_PYTHON_PACKAGES": " ".join(f"{name}=={version}" for name, version in packages.items()),
            "EDGELINK_PIP_OPTIONS": f"--index-url={url} --trusted-host={urlsplit(url).hostname}",
        }
        (file.parent / ".env").write_text("".join(f'{name}="{value}"\n' for name, value in variables.items()))
        built = compose("up", "--build", "--no-start", EDGELINK_EDGE_IMAGE="").stdout
    assert "Successfully built" in built, "the words of the classic builder"
    compose("down", EDGELINK_EDGE_IMAGE="")
    engine.docker("tag", others, image)
    engine.docker("tag", "kept", others)
    own = engine.inspect(image)["Id"]
    refused = compose("build", check=False)
    assert refused.returncode != 0
    assert image in refused.stdout + refused.stderr, "there is no such stage"
    assert engine.inspect(image)["Id"] == own
    saved = engine.directory / "image.tar"
    engine.docker("save", "--output", str(saved), image)
    engine.docker("rmi", image)
    engine.docker("load", "--input", str(saved))
    saved.unlink()
    compose("up", "--no-build", "--no-start")
    compose("down")

    def imported(interpreter: str) -> Result:
        program = "".join(f"import {name}; print({name}.version);" for name in packages)
        asked = ("run", "--rm", "--network=none", f"--entrypoint={interpreter}", image, "-c", program)
        return engine.docker(*asked, check=False)

    rays = imported("/opt/ray/bin/python")
    assert rays.stdout.split() == list(packages.values()), rays.stderr
    daemons = imported("/opt/edgelink/bin/python")
    assert daemons.returncode == 1
    assert "No module named 'my_robot_driver'" in daemons.stderr


def test_ray_has_its_home_where_the_disk_is_read_only(engine: Engine) -> None:
    """With the `tmpfs` that the how-to names for head and edges; and a place for robots' stops, which is a volume."""
    said = re.search(r"`(tmpfs: \[[^`]*\])`", (DOCS / "how-to/docker.md").read_text())
    assert said is not None
    options = [f"--tmpfs={each}" for each in yaml.safe_load(said[1])["tmpfs"]]
    as_ray = ("--entrypoint=setpriv", "edgelink-edge", "--reuid=ray", "--regid=ray", "--init-groups")
    options += ["--volume=robots-of-a-read-only-node:/var/tmp"]
    touched = ("touch", "/home/ray/it", "/tmp/it", "/var/tmp/it")
    engine.docker("run", "--rm", "--network=none", "--read-only", *options, *as_ray, *touched)


def test_an_edge_joins_with_a_token_from_a_file(engine: Engine, edge: Role, lab: Lab) -> None:
    """Ready, Ray as an ordinary user; no public STUN server has a name there; no secret is in what the engine tells."""
    container = edge.up()
    status = engine.status(container)
    assert status is not None
    assert lease(status) == ("10.10.0.3", 1, 1)
    overlay_up = next(one for one in status["conditions"] if one["type"] == "OverlayUp")
    assert "STUN" not in overlay_up["message"]
    hosts = wait_until(
        "the overlay has names",
        lambda: engine.docker("exec", container, "cat", "/etc/hosts").stdout,
        wanted=lambda text: "edge-1.edgelink.internal" in text,
    )
    assert all(name in hosts for name in NAMES)
    raylets = [
        line for line in engine.docker("top", container, "-eo", "pid,uid,comm").stdout.splitlines() if "raylet" in line
    ]
    assert raylets
    assert all(line.split()[1] == "1000" for line in raylets)
    assert_no_zombies(engine, container)

    membership = json.loads(engine.docker("exec", container, "cat", str(Paths().membership)).stdout)
    secrets = {
        "token": (engine.directory / "token").read_text().strip(),
        "network secret": membership["secrets"]["network_secret"],
    }
    told = {
        "inspect": engine.docker("inspect", container, "edgelink-edge").stdout,
        "history": engine.docker("history", "--no-trunc", "edgelink-edge").stdout,
        "logs": engine.logs(container),
        "processes": engine.docker("top", container, "-eo", "pid,args").stdout,
    }
    assert [(where, name) for where, text in told.items() for name, secret in secrets.items() if secret in text] == []


def test_doctor_finds_nothing_in_an_edges_container(engine: Engine, edge: Role, lab: Lab) -> None:
    """With the rights, the limits and the shared memory that the compose file gives it."""
    engine.wait_ready(edge.container)
    judged = ("clock", "easytier", "interpreter", "ports-free", "shared-memory")
    assert_doctor_is_content(engine, edge.container, lab, *judged)


def test_a_killed_daemon_is_started_again_and_adopts(engine: Engine, edge: Role) -> None:
    """In the same container: the same EasyTier and the same Ray."""
    container = edge.container
    before = engine.wait_ready(container)
    record = engine.docker("exec", container, "cat", str(Paths().processes / "ray.json")).stdout
    engine.docker("exec", container, "sh", "-c", f"kill -KILL {before['pid']}")
    after = wait_until(
        "another daemon is ready",
        lambda: engine.looked(container),
        wanted=lambda status: status["pid"] != before["pid"] and status["ready"],
    )
    assert after["easytier_pid"] == before["easytier_pid"]
    assert engine.docker("exec", container, "cat", str(Paths().processes / "ray.json")).stdout == record
    assert engine.inspect(container)["RestartCount"] == 0


def test_a_reload_is_the_same_process_which_adopts(engine: Engine, edge: Role) -> None:
    """`docker kill --signal HUP`: the configuration of now; EasyTier, Ray and the container go on."""
    container = edge.container
    before = engine.wait_ready(container)
    record = engine.docker("exec", container, "cat", str(Paths().processes / "ray.json")).stdout

    def adoptions() -> list[int]:
        return [engine.logs(container).count(what) for what in ("overlay.adopted", "ray.adopted")]

    known = adoptions()
    engine.docker("kill", "--signal", "HUP", container)
    wait_until(
        "it has adopted EasyTier and Ray",
        adoptions,
        wanted=lambda now: all(later > earlier for later, earlier in zip(now, known, strict=True)),
    )
    after = engine.wait_ready(container)
    assert (after["pid"], after["easytier_pid"]) == (before["pid"], before["easytier_pid"])
    assert engine.docker("exec", container, "cat", str(Paths().processes / "ray.json")).stdout == record
    assert "daemon.reloading" in engine.logs(container)
    assert engine.inspect(container)["RestartCount"] == 0


def test_a_new_container_is_the_same_node(engine: Engine, edge: Role, lab: Lab) -> None:
    """A stop ends Ray, then EasyTier, in time and with 0; what comes after it has the same address and rank."""
    container = edge.container
    before = engine.wait_ready(container)
    code, took_s = engine.stop(container, GRACE_S)
    print(f"the edge's container stopped in {took_s:.1f} s")
    logs = engine.logs(container)
    assert code == 0, logs
    assert took_s < GRACE_S
    assert not has_device(lab)
    assert "ray.stopped" in logs

    edge.down()
    (engine.directory / "token").write_text("")  # it has been used
    after = engine.wait_ready(edge.up())
    assert lease(after) == lease(before)
    assert after["node_id"] == before["node_id"]


def test_leaving_is_refused_where_it_would_end_with_its_container(engine: Engine, edge: Role) -> None:
    """With the two commands that do it; the node goes on."""
    left = engine.docker("exec", edge.container, "edgelink", "leave", "--yes", check=False)
    assert left.returncode == 2
    assert "run --rm edge leave --yes" in left.stderr
    engine.wait_ready(edge.container)


def test_a_stop_ends_what_a_killed_daemon_left(engine: Engine, edge: Role, lab: Lab) -> None:
    """While no daemon is there, as in the two seconds before the next one: Ray, then EasyTier, in time and with 0."""
    container = edge.container
    daemon = engine.wait_ready(container)
    engine.docker("update", "--restart=no", container)  # its end shall be seen
    both = f"kill -KILL {daemon['pid']}; kill -TERM 1"  # with no time between for another daemon
    engine.docker("exec", container, "sh", "-c", both, check=False)
    code = int(engine.docker("wait", container, timeout_s=GRACE_S).stdout)
    logs = engine.logs(container)
    assert code == 0, logs
    assert re.search(r": Ray \(\d+ processes\), .*easytier", logs), logs
    assert not has_device(lab)
    edge.down()


@pytest.mark.parametrize(
    ("missing", "given"),
    [
        ("NetAdminMissing", ["--device", "/dev/net/tun"]),
        ("TunMissing", ["--cap-add", "NET_ADMIN"]),
    ],
)
def test_what_is_missing_is_named(engine: Engine, edge: Role, missing: str, given: list[str]) -> None:
    """The health check and `edgelink wait` (75) say it in words."""
    health = ("--health-interval", "1s", "--health-retries", "1", "--health-start-period", "1s")
    command = ("run", "--detach", "--network", "host", "--volume", "edgelink-edge:/var/lib/edgelink", *health)
    container = engine.docker(*command, *given, "edgelink-edge").stdout.strip()
    try:

        def reason() -> str | None:
            status = engine.looked(container)
            conditions = status["conditions"] if status else []
            return next((one["reason"] for one in conditions if one["type"] == "OverlayUp"), None)

        wait_until("it is named", reason, wanted=lambda found: found == missing)
        waited = engine.docker("exec", container, "edgelink", "wait", "--timeout", "1s", check=False)
        assert waited.returncode == 75
        assert f"OverlayUp: {missing}" in waited.stderr
        # It is so too while no daemon answers yet, which the checks before have said.
        wait_until(
            "the container is unhealthy, and says why",
            lambda: engine.inspect(container)["State"]["Health"],
            wanted=lambda found: (
                found["Status"] == "unhealthy" and f"OverlayUp: {missing}" in found["Log"][-1]["Output"]
            ),
        )
    finally:
        engine.docker("rm", "--force", container)


def test_a_head_in_a_container_trains_on_an_edge(engine: Engine, edge: Role, lab: Lab) -> None:
    """It takes the place of a head that was none, with its address and rank; and the edge is a plain process."""
    road = Road(lab, SystemClock(), print)
    edge.down()
    lab.stop(CLOUD)
    lab.exec(RELAY, ["edgelink", "registry", "release", EDGE, "--now"], check=True)
    made = lab.exec(
        RELAY,
        ["edgelink", "token", "create", "--role", "head", "--replaces", CLOUD, "--force"],
        capture=True,
        check=True,
    )
    token = engine.directory / "head-token"
    token.touch(0o600)
    token.write_text(made.stdout)
    work = engine.directory / "work"
    work.mkdir()
    write_demo_cluster(work / "cluster.yaml", 1)
    python = own_python()
    python["environment"] |= SMALL_RAY
    env = {"EDGELINK_TOKEN_FILE": str(token), "EDGELINK_SHM": "1gb", "EDGELINK_WORK": str(work)}
    head = Role(engine, "head", env=env, **python)
    status = engine.wait_ready(head.up())
    assert (lease(status), status["role"]) == (("10.10.0.2", 0, 0), "head")
    road.enrol(OTHER_EDGE, "--rank", "1")
    lab.start(OTHER_EDGE)
    road.wait_ready(OTHER_EDGE)
    command = ("edgelink", "train", "--checkpoint-dir", "checkpoints", *SHORT)
    ran = head.exec("edgelink", "run", "--cluster", "cluster.yaml", "--", *command, directory="/work")
    assert re.search(r"return [\d.]+ before, [\d.]+ after 2 iterations", ran), ran
    assert re.search(rf"env:0 \(sim\) +node 1 +{OTHER_EDGE} ", ran), ran
    assert any((work / "checkpoints").iterdir()), "they outlive the container"
    code, took_s = engine.stop(head.container, GRACE_S)
    print(f"the head's container stopped in {took_s:.1f} s")
    assert code == 0
    assert took_s < GRACE_S
    head.down()


def test_the_demo_trains_a_policy(engine: Engine) -> None:
    """Relay, cloud and two edges, each in a network of its own with the relay: `up` ends with the training's status."""
    engine.docker("tag", "edgelink-edge", "edgelink-demo")
    engine.docker("tag", "edgelink-relay", "edgelink-demo-relay")
    python = own_python()
    python["environment"] |= SMALL_RAY
    files = [FILES / "compose.demo.yaml", engine.override("demo", dict.fromkeys(("cloud", "edge-1", "edge-2"), python))]
    compose = ("--project-name", "demo")
    up = engine.compose(
        *compose, "up", "--no-build", "--exit-code-from", "cloud", files=files, check=False, timeout_s=420
    )
    assert up.returncode == 0, up.stdout[-6000:] + up.stderr[-2000:]
    trained = re.search(r"return ([\d.]+) before, ([\d.]+) after", up.stdout)
    assert trained is not None
    before, after = map(float, trained.groups())
    assert after > 2 * before
    for name in ("demo-relay", "edge-1", "edge-2"):
        container = engine.compose(*compose, "ps", "--all", "--quiet", name, files=files).stdout.strip()
        assert engine.inspect(container)["State"]["ExitCode"] == 0
    engine.compose(*compose, "down", "--volumes", files=files)
    left = engine.docker("volume", "ls", "--quiet", "--filter", "name=demo").stdout
    assert left == ""

"""A head on a machine of its own, booted by systemd, with a real relay and an edge; training is the service that
docs/how-to/long-runs.md tells people to make, word for word. The GCS keeps its tables on disk (`ray.gcs_store`). A
laptop beside it, outside the overlay, has ssh only.

One lab, one machine and one run serve all tests of this file, in order. `make soak` also pulls the machine's plug.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import booted
import port_scan
import pytest
import yaml
from booted import BootedNode, installed_edgelink, ray_with_its_dashboard
from conftest import MakeLab
from faults import children, cut
from machines import wait_until
from ray_tables import TABLES
from training_run import CHECKPOINT_EVERY, iterations_in, learned_again
from web_browser import missing_programs

from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.lab import CLOUD, RELAY
from edgelink.lab.road import Road, write_demo_cluster
from edgelink.overlay.acquisition import default_cache_dir, find_easytier

EDGE, LAPTOP = "edge-1", f"{CLOUD}-nat"
UNIT, TRAIN = "edgelink-head.service", "train.service"
EASYTIER, RAY, GCS = "edgelink-easytier.service", "edgelink-ray.service", "edgelink-ray-gcs.service"
USER, HOME = "robot", Path("/home/robot")
RAY_HOME = Path("/opt/ray")
CONFIG = Path("/etc/edgelink/edgelink.yaml")
BROWSER = Path(__file__).with_name("web_browser.py")
GUIDE = Path(__file__).parent.parent / "docs/how-to/long-runs.md"
ENDLESS = "run.iterations=100000"
ALL_ALIVE = "2 of 2 nodes alive in Ray"
# 60 are promised. On a busy machine Ray gives its own start up after 30 s, and the daemon starts it once more.
COMPLETE_WITHIN_S = 240.0
SSH, EASYTIER_TCP = 22, 11010
PAGES = {8265, 8270}  # Ray's dashboard and ours
WAYS_DOWN = ("reboot", "power cut") if os.environ.get("EDGELINK_SOAK") == "1" else ("reboot",)

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.usefixtures("easytier")]
if reason := booted.reason_to_skip():
    pytestmark.append(pytest.mark.skip(reason=reason))


def unit_of_the_guide() -> str:
    """The guide's unit for its user and directory, here: another name, and figures that fit a test."""
    _, _, rest = GUIDE.read_text().partition("```ini\n# /etc/systemd/system/train.service\n")
    unit = rest.partition("```")[0]
    more = f"{ENDLESS} run.checkpoint_every={CHECKPOINT_EVERY} --progress progress env.kinds=sim"
    for theirs, ours in (
        ("User=alice\n", f"User={USER}\n"),
        ("/home/alice/", f"{HOME}/"),
        ("--resume auto", f"--resume auto {more}"),
    ):
        assert unit.count(theirs) == 1, unit
        unit = unit.replace(theirs, ours)
    return unit


@pytest.fixture(scope="module")
def road(make_shared_lab: MakeLab) -> Road:
    """Relay and edge as processes, the edge waiting for a head; the cloud is enrolled, and has nothing running yet."""
    road = Road(make_shared_lab(), SystemClock(), print)
    road.lab.up(edges=1)
    road.lab.start(RELAY)
    road.wait_ready(RELAY)
    for node in (CLOUD, EDGE):
        road.enrol(node)
    road.lab.start(EDGE)
    return road


@pytest.fixture(scope="module")
def machine(road: Road, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedNode]:
    """The cloud's machine with both units enabled, not booted yet."""
    config_file = road.lab.host_path(CLOUD, CONFIG)
    config = yaml.safe_load(config_file.read_text())
    config["ray"] |= {"user": USER, "allow_root": False, "python": f"{RAY_HOME}/bin/python", "gcs_store": True}
    config_file.write_text(yaml.safe_dump(config))
    machine = BootedNode(road.lab, CLOUD, find_easytier(None, default_cache_dir()))
    try:
        machine.install("head", edgelink=installed_edgelink(tmp_path_factory))
        ray = ray_with_its_dashboard(tmp_path_factory)
        subprocess.run(["cp", "-a", ray, machine.root / RAY_HOME.relative_to("/")], check=True)
        directory = machine.root / HOME.relative_to("/") / "run"
        directory.mkdir()
        write_demo_cluster(directory / "cluster.yaml", 1)
        give_to_user(directory, directory / "cluster.yaml")
        (machine.root / "etc/systemd/system" / TRAIN).write_text(unit_of_the_guide())
        yield machine
    finally:
        machine.remove()


def give_to_user(directory: Path, *inside: Path) -> None:
    """What is made in the user's home is the user's."""
    user = directory.parent.stat()
    for path in (directory, *inside):
        os.chown(path, user.st_uid, user.st_gid)


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(item for item in status["conditions"] if item["type"] == kind)


def wait_complete(machine: BootedNode, timeout_s: float) -> dict[str, Any]:
    """The head's status once it is ready and Ray lists everybody."""

    def is_complete(status: dict[str, Any]) -> bool:
        return bool(status["ready"]) and condition(status, "NodesReady")["message"] == ALL_ALIVE

    try:
        return wait_until("the cluster is complete", machine.status, timeout_s, wanted=is_complete)
    except AssertionError as error:
        raise AssertionError(f"{error}; {machine.journal()}") from None


def learned(machine: BootedNode) -> list[int]:
    return iterations_in(machine.root / HOME.relative_to("/") / "run/progress")


def wait_for_more(machine: BootedNode) -> None:
    """Until the run has learned two more iterations."""
    count = len(learned(machine))
    try:
        wait_until("training goes on", lambda: learned(machine), 120, wanted=lambda seen: len(seen) >= count + 2)
    except AssertionError as error:
        raise AssertionError(f"{error}; {machine.journal(TRAIN)}") from None


def test_a_boot_makes_a_cluster(road: Road, machine: BootedNode) -> None:
    """Without a hand on the edge, which was there before; EasyTier and Ray are units of their own."""
    machine.boot()
    status = wait_complete(machine, COMPLETE_WITHIN_S)
    assert (status["overlay_ip"], status["node_rank"]) == ("10.10.0.2", 0)
    assert road.wait_ready(EDGE)["node_rank"] == 1
    wait_until("systemctl shows it", lambda: machine.show(UNIT, "StatusText"), wanted=lambda text: text == "Ready")
    assert {name: unit_of(machine, name) for name in UNITS_OF_CHILDREN} == UNITS_OF_CHILDREN


UNITS_OF_CHILDREN = {"easytier": EASYTIER, "raylet": RAY, "gcs": RAY}


def unit_of(machine: BootedNode, child: str) -> str:
    cgroups = machine.path(Path(f"/proc/{machine.children()[child]}/cgroup")).read_text()
    return cgroups.strip().rpartition("/")[2]


def kill_gcs(machine: BootedNode) -> None:
    """SIGKILL; the daemon starts it again, in a unit of its own, as it was."""
    before = machine.children()
    argv = machine.path(Path(f"/proc/{before['gcs']}/cmdline")).read_bytes()
    machine.run("kill", f"-{int(signal.SIGKILL)}", str(before["gcs"]), check=True)
    after = wait_until(
        "another GCS", machine.children, wanted=lambda found: found.get("gcs", 0) not in (0, before["gcs"])
    )
    assert after == {**before, "gcs": after["gcs"]}
    assert unit_of(machine, "gcs") == GCS
    process = machine.path(Path(f"/proc/{after['gcs']}"))
    assert (process / "cmdline").read_bytes() == argv
    assert process.stat().st_uid == (machine.root / HOME.relative_to("/")).stat().st_uid


def test_a_gcs_that_dies_is_started_again_as_a_unit(road: Road, machine: BootedNode) -> None:
    """As Ray's user. Nothing else is started anew, here or on the edge, also when it dies again."""
    raylet = children(road.lab, EDGE)["raylet"]
    for _ in range(2):
        kill_gcs(machine)
    wait_complete(machine, 120)
    assert machine.show(GCS, "User") == str((machine.root / HOME.relative_to("/")).stat().st_uid)
    assert children(road.lab, EDGE)["raylet"] == raylet


def test_a_restart_and_a_crash_leave_the_cluster_and_the_run(road: Road, machine: BootedNode) -> None:
    """`systemctl restart` and SIGKILL of the daemon: EasyTier, the restarted GCS, raylet, the edge's raylet and the
    driver go on, and the run keeps its lock."""
    machine.run("systemctl", "enable", "--quiet", "--now", TRAIN, check=True)
    wait_for_more(machine)
    before, raylet = machine.children(), children(road.lab, EDGE)["raylet"]
    daemon, run = machine.daemon_pid(UNIT), machine.daemon_pid(TRAIN)
    machine.run("systemctl", "restart", UNIT, check=True)
    wait_complete(machine, 120)
    restarted = machine.daemon_pid(UNIT)
    assert restarted != daemon
    assert machine.children() == before

    machine.run("kill", f"-{int(signal.SIGKILL)}", str(restarted), check=True)
    wait_until("another daemon", lambda: machine.daemon_pid(UNIT), wanted=lambda pid: pid not in (0, restarted))
    wait_complete(machine, 120)
    assert machine.children() == before
    assert [pid for pid in before.values() if not machine.path(Path(f"/proc/{pid}")).exists()] == []
    assert children(road.lab, EDGE)["raylet"] == raylet
    wait_until(
        "the run keeps its lock",
        machine.status,
        wanted=lambda status: condition(status, "DriverRunning")["reason"] == "Granted",
    )
    wait_for_more(machine)
    assert (machine.daemon_pid(TRAIN), machine.show(TRAIN, "NRestarts")) == (run, "0")
    assert learned_again(learned(machine)) == []


@pytest.fixture(scope="module")
def laptop(road: Road, machine: BootedNode, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """A computer in front of the head's site, with a key that the head's user knows: makes its ssh's command lines."""
    directory = tmp_path_factory.mktemp("laptop")
    key, config = directory / "key", directory / "ssh_config"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    files = f"IdentityFile {key}\nUserKnownHostsFile {directory}/known_hosts\n"
    config.write_text(f"{files}StrictHostKeyChecking accept-new\nExitOnForwardFailure yes\nBatchMode yes\n")
    keys, etc = machine.root / HOME.relative_to("/") / ".ssh/authorized_keys", machine.root / "etc"
    keys.parent.mkdir(mode=0o700)
    keys.write_text(key.with_suffix(".pub").read_text())
    give_to_user(keys.parent, keys)
    with (etc / "shadow").open("a") as file:
        file.write(f"{USER}:*:19000:0:99999:7:::\n")  # by key only
    (etc / "sudoers.d" / USER).write_text(f"{USER} ALL=(ALL) NOPASSWD: ALL\n")
    (machine.root / "usr/local/bin/edgelink").symlink_to("/opt/edgelink/bin/edgelink")  # docs/how-to/systemd.md
    machine.run("systemctl", "unmask", "--quiet", "ssh.service", check=True)
    machine.run("systemctl", "start", "ssh.service", check=True)
    return lambda *words: ["ssh", "-F", str(config), *words]


def on_laptop(road: Road, argv: list[str]) -> str:
    """What a command prints there, which ends well."""
    answer = road.lab.exec(LAPTOP, argv, capture=True, timeout_s=60)
    assert answer.returncode == 0, f"{argv}: {answer.stdout}{answer.stderr}"
    return answer.stdout


def head_of(road: Road) -> str:
    """As ssh is told it."""
    return f"{USER}@{road.lab.topology.address(CLOUD)}"


def link_to_page(road: Road, laptop: Callable[..., list[str]]) -> dict[str, Any]:
    """What `sudo edgelink dashboard` prints at the head, where ssh has come to."""
    link: dict[str, Any] = json.loads(on_laptop(road, laptop(head_of(road), "sudo edgelink dashboard --json")))
    return link


@contextmanager
def tunnel(road: Road, argv: list[str], log: Path) -> Iterator[None]:
    """Kept running on the laptop, in a window of its own."""
    process = road.lab.popen(LAPTOP, argv, log)
    try:
        wait_until("both ports listen there", lambda: listening(road), 60, wanted=PAGES.issubset)
        yield
        assert process.poll() is None, log.read_text()
    finally:
        process.kill()
        process.wait()


def listening(road: Road) -> set[int]:
    shown = road.lab.exec(LAPTOP, ["ss", "-Htln", "src", "127.0.0.1"], capture=True, check=True).stdout
    return {int(line.split()[3].rpartition(":")[2]) for line in shown.splitlines()}


class LaptopsBrowser:
    """The one that web_browser.py serves there: its methods, with what they return."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: object) -> Any:
            self._connection.send((name, arguments))
            is_done, answer = self._connection.recv()
            assert is_done, answer
            return answer

        return call


@contextmanager
def browser_on_laptop(road: Road, log: Path) -> Iterator[LaptopsBrowser]:
    socket = road.lab.node_directory(LAPTOP) / "browser"  # of which the path is short enough
    process = road.lab.popen(LAPTOP, [sys.executable, str(BROWSER), str(socket)], log)

    def connected() -> Connection | None:
        assert process.poll() is None, log.read_text()
        with suppress(FileNotFoundError, ConnectionRefusedError):
            return Client(str(socket), "AF_UNIX")
        return None

    try:
        with wait_until("it is there", connected, 60) as connection:
            yield LaptopsBrowser(connection)
        assert process.wait(30) == 0, log.read_text()
    finally:
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)  # it clears up after itself once we have gone, whatever failed here
        process.kill()
        process.wait()


def test_a_laptop_has_rays_dashboard(
    road: Road, machine: BootedNode, laptop: Callable[..., list[str]], tmp_path: Path
) -> None:
    """By ssh to the head, and there what `sudo edgelink dashboard` prints, typed as it is: sudo hides from it where the
    ssh came to. Without it, nothing of Ray answers, not even what only `ray[default]` has."""
    link, head = link_to_page(road, laptop), head_of(road)
    program, *words = shlex.split(link["ssh"])
    assert (program, words[-1]) == ("ssh", head)
    assert link["ray_dashboard_answers"]
    assert not listening(road) & PAGES
    assert port_scan.open_tcp_ports(road.lab, LAPTOP, str(road.lab.topology.address(CLOUD))) == {SSH, EASYTIER_TCP}
    with tunnel(road, laptop(*words), tmp_path / "tunnel.log"):
        token = on_laptop(road, laptop(head, f"sudo cat {shlex.quote(link['ray_token_path'])}")).strip()
        nodes = f"{link['ray_dashboard']}nodes?view=summary"
        assert on_laptop(road, [sys.executable, "-c", _GET, nodes, "nobody's"]).split()[0] in ("401", "403")
        status, _, body = on_laptop(road, [sys.executable, "-c", _GET, nodes, token]).partition(" ")
        assert status == "200"
        raylets = [row["raylet"] for row in json.loads(body)["data"]["summary"]]
        shown = {(raylet["nodeManagerAddress"], raylet["state"]) for raylet in raylets}
        assert shown == {("10.10.0.2", "ALIVE"), ("10.10.0.3", "ALIVE")}


_GET = """
import sys, urllib.error, urllib.request
asked = urllib.request.Request(sys.argv[1], headers={"Authorization": f"Bearer {sys.argv[2]}"})
try:
    answer = urllib.request.urlopen(asked, timeout=20)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode())
"""


def test_a_laptops_browser_follows_the_network(
    road: Road, machine: BootedNode, laptop: Callable[..., list[str]], tmp_path: Path
) -> None:
    """A real one, through the tunnel, logged in by the printed link. It shows who is there, how far away, and what runs
    where; without a reload, an edge that is cut off, one that is switched off, and a daemon that is restarted."""
    if missing := missing_programs():
        pytest.skip(f"needs {', '.join(missing)}: `make machine` installs them")
    link = link_to_page(road, laptop)
    _, *words = shlex.split(link["ssh"])
    with tunnel(road, laptop(*words), tmp_path / "tunnel.log"), browser_on_laptop(road, tmp_path / "log") as browser:
        browser.open(link["url"])
        browser.run(_LISTEN)
        page = link["url"].partition("#")[0]
        assert browser.run("location.href") == page
        see_everybody(browser)
        see_the_run(browser)
        with cut(road.lab, EDGE):
            wait_for_edge(browser, lambda row: row["health"] == "paused")
        wait_for_edge(browser, is_measured)
        road.lab.stop(EDGE)
        wait_for_edge(browser, lambda row: row["health"] == "off" and row["state"].startswith("switched off: "))
        wait_for_text(browser, "#events", f"{EDGE} was switched off")
        road.lab.start(EDGE)
        wait_for_edge(browser, lambda row: row["health"] in WELL and is_measured(row))
        wait_for_text(browser, "#events", f"{EDGE} works")
        wait_for_more(machine)
        assert browser.run("said") == []
        assert browser.console() == []

        machine.run("systemctl", "restart", UNIT, check=True)
        wait_until("it is back", lambda: browser.run("said"), 60, wanted=lambda said: said[-1:] == ["Live"])
        assert browser.run("said") == ["Reconnecting", "Live"]
        wait_complete(machine, 120)
        see_everybody(browser)
        see_the_run(browser)
        told = browser.console()
        assert told
        assert [line for line in told if "/api/events" not in line or "net::ERR_" not in line] == []
        browser.open(page)  # the session is in the browser, not in the page
        see_everybody(browser)


# What the page's corner says from now on, until a reload.
_LISTEN = """
(window.said = [], new MutationObserver(() => said.push(document.getElementById("live").textContent))
  .observe(document.getElementById("live"), { childList: true }))
""".strip()
WELL = ("ok", "warning")  # a busy machine may be worth a look
PACE = "env steps/s"
MILLISECONDS = r"\d+(\.\d)? ms"


def is_measured(row: dict[str, str]) -> bool:
    return re.fullmatch(MILLISECONDS, row["rtt"]) is not None


def wait_for_edge(browser: LaptopsBrowser, wanted: Callable[[dict[str, str]], bool]) -> None:
    """Until this is so of what the page's list says of the edge."""
    wait_until("the page shows it", lambda: browser.rows().get(EDGE), 120, wanted=wanted)


def wait_for_text(browser: LaptopsBrowser, selector: str, text: str) -> None:
    """Until this is in a part of the page."""
    wait_until("the page says it", lambda: browser.text(selector), 60, wanted=lambda shown: text in shown)


def see_everybody(browser: LaptopsBrowser) -> None:
    """In the list and on the map, the edge with its round trip."""
    assert browser.text("#live") == "Live"
    wait_for_edge(browser, lambda row: row["health"] in WELL and is_measured(row))
    everybody = {RELAY, CLOUD, EDGE}
    wait_until("all are in the list", browser.rows, wanted=lambda rows: rows.keys() == everybody)
    wait_until(
        "all are on the map",
        browser.labels,
        wanted=lambda labels: labels.keys() == everybody and re.match(MILLISECONDS, labels[EDGE]),
    )


def see_the_run(browser: LaptopsBrowser) -> None:
    """What runs where, under this daemon or the one before it; and the curve of its return, which grows.

    It is a line, though in some updates no episode ends.
    """
    placed = {CLOUD: ["actor × 1"], EDGE: ["rollout × 1", "env × 1"]}
    wait_until("it shows what runs where", browser.placement, wanted=lambda shown: shown == placed)
    figures = "[...document.querySelectorAll('#metric option')].map((each) => each.value)"
    wait_until("it tells figures", lambda: browser.run(figures), wanted={"return", PACE}.issubset)
    assert browser.text("#metric option:checked") == "return"
    curve = "document.querySelector('#curve .curve')?.getAttribute('d')"
    before = wait_until("there is a curve", lambda: browser.run(curve), wanted=lambda path: "L" in path)
    wait_until("it grows", lambda: browser.run(curve), wanted=lambda path: path != before)
    assert "runs · step " in browser.text("#run")


def cluster_id_of(machine: BootedNode) -> str:
    return str(json.loads(machine.path(Paths().processes / "ray.json").read_text())["cluster_id"])


def tables_of(machine: BootedNode) -> dict[str, list[str]]:
    python = f"{RAY_HOME}/bin/python"
    answer = machine.run("edgelink", "exec", "--", python, "-c", TABLES, "10.10.0.2:6379", check=True)
    return dict(json.loads(answer.stdout.splitlines()[-1]))


@pytest.mark.parametrize("way", WAYS_DOWN)
def test_a_machine_that_boots_again_gets_its_cluster_and_its_run_back(
    road: Road, machine: BootedNode, way: str
) -> None:
    """Under a run: the same address, a complete cluster without a hand on the edge, whose raylet stays, nobody left of
    before, and training from its newest checkpoint."""
    raylet, cluster_id = children(road.lab, EDGE)["raylet"], cluster_id_of(machine)
    if way == "reboot":
        took_s = machine.shut_down()
        print(f"went down in {took_s:.1f} s")
        assert took_s < 40
    else:
        machine.pull_plug()
    machine.boot()
    booted_s = time.monotonic()
    status = wait_complete(machine, COMPLETE_WITHIN_S)
    complete_s = time.monotonic() - booted_s
    assert (status["overlay_ip"], status["node_rank"]) == ("10.10.0.2", 0)
    assert unit_of(machine, "gcs") == RAY
    wait_for_more(machine)
    assert (children(road.lab, EDGE)["raylet"], cluster_id_of(machine)) == (raylet, cluster_id)
    expected = {"alive": ["10.10.0.2", "10.10.0.3"], "left": []}
    wait_until("no ghosts", lambda: tables_of(machine), wanted=expected.__eq__)
    print(f"complete {complete_s:.1f} s after the boot, learning again after {time.monotonic() - booted_s:.1f} s")
    assert max(learned_again(learned(machine)), default=0) <= CHECKPOINT_EVERY
    assert learned(machine).count(1) == 1, "not from the beginning"


def test_a_run_that_is_done_is_not_started_again(machine: BootedNode) -> None:
    """`systemctl stop` ends it soon; with few iterations left, its next start ends with success, and that is all."""
    stopped_s = time.monotonic()
    machine.run("systemctl", "stop", TRAIN, check=True)
    assert time.monotonic() - stopped_s < 30
    last = learned(machine)[-1] + 2
    unit = machine.root / "etc/systemd/system" / TRAIN
    unit.write_text(unit.read_text().replace(ENDLESS, f"run.iterations={last}"))
    machine.run("systemctl", "daemon-reload", check=True)
    for _ in range(2):  # the second time nothing is left to do
        machine.run("systemctl", "start", TRAIN, check=True)
        wait_until("it ends", lambda: machine.show(TRAIN, "ActiveState"), 240, wanted=lambda state: state == "inactive")
        assert (machine.show(TRAIN, "Result"), machine.show(TRAIN, "NRestarts")) == ("success", "0")
        assert learned(machine)[-1] == last


def test_a_stop_of_ray_ends_a_gcs_that_was_started_again(machine: BootedNode) -> None:
    """`edgelink stop --all`: it is in another unit than the rest of Ray."""
    kill_gcs(machine)
    machine.run("edgelink", "stop", "--all", check=True)
    assert "active" not in {machine.show(unit, "ActiveState") for unit in (RAY, GCS)}
    assert machine.run("pgrep", "-u", USER, "raylet|gcs_server").stdout == ""

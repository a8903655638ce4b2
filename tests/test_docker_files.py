"""What docker/ says against the code that it is about, and its entry point, with a stand-in for `edgelink`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from edgelink.config.load import load_config
from edgelink.overlay.stun import NAMES, leading_somewhere
from edgelink.training.trainer.robot.directory import _PLACE

_ROOT = Path(__file__).parent.parent
_DOCKER = _ROOT / "docker"
_ENTRY = _DOCKER / "edgelink-container"


def services() -> list[Any]:
    """Every node of every compose file, by file and name."""
    found = []
    for file in sorted(_DOCKER.glob("compose.*.yaml")):
        for name, service in yaml.safe_load(file.read_text())["services"].items():
            if "devices" in service:
                found.append(pytest.param(service, id=f"{file.stem.removeprefix('compose.')}/{name}"))
    return found


@pytest.mark.parametrize("service", services())
def test_every_container_is_a_node_that_asks_nobody_else(service: dict[str, Any]) -> None:
    """TUN, the rights it takes and no more, time to end, and all names of public STUN servers led nowhere."""
    assert service["devices"] == ["/dev/net/tun"]
    assert service["cap_drop"] == ["ALL"]
    assert {"NET_ADMIN", "NET_RAW"} <= set(service["cap_add"])
    assert "SYS_ADMIN" not in service["cap_add"]
    assert "privileged" not in service
    assert service["stop_grace_period"] == "45s"  # as in the units for systemd
    hosts = "\n".join(" ".join(reversed(entry.split(":"))) for entry in service["extra_hosts"])
    assert leading_somewhere(hosts.encode()) == []
    assert len(service["extra_hosts"]) == len(NAMES)


def test_all_files_were_looked_at() -> None:
    """A role a file, and four nodes in the demo."""
    assert len(services()) == 3 + 4


@pytest.mark.parametrize("service", services())
def test_what_runs_for_ever_has_a_log_with_an_end(service: dict[str, Any]) -> None:
    """Docker's own default has none. The driver is named, as the options are this one's only."""
    if "restart" in service:
        assert service["logging"]["driver"] == "json-file"
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}


def image_arguments() -> dict[str, str]:
    """The Dockerfile's, with their defaults."""
    lines = re.findall(r"^ARG (\w+)=(.*)$", (_DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    return {name: value.strip('"') for name, value in lines}


@pytest.mark.parametrize("service", services())
def test_compose_builds_what_the_dockerfile_does(service: dict[str, Any]) -> None:
    """Unless a variable says otherwise, in the name of which there is ours."""
    defaults = image_arguments()
    assert defaults.keys() == {"BASE", "EASYTIER", "PYTHON_PACKAGES", "PIP_OPTIONS"}
    if "restart" not in service:
        return  # the demo asks nobody
    taken = (
        dict(defaults)
        if "-relay}" not in service["build"]["target"]
        else {name: defaults[name] for name in ("BASE", "EASYTIER")}
    )
    found = {name: re.fullmatch(r"\$\{(\w+):?-(.*)\}", value) for name, value in service["build"]["args"].items()}
    assert {name: (match[1], match[2]) for name, match in found.items() if match} == {
        name: (f"EDGELINK_{name}", default) for name, default in taken.items()
    }


@pytest.mark.parametrize("role", ["relay", "head", "edge"])
def test_a_build_never_takes_the_name_of_an_image_of_ones_own(role: str) -> None:
    """What is to run is named by a variable: with it there is no stage to build."""
    service = yaml.safe_load((_DOCKER / f"compose.{role}.yaml").read_text())["services"][role]
    own = f"EDGELINK_{role.upper()}_IMAGE"
    assert (service["image"], service["build"]["target"]) == (f"${{{own}:-edgelink-{role}}}", f"${{{own}:-{role}}}")
    stages = re.findall(r"^FROM .* AS (\w+)$", (_DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert role in stages
    assert not any(stage.startswith("edgelink") for stage in stages)


def test_the_demo_shares_nothing_with_the_nodes_of_this_machine() -> None:
    """All files are one project to Compose where none is named: a service or an image of one would be the other's."""
    names, images = set(), set()
    for file in _DOCKER.glob("compose.*.yaml"):
        services = yaml.safe_load(file.read_text())["services"]
        assert not names & services.keys(), file
        names |= services.keys()
        used = {service["image"] for service in services.values()}
        assert not images & used, file
        images |= used
    page = (_ROOT / "docs/how-to/docker.md").read_text() + (_DOCKER / "compose.demo.yaml").read_text()
    commands = re.findall(r"docker compose .*compose\.demo\.yaml .*", page)
    assert len(commands) == 4
    assert all(command.startswith("docker compose --project-name edgelink-demo ") for command in commands)


def test_the_images_packages_are_what_the_built_in_trainer_needs() -> None:
    """In the versions that the tests run with, for the Python of the base image, Debian 12's."""
    extras = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lock = (_ROOT / "tests/requirements.lock").read_text()
    pinned = [Requirement(line.removesuffix(" \\")) for line in lock.splitlines() if line[:1].isalnum()]
    debian = {"python_version": "3.11", "python_full_version": "3.11.2"}
    versions = {one.name: one.specifier for one in pinned if one.marker is None or one.marker.evaluate(debian)}
    wanted = {Requirement(one).name for one in extras["train"]} - {"tensorboard"}  # where one asks for its files
    assert image_arguments()["BASE"] == "debian:bookworm-slim"
    assert set(image_arguments()["PYTHON_PACKAGES"].split()) == {f"{name}{versions[name]}" for name in wanted}


def test_the_page_names_the_images_ray() -> None:
    """As the one that all nodes share."""
    page = (_ROOT / "docs/how-to/docker.md").read_text()
    packages = image_arguments()["PYTHON_PACKAGES"]
    assert f"`{packages}`" in page
    assert set(re.findall(r"ray==[\d.]+", page)) == set(re.findall(r"ray==[\d.]+", packages))


def test_head_and_edge_differ_by_name_only() -> None:
    """Beside what their comments say, and the folder that a run starts in."""
    files = {}
    for role in ("head", "edge"):
        text = (_DOCKER / f"compose.{role}.yaml").read_text().lower().replace("edgelink", "link")
        files[role] = yaml.safe_load(text.replace(role, "role"))
    files["head"]["services"]["role"]["volumes"].remove("${link_work:-./work}:/work")
    assert files["head"] == files["edge"]


@pytest.mark.parametrize("role", ["head", "edge"])
def test_a_stop_of_a_robot_outlives_the_container(role: str) -> None:
    """Where stops are written down is a volume, which has a name, so that the next container gets the same one; it is
    everyone's, as Ray's user is not root."""
    content = yaml.safe_load((_DOCKER / f"compose.{role}.yaml").read_text())
    mounts = dict(reversed(entry.rsplit(":", 1)) for entry in content["services"][role]["volumes"])
    volume = mounts[str(_PLACE)]
    assert content["volumes"][volume]["name"]
    assert volume != mounts["/var/lib/edgelink"]
    image = (_DOCKER / "Dockerfile").read_text().partition(" AS member\n")[2].partition("FROM ")[0]
    assert f"install -d -m 1777 {_PLACE}\n" in image


def test_the_images_configuration_is_one() -> None:
    """Ray's interpreter and user, as the Dockerfile makes them."""
    config = load_config(_DOCKER / "edgelink.yaml")
    dockerfile = (_DOCKER / "Dockerfile").read_text()
    assert f"useradd --create-home --uid 1000 {config.ray.user}" in dockerfile
    assert str(config.ray.python) == "/opt/ray/bin/python"
    assert "python3 -m venv /opt/ray" in dockerfile


def test_the_context_has_what_is_copied_and_no_secret() -> None:
    """A token is written into docker/, for a machine: it goes into no image, nor into version control."""
    ignore = (_ROOT / ".dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    copied = [line.split()[1:-1] for line in (_DOCKER / "Dockerfile").read_text().splitlines() if line[:5] == "COPY "]
    # `wheel[s]` is a folder that may be missing.
    wanted = {re.sub(r"\[(.)\]", r"\1", word) for words in copied if words[0][:2] != "--" for word in words}
    assert ignore[0] == "*"
    assert kept == wanted
    tracked = subprocess.run(["git", "check-ignore", "docker/token"], cwd=_ROOT, capture_output=True, check=False)
    assert tracked.returncode == 0 or not (_ROOT / ".git").exists()


@pytest.mark.parametrize("uid", ["1000", "1001", None], ids=["ubuntu", "with-another-uid", "debian"])
def test_the_images_user_takes_the_place_of_that_of_ubuntus_images(tmp_path: Path, uid: str | None) -> None:
    """Which is there from 24.04 on, and has the same uid; nobody else is removed."""
    found = re.search(r"^RUN (if .*\n.*useradd .*)$", (_DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    for name, script in {
        "id": f"echo {uid}" if uid else "exit 1",
        "userdel": 'echo userdel "$@"',
        "useradd": 'echo useradd "$@"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    ran = subprocess.run(
        ["/bin/sh", "-c", found[1]], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    removed = ["userdel --remove ubuntu"] if uid == "1000" else []
    assert ran.stdout.splitlines() == [*removed, "useradd --create-home --uid 1000 ray"]


class StandIn:
    """A directory for PATH: `edgelink` notes its arguments and does what a script says; nothing sleeps for long."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._entries: list[subprocess.Popen[str]] = []
        for name, script in {
            "edgelink": 'echo "$@" >>"$0.log"; . "$0.script"',
            "sleep": 'echo "sleep $1" >>"${0%sleep}edgelink.log"',
        }.items():
            (directory / name).write_text(f"#!/bin/sh\n{script}\n")
            (directory / name).chmod(0o755)

    def start(self, script: str, *argv: str) -> subprocess.Popen[str]:
        (self.directory / "edgelink.script").write_text(script)
        environ = {"PATH": f"{self.directory}:{os.environ['PATH']}"}
        # A shell cannot trap what its caller ignores, as `nohup make test` does; Docker gives containers the default.
        command = ["env", "--default-signal=HUP,TERM", str(_ENTRY), *argv]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._entries.append(subprocess.Popen(command, env=environ, text=True, start_new_session=True, **pipes))
        return self._entries[-1]

    def calls(self) -> list[str]:
        return (self.directory / "edgelink.log").read_text().splitlines()

    def end(self) -> None:
        """Those of a test that failed, and what they have started."""
        for entry in self._entries:
            with suppress(ProcessLookupError):
                os.killpg(entry.pid, signal.SIGKILL)
            entry.communicate()


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[StandIn]:
    made = StandIn(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("status", [0, 1, 75, 78])
def test_a_daemon_that_ends_by_itself_ends_the_container(stand_in: StandIn, status: int) -> None:
    """With its own exit status: what follows is Docker's to decide."""
    assert stand_in.start(f"exit {status}", "edge").wait(20) == status
    assert stand_in.calls() == ["edge"]


@pytest.mark.parametrize(
    "argv",
    [("edge", "-v"), ("head", "--hostname", "cloud", "--token-file", "/t", "-v"), ("bootstrap", "--advertise", "a")],
)
def test_a_daemon_that_was_killed_is_started_again(stand_in: StandIn, argv: tuple[str, ...]) -> None:
    """EasyTier and Ray have gone on, and are adopted by the next one."""
    entry = stand_in.start('[ -e "$0.second" ] && exit 78; touch "$0.second"; kill -KILL $$', *argv)
    assert entry.wait(20) == 78
    assert stand_in.calls() == [" ".join(argv), "sleep 2", " ".join(argv)]
    assert entry.stderr is not None
    assert "was killed (status 137)" in entry.stderr.read()


@pytest.mark.parametrize(
    "argv",
    [
        ("head", "--nodes", "a", "--", "train"),
        ("head", "--cluster", "c.yaml", "train"),
        ("head", "--config", "e.yaml", "-v", "train", "--lr", "1"),
        ("status",),
        ("wait", "--timeout", "1s"),
    ],
)
def test_nothing_else_is_run_twice(stand_in: StandIn, argv: tuple[str, ...]) -> None:
    """A command's exit status is its own, also that of a training that was killed."""
    entry = stand_in.start("kill -KILL $$", *argv)
    assert entry.wait(20) == -signal.SIGKILL  # it became the command
    assert stand_in.calls() == [" ".join(argv)]


# A daemon that goes on until it is let go, whatever it is sent.
_WAITS = 'while [ ! -e "$0.let-go" ]; do /bin/sleep 0.01; done'


def test_a_reload_is_handed_on(stand_in: StandIn) -> None:
    """SIGHUP reaches the daemon, and ends neither it nor the container."""
    entry = stand_in.start(f"trap 'echo again' HUP; echo ready; {_WAITS}", "head")
    assert entry.stdout is not None
    assert entry.stdout.readline() == "ready\n"
    entry.send_signal(signal.SIGHUP)
    assert entry.stdout.readline() == "again\n"
    assert entry.poll() is None
    (stand_in.directory / "edgelink.let-go").touch()
    assert entry.wait(20) == 0
    assert stand_in.calls() == ["head"]


def test_a_stop_is_handed_on_and_waited_for(stand_in: StandIn) -> None:
    """SIGTERM reaches the daemon, whose exit status is the container's, however long it takes to end its children."""
    entry = stand_in.start(f"trap 'echo ending; asked=3' TERM; echo ready; {_WAITS}; exit $asked", "edge")
    assert entry.stdout is not None
    assert entry.stdout.readline() == "ready\n"
    entry.send_signal(signal.SIGTERM)
    assert entry.stdout.readline() == "ending\n"
    assert entry.poll() is None
    (stand_in.directory / "edgelink.let-go").touch()
    assert entry.wait(20) == 3
    assert stand_in.calls() == ["edge"]


# `edgelink stop` ends with 0, all else is killed.
_KILLED = '[ "$1" = stop ] && exit; echo started; kill -KILL $$'


@pytest.mark.parametrize("config", [(), ("--config", "/my own.yaml"), ("--config=/my own.yaml",)])
def test_a_stop_while_no_daemon_is_there_ends_what_the_killed_one_left(
    stand_in: StandIn, config: tuple[str, ...]
) -> None:
    """In the time before the next one is started: Ray, then EasyTier, and the container with 0."""
    (stand_in.directory / "sleep").write_text("#!/bin/sh\necho sleeping\nexec /bin/sleep 0.2\n")
    entry = stand_in.start(_KILLED, "edge", *config, "-v")
    assert entry.stdout is not None
    while entry.stdout.readline() != "sleeping\n":
        pass
    entry.send_signal(signal.SIGTERM)
    assert entry.wait(20) == 0
    assert stand_in.calls()[0] == " ".join(["edge", *config, "-v"])
    assert stand_in.calls()[-1] == ("stop --config=/my own.yaml" if config else "stop")


@pytest.mark.parametrize("status", [0, 75])
def test_a_stop_that_ends_the_daemon_before_it_listens_is_one_all_the_same(stand_in: StandIn, status: int) -> None:
    """And so is one that the daemon does not survive: nothing of it is left, and the container ends with 0; where
    something could not be ended, with the status that tells so."""
    entry = stand_in.start(f'[ "$1" = stop ] && exit {status}; echo started; exec /bin/sleep 60', "head")
    assert entry.stdout is not None
    assert entry.stdout.readline() == "started\n"
    entry.send_signal(signal.SIGTERM)
    assert entry.wait(20) == status
    assert stand_in.calls() == ["head", "stop"]

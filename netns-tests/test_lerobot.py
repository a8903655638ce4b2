"""LeRobot 0.6, the real one: it reads and replays recordings of a robot, and its own programs talk over the overlay.

It has a Python of its own, 3.12, which need not be that of Ray. Both parts of asynchronous inference run as the how-to
page says, with a robot that has no hardware and a policy of random weights. Of HIL-SERL the learner's service and the
actor's own threads of communication run: its environment wants a display, or a robot.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import MakeLab
from faults import cut
from framework_python import FrameworkPython, other_python
from how_to_pages import HOW_TO
from machines import brought_up_on, overlay_ip, wait_until
from typed_page import steps

from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.environment import RobotEnvironment
from edgelink.training.trainer.robot.names import Names
from edgelink.training.trainer.robot.settings import ControlSettings
from edgelink.training.trainer.robot.shared import Layout

HERE = Path(__file__).parent
LOCK = HERE / "lerobot.lock"
REPLAY = HERE / "lerobot_replay.py"
HIL = HERE / "lerobot_hil.py"
POLICY = HERE / "lerobot_policy.py"
ROBOT = HERE / "lerobot_robot_lab.py"
ROS = HERE / "zenoh_host.py"
EDGELINK = Path(sys.executable).with_name("edgelink")
EDGE = "edge-1"
CUT_S = 75.0  # gRPC's own limits are 20 s for what a server has sent, and 60 s for its pings
BACK_S = 5.0
IMPORT_S = 240.0  # of LeRobot, by four processes on two busy cores
SOME = 5
IMPATIENT = "impatient"
ENDED_S = 60.0
SIDE = 64
LOST_PIXEL = 12  # of 255, by the video's encoder
# Without a word to the hub, which is not there.
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

pytestmark = [pytest.mark.timeout(900), pytest.mark.long, pytest.mark.usefixtures("easytier")]
sys.path.insert(0, str(HERE / "benchmarks"))


READ_IMAGES = """
import sys
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset
*roots, target = sys.argv[1:]
read = []
for root in roots:
    dataset = LeRobotDataset("edgelink/seen", root=root)
    frames = [dataset[index]["observation.images.front"].numpy() for index in range(dataset.num_frames)]
    read.append(np.round(255 * np.moveaxis(np.stack(frames), 1, -1)).astype(np.uint8))
np.save(target, np.stack(read))
"""


@pytest.fixture(scope="module")
def lerobot(tmp_path_factory: pytest.TempPathFactory) -> FrameworkPython:
    """LeRobot with the robot of this folder as a plugin, which LeRobot finds by its name among what is installed."""
    python = FrameworkPython(tmp_path_factory.mktemp("lerobot") / "venv", other_python("3.12"))
    python.install(LOCK)
    (python.packages / ROBOT.name).write_text(ROBOT.read_text())
    about = python.packages / f"{ROBOT.stem}-1.dist-info/METADATA"
    about.parent.mkdir()
    about.write_text(f"Metadata-Version: 2.1\nName: {ROBOT.stem}\nVersion: 1\n")
    return python


def exported(recording: Path, target: Path, lerobot: FrameworkPython, *options: str) -> None:
    to = ["--to", str(target), "--task", "reach the target", "--python", str(lerobot.python), *options]
    subprocess.run([EDGELINK, "robot", "export", str(recording), *to], check=True)


def test_what_a_camera_saw_is_read_as_it_was(tmp_path: Path, lerobot: FrameworkPython) -> None:
    """Images go in as images, without loss: each pixel comes back. A video shows the same, nearly."""
    spaces = Spaces((SIDE, SIDE, 3), "uint8", None, (-1.0,), (1.0,))
    rows = np.zeros(5, Layout(spaces, 1, 1, 1).row)
    rows["number"] = rows["step"][:, 0] = np.arange(1, 6)
    rows["follows"][1:] = 1
    rows["truncated"][-1] = 1
    slopes = np.arange(SIDE)[None, :, None, None] + np.arange(SIDE)[None, None, :, None]
    rows["observations"][:, 0] = slopes + 10 * np.arange(5)[:, None, None, None] + np.array([0, 20, 40])
    head = {"format": 2, "robot": "camera", "name": "c", "spaces": asdict(spaces), "rigs": 1, "action_repeat": 1}
    names = Names.of(spaces, ("front",)).to_dict()
    recording = tmp_path / "c-1.steps"
    recording.write_bytes(json.dumps({**head, "names": names, "steps_per_s": 10.0}).encode() + b"\n" + rows.tobytes())
    exported(recording, tmp_path / "images", lerobot)
    exported(recording, tmp_path / "video", lerobot, "--video")
    datasets = [str(tmp_path / "images"), str(tmp_path / "video")]
    read = [str(lerobot.python), "-c", READ_IMAGES, *datasets, str(tmp_path / "read.npy")]
    subprocess.run(read, check=True, env={**os.environ, **OFFLINE})
    off = np.abs(np.load(tmp_path / "read.npy").astype(int) - rows["observations"][None, :, 0].astype(int))
    assert off[0].max() == 0
    assert off[1].max() <= LOST_PIXEL


def test_what_a_robot_did_is_read_and_replayed_by_others(tmp_path: Path, lerobot: FrameworkPython) -> None:
    """The arm in real time; its steps as frames; from each, the same action leads to the same observation."""
    from robot_worker import weights

    robot = RobotEnvironment(ControlSettings("arm", directory=str(tmp_path / "robots"), record=str(tmp_path / "r")))
    try:
        robot.load_policy(1, weights(robot.spaces.features, robot.spaces.outputs, discrete=False))
        parts = robot.take(150, 60.0)
    finally:
        robot.close()
    assert parts is not None
    (recording,) = (tmp_path / "r").iterdir()

    exported(recording, tmp_path / "reach", lerobot)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    read = [str(lerobot.python), str(REPLAY), str(tmp_path / "reach")]
    told = json.loads(subprocess.run(read, env=env, check=True, capture_output=True, text=True).stdout)

    assert told["fps"] == 50
    assert told["episodes"] >= 2
    assert told["frames"] == robot.report()["recorded_steps"] >= 150
    assert told["task"] == "reach the target"
    assert told["rewards"][:150] == [round(float(reward), 4) for reward in parts["rewards"][:, 0]]
    assert told["actions"] == ["turn.vel", "shoulder.vel", "elbow.vel"]
    assert told["states"][:6] == ["turn.pos", "shoulder.pos", "elbow.pos", "turn.vel", "shoulder.vel", "elbow.vel"]
    # The arm has a clock of its own: under load a command may come a period later than the step says.
    assert told["replayed_same"] >= 0.9 * told["replayed"]

    again = ["robot", "replay", str(tmp_path / "reach"), "--episode=0", f"--python={lerobot.python}", "--json"]
    replayed = json.loads(subprocess.run([EDGELINK, *again], check=True, capture_output=True, text=True).stdout)
    assert replayed["commanded"] == replayed["steps"] == 100
    assert replayed["changed"] == 0
    assert replayed["start_off"] == pytest.approx(0, abs=1e-9), "the same seed, the same start"
    assert replayed["off"] < 0.1

    (typed,) = [step.command for step in steps(HOW_TO / "robots.md") if "lerobot-replay" in step.command]
    log = tmp_path / "commands"
    for written, here in {
        "/opt/lerobot/bin/": f"{lerobot.python.parent}/",
        "--robot.type=my_arm": f"--robot.type=lab --robot.log={log} --robot.joints={','.join(told['actions'])}",
        "=reach": f"={tmp_path / 'reach'}",
        "--dataset.episode=3": "--dataset.episode=0",
    }.items():
        assert written in typed
        typed = typed.replace(written, here)
    subprocess.run(shlex.split(typed), check=True, env={**os.environ, **OFFLINE})
    commands = [line.split() for line in log.read_text().splitlines()]
    assert np.allclose([list(map(float, numbers)) for _, *numbers in commands], told["first_episode"], atol=1e-6)
    rate = (len(commands) - 1) / (float(commands[-1][0]) - float(commands[0][0]))
    assert rate == pytest.approx(told["fps"], rel=0.2), "as fast as it was recorded"


@pytest.fixture(scope="module")
def lab(make_shared_lab: MakeLab) -> Lab:
    return brought_up_on(make_shared_lab(), 1).lab


class Page:
    """The how-to page about LeRobot, with the paths of this machine and a robot that has no hardware."""

    def __init__(self, lab: Lab, lerobot: FrameworkPython, directory: Path) -> None:
        self._lab, self._python, self._directory = lab, lerobot.python, directory
        self.log, self.policy = directory / "commands", directory / "act"
        self._replaced = {
            "/opt/lerobot/bin/python": str(lerobot.python),
            "franka-1": EDGE,
            "--robot.type=so101_follower --robot.port=/dev/ttyACM0": f"--robot.type=lab --robot.log={self.log} "
            f"--robot.side={SIDE}",
            "/opt/policies/act": str(self.policy),
            "--policy_device=cuda": "--policy_device=cpu",
            "-m, lerobot.rl.learner, --config_path=train.json": f"{HIL}, learner, train.json",
            "-m, lerobot.rl.actor, --config_path=train.json": f"{HIL}, actor, train.json",
        }
        page = HOW_TO / "lerobot.md"
        self._steps = steps(page)
        (configuration,) = self._blocks(page, "json")
        (directory / "train.json").write_text(configuration)
        (directory / IMPATIENT).mkdir()
        (directory / IMPATIENT / "train.json").write_text(configuration.replace("50051", "50052"))
        (apps,) = self._blocks(page, "yaml")
        pair = yaml.safe_load(self._here(apps))
        for app in pair["apps"].values():
            app["env"] = OFFLINE
        (directory / "hil.yaml").write_text(yaml.safe_dump(pair))

    @staticmethod
    def _blocks(page: Path, language: str) -> list[str]:
        return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)

    def _here(self, text: str) -> str:
        for written, here in self._replaced.items():
            text = text.replace(written, here)
        return text

    def command(self, part: str) -> list[str]:
        """The one command of the page with this in it."""
        (found,) = (step.command for step in self._steps if part in step.command)
        return shlex.split(self._here(found).removeprefix("sudo "))

    def start(self, node: str, part: str) -> Path:
        """Return where its output goes."""
        log = self._directory / f"{part}.log"
        self._lab.popen(node, self.command(part), log, env=OFFLINE, cwd=self._directory)
        return log

    def start_without_hook(self, node: str, side: str) -> Path:
        """Start one side of another pair, at a port of its own; return where its output goes."""
        directory = self._directory / IMPATIENT
        program = [str(self._python), str(HIL), side, "train.json"]
        words = ["edgelink", "exec", "--", "env", "EDGELINK_IMPORT_HOOK=", *program]
        self._lab.popen(node, words, directory / f"{side}.log", env=OFFLINE, cwd=directory)
        return directory / f"{side}.log"


@pytest.fixture
def page(lab: Lab, lerobot: FrameworkPython, tmp_path: Path) -> Page:
    return Page(lab, lerobot, tmp_path)


def told(log: Path, what: str) -> list[tuple[float, int, int]]:
    """When each came, its number, and the process that told it."""
    said = [line.rpartition(" | ")[2] for line in log.read_text().splitlines()]
    lines = [json.loads(line) for line in said if line.startswith("{") and line.endswith("}")]
    return [(line["at_s"], line["number"], line["pid"]) for line in lines if line["what"] == what]


def commands(log: Path) -> list[float]:
    """When the robot was commanded."""
    return [float(line.split()[0]) for line in log.read_text().splitlines()] if log.exists() else []


def listening(lab: Lab, port: int) -> set[str]:
    """The addresses of the head at which something listens there."""
    told = lab.exec(CLOUD, ["ss", "-Hltn", f"sport = :{port}"], capture=True, check=True).stdout
    return {line.split()[3].rpartition(":")[0].strip("[]").removeprefix("::ffff:") for line in told.splitlines()}


def reaches(lab: Lab, address: str, port: int) -> bool:
    """Whether the edge gets a connection to it."""
    connect = f"import socket; socket.create_connection(({address!r}, {port}), 5)"
    return lab.exec(EDGE, ["python3", "-c", connect], capture=True).returncode == 0


def test_lerobots_own_programs_go_on_after_a_cut(lab: Lab, page: Page, lerobot: FrameworkPython) -> None:
    """HIL-SERL's parameters and transitions, and the chunks of asynchronous inference: the same processes, within
    seconds of the link. Without the import hook its actor's threads end. 8080 is closed to the robot before it is
    opened to it."""
    subprocess.run([lerobot.python, POLICY, page.policy, "2", str(SIDE)], check=True)
    head = overlay_ip(lab, CLOUD)
    pair = page.start(CLOUD, "run --apps")
    page.start(CLOUD, "policy_server")
    page.start_without_hook(CLOUD, "learner")
    for port in (50051, 50052, 8080):
        at = wait_until(f"{port} is listened on", lambda port=port: listening(lab, port), IMPORT_S)
        assert at == {head}, "by its name, at the overlay's address and at no other"
    assert not reaches(lab, head, 8080)
    lab.exec(RELAY, page.command("access allow head tcp/8080"), capture=True, check=True)
    wait_until("8080 is open to the robot", lambda: reaches(lab, head, 8080))
    page.start(EDGE, "robot_client")
    impatient = page.start_without_hook(EDGE, "actor")
    came = {
        "parameters": lambda: [at_s for at_s, *_ in told(pair, "parameters")],
        "transitions": lambda: [at_s for at_s, *_ in told(pair, "transition")],
        "commands": lambda: commands(page.log),
    }
    for what, seen in came.items():
        wait_until(what, lambda seen=seen: seen()[SOME:], IMPORT_S)
    wait_until("parameters without the hook", lambda: told(impatient, "parameters")[SOME:], IMPORT_S)

    with cut(lab, EDGE):
        time.sleep(CUT_S)  # the outage itself
        silent_s = {what: time.time() - seen()[-1] for what, seen in came.items()}
    back_s = time.time()
    assert min(silent_s.values()) > CUT_S - BACK_S, f"something came through the cut: {silent_s}"
    for what, seen in came.items():
        after_s = wait_until(what, lambda seen=seen: [at_s - back_s for at_s in seen() if at_s > back_s])[0]
        print(f"{what}: {after_s:.1f} s after the link")
        assert after_s <= BACK_S, what
    assert told(pair, "ended") == [], "the actor's threads live"
    assert {
        len({pid for *_, pid in told(pair, "parameters")}),
        len({pid for *_, pid in told(pair, "transition")}),
    } == {1}
    numbers = [number for _, number, _ in told(pair, "transition")]
    assert numbers == list(range(1, len(numbers) + 1)), "none was lost"
    wait_until("a thread of the actor without the hook has ended", lambda: told(impatient, "ended"), ENDED_S)


def test_routers_of_ros_meet_over_the_overlay(lab: Lab, page: Page, lerobot: FrameworkPython, tmp_path: Path) -> None:
    """Zenoh's own router and a node's session on each machine, by what `edgelink env --ros` prints."""
    head = overlay_ip(lab, CLOUD)
    logs = {node: tmp_path / node for node in (CLOUD, EDGE)}
    for node, log in logs.items():
        told = lab.exec(node, ["edgelink", "env", "--ros", "--json"], capture=True, check=True)
        lab.popen(node, [str(lerobot.python), str(ROS), node], log, env=json.loads(told.stdout))
    for node, log in logs.items():
        wait_until(f"{node} hears itself", log.read_text, wanted=lambda text, node=node: f"heard {node}" in text)
    assert listening(lab, 7447) == {"127.0.0.1", head}
    assert "heard cloud" not in logs[EDGE].read_text(), "7447 is closed to members"
    lab.exec(RELAY, page.command("access allow head tcp/7447"), capture=True, check=True)
    for node, other in ((CLOUD, EDGE), (EDGE, CLOUD)):
        wait_until(
            f"{node} hears {other}", logs[node].read_text, wanted=lambda text, other=other: f"heard {other}" in text
        )

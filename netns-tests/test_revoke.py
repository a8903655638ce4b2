"""A node is put out, and the network's secret changes under those that stay: five machines, with real EasyTier, broker,
daemons and Ray. One lab for all; the revocation, under a training, comes last.
"""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import threading
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from conftest import MakeLab
from faults import children, kill, processes
from intruder import Intruder, assert_kept_out
from lab_broker import Recorder, SeizedBroker
from machines import (
    Machine,
    assert_error,
    brought_up_on,
    can_ping,
    copy_disk,
    make_token,
    membership,
    overlay_ip,
    registered,
    road,
    status_of,
    wait_for_condition,
    wait_until,
)
from pings import Pings
from training_run import paced

from edgelink.config import Paths
from edgelink.lab import RELAY, Lab
from edgelink.lab.road import write_demo_cluster
from edgelink.member.network_watch import STATE_FILE, known_state
from edgelink.protocol.payloads import NetworkState

PAUSE_S = 10.0  # the bar: of each way through the overlay, and of the training
EDGES = ("edge-1", "edge-2", "edge-3")
MEMBERS = ("cloud", *EDGES)
UNUSED_IPS = ("10.10.0.98", "10.10.0.99")

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("easytier")]


@pytest.fixture(scope="module")
def lab(make_shared_lab: MakeLab) -> Lab:
    """Relay, cloud and three edges, with Ray on all but the relay."""
    lab = brought_up_on(make_shared_lab(), 3, relays=2).lab
    for name in (RELAY, *MEMBERS):
        wait_for_condition(lab, name, "SecretCurrent", "Current")
    return lab


def epochs(lab: Lab, *nodes: str) -> set[int]:
    return {membership(lab, node).secrets.secret_epoch for node in nodes}


def stolen_copy(lab: Lab, node: str, target: Path) -> Path:
    """All that a node has on disk."""
    return copy_disk(Machine(lab, node).paths.state, target)


def current(lab: Lab) -> int:
    """The epoch that all are on."""
    (epoch,) = epochs(lab, RELAY, *MEMBERS)
    return epoch


class Training:
    """`edgelink run -- edgelink train` on the cloud and the first two edges; when each iteration was learned."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        self.log, self._progress = directory / "train.log", directory / "progress"
        cluster = write_demo_cluster(directory / "cluster.yaml", 2)
        train = ["edgelink", "train", "run.iterations=100000", *paced(updates_per_s=10)]
        train += ["--progress", str(self._progress)]
        self._command = lab.popen(
            "cloud", ["edgelink", "run", "--no-preflight", "--cluster", str(cluster), "--", *train], self.log
        )
        self.moments_s: list[float] = []
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._stopped.wait(0.05):
            count = self._progress.read_text().count("\n") if self._progress.exists() else 0
            self.moments_s += [time.monotonic()] * (count - len(self.moments_s))

    def wait_for(self, count: int) -> None:
        def learned() -> int:
            assert self._command.poll() is None, self.log.read_text()
            return len(self.moments_s)

        wait_until(f"iteration {count}", learned, 120, wanted=lambda found: found >= count)

    def longest_step_s(self) -> float:
        return max(self._steps_s())

    def _steps_s(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.moments_s)]

    def in_words(self) -> str:
        steps = self._steps_s()
        return f"{len(steps) + 1} iterations, median {statistics.median(steps):.2f} s, longest {max(steps):.2f} s"

    def end(self) -> int:
        """Ctrl+C; 0 when the run ended as one that a person ended."""
        self._stopped.set()
        self._command.send_signal(signal.SIGINT)
        status = self._command.wait(120)
        return 0 if status in (0, 130) else status


def lan_address(lab: Lab, node: str) -> str:
    """Where its neighbours dial it."""
    return f"tcp://{lab.topology.uplinks(node)[0].near.address.ip}:11010"


def intruders(lab: Lab, stolen: Path) -> list[Intruder]:
    """With one node's disk: on another node's LAN, dialling it and the relay; on the Internet, dialling the relay.

    Each under an address that nobody has or had, so that it is the secret that lets them in, or does not.
    """
    lan, internet = UNUSED_IPS
    return [
        Intruder(lab, "edge-1-nat", stolen, lan_address(lab, "edge-1"), as_ip=lan),
        Intruder(lab, "internet", stolen, as_ip=internet),
    ]


def test_an_offline_node_catches_up(lab: Lab) -> None:
    """A node that was off during two changes is named, and is back with the present secret when it returns."""
    lab.stop("edge-2")
    wait_until("the relay hears that it is gone", lambda: not registered(lab)["edge-2"]["online"])
    before = current(lab)
    for _ in range(2):
        result = lab.exec(RELAY, ["edgelink", "rotate-secret"], capture=True, timeout_s=120)
        assert_error(result, 75, "edge-2 (offline)")
    _, told = wait_for_condition(lab, RELAY, "SecretCurrent", "OldSecretInUse")
    assert "edge-2" in told["message"]
    assert epochs(lab, RELAY, "cloud", "edge-1", "edge-3") == {before + 2}
    assert epochs(lab, "edge-2") == {before}
    lab.start("edge-2")
    wait_for_condition(lab, "edge-2", "SecretCurrent", "Current")
    wait_for_condition(lab, "edge-2", "PeersReachable", "Reachable")
    assert epochs(lab, "edge-2") == {before + 2}
    wait_for_condition(lab, RELAY, "SecretCurrent", "Current")


def standing(lab: Lab, node: str) -> tuple[dict[str, bytes], dict[str, int]]:
    """What a node has on disk of its membership, and which EasyTier and Ray it runs."""
    state = Machine(lab, node).paths.state
    paths = [state / Paths().membership.name, *([state / STATE_FILE] if node != RELAY else [])]
    files = {path.name: path.read_bytes() for path in paths}
    return files, {name: pid for name, pid in children(lab, node).items() if name != "mosquitto"}


def wait_for_end_of_change(lab: Lab, node: str) -> None:
    """Until it has written down that nothing is being changed any more: its secret is the present one before that."""

    def on_disk() -> NetworkState | None:
        envelope = known_state(Machine(lab, node).paths.state)
        return None if envelope is None else NetworkState.model_validate_json(envelope.body)

    wait_until(f"{node} has written down the end of the change", on_disk, wanted=lambda state: state.rotation is None)


def test_a_seized_broker_changes_nothing(lab: Lab, tmp_path: Path) -> None:
    """Somebody has the broker, the relay's TLS key, the keys of all nodes but one, and all that was said of a change of
    the secret. That node keeps its secret, its EasyTier, its Ray and its membership, also when its daemon is started
    anew meanwhile; what is said is refused, counted, and told of once. Nobody has a program run by way of the broker,
    whoever signed the request; the head's own request, by the overlay, is served as ever."""
    recorders = {name: Recorder(lab, name, tmp_path / f"{name}.jsonl") for name in MEMBERS}
    lab.exec(RELAY, ["edgelink", "rotate-secret", "--hold", "0"], capture=True, check=True, timeout_s=60)
    present, recorded = current(lab), {name: recorder.end() for name, recorder in recorders.items()}
    for name in MEMBERS:
        wait_for_condition(lab, name, "SecretCurrent", "Current")
        wait_for_end_of_change(lab, name)
    before = {name: standing(lab, name) for name in (RELAY, *MEMBERS)}
    refused = {name: refusals(lab, name) for name in MEMBERS}
    known = {name: lab.daemon_log(name).stat().st_size for name in MEMBERS}

    seized = SeizedBroker(lab, tmp_path)
    said = seized.lies(recorded)
    has_run = tmp_path / "has-run"
    asking = seized.requests_for_programs("edge-1", "touch", str(has_run))
    with seized.running():
        seized.say(said)
        seized.say(said)
        for name in MEMBERS:
            to_it = 2 * sum(topic in seized.topics_of(name) for topic, _ in said)
            assert to_it > 300
            wait_until(
                f"{name} has refused all",
                lambda name=name: refusals(lab, name) - refused[name],
                wanted=lambda count, to_it=to_it: count >= to_it,
            )
            assert_told_once(lab, name, known[name])
        so_far, to_it = refusals(lab, "edge-1"), sum(topic in seized.topics_of("edge-1") for topic, _ in asking)
        seized.say(asking)
        wait_until(
            "edge-1 has refused what asks for a program",
            lambda: refusals(lab, "edge-1") - so_far,
            wanted=lambda count: count >= to_it,
        )
        ran = lab.exec("cloud", ["edgelink", "exec", "edge-1", "--", "hostname"], capture=True, timeout_s=60)
        assert (ran.stdout, has_run.exists()) == ("edge-1\n", False), ran.stderr
        lab.kill("edge-1")
        lab.start("edge-1")
        seized.say(said)
        wait_until("edge-1 has refused all again", lambda: refusals(lab, "edge-1"), wanted=lambda n: n >= to_it / 2)
        for name in MEMBERS:
            wait_for_condition(lab, name, "SecretCurrent", "Current")
        assert {name: standing(lab, name) for name in (RELAY, *MEMBERS)} == before
        wait_until("edge-1 reaches the cloud", lambda: can_ping(lab, "edge-1", overlay_ip(lab, "cloud")))
    lab.start(RELAY)
    for name in (RELAY, *MEMBERS):
        road(lab).wait_ready(name)
        wait_for_condition(lab, name, "SecretCurrent", "Current")
    assert current(lab) == present


def refusals(lab: Lab, node: str) -> int:
    return sum(status_of(lab, node)["refused"].values())


def assert_told_once(lab: Lab, node: str, since: int) -> None:
    """Of each kind of refusal on each topic its log has one line, whatever was said how often."""
    written = lab.daemon_log(node).read_bytes()[since:].splitlines(keepends=True)
    lines = [json.loads(line) for line in written if line[:1] == b"{" and line[-1:] == b"\n"]
    told = [(line["reason"], line["subject"]) for line in lines if line["event"] == "registry.message_ignored"]
    assert {reason for reason, _ in told} >= {"Outdated", "Untrusted", "Malformed"}
    assert len(told) == len(set(told)), told


def hold(lab: Lab, node: str) -> Path:
    """A hook on ``node`` that says `moving` for as long as the file that is returned exists."""
    config = lab.host_path(node, Path("/etc/edgelink")) / "edgelink.yaml"
    moving = lab.host_path(node, Paths().runtime) / "moving"
    moving.touch()
    script = f"test ! -e {Paths().runtime / 'moving'} || {{ echo arm moving; exit 75; }}"
    settings = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(settings | {"robot": {"hold": ["/bin/sh", "-c", script], "user": "root"}}))
    lab.kill(node)  # its EasyTier and Ray go on
    lab.start(node)
    wait_for_condition(lab, node, "SecretCurrent", "Current")
    # Who is offline is not waited for, and follows later.
    wait_until("the relay hears of it", lambda: registered(lab)[node], wanted=lambda entry: entry["online"])
    return moving


def test_a_robot_in_motion_is_asked_first_and_the_relay_killed_meanwhile(lab: Lab) -> None:
    """Nothing changes while its hook says so, not even when the relay's daemon and EasyTier are killed: the next one
    goes on. Killed again right after the change, it goes on again. With --hold 0 nobody is waited for."""
    before, moving = current(lab), hold(lab, "edge-1")
    log = lab.host_path(RELAY, Paths().runtime) / "rotate.log"
    asking = lab.popen(RELAY, ["edgelink", "rotate-secret"], log)
    wait_for_condition(lab, "edge-1", "SecretCurrent", "Holding")
    wait_until("the relay says who holds", log.read_text, wanted=lambda text: "holding until" in text)
    lab.kill(RELAY)
    assert asking.wait(60) == 1, "the daemon ended meanwhile, and that is told"
    kill(lab, RELAY, "easytier-core")
    lab.start(RELAY)
    wait_for_condition(lab, RELAY, "SecretCurrent", "Preparing")
    assert epochs(lab, RELAY, *MEMBERS) == {before}
    moving.unlink()
    wait_until("the next secret counts", lambda: epochs(lab, RELAY), wanted=lambda found: found == {before + 1})
    lab.kill(RELAY)
    lab.start(RELAY)
    for name in MEMBERS:
        wait_for_condition(lab, name, "SecretCurrent", "Current")
        wait_for_condition(lab, name, "PeersReachable", "Reachable")
    assert epochs(lab, RELAY, *MEMBERS) == {before + 1}
    wait_for_condition(lab, RELAY, "SecretCurrent", "Current")
    moving.touch()
    result = lab.exec(RELAY, ["edgelink", "rotate-secret", "--hold", "0"], capture=True, timeout_s=60)
    assert result.returncode == 0, result.stderr
    assert epochs(lab, RELAY, *MEMBERS) == {before + 2}
    moving.unlink()


def test_a_revoked_node_is_out_and_a_training_goes_on(lab: Lab, tmp_path: Path) -> None:
    """The other four pause for seconds, and the training on three of them goes on in one go. The revoked one ends
    itself, and comes back with nothing that it had: not its secret, not its key under any token, not its password."""
    for name in MEMBERS:
        road(lab).wait_ready(name)
    before, spare = current(lab), make_token(lab, "--uses", "5")
    stolen = stolen_copy(lab, "edge-3", tmp_path / "stolen")
    pids = {name: status_of(lab, name)["easytier_pid"] for name in (RELAY, "cloud", "edge-1", "edge-2")}
    training = Training(lab, tmp_path)
    pings = {
        f"{source} to {target}": Pings(lab, source, tmp_path / f"{source}-{target}.log", overlay_ip(lab, target))
        for source, target in (("cloud", "edge-1"), ("edge-1", "edge-2"), ("edge-2", "relay"), ("relay", "cloud"))
    }
    for intruder in intruders(lab, stolen):  # until then it is let in, from everywhere
        wait_until(f"{intruder.place}: in", partial(intruder.reaches, "edge-1"))
        intruder.end()
    training.wait_for(3)
    result = lab.exec(RELAY, ["edgelink", "revoke", "edge-3", "--yes"], capture=True, timeout_s=120)
    assert result.returncode == 0, result.stdout + result.stderr
    gaps_s = {way: round(ping.settled_gap_s(), 2) for way, ping in pings.items()}
    training.wait_for(len(training.moments_s) + 3)
    print(f"\npauses in s: {gaps_s}; training: {training.in_words()}; {result.stdout.strip()}")
    assert max(gaps_s.values()) <= PAUSE_S
    assert training.longest_step_s() <= PAUSE_S
    assert training.end() == 0, training.log.read_text()
    assert [each["number"] for each in status_of(lab, "cloud")["run"]["attempts"]] == [1], "in one go"
    assert epochs(lab, *pids) == {before + 1}
    assert all(status_of(lab, name)["easytier_pid"] != pid for name, pid in pids.items())
    assert "edge-3" not in registered(lab)
    wait_for_condition(lab, RELAY, "SecretCurrent", "Current")

    wait_until("edge-3's daemon has ended", lambda: lab.daemon("edge-3") is None)
    wait_until(
        "nor does its EasyTier or Ray run", lambda: {"easytier-core", "raylet"}.isdisjoint(processes(lab, "edge-3")), 30
    )
    lab.start("edge-3")  # it was told so by the registry itself, and remembers
    wait_until("it does not start again", lambda: lab.daemon("edge-3") is None)
    assert "NodeRevoked" in lab.daemon_log("edge-3").read_text()

    thieves = [Intruder(lab, "edge-3", stolen), *intruders(lab, stolen)]
    assert_kept_out(thieves, pids)
    for thief in thieves:
        thief.end()
    assert_error(Machine(lab, "edge-3").join(spare), 1, "was put out of the network")
    left = lab.exec("edge-3", ["edgelink", "leave", "--yes"], capture=True)
    assert left.returncode == 0, left.stderr
    refused = Machine(lab, "edge-3").join(spare)  # a new key, by the operator's token
    assert_error(refused, 1, "rests for good")
    lab.exec(RELAY, ["edgelink", "registry", "release", "edge-3", "--now"], capture=True, check=True)
    again = Machine(lab, "edge-3").join(spare)
    assert again.returncode == 0, again.stderr


def test_a_straggler_is_named_and_follows(lab: Lab, tmp_path: Path) -> None:
    """A node whose daemon is dead and whose EasyTier goes on keeps the old secret: the command names it, because the
    revoked one still reaches it, and nobody else. Once its daemon is started it is with the others, who are alone."""
    stolen = stolen_copy(lab, "edge-2", tmp_path / "stolen")
    lab.kill("edge-1")
    wait_until("the relay hears that it is gone", lambda: not registered(lab)["edge-1"]["online"])
    result = lab.exec(RELAY, ["edgelink", "revoke", "edge-2", "--yes", "--now"], capture=True, timeout_s=120)
    assert_error(result, 75, "edge-1 (offline)")
    before, now = epochs(lab, "edge-1"), epochs(lab, RELAY)
    assert max(before) < min(now)
    thief = Intruder(lab, "edge-1-nat", stolen, lan_address(lab, "edge-1"))
    try:
        wait_until("the straggler is reached", lambda: thief.reaches("edge-1"))
        assert not thief.reaches("cloud")
        assert not thief.reaches(RELAY)
        lab.start("edge-1")
        wait_for_condition(lab, "edge-1", "SecretCurrent", "Current")
        wait_for_condition(lab, "edge-1", "PeersReachable", "Reachable")
        assert epochs(lab, "edge-1") == now
        assert_kept_out([thief], (RELAY, "cloud", "edge-1"))
    finally:
        thief.end()


def test_one_more_relay_follows_and_a_backup_from_before_brings_nobody_back(lab: Lab) -> None:
    """An additional relay changes with the others. Then the registry is lost, and restored from before a revocation:
    the nodes tell it what it has forgotten, the revoked one is put out again, and the secret is a fresh one."""
    road(lab).add_relay("relay-2")
    nodes = (RELAY, "relay-2", "cloud", "edge-1")
    wait_for_condition(lab, "relay-2", "SecretCurrent", "Current")
    file = Paths().runtime / "backup.tar"
    lab.exec(RELAY, ["edgelink", "registry", "backup", str(file)], capture=True, check=True)
    stolen = membership(lab, "edge-3")  # it has joined again, and was not started
    lab.exec(RELAY, ["edgelink", "revoke", "edge-3", "--yes", "--now"], capture=True, check=True, timeout_s=120)
    (before,) = epochs(lab, *nodes)
    known = {membership(lab, name).secrets.network_secret for name in nodes} | {stolen.secrets.network_secret}
    lab.stop(RELAY)
    state = lab.host_path(RELAY, Paths().state)
    for path in state.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    restored = lab.exec(RELAY, ["edgelink", "registry", "restore", str(file)], capture=True)
    assert restored.returncode == 0, restored.stderr
    lab.start(RELAY)
    road(lab).wait_ready(RELAY)
    for name in nodes:
        wait_until(f"{name} has a fresh secret", lambda name=name: epochs(lab, name), wanted=lambda e: min(e) > before)
        wait_for_condition(lab, name, "SecretCurrent", "Current")
    fresh = {membership(lab, name).secrets.network_secret for name in nodes}
    assert len(fresh) == 1
    assert not fresh & known
    assert {"edge-2", "edge-3"}.isdisjoint(registered(lab))
    assert status_of(lab, "edge-1")["phase"] != "Failed"
    wait_for_condition(lab, "edge-1", "PeersReachable", "Reachable")

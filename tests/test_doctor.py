"""Doctor's checks on pretended surroundings: verdict, figure, and what to do."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from telling import Words

from edgelink.config import Config, Paths
from edgelink.doctor import Surroundings, Verdict
from edgelink.doctor.daemons import daemon_ready, nodes_answer
from edgelink.doctor.direct_paths import judge, stun_answers
from edgelink.doctor.exposure import firewall_in_place, from_outside
from edgelink.doctor.inside import Tried, asked_ports, from_overlay, try_ports
from edgelink.doctor.probes import Probes, Ran, run_program
from edgelink.doctor.ride_through import collectives_wait, ride_through_agrees, tcp_outlives, tcp_resumes
from edgelink.process import host_tcp
from edgelink.testing.ports import reserved_port

EDGE = {"role": "edge", "ready": True, "phase": "Ready", "conditions": [], "ride_through_s": 300}


class _Programs(Probes):
    """Programs that print this, and nothing else."""

    def __init__(self, printed: Mapping[str, str]) -> None:
        super().__init__()
        self._printed = printed

    def run(self, argv: Sequence[str]) -> Ran:
        return Ran(self._printed.get(" ".join(argv)))


def surroundings(
    directory: Path,
    *,
    rto_max_ms: int | None = 2000,
    retries2: int = 255,
    config: Config | None = None,
    environ: Mapping[str, str] | None = None,
    daemons: tuple[Mapping[str, Any], ...] = (EDGE,),
    programs: Mapping[str, str] | None = None,
) -> Surroundings:
    values = {host_tcp.RTO_MAX: rto_max_ms, host_tcp.RETRIES2: retries2, host_tcp.SYN_RETRIES: 64}
    for name, value in values.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        if value is not None:
            (directory / name).write_text(str(value))
    return Surroundings(
        config=config or Config(),
        paths=Paths(state=directory, runtime=directory),
        environ=environ or {},
        daemons=daemons,
        proc_sys=directory,
        root=directory,
        probes=_Programs(programs or {}),
    )


def test_no_daemon_and_an_unready_one_fail(tmp_path: Path) -> None:
    """The condition at which it stands is named. So is one that hangs or was killed beside one that is ready."""
    silent = replace(surroundings(tmp_path), silent=["the relay's daemon hangs"])
    assert daemon_ready(surroundings(tmp_path)).verdict is Verdict.OK
    assert daemon_ready(silent).verdict is Verdict.FAILED
    assert "the relay's daemon" in daemon_ready(silent).message
    assert daemon_ready(surroundings(tmp_path, daemons=())).verdict is Verdict.FAILED
    unready = {
        **EDGE,
        "ready": False,
        "phase": "Degraded",
        "conditions": [{"type": "OverlayUp", "status": "False", "reason": "DeviceDown"}],
    }
    finding = daemon_ready(surroundings(tmp_path, daemons=(unready,)))
    assert finding.verdict is Verdict.FAILED
    assert "OverlayUp DeviceDown" in finding.message


@pytest.mark.parametrize(
    ("status", "reason", "verdict"),
    [
        ("True", "AllAlive", Verdict.OK),
        ("False", "NodesPaused", Verdict.FAILED),
        ("False", "NodesMissing", Verdict.LIMITED),
        ("Unknown", "DirectoryNotSeen", Verdict.LIMITED),
    ],
)
def test_a_node_that_does_not_answer_the_head_is_no_finding_of_all_is_well(
    tmp_path: Path, status: str, reason: str, verdict: Verdict
) -> None:
    """A head is ready without it, and a robot that is switched off is as usual."""
    said = [{"type": "NodesReady", "status": status, "reason": reason, "message": "edge-1"}]
    head = {**EDGE, "role": "head", "conditions": said}
    assert nodes_answer(surroundings(tmp_path, daemons=(head,))).verdict is verdict
    assert nodes_answer(surroundings(tmp_path, daemons=(EDGE,))).verdict is Verdict.SKIPPED


@pytest.mark.parametrize(
    ("rto_max_ms", "verdict", "figure"),
    [
        (2000, Verdict.OK, "2 s late after 5 min"),
        (120_000, Verdict.LIMITED, "120 s late after 5 min"),
        (None, Verdict.LIMITED, "120 s late after 5 min"),
    ],
)
def test_how_late_connections_resume(tmp_path: Path, rto_max_ms: int | None, verdict: Verdict, figure: str) -> None:
    """The figure is what the kernel's settings come to; where it could be better, how."""
    finding = tcp_resumes(surroundings(tmp_path, rto_max_ms=rto_max_ms))
    assert (finding.verdict, finding.figure) == (verdict, figure)
    assert bool(finding.remedy) == (verdict is not Verdict.OK)


def test_the_cap_alone_is_not_enough(tmp_path: Path) -> None:
    """With 15 tries, two seconds apart, connections die after 27 s."""
    finding = tcp_outlives(surroundings(tmp_path, retries2=15))
    assert finding.verdict is Verdict.FAILED
    assert finding.figure == "gives up after 27 s"
    assert "net.ipv4.tcp_retries2=" in finding.remedy


def test_a_kernel_as_it_comes_is_right_once_the_remedy_is_followed(tmp_path: Path) -> None:
    """The cap is the last that is set: at no time does TCP give up sooner than an outage may be long."""
    found = surroundings(tmp_path, rto_max_ms=120_000, retries2=15)
    command, *settings = tcp_resumes(found).remedy.partition("on the host, ")[2].split()
    assert command == "sysctl"
    for setting in settings:
        name, _, value = setting.partition("=")
        (tmp_path / name.replace(".", "/")).write_text(value)
        assert tcp_outlives(found).verdict is Verdict.OK, setting
    assert tcp_resumes(found).verdict is Verdict.OK


def test_disagreements_fail(tmp_path: Path) -> None:
    """Of this node's configuration with the head's, and of the caller's environment with the network's."""
    assert ride_through_agrees(surroundings(tmp_path, config=Config(ride_through=60))).verdict is Verdict.FAILED
    finding = collectives_wait(surroundings(tmp_path, environ={"RLINF_TIMEOUT": "1"}))
    assert finding.verdict is Verdict.FAILED
    assert "RLINF_TIMEOUT=1" in finding.message


ONE, OTHER = (IPv4Address("198.51.100.6"), 40000), (IPv4Address("198.51.100.6"), 51234)
INSIDE = (IPv4Address("10.0.0.7"), 40000)  # by a relay in this node's own network


@pytest.mark.parametrize(
    "seen, verdict, words",
    [
        ({"relay:3478": ONE, "relay:3479": ONE}, Verdict.OK, "198.51.100.6:40000"),
        ({"relay:3478": ONE, "relay:3479": OTHER}, Verdict.LIMITED, "symmetric"),
        ({"relay:3478": ONE, "other:3478": INSIDE}, Verdict.OK, "10.0.0.7:40000"),
        ({"relay:3478": ONE, "relay:3479": OTHER, "other:3478": INSIDE}, Verdict.LIMITED, "symmetric"),
        ({"relay:3478": ONE, "relay:3479": None}, Verdict.LIMITED, "udp relay:3479"),
        ({"relay:3478": None}, Verdict.LIMITED, "udp relay:3478"),
        ({}, Verdict.LIMITED, "relay.stun_ports"),
    ],
)
def test_what_the_relays_see_says_what_the_nat_does(
    seen: dict[str, tuple[IPv4Address, int] | None], verdict: Verdict, words: str
) -> None:
    """One port for all: a cone. Silence is a firewall's, as a rule."""
    finding = judge(seen)
    assert finding.verdict is verdict
    assert words in f"{finding.message} {finding.figure} {finding.remedy}"
    assert bool(finding.remedy) is (verdict is not Verdict.OK)


def test_who_looks_for_no_direct_path_asks_nobody(tmp_path: Path) -> None:
    """Switched off, or not a member of a network."""
    off = Config.model_validate({"overlay": {"p2p": False}})
    assert stun_answers(surroundings(tmp_path, config=off)).verdict is Verdict.SKIPPED
    assert stun_answers(surroundings(tmp_path)).verdict is Verdict.SKIPPED


def shielded(status: str, reason: str) -> dict[str, Any]:
    return {**EDGE, "conditions": [{"type": "Shielded", "status": status, "reason": reason, "message": "as it is"}]}


@pytest.mark.parametrize(
    ("status", "reason", "verdict"),
    [
        ("True", "RulesInPlace", Verdict.OK),
        ("Unknown", "NotObserved", Verdict.SKIPPED),
        ("False", "SwitchedOff", Verdict.LIMITED),
        ("False", "TokenlessRay", Verdict.LIMITED),
        ("False", "FirewallFailed", Verdict.FAILED),
    ],
)
def test_what_is_closed_is_what_the_daemon_says(tmp_path: Path, status: str, reason: str, verdict: Verdict) -> None:
    """A choice is limited, a fault has failed."""
    finding = firewall_in_place(surroundings(tmp_path, daemons=(shielded(status, reason),)))
    assert finding.verdict is verdict
    assert bool(finding.remedy) == (status == "False")


def test_a_program_that_fails_is_quoted() -> None:
    """On whichever stream it complains, nvidia-smi does on its standard output; one that is not there has no words."""
    assert run_program(["edgelink-has-no-such-program"]) == Ran(None, "No such file or directory")
    assert run_program(["false"]) == Ran(None, "exit status 1, without a word")
    assert run_program(["echo", "running"]) == Ran("running", "")
    assert run_program(["sh", "-c", "echo used; echo of no use >&2"]) == Ran("used", "")
    assert run_program(["sh", "-c", "seq 9; exit 3"]) == Ran(None, "7 | 8 | 9")
    script = "echo Failed to initialize NVML; printf 'a\\033[31m red word\\n' >&2; kill -9 $$"
    assert run_program(["sh", "-c", script]) == Ran(
        None, "Failed to initialize NVML | a\N{REPLACEMENT CHARACTER}[31m red word"
    )


def test_a_program_that_does_not_even_die_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that hangs in the kernel."""
    started: list[subprocess.Popen[str]] = []

    def note(program: subprocess.Popen[str]) -> None:
        started.append(program)  # and do nothing: as little as a signal does to such a program

    with monkeypatch.context() as patch, pytest.raises(subprocess.TimeoutExpired):
        patch.setattr(subprocess.Popen, "kill", note)
        run_program(["sleep", "600"], patience_s=0.01)
    (program,) = started
    program.kill()
    program.communicate()


@pytest.mark.parametrize(
    ("answers", "verdict", "says"),
    [
        ([], Verdict.OK, "nothing of Ray"),
        ([11010], Verdict.OK, "nothing of Ray"),
        ([22, 11010], Verdict.OK, "tcp 22 answers"),
        ([22, 6379], Verdict.FAILED, "reaches tcp 6379"),
        ([29500], Verdict.FAILED, "29500"),
        ([15888], Verdict.FAILED, "15888"),
    ],
)
def test_what_a_relay_found_from_outside(answers: list[int], verdict: Verdict, says: str, words: Words) -> None:
    """Ray, the training and the RPC have failed; a router's own pages are only named."""
    found = {"relay": "r:3478", "address": "198.51.100.6", "asked": [*answers, 1], "open": answers, "silent": []}
    finding = from_outside(Config(), found)
    assert finding.verdict is verdict
    assert says in finding.message
    assert "198.51.100.6" in finding.figure
    words(finding.message)


@pytest.mark.parametrize(
    ("closed", "verdict", "says"),
    [
        ([[40000, 50021], [50023, 59999]], Verdict.OK, "tcp 50022 answers"),
        ([[40000, 59999]], Verdict.FAILED, "reaches tcp 50022"),
        ([], Verdict.OK, "tcp 50022 answers"),
        (None, Verdict.FAILED, "reaches tcp 50022"),
    ],
)
def test_from_outside_is_judged_by_what_the_daemon_really_closed(
    closed: list[list[int]] | None, verdict: Verdict, says: str
) -> None:
    """An sshd that was left open is none of the training's, nor is EasyTier wherever it listens."""
    found = {"relay": "r:3478", "address": "198.51.100.6", "asked": [1], "open": [50022, 50030], "silent": []}
    config = Config.model_validate({"overlay": {"listeners": ["tcp://0.0.0.0:50030"]}})
    finding = from_outside(config, found | {"closed": closed})
    assert finding.verdict is verdict
    assert says in finding.message
    assert "50030" not in finding.message


@pytest.mark.parametrize(
    ("role", "answers", "from_head", "verdict", "says"),
    [
        ("edge", [20001, 29500], False, Verdict.OK, "answers tcp 20001, 29500,"),
        ("edge", [], False, Verdict.OK, "no tcp port"),
        ("edge", [8888, 20001], False, Verdict.LIMITED, "reach tcp 8888 of"),
        ("edge", [8270], False, Verdict.LIMITED, "reach tcp 8270 of"),
        ("edge", [22], False, Verdict.LIMITED, "reach tcp 22 of"),
        ("edge", [22], True, Verdict.OK, "answers tcp 22"),
        ("head", [6379, 8270, 8883], False, Verdict.OK, "answers tcp 6379, 8270, 8883"),
        ("relay", [8883], False, Verdict.OK, "answers tcp 8883"),
        ("relay", [6379, 8883], False, Verdict.LIMITED, "reach tcp 6379 of"),
        (None, [20001], False, Verdict.OK, "answers tcp 20001"),
    ],
)
def test_what_another_node_answers_over_the_overlay(
    role: str | None, answers: list[int], from_head: bool, verdict: Verdict, says: str, words: Words
) -> None:
    """What is not documented for its role is named; sshd is for head and relays."""
    node = {"hostname": "there", "overlay_ip": "10.10.0.4", "role": role, "rtt_ms": 3.0}
    tried = Tried((*answers, 1, 2), tuple(answers), (2,))
    finding = from_overlay(Config(), node, tried, is_head_or_relay=from_head)
    assert (finding.verdict, finding.figure) == (
        verdict,
        f"{len(answers) + 2} tcp ports of there (10.10.0.4) tried, 1 of them silent",
    )
    assert says in finding.message
    words(finding.message)


def test_a_node_that_does_not_answer_at_all_is_not_judged() -> None:
    node = {"hostname": "there", "overlay_ip": "10.10.0.4", "role": "edge", "rtt_ms": None}
    finding = from_overlay(Config(), node, Tried((1,), (), (1,)), is_head_or_relay=False)
    assert (finding.verdict, finding.remedy) == (Verdict.SKIPPED, "`edgelink ping there`")


async def test_open_ports_are_found_among_closed_ones() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, reserved_port() as closed:
        port = listening.getsockname()[1]
        assert await try_ports("127.0.0.1", [port, closed]) == Tried((port, closed), (port,), ())


def test_what_is_tried_is_bounded_and_begins_with_what_was_asked_for() -> None:
    asked = asked_ports(Config(), [4711], range(30000, 32000))
    assert asked[0] == 4711
    assert {6379, 8888, 8883, 8270, 30000} <= set(asked)
    assert len(asked) == 1024


def test_from_outside_is_not_sure_of_ports_that_were_not_tried() -> None:
    """Of those that matter: whoever else listens here is not judged anyway."""
    found = {"relay": "r:3478", "address": "198.51.100.6", "asked": [1], "open": [], "silent": [], "closed": []}
    assert from_outside(Config(), found | {"not_asked": [2222]}).verdict is Verdict.OK
    worker = Config().ray.min_worker_port
    finding = from_outside(Config(), found | {"not_asked": [2222, worker, worker + 1]})
    assert finding.verdict is Verdict.LIMITED
    assert "2 others" in finding.message
    assert str(worker) in finding.remedy
    assert from_outside(Config(), found | {"not_asked": [worker], "open": [6379]}).verdict is Verdict.FAILED

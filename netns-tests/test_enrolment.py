"""Enrolment through the product's own commands: tokens, leases that stay whatever is killed, and refusals that say
what to do."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import IPv4Address

import pytest
from conftest import MakeLab
from machines import (
    Machine,
    assert_error,
    children,
    joined,
    leftovers,
    make_token,
    mode,
    registered,
    relay_status,
    road,
    start_relay,
    wait_until,
)

from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.lab import Lab
from edgelink.protocol.token import Token

# What `edgelink join` does, but for its last step: killed after the registry's commit, before anything is written.
_DIE_BEFORE_WRITING = """
import asyncio, os, signal, sys
from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.member.enrol_request import request_membership
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.token import Token
paths = Paths.from_environment()
paths.state.mkdir(parents=True, mode=0o700)
key = NodeKey.load_or_create(paths.node_key)
token = Token.parse(sys.stdin.read())
membership = asyncio.run(request_membership(token, key, hostname=sys.argv[1], role=None, clock=SystemClock()))
print(membership.lease.overlay_ip, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
_ENROL_MANY = """
import asyncio, sys
from edgelink.clock import SystemClock
from edgelink.member.enrol_request import request_membership
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.token import Token
token = Token.parse(sys.stdin.read())
async def main():
    async with asyncio.TaskGroup() as tasks:
        for number in range(int(sys.argv[1])):
            tasks.create_task(request_membership(
                token, NodeKey.generate(), hostname=f"many-{number}", role=None, clock=SystemClock()))
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def shared_lab(make_shared_lab: MakeLab) -> Lab:
    lab = make_shared_lab()
    lab.up(edges=2)
    return lab


@pytest.fixture
def shared(shared_lab: Lab) -> Lab:
    """The lab of the whole file, with a relay that serves; tests bring machines of their own names."""
    if shared_lab.daemon("relay") is None:
        start_relay(shared_lab)
    return shared_lab


@pytest.fixture
def lab(network: Lab) -> Lab:
    """A lab of the test's own, nothing running yet."""
    return network


def recorded(lab: Lab) -> dict[str, tuple[str, int | None]]:
    """Address and rank by hostname, as they are in the registry's database on disk."""
    database = lab.host_path("relay", Paths().registry_database)
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT hostname, overlay_ip, rank FROM leases").fetchall()
    connection.close()
    return {hostname: (overlay_ip, rank) for hostname, overlay_ip, rank in rows}


# -- joining


def test_join_gives_a_lease(shared: Lab) -> None:
    """The machine gets address, rank and name; registry and node have the same on record, secrets are private."""
    machine = Machine(shared, "edge-1", "franka-1")
    result = machine.join(make_token(shared, "--label", "arm=left"))
    assert result.returncode == 0, result.stderr
    lease = machine.lease
    assert lease is not None
    assert result.stdout == (
        f"joined as franka-1: overlay IP {lease.overlay_ip}, preferred node rank {lease.preferred_rank}\n"
    )
    assert "edgelink edge" in result.stderr
    assert recorded(shared)["franka-1"] == (str(lease.overlay_ip), lease.preferred_rank)
    assert lease.labels == {"arm": "left"}
    assert registered(shared)["franka-1"]["node_id"] == lease.node_id
    paths = machine.paths
    assert (mode(paths.state), mode(paths.membership), mode(paths.node_key)) == (0o700, 0o600, 0o600)
    assert leftovers(shared, "edge-1") == []


def test_the_same_token_again_gives_the_same_lease(shared: Lab) -> None:
    """Joining twice is harmless: with the same token, and with a new one as well."""
    machine = Machine(shared, "edge-1", "again")
    token = make_token(shared)
    first = joined(machine, token)
    assert joined(machine, token) == first
    assert joined(machine, make_token(shared)) == first
    machine.paths.membership.unlink()
    assert joined(machine, token) == first


def test_a_used_token_is_refused(shared: Lab) -> None:
    """A token is for one machine: the second is told that it was used, and gets nothing."""
    token = make_token(shared)
    first = joined(Machine(shared, "edge-1", "first-user"), token)
    second = Machine(shared, "edge-2", "second-user")
    assert_error(second.join(token), 1, "TokenUsedUp", first.hostname, "edgelink token create --role edge")
    assert second.lease is None
    assert "second-user" not in recorded(shared)
    assert leftovers(shared, "edge-2") == []


def test_a_token_for_several_machines(shared: Lab) -> None:
    """--uses N lets N machines in, each with a lease of its own, and not one more."""
    token = make_token(shared, "--uses", "2")
    leases = [joined(Machine(shared, node, f"several-{node}"), token) for node in ("edge-1", "edge-2")]
    assert len({lease.overlay_ip for lease in leases}) == 2
    assert len({lease.preferred_rank for lease in leases}) == 2
    assert_error(Machine(shared, "cloud", "several-cloud").join(token), 1, "TokenUsedUp")


def test_a_token_fixes_what_the_operator_says(shared: Lab) -> None:
    """Hostname, address and rank of the token win over the machine's wishes."""
    token = make_token(shared, "--hostname", "fixed", "--ip", "10.10.0.77", "--rank", "7")
    lease = joined(Machine(shared, "edge-1", "something-else"), token)
    assert (lease.hostname, lease.overlay_ip, lease.preferred_rank) == ("fixed", IPv4Address("10.10.0.77"), 7)


def test_one_head_a_network(shared: Lab) -> None:
    """The head gets rank 0, and a second one is refused naming the first."""
    head = joined(Machine(shared, "cloud", "head-1"), make_token(shared, "--role", "head"))
    assert head.preferred_rank == 0
    second = Machine(shared, "edge-2", "head-2").join(make_token(shared, "--role", "head"))
    assert_error(second, 1, "LeaseConflict", "head-1", str(head.overlay_ip))


# -- refusals


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(lambda token: token[:-30], "cut off", id="cut-off"),
        pytest.param(lambda token: token[:40] + "!" + token[41:], "mistyped: '!' at place 41", id="wrong-letter"),
        pytest.param(lambda token: token[:40] + token[40:42].swapcase() + token[42:], "mistyped", id="mistyped"),
        pytest.param(lambda token: "sk-" + token, "not a token", id="no-token"),
        pytest.param(lambda _: "\n", "empty", id="empty"),
    ],
)
def test_a_spoilt_token_is_explained(shared: Lab, spoil: object, words: str) -> None:
    """Cut off, mistyped and not a token at all are told apart, before anything is sent or written."""
    assert callable(spoil)
    machine = Machine(shared, "edge-1", "spoilt")
    token = make_token(shared, "--ttl", "5s")
    while not re.search("[A-Za-z]", token[40:42]):
        token = make_token(shared, "--ttl", "5s")
    assert_error(machine.join(spoil(token)), 1, words)
    assert not machine.paths.state.exists()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        pytest.param({"token_id": "aaaaaaaa"}, ("TokenRefused", "aaaaaaaa"), id="unknown"),
        pytest.param({"secret": "not-this-token's-secret"}, ("TokenRefused",), id="wrong-secret"),
        pytest.param({"ca_sha256": bytes(32)}, ("Untrusted",), id="other-network"),
    ],
)
def test_a_wrong_token_is_refused(shared: Lab, other: dict[str, object], words: tuple[str, ...]) -> None:
    """A well-formed token that this relay did not make opens nothing."""
    machine = Machine(shared, "edge-1", "wrong")
    token = replace(Token.parse(make_token(shared)), **other)  # type: ignore[arg-type]
    assert_error(machine.join(token.encode()), 1, *words)
    assert machine.lease is None
    assert "wrong" not in recorded(shared)


def test_a_revoked_token_is_refused(shared: Lab) -> None:
    """From the moment of revocation; who joined with it before stays."""
    token = make_token(shared, "--uses", "2")
    token_id = Token.parse(token).token_id
    early = joined(Machine(shared, "edge-1", "early"), token)
    revoked = shared.exec("relay", ["edgelink", "token", "revoke", token_id], capture=True, check=True)
    assert token_id in revoked.stdout
    late = Machine(shared, "edge-2", "late")
    assert_error(late.join(token), 1, token_id, "edgelink token create")
    assert late.lease is None
    assert recorded(shared)["early"] == (str(early.overlay_ip), early.preferred_rank)
    listed = shared.exec("relay", ["edgelink", "token", "list"], capture=True, check=True).stdout
    assert re.search(rf"^{token_id} +edge +revoked", listed, re.MULTILINE)
    assert token not in listed


def test_an_expired_token_is_refused(shared: Lab) -> None:
    """By the relay's clock: by the registry, or by the broker, which within half a minute forgets the token's user."""
    token = make_token(shared, "--ttl", "100ms")
    SystemClock().block(0.2)
    assert_error(Machine(shared, "edge-1", "too-late").join(token), 1, "expired", "edgelink token create")


def test_a_hostname_belongs_to_one_machine(shared: Lab) -> None:
    """The second machine of that name is refused naming the holder; under another name the same token works."""
    holder = joined(Machine(shared, "edge-1", "twin"), make_token(shared))
    second = Machine(shared, "edge-2", "twin")
    token = make_token(shared)
    refused = second.join(token)
    assert_error(refused, 1, "LeaseConflict", "'twin'", holder.node_id, str(holder.overlay_ip), "--hostname")
    assert second.lease is None
    assert recorded(shared)["twin"] == (str(holder.overlay_ip), holder.preferred_rank)
    assert joined(second, token, "--hostname", "other-twin").hostname == "other-twin"


def test_a_token_for_a_held_hostname(shared: Lab) -> None:
    """No token is made for a hostname that a node holds: it would be good for nobody else."""
    holder = joined(Machine(shared, "edge-1", "holder"), make_token(shared))
    refused = shared.exec("relay", ["edgelink", "token", "create", "--hostname", "holder"], capture=True)
    assert_error(refused, 1, "LeaseConflict", holder.node_id, str(holder.overlay_ip), "--replaces holder")


def test_a_promised_hostname_is_kept(shared: Lab) -> None:
    """While a token promises a hostname to one machine, another one cannot take it."""
    token = make_token(shared, "--hostname", "promised")
    thief = Machine(shared, "edge-2", "promised").join(make_token(shared))
    assert_error(thief, 1, "LeaseConflict", Token.parse(token).token_id)
    assert joined(Machine(shared, "edge-1", "rightful"), token).hostname == "promised"


def test_a_lease_is_freed_by_the_operator_only(shared: Lab) -> None:
    """What the refusals advise: released, its name and address rest; freed, they may go to another machine."""
    old = joined(Machine(shared, "edge-1", "gone"), make_token(shared, "--ip", "10.10.0.200"))
    assert re.search(
        rf"^gone +edge +10\.10\.0\.200 +rank {old.preferred_rank} +offline +{old.node_id}$",
        shared.exec("relay", ["edgelink", "registry", "list"], capture=True, check=True).stdout,
        re.MULTILINE,
    )
    released = shared.exec("relay", ["edgelink", "registry", "release", "gone"], capture=True, check=True)
    assert f"gone ({old.node_id})" in released.stdout
    assert "10.10.0.200 rests until" in released.stdout
    machine, token = Machine(shared, "edge-2", "gone"), make_token(shared)
    assert_error(machine.join(token), 1, old.node_id, "rests until", "edgelink registry release gone --now")
    freed = shared.exec(
        "relay", ["edgelink", "registry", "release", "gone", "--now", "--json"], capture=True, check=True
    )
    assert json.loads(freed.stdout) == {
        "version": 1,
        "hostname": "gone",
        "node_id": old.node_id,
        "overlay_ip": "10.10.0.200",
        "rank": old.preferred_rank,
        "rests_until": None,
    }
    new = joined(machine, make_token(shared, "--ip", "10.10.0.200"))
    assert (new.overlay_ip, new.node_id == old.node_id) == (old.overlay_ip, False)
    for node, code, reason in (("nobody", 1, "NodeUnknown"), ("relay", 2, "OwnLease")):
        result = shared.exec("relay", ["edgelink", "registry", "release", node], capture=True)
        assert_error(result, code, reason)


def test_a_reimaged_machine_gets_its_place_back(shared: Lab) -> None:
    """By the operator's word: address, rank and hostname under its new key. The old disk opens nothing any more."""
    machine, old_disk = Machine(shared, "edge-1", "reimaged"), Machine(shared, "edge-2", "old-disk")
    before = joined(machine, make_token(shared))
    shutil.copytree(machine.paths.state, old_disk.paths.state)
    shutil.rmtree(machine.paths.state)
    assert_error(machine.join(make_token(shared)), 1, "LeaseConflict", "'reimaged'")
    after = joined(machine, make_token(shared, "--replaces", "reimaged"))
    assert after.node_id != before.node_id
    assert (after.hostname, after.overlay_ip, after.preferred_rank) == (
        before.hostname,
        before.overlay_ip,
        before.preferred_rank,
    )
    assert recorded(shared)["reimaged"] == (str(before.overlay_ip), before.preferred_rank)
    assert_error(old_disk.join(make_token(shared)), 1, "NodeRevoked")


def test_unusable_command_lines(shared: Lab) -> None:
    """No token, two tokens, a bad name and a bad configuration: usage is 2, configuration 78."""
    machine = Machine(shared, "edge-1", "usage")
    assert machine.edgelink("join").returncode == 2
    assert machine.edgelink("join", "elt1_x", "--token-file", "/dev/null").returncode == 2
    assert machine.edgelink("join", "--token-file", "/nowhere").returncode == 2
    assert_error(machine.join(make_token(shared), "--hostname", "Not A Name"), 78, "ConfigInvalid", "'Not A Name'")
    result = shared.exec("edge-1", ["edgelink", "join", "elt1_x"], env={"EDGELINK_RAY__PORT": "0"}, capture=True)
    assert_error(result, 78, "ray.port")
    assert not machine.paths.state.exists()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        pytest.param("203.0.113.10:9", "refused", id="nobody-listens"),
        pytest.param("203.0.113.99:8883", "203.0.113.99:8883", id="no-such-host"),
        pytest.param("nowhere.edgelink.test:8883", "nowhere.edgelink.test", id="no-such-name"),
    ],
)
def test_a_relay_out_of_reach(shared: Lab, address: str, words: str) -> None:
    """Exit status 75, try again: nothing was sent, and the token still works."""
    token = Token.parse(make_token(shared))
    machine = Machine(shared, "edge-1", f"far-{words[:3].strip('.')}")
    assert_error(machine.join(replace(token, addresses=(address,)).encode()), 75, words, "RegistryUnavailable")
    assert machine.lease is None
    both = replace(token, addresses=(address, *token.addresses))
    if "refused" in words:  # a second address is tried; the others would cost a time-out each
        joined(machine, both.encode())


def test_not_root(shared: Lab) -> None:
    """Without root nothing is begun: exit status 78, and what to do."""
    # The interpreter may lie where only root may read.
    nobody = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=+dac_read_search"]
    nobody.append("--ambient-caps=+dac_read_search")
    machine = Machine(shared, "edge-1", "nobody")
    for argv in (["bootstrap"], ["join", "elt1_x"]):
        assert_error(machine.run(*nobody, "edgelink", *argv), 78, "need root", "sudo")
    assert not machine.paths.state.exists()
    assert not machine.paths.runtime.exists()


def test_a_full_address_pool(lab: Lab) -> None:
    """The machine for which no address is left is told so; those that are in are not disturbed."""
    start_relay(lab, "--cidr", "10.20.30.0/28")
    token = make_token(lab, "--uses", "20")
    lab.exec("edge-1", ["python", "-c", _ENROL_MANY, "12"], stdin=token, capture=True, check=True)
    last = joined(Machine(lab, "edge-1", "last"), token)
    before = recorded(lab)
    assert sorted(int(IPv4Address(ip)) & 15 for ip, _ in before.values()) == list(range(1, 15))
    late = Machine(lab, "edge-2", "late")
    assert_error(late.join(token), 1, "AddressPoolExhausted", "14", "10.20.30.0/28", "relay.cidr")
    assert late.lease is None
    assert recorded(lab) == before
    assert joined(Machine(lab, "edge-1", "last"), token) == last


# -- killed in the middle


def test_killed_between_commit_and_write(shared: Lab) -> None:
    """The registry has the lease, the node died before it wrote it down: joining again gives that very lease."""
    machine = Machine(shared, "edge-1", "killed")
    token = make_token(shared)
    died = machine.run("python", "-c", _DIE_BEFORE_WRITING, "killed", stdin=token)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert machine.lease is None
    address, rank = recorded(shared)["killed"]
    assert address == died.stdout.strip()
    lease = joined(machine, token)
    assert (str(lease.overlay_ip), lease.preferred_rank) == (address, rank)


def test_killed_anywhere_while_joining(shared: Lab) -> None:
    """SIGKILL to `edgelink join` at whatever moment: at the end each machine has one lease, the one it was told."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda tenths: _join_killed_after(shared, tenths), (2, 3, 4, 5, 6, 7)))


def _join_killed_after(lab: Lab, tenths: int) -> None:
    machine = Machine(lab, "edge-1", f"killed-{tenths}")
    token = make_token(lab)
    machine.run("timeout", "--signal=KILL", f"0.{tenths}", "edgelink", "join", "-", stdin=token)
    before = recorded(lab).get(machine.name or "")
    written = machine.lease
    lease = joined(machine, token)
    assert before in (None, (str(lease.overlay_ip), lease.preferred_rank))
    assert written in (None, lease)


def test_join_waits_for_a_relay_that_restarts(lab: Lab) -> None:
    """While only the daemon is down its broker still answers; a join begun then succeeds once it is back."""
    start_relay(lab)
    token = make_token(lab)
    lab.kill("relay")
    machine = Machine(lab, "edge-1", "patient")
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(machine.join, token)
        SystemClock().block(1.0)
        assert not joining.done()
        start_relay(lab)
        assert joining.result().returncode == 0
    assert recorded(lab)["patient"] == ("10.10.0.2", 1)


# -- the relay, killed and started again


@pytest.fixture
def inhabited(shared: Lab) -> Iterator[Lab]:
    """The shared lab, its relay running whatever the test before has left; afterwards network, addresses and ranks are
    what they were, and its nodes may enrol again."""
    if shared.daemon("relay") is None:
        start_relay(shared)
    machine = Machine(shared, "edge-1", "inhabitant")
    lease = machine.lease or joined(machine, make_token(shared))
    before = recorded(shared)
    network_id = relay_status(shared)["network_id"]
    yield shared
    assert relay_status(shared)["network_id"] == network_id
    assert {name: held for name, held in recorded(shared).items() if name in before} == before
    assert joined(machine, make_token(shared)) == lease


def no_more_than_four_processes(lab: Lab) -> None:
    """Daemon, EasyTier, Mosquitto, the echo, and nothing of a predecessor; a command may run beside."""
    wait_until("daemon, EasyTier, Mosquitto, echo", lambda: lab.pids("relay"), wanted=lambda pids: len(pids) == 4)


def test_the_relay_is_killed_at_any_moment(inhabited: Lab) -> None:
    """SIGKILL during start, while serving, and right after: the next daemon adopts both children as they are."""
    before = children(relay_status(inhabited))
    assert None not in before
    for alive_s in (0.0, 0.1, 0.3, 0.4, 0.5, 0.6, 0.8, 1.5):
        inhabited.kill("relay")
        inhabited.start("relay")
        SystemClock().block(alive_s)
    assert children(road(inhabited).wait_ready("relay")) == before
    no_more_than_four_processes(inhabited)


def test_the_relay_is_killed_during_its_first_start(lab: Lab) -> None:
    """Whatever the first start had made by then, the next goes on from there, and there is one network."""
    for alive_s in (0.2, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6):
        lab.start("relay")
        SystemClock().block(alive_s)
        lab.kill("relay")
    status = start_relay(lab)
    joined(Machine(lab, "edge-1"), make_token(lab))
    lab.kill("relay")
    assert children(again := start_relay(lab)) == children(status)
    assert again["network_id"] == status["network_id"]
    assert recorded(lab) == {"relay": ("10.10.0.1", None), "edge-1": ("10.10.0.2", 1)}
    no_more_than_four_processes(lab)


@pytest.mark.parametrize("daemon_dies", ["before", "after", "not"])
@pytest.mark.parametrize("victim", ["easytier_pid", "broker_pid"])
def test_a_child_of_the_relay_is_killed(inhabited: Lab, victim: str, daemon_dies: str) -> None:
    """It is started again, by the running daemon or by the next one; the other child is left alone."""
    before = relay_status(inhabited)
    if daemon_dies == "before":
        inhabited.kill("relay")
    os.kill(before[victim], signal.SIGKILL)
    if daemon_dies == "after":
        inhabited.kill("relay")
    status = start_relay(inhabited) if daemon_dies != "not" else _status_with_another(inhabited, victim, before[victim])
    other = {"easytier_pid": "broker_pid", "broker_pid": "easytier_pid"}[victim]
    assert status[other] == before[other]
    assert status[victim] != before[victim]
    no_more_than_four_processes(inhabited)


def _status_with_another(lab: Lab, victim: str, pid: int) -> dict[str, object]:
    return wait_until(
        f"another {victim} than {pid}",
        lambda: road(lab).wait_ready("relay"),
        wanted=lambda status: status[victim] != pid,
    )


def test_the_relay_is_stopped_and_started(inhabited: Lab) -> None:
    """A stop ends both children and leaves nothing running; the next start goes on with the same network."""
    inhabited.stop("relay")
    assert leftovers(inhabited, "relay") == []
    assert_error(inhabited.exec("relay", ["edgelink", "status"], capture=True), 1, "DaemonNotRunning")
    assert_error(inhabited.exec("relay", ["edgelink", "token", "list"], capture=True), 1, "edgelink relay")
    start_relay(inhabited)


def test_tokens_survive_the_relay(inhabited: Lab) -> None:
    """A token made before a kill works after it, adopted broker or new one."""
    one, two = make_token(inhabited), make_token(inhabited)
    inhabited.kill("relay")
    start_relay(inhabited)
    joined(Machine(inhabited, "edge-2", "after-kill"), one)
    inhabited.stop("relay")
    start_relay(inhabited)
    joined(Machine(inhabited, "edge-2", "after-stop"), two)


# -- starting the relay


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        pytest.param(["--cidr", "10.10.0.0/30"], "between /16 and /28", id="cidr"),
        pytest.param(["--cidr", "10.10.0.1/24"], "relay.cidr", id="host-bits"),
        pytest.param(["--overlay-ip", "10.10.1.1"], "10.10.1.1", id="address"),
        pytest.param(["--device", "much-too-long-a-name"], "overlay.device", id="device"),
        pytest.param(["--listener", "tcp:11010"], "easytier_listeners", id="listener"),
        pytest.param(["--advertise", "not a host"], "advertise", id="advertise"),
    ],
)
def test_unusable_flags_of_bootstrap(shared: Lab, flags: list[str], words: str) -> None:
    """Exit status 78 before anything is started, and before a network is settled that could not be had again."""
    machine = Machine(shared, "cloud", f"unusable-{flags[0].strip('-')}-{len(words)}")
    assert_error(machine.edgelink("bootstrap", *flags), 78, words)
    assert leftovers(shared, "cloud") == []


def test_a_second_relay_daemon_is_refused(shared: Lab) -> None:
    """It names what to do, and the first one and its children go on."""
    before = relay_status(shared)
    result = shared.exec("relay", ["edgelink", "bootstrap"], capture=True, timeout_s=60)
    assert_error(result, 2, "already", "edgelink status")
    after = relay_status(shared)
    assert (after["pid"], children(after), after["ready"]) == (before["pid"], children(before), True)
    no_more_than_four_processes(shared)


# -- status


def test_exit_status_of_status(shared: Lab) -> None:
    """0 when ready; 1 where no daemon runs, with what to do; --json says the same."""
    ready = shared.exec("relay", ["edgelink", "status", "--json"], capture=True)
    assert ready.returncode == 0
    assert '"ready": true' in ready.stdout
    assert_error(shared.exec("edge-2", ["edgelink", "status"], capture=True), 1, "DaemonNotRunning", "edgelink edge")

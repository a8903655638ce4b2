"""The head starts Ray, tells the edges of it, and watches who is a member; with a pretended Ray."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
from ipaddress import IPv4Address

import pytest
from full_disk import Disk
from ray_bench import Bench, firewalls, head_bench  # noqa: F401
from telling import refuses

from edgelink.errors import PortBusyError, RayClusterError
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import Role
from edgelink.ray_cluster.cluster_spec import OwnEpoch
from edgelink.ray_cluster.ray_members import RayMember
from edgelink.testing.clock import FakeClock, eventually
from edgelink.testing.payloads import entry_of


async def test_head_publishes_once_it_is_alive(head_bench: Bench) -> None:
    """The spec names versions, ranks and the sealed token; each member can open its own."""
    other = NodeKey.generate()
    head_bench.ranks += ((entry_of(head_bench.lease_of(other, Role.EDGE, 1)), 1),)
    head = head_bench.head()
    await head.reconcile()
    (spec,) = head_bench.published
    token = (head_bench.paths.state / "ray_token").read_text()
    assert (spec.epoch, spec.ray_version, spec.token_auth) == (1, "2.60.0", True)
    sealed = spec.member(other.node_id)
    assert sealed is not None
    assert sealed.sealed_ray_token is not None
    assert other.unseal(sealed.sealed_ray_token).decode() == token
    assert len(token) == 64
    assert token not in str(head_bench.fake.starts) + str(head_bench.fake.environment)
    await head.reconcile()
    assert len(head_bench.published) == 1


async def test_head_does_not_say_that_ray_starts_while_its_port_is_taken(head_bench: Bench) -> None:
    """Each try would hide for a moment what a person has to mend; once it is mended, `ray start` is told."""
    head = head_bench.head()
    with socket.create_server(("127.0.0.1", head_bench.config.ray.port)), pytest.raises(PortBusyError):
        await head.reconcile()
    assert head_bench.history == []
    await head.reconcile()
    assert [condition.reason for condition in head_bench.history] == ["Starting", "AliveInRay"]


async def test_a_former_ray_that_ray_takes_for_one_that_runs_is_told_in_words(head_bench: Bench) -> None:
    """`ray start` finds its note and a process that still names the address: the note goes, and it is tried again."""
    clock = head_bench.clock = FakeClock()
    head, fails = head_bench.head(), head_bench.fake.directory / "fails"
    assert head_bench.config.ray.temp_dir is not None
    note = head_bench.config.ray.temp_dir / "sessions/ray_current_cluster"
    os.mkfifo(fails)  # `ray start` waits there for its last words
    look = asyncio.create_task(head.reconcile())
    await eventually(lambda: len(head_bench.fake.starts) == 1)
    address = f"127.0.0.1:{head_bench.config.ray.port}"
    note.write_text(address)
    words = f"ConnectionError: Ray is trying to start at {address}, but is already running at {address}."
    await asyncio.to_thread(fails.write_text, words)
    with refuses(RayClusterError, "ray_current_cluster", reason="RayStartFailed"):
        await look
    assert not note.exists()
    fails.unlink()
    await clock.advance(20)
    await head.reconcile()
    assert (head_bench.reason, len(head_bench.fake.starts)) == ("AliveInRay", 2)


async def test_what_former_jobs_have_left_in_ray_is_known(head_bench: Bench) -> None:
    """By name, else by class, with what it takes to end it; nothing where Ray does not tell."""
    head = head_bench.head()
    assert await head.left_actors() == []
    await head.reconcile()
    assert await head.left_actors() == []
    actor = {"namespace": "train", "ip": "10.10.0.3", "class": "Buffer", "pid": 1}
    answer = {"actors": [{**actor, "name": "replay\x1b[2J"}, {**actor, "name": ""}]}
    (head_bench.fake.directory / "left").write_text(json.dumps(answer))
    assert await head.left_actors() == [
        "replay\ufffd[2J (namespace train, on 10.10.0.3)",
        "Buffer (namespace train, on 10.10.0.3)",
    ]


async def test_a_cluster_that_fits_into_no_message_is_refused_by_name(head_bench: Bench) -> None:
    """The broker would carry it to nobody, and the session would end with each try. What was published holds."""
    head = head_bench.head()
    await head.reconcile()
    lease = head_bench.lease_of(NodeKey.generate(), Role.EDGE, 1)
    for number in range(1, 501):
        hostname, address = f"robot-{number}", IPv4Address("10.10.1.0") + number
        other = lease.model_copy(update={"hostname": hostname, "overlay_ip": address})
        entry = entry_of(other).model_copy(update={"node_id": base32_of(number)})
        head_bench.ranks += ((entry, number),)
    await head.reconcile()
    assert len(head_bench.published[-1].members) == 501, "what the web page and the fleet are tested with fits"
    head_bench.ranks += tuple(
        (entry.model_copy(update={"node_id": base32_of(1000 + rank), "hostname": f"more-{rank}"}), rank + 500)
        for entry, rank in head_bench.ranks[1:401]
    )
    with refuses(RayClusterError, "901 nodes", reason="ClusterTooLarge"):
        await head.reconcile()
    assert len(head_bench.published[-1].members) == 501


def base32_of(number: int) -> str:
    """A node id."""
    return base64.b32encode(number.to_bytes(16, "big")).decode().lower().rstrip("=")


async def test_head_numbers_changes_across_restarts(head_bench: Bench) -> None:
    """A successor gives out the same spec again, with the same incarnation; a new member makes the next epoch."""
    await head_bench.head().reconcile()
    successor = head_bench.head()
    await successor.reconcile()
    assert head_bench.published[0] == head_bench.published[1]
    assert len(head_bench.fake.starts) == 1
    head_bench.ranks += ((entry_of(head_bench.lease_of(NodeKey.generate(), Role.EDGE, 1)), 1),)
    await successor.reconcile()
    assert [spec.epoch for spec in head_bench.published] == [1, 1, 2]
    assert len({spec.incarnation for spec in head_bench.published}) == 1


async def test_head_on_a_full_disk_goes_on_with_what_it_published(
    head_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that is not on disk would be used twice: the next spec waits, and Ray does not."""
    disk = Disk(monkeypatch)
    head = head_bench.head()
    await head.reconcile()
    head_bench.ranks += ((entry_of(head_bench.lease_of(NodeKey.generate(), Role.EDGE, 1)), 1),)
    disk.is_full = True
    await head.reconcile()
    assert head_bench.history[-1].reason == "AliveInRay"
    assert [spec.epoch for spec in head_bench.published] == [1]
    disk.is_full = False
    await head.reconcile()
    assert [spec.epoch for spec in head_bench.published] == [1, 2]
    assert len(head_bench.fake.starts) == 1


async def test_head_numbers_above_what_the_network_has_seen(head_bench: Bench) -> None:
    """A head whose disk is an older copy, or was lost: no edge follows a number that it has passed."""
    head_bench.give(own_epoch=OwnEpoch(9))
    head = head_bench.head()
    await head.reconcile()
    head_bench.give(own_epoch=OwnEpoch(14))  # heard when a session with the relay has come about
    await head.reconcile()
    head_bench.give(own_epoch=OwnEpoch(0))
    await head.reconcile()
    assert [spec.epoch for spec in head_bench.published] == [10, 15]


async def test_head_publishes_nothing_before_the_directory(head_bench: Bench) -> None:
    """After a restart without the registry, an empty member list must not throw the edges out."""
    head_bench.ranks = ()
    await head_bench.head().reconcile()
    assert head_bench.published == []


async def test_head_restarts_ray_for_a_changed_configuration(head_bench: Bench) -> None:
    """What the operator changed takes effect with the next daemon, and the condition says why."""
    await head_bench.head().reconcile()
    ray = head_bench.config.ray.model_copy(update={"num_cpus": 1})
    head_bench.config = head_bench.config.model_copy(update={"ray": ray})
    await head_bench.head().reconcile()
    assert "--num-cpus=1" in head_bench.fake.starts[1]
    assert "RayReplaced" in [condition.reason for condition in head_bench.history]


async def test_a_change_of_ride_through_waits_for_the_run(head_bench: Bench) -> None:
    """Ray stays, and the spec that sent the edges after it, until the run has ended."""
    await head_bench.head().reconcile()
    head_bench.config = head_bench.config.model_copy(update={"ride_through": 60})
    head_bench.grant(is_granted=True)
    head = head_bench.head()
    await head.reconcile()
    await head.reconcile()
    assert len(head_bench.fake.starts) == 1
    assert {(spec.epoch, spec.ride_through_s) for spec in head_bench.published} == {(1, 300)}
    before = head_bench.fake.environment["RAY_gcs_rpc_server_reconnect_timeout_s"]
    assert head_bench.board.facts.ride_through_s == 300
    assert head.driver_variables(0)["RAY_gcs_rpc_server_reconnect_timeout_s"] == before
    head_bench.grant(is_granted=False)
    await head.reconcile()
    assert len(head_bench.fake.starts) == 2
    assert head_bench.published[-1].ride_through_s == head_bench.board.facts.ride_through_s == 60


async def test_head_grants_what_a_driver_needs(head_bench: Bench) -> None:
    """Address, rank 0, device, token file; refused while Ray is not there."""
    head = head_bench.head()
    with pytest.raises(RayClusterError):
        head.driver_variables(0)
    await head.reconcile()
    grant = head.driver_grant(0)
    assert grant["pass_env"] == []
    assert grant["of_ray"]["HOME"] == head_bench.fake.environment["HOME"], "as its Ray was started with"
    granted = grant["environment"]
    assert granted["RAY_ADDRESS"] == f"127.0.0.1:{head_bench.config.ray.port}"
    assert granted["RLINF_COMM_NET_DEVICES"] == "et0"
    assert granted["RAY_AUTH_TOKEN_PATH"] == str(head_bench.token_file)


async def test_workers_and_drivers_begin_with_the_import_hook(head_bench: Bench) -> None:
    """Each user's processes with that user's folder, unless `process.import_hook` says no."""
    head = head_bench.head()
    await head.reconcile()
    hooks = head_bench.paths.runtime / "import-hook"
    uid = head.user_uid
    assert head_bench.fake.environment["PYTHONPATH"] == str(hooks / str(uid))
    assert head.command_environment(uid)["EDGELINK_IMPORT_HOOK"] == str(hooks / str(uid))
    assert head.driver_variables(12345)["EDGELINK_IMPORT_HOOK"] == str(hooks / "12345")
    assert (hooks / "12345/sitecustomize.py").is_file()
    off = head_bench.config.process.model_copy(update={"import_hook": False})
    head_bench.config = head_bench.config.model_copy(update={"process": off})
    head = head_bench.head()
    await head.reconcile()
    for found in (head.command_environment(uid), head.driver_variables(uid)):
        assert not {"EDGELINK_IMPORT_HOOK", "PYTHONPATH"} & set(found)


async def test_head_watches_who_is_a_member(head_bench: Bench) -> None:
    """What the helper reports reaches the role; when nobody can say, nobody is there."""
    node = {"node_id": "f00d", "ip": "127.0.0.1", "rank": 0, "alive": True, "hostname": "cloud"}
    line = json.dumps([node | {"accelerator": "NO_ACCEL", "accelerator_count": 0, "cpus": 2.0}])
    (head_bench.fake.directory / "members").write_text("noise\n" + line + "\n")
    head = head_bench.head()
    await head.reconcile()
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(head.run())
        await eventually(lambda: bool(head_bench.board.facts.ray_members))
        watch.cancel()
    assert head_bench.board.facts.ray_members == (RayMember("f00d", "127.0.0.1", 0, True, "cloud", cpus=2.0),)

"""Stories of a node's disk on more than one machine: who may be the node, who waits for it, and who ends."""

from __future__ import annotations

from sim import Box, Sim, story
from sim_machine import EASYTIER

from edgelink.errors import ExitCode
from edgelink.member.admission import ClonedNodeError
from edgelink.protocol.alternation import ALTERNATION_S, cloned
from edgelink.protocol.payloads import NodeStatus, Role
from edgelink.relay.claims import HEARD_S, RETURN_S


async def of_one_node(sim: Sim) -> tuple[Box, Box]:
    """A relay, and an edge that the registry has accepted and that speaks."""
    relay = await sim.relay()
    edge = await sim.join("edge-1", Role.EDGE, relay)
    edge.start()
    await sim.until(lambda: is_heard(relay, edge), within_s=10)
    return relay, edge


def copy_of(sim: Sim, edge: Box, name: str = "copy") -> Box:
    copy = sim.box(name, Role.EDGE)
    copy.copied_from(edge)
    if not edge.machine.hardware:
        copy.machine.hardware = ()
    copy.start()
    return copy


def is_heard(relay: Box, box: Box) -> bool:
    """Whether the node's newest word, as the relay has it, is this daemon's, and EasyTier may start there."""
    status, joined = relay.relay.registry.statuses.get(box.node_id), box.node.member.joined
    is_its = status is not None and joined is not None and status.instance == joined.registry.life.instance
    return is_its and status.online and box.facts.admission.is_accepted


def events(relay: Box) -> list[str]:
    return [item["action"] for item in relay.relay.store.history()]


def heard_twice(sim: Sim, relay: Box) -> list[str]:
    """The nodes that the relay has heard with two voices of late."""
    return cloned(relay.relay.registry.claims.alternations(), sim.clock.monotonic_s())


@story
async def test_a_node_is_accepted_and_recorded(sim: Sim) -> None:
    """EasyTier may start; the machine is on disk; nothing is said of the node before."""
    relay, edge = await of_one_node(sim)
    assert not edge.history[0].admission.may_start
    assert edge.condition("Leased").reason == "Leased"
    recorded = relay.relay.store.machines.get(edge.node_id)
    assert recorded is not None
    assert (recorded.instance, recorded.machine) == (edge.registry.life.instance, edge.machine.hardware)


@story
async def test_a_copy_is_refused_by_name_and_the_node_goes_on(sim: Sim) -> None:
    """Also when the node was silent for long: it is asked to speak. Nothing of the copy reaches the node's status."""
    relay, edge = await of_one_node(sim)
    since = sim.clock.now()
    await sim.passes(5 * HEARD_S)
    copy = copy_of(sim, edge)
    ended = await copy.ends(within_s=10)
    assert isinstance(ended, ClonedNodeError)
    for named in ("edge-1", edge.node_id, f"{since:%H:%M} UTC"):
        assert named in str(ended)
    assert "edgelink leave" in ended.hint
    assert ended.exit_code == ExitCode.CONFIG
    assert copy.condition("Leased").final
    assert copy.machine.history == []
    assert "on another machine" in copy.paths.refused_as_copy.read_text()

    def kept() -> NodeStatus:
        (topic,) = (topic for topic in relay.machine.memory.retained if topic.endswith(f"{edge.node_id}/status"))
        return NodeStatus.model_validate_json(relay.machine.memory.retained[topic])

    instance = edge.registry.life.instance
    await sim.until(lambda: kept().online and kept().instance == instance, within_s=5)
    assert is_heard(relay, edge), "the copy's Last Will is not the node's end"
    assert edge.is_alive
    assert edge.registry.is_connected
    assert relay.relay.registry.refusals.counts["ClonedNode"] == 1
    assert events(relay).count("clone refused") == 1
    assert heard_twice(sim, relay) == [], "it was never let in"


@story
async def test_copies_that_come_again_and_again_do_not_wear_the_node_out(sim: Sim) -> None:
    """Each is a life of its own; what they leave behind hides nothing of the node's."""
    _, edge = await of_one_node(sim)
    for number in range(10):
        await sim.passes(HEARD_S)
        copy = copy_of(sim, edge, f"copy-{number}")
        assert isinstance(await copy.ends(within_s=10), ClonedNodeError)
    assert edge.is_alive


@story
async def test_the_next_daemon_of_the_same_machine_is_the_node_at_once(sim: Sim) -> None:
    """After a crash, and also where nothing of the machine can be read."""
    relay, edge = await of_one_node(sim)
    here = edge.machine.hardware
    for hardware in (here, (), here):
        await edge.kill()
        edge.machine.hardware = hardware
        edge.start()
        await sim.until(lambda: is_heard(relay, edge), within_s=10)
        assert edge.condition("Leased").reason == "Leased"
    assert heard_twice(sim, relay) == []


@story
async def test_a_disk_that_moved_waits_and_is_accepted_and_the_former_machine_refused(sim: Sim) -> None:
    """A swapped board stops no robot; it waits until the former machine was not heard for a minute."""
    relay, edge = await of_one_node(sim)
    await edge.stop()
    moved = copy_of(sim, edge)
    await sim.until(moved.has("Leased", "OtherMachine"), within_s=10)
    assert "another machine since" in moved.condition("Leased").message
    assert not moved.facts.admission.may_start
    await sim.until(moved.has("Leased", "MachineChanged"), within_s=HEARD_S + 10)
    assert moved.facts.admission.may_start
    assert events(relay).count("machine changed") == 1
    edge.start()
    assert isinstance(await edge.ends(within_s=10), ClonedNodeError)
    assert moved.is_alive


@story
async def test_a_machine_whose_easytier_goes_on_is_not_gone(sim: Sim) -> None:
    """Its daemon is dead, and its address is still in the overlay: the copy waits, and says for what."""
    _, edge = await of_one_node(sim)
    await sim.until(lambda: edge.machine.network, within_s=5)
    await edge.kill()
    await sim.passes(5 * HEARD_S)
    copy = copy_of(sim, edge)
    address = edge.membership.lease.overlay_ip
    await sim.until(lambda: f"somebody has {address}" in copy.condition("Leased").message, within_s=10)
    await sim.passes(2 * HEARD_S)
    assert not copy.facts.admission.may_start
    edge.machine.end(EASYTIER)
    await sim.until(copy.has("Leased", "MachineChanged"), within_s=HEARD_S)


@story
async def test_a_registry_that_has_just_begun_waits_for_the_node_first(sim: Sim) -> None:
    """After a relay's restart the copy may come first: it waits, and is refused once the node is back."""
    relay, edge = await of_one_node(sim)
    await edge.stop()
    await relay.stop()
    relay.start()
    copy = copy_of(sim, edge)
    await sim.until(copy.has("Leased", "OtherMachine"), within_s=10)
    edge.start()
    assert isinstance(await copy.ends(within_s=2 * HEARD_S), ClonedNodeError)
    assert is_heard(relay, edge)
    assert edge.condition("Leased").reason == "Leased"


@story
async def test_a_former_machine_that_never_returns_is_not_waited_for(sim: Sim) -> None:
    """After a relay's restart, for half a minute only where its broker remembers nobody."""
    relay, edge = await of_one_node(sim)
    await edge.stop()
    await relay.stop()
    relay.machine.memory.retained.clear()
    relay.start()
    moved = copy_of(sim, edge)
    await sim.until(moved.has("Leased", "OtherMachine"), within_s=10)
    await sim.until(moved.has("Leased", "MachineChanged"), within_s=RETURN_S + 1)


@story
async def test_copies_that_cannot_be_told_apart_are_told_of(sim: Sim) -> None:
    """Where nothing of the machines can be read: by the two voices, on the relay, for five minutes."""
    relay = await sim.relay()
    edge = await sim.join("edge-1", Role.EDGE, relay)
    edge.machine.hardware = ()
    edge.start()
    await sim.until(lambda: is_heard(relay, edge), within_s=10)
    other = copy_of(sim, edge)
    assert heard_twice(sim, relay) == []
    await sim.until(lambda: is_heard(relay, other), within_s=10)
    edge.machine.end(EASYTIER)  # of which it speaks
    await sim.until(lambda: heard_twice(sim, relay) == ["edge-1"], within_s=10)
    await other.stop()
    await sim.passes(ALTERNATION_S - 5)
    assert heard_twice(sim, relay) == ["edge-1"]
    await sim.until(lambda: heard_twice(sim, relay) == [], within_s=10)


@story
async def test_the_node_is_judged_anew_in_each_session(sim: Sim) -> None:
    """Its link was away, and meanwhile the disk ran elsewhere: it is told when it comes back."""
    _, edge = await of_one_node(sim)
    edge.machine.is_cut = True
    await sim.until(lambda: not edge.has("RegistryConnected")(), within_s=30)
    moved = copy_of(sim, edge)
    await sim.until(moved.has("Leased", "MachineChanged"), within_s=2 * HEARD_S)
    edge.machine.is_cut = False
    assert isinstance(await edge.ends(within_s=30), ClonedNodeError)
    assert moved.is_alive

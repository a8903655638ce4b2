"""Stories of what members reach on each other, in networks that are put together as in life."""

from __future__ import annotations

import re
from collections.abc import Callable

from sim import Box, Sim, all_ready, ready, story

from edgelink.overlay.rpc_guard import RPC_TABLE
from edgelink.process.ports import Accepted
from edgelink.ray_cluster.firewall import RAY_TABLE


def answered(box: Box) -> list[str]:
    """What the kernel of that node lets in by the overlay's device, as its table has it."""
    chain = box.machine.firewall[RPC_TABLE].partition("chain inside")[2]
    return [rule.strip().partition(" accept")[0] for rule in chain.splitlines() if " dport " in rule]


def callers_of_sshd(box: Box) -> str:
    return next((rule for rule in answered(box) if rule.endswith("tcp dport { 22 }")), "")


@story
async def test_sshd_answers_head_and_relay(sim: Sim) -> None:
    """Who they are says the registry, also while it is away and the daemon is started anew."""
    relay, head, edge = await ready(sim, "cloud", "edge-1")
    relay_ip, head_ip = (box.membership.lease.overlay_ip for box in (relay, head))
    assert int(head_ip) == int(relay_ip) + 1
    assert callers_of_sshd(relay) == f"ip saddr {{ {head_ip} }} tcp dport {{ 22 }}"
    assert callers_of_sshd(head) == f"ip saddr {{ {relay_ip} }} tcp dport {{ 22 }}"
    assert callers_of_sshd(edge) == f"ip saddr {{ {relay_ip}-{head_ip} }} tcp dport {{ 22 }}"
    await relay.stop()
    await edge.kill()
    edge.machine.firewall.clear()
    edge.start()
    await sim.until(lambda: RPC_TABLE in edge.machine.firewall, within_s=60)
    assert callers_of_sshd(edge) == f"ip saddr {{ {relay_ip}-{head_ip} }} tcp dport {{ 22 }}"


@story
async def test_an_upgrade_leaves_open_what_members_use(sim: Sim) -> None:
    """The daemon before closed nothing; the operator answers in the configuration."""
    boxes = _, head, edge = await ready(sim, "cloud", "edge-1")
    await edge.kill()
    edge.paths.left_open_of("node").unlink()
    edge.machine.in_use = [Accepted(8888, "jupyter-lab", head.membership.lease.overlay_ip)]
    edge.start()
    await sim.until(edge.has("Shielded", "LeftOpen"), within_s=60)
    assert "tcp 8888 (jupyter-lab, used by cloud)" in edge.condition("Shielded").message
    assert any("8888" in rule for rule in answered(edge))
    await all_ready(sim, list(boxes))
    await edge.kill()
    firewall = edge.config.firewall.model_copy(update={"overlay_allow": ()})
    edge.config = edge.config.model_copy(update={"firewall": firewall})
    edge.start()
    await sim.until(edge.has("Shielded"), within_s=60)
    assert not any("8888" in rule for rule in answered(edge))


@story
async def test_what_is_in_use_later_is_not_asked_about(sim: Sim) -> None:
    """Only the first start of a version that closes ports looks."""
    _, head, edge = await ready(sim, "cloud", "edge-1")
    await edge.kill()
    edge.machine.in_use = [Accepted(8888, "jupyter-lab", head.membership.lease.overlay_ip)]
    edge.start()
    await sim.until(edge.has("Shielded"), within_s=60)
    assert not any("8888" in rule for rule in answered(edge))


def closed_to_neighbours(box: Box) -> set[str]:
    """The ports that Ray's table of that node drops outside of the overlay, as the table has them."""
    rules = re.findall(r"tcp dport \{ (.*?) \} .* drop", box.machine.firewall[RAY_TABLE])
    return {port for rule in rules for port in rule.split(", ")}


def closes(box: Box, port: str) -> Callable[[], bool]:
    return lambda: port in closed_to_neighbours(box)


@story
async def test_what_a_run_listens_on_is_closed_to_neighbours(sim: Sim) -> None:
    """Within five seconds, on head and edge, through a restart of the daemon, and until nothing of the run is there."""
    _, head, edge = await ready(sim, "cloud", "edge-1")
    for box in (head, edge):
        before = closed_to_neighbours(box)
        box.machine.run_ports = {8080}
        await sim.until(closes(box, "8080"), within_s=5)
        assert closed_to_neighbours(box) == before | {"8080"}
        assert not any("8080" in rule for rule in answered(box))
    await edge.kill()
    edge.machine.firewall.clear()
    edge.start()
    await sim.until(lambda: RAY_TABLE in edge.machine.firewall, within_s=60)
    await sim.until(closes(edge, "8080"), within_s=5)
    edge.machine.run_ports.clear()
    await sim.until(lambda: not closes(edge, "8080")(), within_s=5)
    assert edge.condition("Shielded").reason == "RulesInPlace"

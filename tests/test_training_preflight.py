"""Who is named for what, from what the nodes saw of each other."""

from __future__ import annotations

from typing import Any

from edgelink.errors import ExitCode
from edgelink.training.preflight import Question, Seen, failed, judge, slow_links, without_gloo

NODES = {"cloud": "10.10.0.2", "edge-1": "10.10.0.3", "edge-2": "10.10.0.4"}
QUESTION = Question(NODES, "et0")
LARGE = 32768
PAIRS = [(a, b) for a in NODES for b in NODES if a != b]


def facts(**other_devices: str) -> list[dict[str, Any]]:
    """Of each node; its overlay's device is et0 unless named here (dashes as underscores)."""
    return [
        {
            "event": "facts",
            "node": name,
            "devices": {
                "lo": {"ip": "127.0.0.1", "mtu": 65536},
                other_devices.get(name.replace("-", "_"), "et0"): {"ip": ip, "mtu": 1280},
            },
            "told_device": "et0",
        }
        for name, ip in NODES.items()
    ]


def links(
    *, lost: tuple[tuple[str, str], ...] = (), shrunk: tuple[tuple[str, str], ...] = (), bytes_arrived: int = 0
) -> dict[str, Any]:
    """All pairs, with packets lost on some ways (all, or large ones), and what the nodes then saw of it."""
    found, heard = [], {name: [] for name in NODES}
    for a, b in PAIRS:
        is_cut = (a, b) in lost or (b, a) in lost
        if (b, a) in lost and (a, b) not in lost:
            heard[b].append(NODES[a])  # the call came in, its answer did not come back
        large = None if is_cut else (a, b) not in shrunk
        error = "timed out" if is_cut or not large else ""
        link = {"from": a, "to": b, "connected": not is_cut, "small": not is_cut, "large": large, "error": error}
        found.append({**link, "arrived": 0 if large is None else LARGE if large else bytes_arrived})
    return {"event": "links", "links": found, "heard": heard}


def seen(*events: dict[str, Any], heard: frozenset[str] | None = None) -> Seen:
    made = Seen(heard=heard)
    for event in events:
        made.take(event)
    return made


def words(made: Seen, question: Question = QUESTION) -> list[str]:
    return [finding.message for finding in judge(question, made)]


def test_nodes_that_reach_each_other_are_fine() -> None:
    assert words(seen(*facts(), links(), {"event": "gloo", "problems": dict.fromkeys(NODES)}, {"event": "done"})) == []


def test_a_one_way_block_is_named_with_its_direction() -> None:
    """By the half-open connections: no call gets through either way, but that of the other side came in."""
    (finding,) = judge(QUESTION, seen(*facts(), links(lost=(("edge-1", "edge-2"),))))
    assert finding.message.startswith("one-way block: edge-1 (10.10.0.3) → edge-2 (10.10.0.4)")
    assert "outgoing on edge-1, incoming on edge-2" in finding.hint


def test_a_node_that_nobody_hears_is_named_once() -> None:
    """Not once for each of its pairs."""
    lost = (("edge-2", "cloud"), ("edge-2", "edge-1"))
    (finding,) = judge(QUESTION, seen(*facts(), links(lost=lost)))
    assert "edge-2 (10.10.0.4) → cloud (10.10.0.2), edge-1 (10.10.0.3)" in finding.message


def test_a_pair_that_is_cut_both_ways_is_named_once() -> None:
    lost = (("edge-1", "edge-2"), ("edge-2", "edge-1"))
    (finding,) = judge(QUESTION, seen(*facts(), links(lost=lost)))
    assert finding.message.startswith("edge-1 and edge-2: ")


def test_networks_mend_themselves_and_configurations_do_not() -> None:
    """A service tries again after 75, and not after 78."""
    (network,) = judge(QUESTION, seen(*facts(), links(lost=(("edge-1", "edge-2"),))))
    (device,) = judge(QUESTION, seen(*facts(edge_2="tun7")))
    assert failed([network]).exit_code == ExitCode.TRY_AGAIN
    assert failed([device]).exit_code == failed([network, device]).exit_code == ExitCode.CONFIG


def test_a_firewall_against_new_connections_is_named() -> None:
    event = links()
    for link in event["links"]:
        if (link["from"], link["to"]) == ("cloud", "edge-1"):
            link.update(connected=False, small=False, large=None, error="Connection refused")
    (message,) = words(seen(*facts(), event))
    assert message == "cloud cannot connect to edge-1 (Connection refused), though edge-1 can to cloud"


def test_an_mtu_black_hole_is_named_with_its_direction() -> None:
    (finding,) = judge(QUESTION, seen(*facts(), links(shrunk=(("cloud", "edge-1"),))))
    assert finding.message.startswith("MTU black hole: cloud (10.10.0.2) → edge-1 (10.10.0.3)")
    assert "1280" in finding.message
    assert "overlay.mtu" in finding.hint


def test_a_slow_link_is_no_black_hole() -> None:
    """A part of the large packets has arrived."""
    made = seen(*facts(), links(shrunk=(("cloud", "edge-1"),), bytes_arrived=8000))
    assert words(made) == []
    assert "cloud → edge-1" in str(slow_links(QUESTION, made))


def test_a_wrong_device_is_named_with_its_nodes() -> None:
    """What workers are told, against the device that has the overlay's address."""
    (message,) = words(seen(*facts(edge_2="tun7")))
    assert message.startswith("wrong device on edge-2 (10.10.0.4): there is no et0 with an address")
    assert "tun7" in message
    (message,) = words(seen(*facts()), Question(NODES, "lo"))
    assert message.startswith("wrong device on cloud (10.10.0.2), edge-1 (10.10.0.3), edge-2 (10.10.0.4): lo is")


def test_each_node_may_name_its_own_device() -> None:
    """As RLinf's workers do on a network that was there already."""
    events = facts(edge_2="tun7")
    events[2]["told_device"] = "tun7"
    assert words(seen(*events), Question(NODES, None)) == []


def silent(**look: Any) -> dict[str, Any]:
    return {"event": "silent", "nodes": {"edge-1": {"small": False, "large": False, "error": "timed out", **look}}}


def test_the_direction_to_a_silent_node_is_told_by_its_pings() -> None:
    """Ray brings no answer; the head's daemon hears the node's pings, or does not."""
    (message,) = words(seen(silent(), heard=frozenset({"10.10.0.3"})))
    assert message.startswith("one-way block: cloud (10.10.0.2) → edge-1 (10.10.0.3)")
    (message,) = words(seen(silent(), heard=frozenset({"10.10.0.4"})))
    assert message.startswith("block: edge-1 (10.10.0.3) → cloud (10.10.0.2): ")
    (message,) = words(seen(silent()))
    assert message.startswith("cloud and edge-1 (10.10.0.3): ")


def test_a_silent_node_that_only_small_packets_reach_is_behind_a_black_hole() -> None:
    (message,) = words(seen(silent(small=True)))
    assert message.startswith("MTU black hole: cloud (10.10.0.2) → edge-1 (10.10.0.3)")


def test_a_node_that_took_no_part_is_named_with_the_reason() -> None:
    (message,) = words(seen(silent(small=True, large=True, error="")))
    assert message.startswith("edge-1 (10.10.0.3) took no part: ")
    assert "raylet" in message
    (message,) = words(seen({"event": "silent", "nodes": {"edge-1": {"error": "ActorDiedError: gone"}}}))
    assert message == "edge-1 (10.10.0.3) took no part: ActorDiedError: gone"
    (message,) = words(seen(silent(error="Connection refused")))
    assert "raylet's port refuses" in message


def test_a_failed_reduction_is_told_where_nothing_else_is_wrong() -> None:
    problems = {"cloud": None, "edge-1": "RuntimeError: connectFullMesh", "edge-2": "RuntimeError: connectFullMesh"}
    gloo = {"event": "gloo", "problems": problems}
    (message,) = words(seen(*facts(), links(), gloo))
    assert "edge-1, edge-2: RuntimeError: connectFullMesh" in message
    (message,) = words(seen(*facts(), links(lost=(("edge-1", "edge-2"),)), gloo))
    assert message.startswith("one-way block")


def test_nodes_without_torch_are_named() -> None:
    torch = {"cloud": {"version": "2.5", "problem": ""}, "edge-1": {"version": None, "problem": "no torch"}}
    assert without_gloo(seen({"event": "torch", "nodes": torch})).endswith(": edge-1: no torch")
    assert ":" not in without_gloo(seen())

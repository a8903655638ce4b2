"""What people write for a lab's links, and what the kernel is told of it."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from telling import refuses

from edgelink.errors import LabError
from edgelink.lab import wan
from edgelink.lab.delayer import attribute, message, parsed
from edgelink.lab.lab import Lab
from edgelink.lab.processes import PinnedProcess
from edgelink.lab.state import LabState
from edgelink.lab.topology import build_topology
from edgelink.lab.wan import losses, netem, tbf
from edgelink.lab.wan_conditions import WanConditions, quantity


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rtt", "80ms", 80),
        ("rtt", "0.3s", 300),
        ("jitter", "10 ms", 10),
        ("loss", "1%", 1),
        ("loss", "0", 0),
        ("rate", "20mbit", 20),
        ("rate", "512kbit", 0.512),
        ("rate", "1Gbit", 1000),
        ("rate", "none", None),
    ],
)
def test_quantities_have_units(name: str, text: str, value: float | None) -> None:
    """In milliseconds, percent and Mbit/s."""
    assert quantity(name, text) == (value if value is None else pytest.approx(value))


@pytest.mark.parametrize(
    ("name", "text"),
    [("rtt", "80"), ("rtt", "1%"), ("rtt", "-5ms"), ("loss", "0.5"), ("loss", "none"), ("rate", "20M")],
)
def test_what_has_no_unit_or_anothers_is_refused_with_an_example(name: str, text: str) -> None:
    """80 could be seconds."""
    with pytest.raises(LabError) as caught:
        quantity(name, text)
    assert f"--{name} {text}" in caught.value.message
    assert f"write {name} as 20" in caught.value.hint


@pytest.mark.parametrize(
    "texts", [{"rtt": "11s"}, {"loss": "101%"}, {"jitter": "5ms"}, {"rtt": "5ms", "jitter": "6ms"}, {"rate": "1kbit"}]
)
def test_links_that_cannot_be_are_refused(texts: dict[str, str | None]) -> None:
    """A jitter beyond the round trip, more lost than sent, a rate below one packet a time."""
    with refuses(LabError, "a link cannot"):
        WanConditions().changed(texts)


def test_what_is_not_named_stays() -> None:
    """`lab set` changes one thing at a time; a rate of none takes the limit away."""
    first = WanConditions().changed({"rtt": "80ms", "loss": "1%", "rate": "20mbit", "jitter": None})
    assert first == WanConditions(rtt_ms=80, loss_percent=1, rate_mbit=20)
    assert first.changed({"rate": "none", "rtt": "300ms"}) == WanConditions(rtt_ms=300, loss_percent=1)
    assert str(first) == "rtt +80 ms, loss 1 %, 20 Mbit/s"
    assert str(WanConditions()) == ""


def test_each_direction_has_half_of_the_round_trip() -> None:
    """And of the jitter; loss and rate are by direction already."""
    found = netem(WanConditions(rtt_ms=80, jitter_ms=10, loss_percent=1, rate_mbit=20))
    assert " ".join(found).startswith("netem limit ")
    assert " ".join(found).endswith("delay 40ms 5ms rate 100gbit loss 1%")
    assert netem(WanConditions(rate_mbit=20)) == []
    assert tbf(WanConditions(rtt_ms=80)) == []
    assert " ".join(tbf(WanConditions(rate_mbit=20))) == "tbf rate 20000kbit burst 10000 latency 100ms"
    assert "burst 3200" in " ".join(tbf(WanConditions(rate_mbit=1))), "at least two packets"


def test_losses_are_by_device_and_direction() -> None:
    """Only links that lose are in the table, which is made anew as a whole."""
    links = [link for link in build_topology(2).links if link.far.node == "internet"]
    script = losses(dict.fromkeys(links[1:2], WanConditions(loss_percent=0.5)) | {links[0]: WanConditions(rtt_ms=5)})
    device = links[1].far.device
    assert f'iifname "{device}" numgen random mod 1000000000 < 5000000 drop' in script
    assert f'oifname "{device}" numgen random mod 1000000000 < 5000000 drop' in script
    assert script.count("drop") == 2
    assert script.startswith("table inet wan\ndelete table inet wan\n")


@pytest.mark.parametrize(
    ("percent", "rule"),
    [
        (0.0001, "numgen random mod 1000000000 < 1000 drop"),
        (99.9999, "numgen random mod 1000000000 < 999999000 drop"),
        (100, '"edge-1" drop'),
        (99.99999999, '"edge-1" drop'),
    ],
)
def test_a_loss_of_nearly_nothing_or_nearly_all_is_what_is_set(percent: float, rule: str) -> None:
    """Neither none at all, nor a comparison that nft refuses because it is always true."""
    (link,) = [link for link in build_topology(1).links if link.far.device == "edge-1"]
    assert rule in losses({link: WanConditions(loss_percent=percent)})


class World:
    """A lab that is up, on a kernel without netem; its programs are run by nobody, and can be made to fail."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("edgelink.lab.state.LAB_ROOT", directory)
        monkeypatch.setattr("edgelink.lab.lab.LAB_ROOT", directory)
        monkeypatch.setattr("edgelink.lab.namespaces.check_root", lambda: None)
        monkeypatch.setattr(wan, "_check_programs", lambda: None)
        monkeypatch.setattr(wan, "_start_delayer", self.start_delayer)
        monkeypatch.setattr("os.kill", lambda pid, number: self.signals.append((pid, number)))
        self.lab = Lab("one")
        monkeypatch.setattr(self.lab, "exec", self.run)
        self.lab.directory.mkdir()
        self.file = self.lab.directory / "state.json"
        LabState(2, direct=False, accelerators=False, is_complete=True).save(self.file)
        self.delayers: list[PinnedProcess] = []
        self.signals: list[tuple[int, int]] = []
        self.failures: list[str] = []
        self.queued = ""

    def start_delayer(self, _lab: Lab) -> PinnedProcess:
        self.delayers.append(PinnedProcess.of(os.getpid()))
        return self.delayers[-1]

    def run(self, _node: str, argv: list[str], *, stdin: str | None = None, **_: Any) -> CompletedProcess[str]:
        if argv[0] in self.failures and "del" not in argv and "lo" not in argv:  # those are tries
            self.failures.remove(argv[0])
            return CompletedProcess(argv, 1, "", "no such table")
        if argv[0] == "iptables-restore":
            assert stdin is not None
            self.queued = stdin
        return CompletedProcess(argv, 1 if "netem" in argv else 0, "", "")

    @property
    def state(self) -> LabState:
        return LabState.load(self.file)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_a_delayer_is_not_lost_when_the_rest_fails(world: World) -> None:
    """It has the queue: the next `lab set` could start no other one."""
    world.failures = ["iptables-restore"]
    with pytest.raises(LabError, match="no such table"):
        world.lab.set_wan(["edge-1"], {"rtt": "80ms"})
    assert world.state.delayer == world.delayers[0]
    assert world.lab.set_wan(["edge-1"], {"rtt": "90ms"}) == {"edge-1": "rtt +90 ms"}
    assert len(world.delayers) == 1


@pytest.mark.parametrize("program", ["tc", "nft", "iptables-restore"])
def test_links_are_as_before_when_one_cannot_be_set(world: World, program: str) -> None:
    """What is recorded, and what the kernel was told last."""
    world.lab.set_wan(["edge-1"], {"rtt": "80ms"})
    before, queued = world.state.wan, world.queued
    world.failures = [program]
    with pytest.raises(LabError):
        world.lab.set_wan(["edge-1", "edge-2"], {"rtt": "300ms", "loss": "1%", "rate": "1mbit"})
    found = world.state.wan
    assert found["edge-1"] == before["edge-1"]
    assert found.get("edge-2", WanConditions()) == WanConditions()
    assert world.queued == queued
    assert json.loads((world.lab.directory / "delays.json").read_text()) == {"edge-1": [40.0, 0.0]}


def test_a_delayer_that_is_reading_sees_all_of_the_old_delays_or_of_the_new_ones(world: World) -> None:
    world.lab.set_wan(["edge-1"], {"rtt": "80ms"})
    with (world.lab.directory / "delays.json").open() as reading:
        world.lab.set_wan(["edge-1"], {"rtt": "90ms"})
        assert json.load(reading) == {"edge-1": [40.0, 0.0]}


def test_a_packet_is_known_by_its_number_and_devices() -> None:
    """As nfnetlink_queue.h lays it out; what else the kernel tells, in whatever order, is passed over."""
    data = (
        attribute(1, struct.pack("!IHB", 77, 0x0800, 2))
        + attribute(9, b"\x00\x06\x00\x00" + bytes(8))
        + attribute(6, struct.pack("!I", 5))
        + attribute(5, struct.pack("!I", 4))
    )
    packet = message(0, data)
    assert parsed(packet, 20, len(packet)) == (77, (4, 5))
    assert parsed(packet[:36], 20, 36) == (77, (0, 0))

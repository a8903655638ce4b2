"""What people write for a lab's links, and what the kernel is told of it."""

from __future__ import annotations

import struct

import pytest

from edgelink.errors import LabError
from edgelink.lab.delayer import attribute, message, parsed
from edgelink.lab.topology import build_topology
from edgelink.lab.wan import WanConditions, losses, netem, quantity, tbf


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
    with pytest.raises(LabError, match="a link cannot have"):
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
    assert f'iifname "{device}" numgen random mod 100000 < 500 drop' in script
    assert f'oifname "{device}" numgen random mod 100000 < 500 drop' in script
    assert script.count("drop") == 2
    assert script.startswith("table inet wan\ndelete table inet wan\n")


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

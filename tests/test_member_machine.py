"""By what a machine is known that a copy of its disk does not carry."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgelink.member.machine import Device, addresses, fingerprint, machine_parts
from edgelink.protocol.payloads import MAX_MACHINE_PARTS
from edgelink.relay.claims import is_same_machine

CARD, WIFI, DONGLE = "02:fc:00:00:00:01", "9c:b6:d0:00:00:02", "00:e0:4c:00:00:03"
UUID = "4c4c4544-0042-3510-8051-b4c04f4e3732"


def test_hardware_is_known_by_what_it_was_made_with() -> None:
    """Wi-Fi takes another address for each network; bridges and the like make theirs up at each start."""
    devices = [
        Device("", "da:a1:19:00:00:09", permanent=WIFI),
        Device("", CARD, permanent=CARD),
        Device("bridge", "02:42:ac:11:00:01"),
        Device("veth", "5e:00:00:00:00:07"),
        Device("tun", ""),
    ]
    assert addresses(devices) == [WIFI, CARD]


def test_where_the_kernel_knows_no_permanent_address() -> None:
    """Older kernels: that of the card in use. A container without a card: that of what stands for it there."""
    veth = Device("veth", "5e:00:00:00:00:07")
    assert addresses([Device("", CARD, permanent="00:00:00:00:00:00"), veth]) == [CARD]
    assert addresses([Device("bridge", "02:42:ac:11:00:01"), veth]) == [veth.address]
    assert addresses([Device("tun", "")]) == []


def test_what_is_told_says_nothing_to_others() -> None:
    """Keyed by the network: neither the address nor the number is in it, nor can two networks compare."""
    told = fingerprint("network-1", [UUID], [CARD])
    assert len(told) == 2
    assert not any(CARD in part or UUID in part for part in told)
    assert not set(told) & set(fingerprint("network-2", [UUID], [CARD]))
    assert told == fingerprint("network-1", [UUID.upper()], [CARD.upper()])


def test_a_machine_with_very_many_devices_is_known_by_them() -> None:
    """No more is told than fits, and devices rather than the board."""
    told = fingerprint("network", [UUID], [f"02:00:00:00:{n // 256:02x}:{n % 256:02x}" for n in range(500)])
    assert len(told) == MAX_MACHINE_PARTS
    assert all(part.startswith("mac:") for part in told)


@pytest.mark.parametrize(
    "one, other, same",
    [
        (([UUID], [CARD]), ([UUID], [CARD, DONGLE]), True),  # something was plugged in
        (([UUID], [CARD, DONGLE]), ([UUID], [DONGLE, WIFI]), True),
        (([UUID], [CARD]), ([UUID], [WIFI]), False),  # containers of one host; the disk in another machine
        (([UUID], [CARD]), (["another"], [CARD]), True),  # the firmware was written anew
        (([UUID], []), ([UUID], [CARD]), True),
        (([UUID], []), (["another"], []), False),
        (([UUID], []), (["another"], [CARD]), False),
        (([], [CARD]), ([UUID], []), True),  # nothing to compare
        (([], []), ([UUID], [CARD]), True),
    ],
)
def test_when_two_are_one_machine(
    one: tuple[list[str], list[str]], other: tuple[list[str], list[str]], same: bool
) -> None:
    """By a device in common, else by the board; where there is nothing to compare nothing speaks against it."""
    first, second = fingerprint("network", *one), fingerprint("network", *other)
    assert is_same_machine(first, second) is same
    assert is_same_machine(second, first) is same


async def test_this_machine_is_the_same_at_each_look(tmp_path: Path) -> None:
    """The board's numbers are read where they are filled in; what cannot be read is left out."""
    board, unfilled, zeros = tmp_path / "product_uuid", tmp_path / "board_serial", tmp_path / "zeros"
    board.write_text(f"{UUID}\n")
    unfilled.write_text("To be filled by O.E.M.\n")
    zeros.write_text("00000000-0000-0000-0000-000000000000\n")
    files = [board, unfilled, zeros, tmp_path / "absent", tmp_path]
    told = await machine_parts("network", files)
    assert told == await machine_parts("network", files)
    assert [part for part in told if part.startswith("board:")] == list(fingerprint("network", [UUID], []))

"""What nft's listing tells of dropped packets: how many of each kind, and which ones lately."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from telling import Words

from edgelink.overlay.overlay_drops import Dropped, Drops, Kind, in_words, noted_in

MARK = "edgelink 0123456789abcdef"
# As nft 1.0.6 lists it.
LISTING = """table inet edgelink_easytier {{ # handle 4
	set noted_from_member {{ # handle 11
		type ifname . ipv4_addr . ipv4_addr
		size 64
		flags dynamic,timeout
		timeout 15m
		elements = {{ "wlp2s0" . 10.10.0.2 . 192.168.11.2 expires 14m58s996ms }}
	}}

	set noted_unleased {{ # handle 12
		type ifname . ipv4_addr . ipv4_addr
		size 64
		flags dynamic,timeout
		timeout 15m
		elements = {{ "et0" . 10.10.0.78 . 10.10.0.2 expires 14m58s996ms,
			"et0" . 10.10.0.77 . 10.10.0.2 expires 14m59s996ms }}
	}}

	set noted_foreign {{ # handle 13
		type ifname . ipv4_addr . ipv4_addr
		size 64
		flags dynamic,timeout
		timeout 15m
	}}

	chain from_members {{ # handle 5
		type filter hook prerouting priority raw; policy accept;
		iifname "lo" ip saddr 10.10.0.3 accept comment "{mark}" # handle 6
		iifname != "et0" ip saddr 10.10.0.0/24 counter packets {beside} bytes 8 drop comment "{mark} from_member" #
		iifname "et0" ip saddr != 10.10.0.0/24 counter packets 0 bytes 0 drop comment "{mark} foreign" # handle 8
		iifname "et0" ip saddr != {{ 10.10.0.1, 10.10.0.2,
					10.10.0.3 }} counter packets {unleased} bytes 9 drop comment "{mark} unleased" # handle 9
	}}
	chain input {{ # handle 1
		tcp dport 15888 counter packets 99 bytes 99 drop comment "{mark}" # handle 10
	}}
}}
"""


def listing(beside: int = 0, unleased: int = 0) -> str:
    return LISTING.format(beside=beside, unleased=unleased, mark=MARK)


def counted(*looks: tuple[str, bool]) -> dict[Kind, int]:
    drops = Drops()
    for told, is_made_anew in looks:
        drops.note(told, is_made_anew=is_made_anew)
    return {kind: count for kind, count in drops.totals.items() if count}


@pytest.mark.parametrize(
    ("looks", "totals"),
    [
        ([(listing(5), False)], {}),
        ([(listing(5), False), (listing(5), False)], {}),
        ([(listing(5), False), (listing(7, 1), False)], {Kind.FROM_MEMBER: 2, Kind.UNLEASED: 1}),
        ([("", True), (listing(3), False)], {Kind.FROM_MEMBER: 3}),
        ([(listing(5), False), (listing(6), True), (listing(2), False)], {Kind.FROM_MEMBER: 3}),
        ([(listing(5), False), (listing(6), True), (listing(9), False)], {Kind.FROM_MEMBER: 10}),
        ([(listing(5), False), ("", True), (listing(0), False)], {}),
        ([(listing(5), False), (listing(2), False)], {Kind.FROM_MEMBER: 2}),
    ],
    ids=[
        "what a predecessor's table counts is no growth",
        "nothing more was dropped",
        "more was dropped",
        "a new table of ours",
        "the table was replaced",
        "it was replaced, and has dropped more since",
        "somebody flushed it",
        "somebody made it anew between two looks",
    ],
)
def test_a_counter_that_grows_counts_once(looks: list[tuple[str, bool]], totals: dict[Kind, int]) -> None:
    assert counted(*looks) == totals


def test_what_was_dropped_lately_is_told_with_device_and_addresses(words: Words) -> None:
    """In an order of its own, since a hash table has none."""
    ours, mine = IPv4Address("10.10.0.2"), IPv4Address("192.168.11.2")
    assert noted_in(listing()) == (
        Dropped(Kind.FROM_MEMBER, "wlp2s0", ours, mine),
        Dropped(Kind.UNLEASED, "et0", IPv4Address("10.10.0.77"), ours),
        Dropped(Kind.UNLEASED, "et0", IPv4Address("10.10.0.78"), ours),
    )
    words(in_words(noted_in(listing())))
    assert in_words(noted_in("")) == ""


def test_what_is_dropped_of_revoked_nodes_is_counted_and_surprises_nobody() -> None:
    """Their rules have no set: `Shielded` tells of these nodes already."""
    told = f'\t\tip saddr 10.10.0.9 counter packets 7 bytes 8 drop comment "{MARK} from_revoked"\n'
    assert counted(("", True), (told, False)) == {Kind.FROM_REVOKED: 7}
    assert noted_in(told) == ()

"""What a kernel does with packets that come in by the overlay's device, by the rules of a node: no EasyTier, no lab.

A node, a member beside it on ``et0``, and a container behind the node, as Docker would have one: with a published port.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface

import pytest

from edgelink.config import Config
from edgelink.overlay.nft import Table, elements_in
from edgelink.overlay.openings import Opening
from edgelink.overlay.overlay_rules import OverlayRules
from edgelink.overlay.rpc_guard import rpc_guard
from edgelink.protocol.payloads import EdgesOpenTo
from edgelink.shield.inside import SeenPorts, own_openings
from edgelink.testing.payloads import cluster_spec, entry, lease

NODE, HEAD, MEMBER, CONTAINER, BRIDGE = "10.10.0.3", "10.10.0.1", "10.10.0.4", "172.17.0.2", "172.17.0.1"
SSH, JUPYTER, GCS, RENDEZVOUS, PUBLISHED, ROS = 22, 8888, 6379, 45000, 8080, 7447
ECHO, NOBODYS, DNS = 9749, 9, 53
OWN = frozenset(
    {
        Opening("tcp", GCS, GCS),
        Opening("tcp", 32768, 60999),
        Opening("udp", ECHO, ECHO),
        Opening("udp", 32768, 60999),
        Opening("tcp", SSH, SSH, frozenset({IPv4Address(HEAD)})),
    }
)
_SERVE = """
import selectors, socket, sys
with selectors.DefaultSelector() as selector:
    for port in map(int, sys.argv[1:]):
        selector.register(socket.create_server(("0.0.0.0", port)), selectors.EVENT_READ, "tcp")
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # who connects from here is another
        datagrams.bind(("0.0.0.0", port))
        selector.register(datagrams, selectors.EVENT_READ, "udp")
    print("serving", flush=True)
    while True:
        for key, _ in selector.select():
            if key.data == "tcp":
                selector.register(key.fileobj.accept()[0], selectors.EVENT_READ, "stream")
            elif key.data == "udp":
                data, sender = key.fileobj.recvfrom(65535)
                key.fileobj.sendto(data, sender)
            elif data := key.fileobj.recv(65535):
                key.fileobj.sendall(data)
            else:
                selector.unregister(key.fileobj)
"""
# `tcp/PORT` or `udp/PORT`; a third field is the port to send from.
_TRY = """
import socket, sys, time
source, target, *wanted = sys.argv[1:]
for each in wanted:
    kind, port, *own = each.split("/")
    began_s = time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as end:
        end.settimeout(3)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            end.bind((source, int(own[0]) if own else 0))
            end.connect((target, int(port)))
            end.send(b"x" * 4000)
            told = "answers" if end.recv(4000) else "closed"
        except OSError as error:
            told = type(error).__name__
    print(each, told if time.monotonic() - began_s < 1 else told + " late")
"""
_DOCKER = f"""
table ip nat {{
  chain prerouting {{
    type nat hook prerouting priority dstnat;
    iifname "et0" tcp dport {PUBLISHED} dnat to {CONTAINER}:80
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat;
    ip saddr {CONTAINER} oifname "et0" masquerade
  }}
}}
"""


@dataclass
class Namespace:
    """A network namespace that lives as long as the process that holds it."""

    holder: subprocess.Popen[bytes]

    def argv(self, *argv: str) -> list[str]:
        return ["nsenter", "-t", str(self.holder.pid), "-n", *argv]

    def run(self, *argv: str, text: str = "") -> str:
        done = subprocess.run(self.argv(*argv), input=text, text=True, capture_output=True, check=False, timeout=30)
        assert done.returncode == 0, (argv, done.stderr)
        return done.stdout

    def sh(self, *commands: str) -> None:
        self.run("sh", "-ec", "\n".join(commands))

    def tries(self, source: str, target: str, *wanted: str) -> dict[str, str]:
        """What comes of trying these ports, by port."""
        told = self.run(sys.executable, "-c", _TRY, source, target, *wanted)
        return dict(line.split(" ", 1) for line in told.splitlines())


@dataclass
class World:
    node: Namespace
    member: Namespace
    container: Namespace

    def close(
        self,
        openings: frozenset[Opening] | None = OWN,
        device: str = "et0",
        impostors: frozenset[IPv4Address] = frozenset(),
    ) -> Table:
        rules = OverlayRules(IPv4Interface(f"{NODE}/24"), openings=openings, impostors=impostors)
        table = rpc_guard(15888, device, rules)
        self.node.run("nft", "-f", "-", text=table.script)
        return table


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with ExitStack() as held:

        def namespace() -> Namespace:
            holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE)
            held.callback(holder.wait)
            held.callback(holder.kill)
            assert holder.stdout is not None
            holder.stdout.readline()  # it is in its namespace then
            return Namespace(holder)

        node, member, container = namespace(), namespace(), namespace()
        node.sh(
            "ip link set lo up",
            f"ip link add et0 type veth peer name et0 netns {member.holder.pid}",
            f"ip address add {NODE}/24 dev et0; ip link set et0 up",
            f"ip link add docker0 type veth peer name eth0 netns {container.holder.pid}",
            "ip address add 172.17.0.1/24 dev docker0; ip link set docker0 up",
            "echo 1 > /proc/sys/net/ipv4/ip_forward",
        )
        addresses = (f"ip address add {address}/24 dev et0" for address in (MEMBER, HEAD))
        member.sh("ip link set lo up", "ip link set et0 up", *addresses)
        member.sh(f"ip route add 172.17.0.0/24 via {NODE}")  # root of a member can send to whatever address
        container.sh(
            f"ip link set lo up; ip address add {CONTAINER}/24 dev eth0; ip link set eth0 up",
            "ip route add default via 172.17.0.1",
        )
        node.run("nft", "-f", "-", text=_DOCKER)
        for where, ports in (
            (node, (SSH, JUPYTER, GCS, RENDEZVOUS, ROS, ECHO)),
            (member, (DNS, 123, ECHO)),
            (container, (80, RENDEZVOUS)),
        ):
            serving = subprocess.Popen(
                where.argv(sys.executable, "-c", _SERVE, *map(str, ports)), stdout=subprocess.PIPE
            )
            held.callback(serving.wait)
            held.callback(serving.kill)
            assert serving.stdout is not None
            assert serving.stdout.readline(), "it does not serve"
        yield World(node, member, container)


@pytest.fixture(autouse=True)
def as_before(world: World) -> Iterator[None]:
    yield
    world.node.run("nft", "-f", "-", text="table inet edgelink_easytier\ndelete table inet edgelink_easytier\n")


TCP = [f"tcp/{port}" for port in (SSH, JUPYTER, GCS, RENDEZVOUS, PUBLISHED)]
UDP = [f"udp/{port}" for port in (JUPYTER, RENDEZVOUS, ROS, ECHO)]
REFUSED = "ConnectionRefusedError"
OPENED = (f"tcp/{RENDEZVOUS}", f"udp/{RENDEZVOUS}")
BEYOND = (CONTAINER, BRIDGE)


def test_without_the_rules_a_member_reaches_all_of_it(world: World) -> None:
    """So the other tests see what they have to see."""
    assert world.member.tries(MEMBER, NODE, *TCP, *UDP) == dict.fromkeys([*TCP, *UDP], "answers")
    for beyond in BEYOND:
        assert world.member.tries(MEMBER, beyond, OPENED[0]) == {OPENED[0]: "answers"}


def test_a_member_gets_no_further_than_to_the_node_itself(world: World) -> None:
    """The node is a router for its containers. A port that is open on it is open neither there nor on its LAN."""
    world.close()
    for beyond in BEYOND:
        assert world.member.tries(MEMBER, beyond, *OPENED) == dict.fromkeys(OPENED, "TimeoutError late")


def test_a_member_reaches_what_is_open_and_is_refused_the_rest_at_once(world: World) -> None:
    """Answers of four kilobytes come in fragments. What a container publishes is closed, too."""
    world.close()
    nobodys = [f"tcp/{NOBODYS}", f"udp/{NOBODYS}"]
    found = world.member.tries(MEMBER, NODE, *TCP, *UDP, *nobodys)
    opened = {f"tcp/{GCS}", f"tcp/{RENDEZVOUS}", f"udp/{RENDEZVOUS}", f"udp/{ECHO}"}
    assert found == {each: "answers" if each in opened else REFUSED for each in found}
    assert "1 received" in world.member.run("ping", "-c", "1", "-W", "2", "-s", "4000", NODE)


def test_sshd_answers_those_that_may_ask(world: World) -> None:
    world.close()
    assert world.member.tries(HEAD, NODE, f"tcp/{SSH}", f"tcp/{JUPYTER}") == {
        f"tcp/{SSH}": "answers",
        f"tcp/{JUPYTER}": REFUSED,
    }


def test_a_published_port_is_opened_by_the_number_that_one_dials(world: World) -> None:
    world.close(OWN | {Opening("tcp", PUBLISHED, PUBLISHED)})
    assert world.member.tries(MEMBER, NODE, f"tcp/{PUBLISHED}", "tcp/80") == {
        f"tcp/{PUBLISHED}": "answers",
        "tcp/80": REFUSED,
    }


@pytest.mark.parametrize("openings", [OWN, frozenset()], ids=["by default", "nothing is open"])
def test_answers_come_in(world: World, openings: frozenset[Opening]) -> None:
    """To the node and to its container, whatever port they ask from. There is no connection tracking for the node."""
    world.close(openings)
    wanted = ["tcp/53", "udp/53", "udp/123/5000"]
    assert world.node.tries(NODE, MEMBER, *wanted) == dict.fromkeys(wanted, "answers")
    assert world.container.tries(CONTAINER, MEMBER, *wanted) == dict.fromkeys(wanted, "answers")
    assert world.member.tries(MEMBER, NODE, "udp/53/5000") == {"udp/53/5000": REFUSED}


def test_who_is_somebody_else_gets_echoes_through_and_no_other_packet(world: World) -> None:
    """Whatever port it sends from. The node's own question is answered."""
    world.close(impostors=frozenset({IPv4Address(MEMBER)}))
    wanted = [f"tcp/{GCS}", f"udp/{RENDEZVOUS}", f"udp/{RENDEZVOUS}/{ECHO}", f"udp/{JUPYTER}/{ECHO}"]
    assert world.member.tries(MEMBER, NODE, *wanted) == dict.fromkeys(wanted, "TimeoutError late")
    assert world.member.tries(MEMBER, NODE, f"udp/{ECHO}") == {f"udp/{ECHO}": "answers"}
    assert world.node.tries(NODE, MEMBER, f"udp/{ECHO}", f"tcp/{DNS}") == {
        f"udp/{ECHO}": "answers",
        f"tcp/{DNS}": "TimeoutError late",
    }


def test_a_connection_that_is_there_goes_on(world: World) -> None:
    """The rules come while it is used."""
    talk = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as end:
    for line in sys.stdin:
        end.sendall(line.encode())
        print(end.recv(100).decode(), end="", flush=True)
"""
    argv = world.member.argv(sys.executable, "-c", talk, NODE, str(JUPYTER))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as connected:
        assert connected.stdin is not None
        assert connected.stdout is not None

        def says(word: str) -> str:
            print(word, file=connected.stdin, flush=True)
            return connected.stdout.readline().strip() if connected.stdout else ""

        assert says("before") == "before"
        world.close()
        assert world.member.tries(MEMBER, NODE, f"tcp/{JUPYTER}") == {f"tcp/{JUPYTER}": REFUSED}
        assert says("after") == "after"


def test_another_table_keeps_what_was_asked(world: World) -> None:
    """Rules change while an answer is on its way: whenever a node joins, and whenever the operator opens a port."""
    listing = ("nft", "-a", "list", "table", "inet", world.close().name)
    world.node.tries(NODE, MEMBER, "udp/123/5000", "udp/53/5001")
    before = world.node.run(*listing)
    doubted = f"{HEAD} timeout 30s"
    world.node.run("nft", "-f", "-", text=f"add element inet edgelink_easytier doubted {{ {doubted} }}")
    rules = OverlayRules(IPv4Interface(f"{NODE}/24"), openings=OWN, impostors=frozenset({IPv4Address(HEAD)}))
    script = rpc_guard(15888, "et0", rules).script_after(world.node.run(*listing))
    world.node.run("nft", "-f", "-", text=script)
    asked = {each.partition(" expires")[0] for each in elements_in(before, "asked")}
    assert asked == {f"{MEMBER} . 123 . 5000", f"{MEMBER} . 53 . 5001"}
    found = world.node.run(*listing)
    assert {each.partition(" expires")[0] for each in elements_in(found, "asked")} == asked
    assert all("expires 2m" in each for each in elements_in(found, "asked")), "no time is added"
    assert [each.partition(" expires")[0] for each in elements_in(found, "doubted")] == [doubted]
    assert elements_in(found, "echoes") == []


def test_edges_answer_each_other_during_a_run_only(world: World) -> None:
    """By `access: per-run`. The head is let in at any time, another edge while the head names it."""
    own, head = lease("edge-1", NODE), entry("cloud", HEAD, 0)
    steps: list[tuple[EdgesOpenTo, str]] = [("head", REFUSED), ("members", "answers"), ("head", REFUSED)]
    for word, comes in steps:
        spec = cluster_spec(head, head, own, entry("edge-2", MEMBER), ray_port=GCS, edges_open_to=word)
        world.close(own_openings(Config(), own, None, spec, SeenPorts(frozenset({SSH}), ((32768, 60999),))))
        assert world.member.tries(MEMBER, NODE, *OPENED) == dict.fromkeys(OPENED, comes)
        assert world.member.tries(HEAD, NODE, *OPENED) == dict.fromkeys(OPENED, "answers")
        assert world.member.tries(MEMBER, NODE, f"udp/{ECHO}") == {f"udp/{ECHO}": "answers"}
        assert world.node.tries(NODE, MEMBER, "udp/123/45001") == {"udp/123/45001": "answers"}


async def test_the_table_is_known_again(world: World) -> None:
    """Else it would be made anew at each look, and forget what was asked."""
    table = world.close(OWN | {Opening("tcp", JUPYTER, JUPYTER, frozenset(map(IPv4Address, (HEAD, MEMBER))))})
    world.node.tries(NODE, MEMBER, "udp/123/5000")
    told = world.node.run("nft", "-a", "list", "table", "inet", table.name)
    assert "10.10.0.4 . 123 . 5000" in told
    assert told.count(table.mark) == table.chains.count("@MARK@")

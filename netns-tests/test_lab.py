"""The lab itself: sealed, translated, private, and gone without a trace."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import MakeLab
from faults import cut, mend
from machines import wait_until

from edgelink.errors import DeadlineError, LabError, MissingDependencyError
from edgelink.lab import Lab
from edgelink.lab.mount_points import MOUNT_POINTS, mounted_anywhere
from edgelink.lab.namespaces import NETNS_DIRECTORY, addresses, existing_netns, netns_path
from edgelink.lab.processes import PinnedProcess, kill_all_in, namespace_id, pids_in
from edgelink.lab.state import LAB_ROOT, locked_root
from edgelink.process.identity import marked_pids

RELAY = "203.0.113.10"
CLOUD, CLOUD_NAT_WAN = "192.168.10.2", "198.51.100.2"
EDGE_1, EDGE_1_NAT_WAN = "192.168.11.2", "198.51.100.6"
PORT = 7000

_LISTEN = f"""
import socket
server = socket.create_server(("0.0.0.0", {PORT}))
print("listening", flush=True)
while True:
    connection, peer = server.accept()
    connection.sendall(peer[0].encode())
    connection.close()
"""
_CONNECT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1.5) as connection:
    print(connection.recv(100).decode())
"""


def connect(lab: Lab, node: str, address: str, port: int = PORT) -> subprocess.CompletedProcess[str]:
    return lab.exec(node, ["python", "-c", _CONNECT, address, str(port)], capture=True)


def listen(lab: Lab, node: str, tmp_path: Path) -> None:
    log = tmp_path / f"{node}.log"
    lab.popen(node, ["python", "-c", _LISTEN], log)
    wait_until(f"{node} listens", log.read_text, wanted=lambda text: "listening" in text)


def traces(lab: Lab) -> list[str]:
    """Whatever of the lab is still on the machine."""
    left = [str(path) for path in existing_netns(lab.name)]
    left += [f"pid {pid}" for pid in marked_pids(f"EDGELINK_LAB_HOLDER={lab.name}")]
    left += [f"pid {pid}" for pid in marked_pids(f"EDGELINK_LAB={lab.name}")]
    left += [point for point in mounted_anywhere() if f"/{lab.name}/" in point]
    return left + [str(path) for path in [lab.directory] if path.exists()]


@pytest.mark.parametrize("node", ["relay", "cloud", "edge-2", "cloud-nat", "internet"])
def test_no_route_leads_out(network: Lab, node: str) -> None:
    """A public address cannot be reached from any node, and one is told so at once."""
    for address in ("1.1.1.1", "192.0.2.1"):
        assert network.exec(node, ["ping", "-c1", "-W2", address], capture=True).returncode != 0
        answer = connect(network, node, address, 443)
        assert answer.returncode != 0
        assert "unreachable" in answer.stderr.lower()


@pytest.mark.parametrize("node", ["edge-1", "relay"])
def test_a_cut_link_is_silent_and_mends(network: Lab, node: str) -> None:
    """No answer and no refusal while it is cut, also when it is cut twice; mended, it is as before."""

    def ping(source: str) -> tuple[int, str]:
        answer = network.exec(source, ["ping", "-c1", "-W1", RELAY], capture=True)
        return answer.returncode, answer.stdout + answer.stderr

    assert ping("edge-1")[0] == 0
    with cut(network, node):
        cut(network, node)
        code, words = ping("edge-1")
        assert code == 1, words  # 1: no answer; 2: an error
        assert "nreachable" not in words
        assert ping("cloud")[0] == (1 if node == "relay" else 0)
    code, words = ping("edge-1")
    assert code == 0, words
    mend(network, node)


def test_no_interface_leads_to_the_host(network: Lab) -> None:
    """Every link has both ends inside the lab, and IPv6 is off, so nothing finds a way through the host."""
    host_links = {path.name for path in Path("/sys/class/net").iterdir()}
    inside = {network_id for node in network.topology.nodes if (network_id := _network_id(network, node.name))}
    assert namespace_id("/proc/self/ns/net") not in inside
    for node in network.topology.nodes:
        devices = addresses(netns_path(network.name, node.name))
        ends = {p.device for link in network.topology.links for p in (link.near, link.far) if p.node == node.name}
        assert set(devices) == {"lo"} | ends
        assert network.exec(node.name, ["ip", "-6", "address"], capture=True, check=True).stdout == ""
    assert host_links == {path.name for path in Path("/sys/class/net").iterdir()}


def _network_id(lab: Lab, node: str) -> tuple[int, int] | None:
    return namespace_id(netns_path(lab.name, node))


def mac_addresses(lab: Lab, node: str) -> list[str]:
    shown = lab.exec(node, ["ip", "-o", "link"], capture=True, check=True).stdout
    return re.findall(r"link/ether (\S+)", shown)


def test_a_rebooted_node_has_its_disk_and_its_network_again(network: Lab, tmp_path: Path) -> None:
    """All its processes are gone, /run is empty, what lay on disk is there; addresses, route and NAT are as before."""
    before = {row["node"]: row["addresses"] for row in network.status()}
    child = network.popen("edge-1", ["sleep", "1000"], tmp_path / "sleep.log")
    for directory in ("/var/lib/edgelink", "/run/edgelink", "/dev/shm"):
        network.exec("edge-1", ["touch", f"{directory}/note"], check=True)
    cards = mac_addresses(network, "edge-1")
    network.reboot("edge-1")
    assert mac_addresses(network, "edge-1") == cards != []
    assert child.wait(60) == -signal.SIGKILL
    assert {row["node"]: row["addresses"] for row in network.status()} == before
    assert network.pids("edge-1") == set()
    found = network.exec(
        "edge-1", ["sh", "-c", "ls /var/lib/edgelink/note /run/edgelink/note /dev/shm/note"], capture=True
    )
    assert found.stdout.split() == ["/var/lib/edgelink/note"]
    listen(network, "relay", tmp_path)
    assert connect(network, "edge-1", RELAY).stdout.strip() == EDGE_1_NAT_WAN
    with pytest.raises(LabError, match="is a router"):
        network.reboot("edge-1-nat")


def test_a_name_lookup_fails_at_once(network: Lab) -> None:
    """There is no resolver, and nobody waits for one."""
    result = network.exec("edge-1", ["timeout", "4", "getent", "ahostsv4", "example.com"], capture=True)
    assert result.returncode not in (0, 124)
    own = network.exec("edge-1", ["getent", "hosts", "relay.edgelink.test"], capture=True, check=True)
    assert own.stdout.split()[0] == RELAY


def test_the_routers_translate(network: Lab, tmp_path: Path) -> None:
    """The relay sees a site's public address only, and every site reaches the relay."""
    listen(network, "relay", tmp_path)
    assert connect(network, "cloud", RELAY).stdout.strip() == CLOUD_NAT_WAN
    assert connect(network, "edge-1", RELAY).stdout.strip() == EDGE_1_NAT_WAN


_MAPPED = """
import socket, sys
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.bind(("0.0.0.0", 40000))
own.settimeout(3)
for port in sys.argv[2:]:
    own.sendto(b"?", (sys.argv[1], int(port)))
    print(own.recv(100).decode())
"""
_MAPPER = f"""
import select, socket
ends = []
for port in ({PORT}, {PORT + 1}):
    ends.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    ends[-1].bind(("0.0.0.0", port))
print("listening", flush=True)
while True:
    for end in select.select(ends, [], [])[0]:
        _, (address, port) = end.recvfrom(100)
        end.sendto(f"{{address}}:{{port}}".encode(), (address, port))
"""


def test_a_cone_shows_one_port_and_a_symmetric_nat_several(make_lab: MakeLab, tmp_path: Path) -> None:
    """Two ports of the relay see one socket of each site; sites with a kind reach each other's routers, which drop."""
    lab = make_lab()
    lab.up(edges=2, nat={"edge-1": "cone", "edge-2": "symmetric"})
    log = tmp_path / "mapper.log"
    lab.popen("relay", ["python", "-c", _MAPPER], log)
    wait_until("the relay listens", log.read_text, wanted=lambda text: "listening" in text)
    seen = {
        node: lab.exec(
            node, ["python", "-c", _MAPPED, RELAY, str(PORT), str(PORT + 1)], capture=True, check=True
        ).stdout.split()
        for node in ("cloud", "edge-1", "edge-2")
    }
    assert seen["edge-1"] == [f"{EDGE_1_NAT_WAN}:40000"] * 2
    assert seen["cloud"] == [f"{CLOUD_NAT_WAN}:40000"] * 2
    assert len(set(seen["edge-2"])) == 2
    for target, packets in (("198.51.100.10", 1), (CLOUD_NAT_WAN, 0)):  # edge-2's router and the cloud's
        lab.exec("internet", ["nft", "-f", "-"], stdin=_COUNT.format(target=target), capture=True, check=True)
        lab.exec("edge-1", ["ping", "-c1", "-W1", target], capture=True)
        table = lab.exec("internet", ["nft", "list", "table", "ip", "seen"], capture=True, check=True).stdout
        assert f"packets {packets} " in table, table


_COUNT = """
table ip seen
delete table ip seen
table ip seen {{
  chain forward {{ type filter hook forward priority 10; ip daddr {target} counter; }}
}}
"""


@pytest.mark.parametrize("origin", ["internet", "relay", "cloud", "edge-2"])
def test_a_lan_cannot_be_reached_from_outside(network: Lab, tmp_path: Path, origin: str) -> None:
    """Neither the private address nor the router's public one leads to an edge, or to the router itself."""
    listen(network, "edge-1", tmp_path)
    listen(network, "edge-1-nat", tmp_path)
    for address in (EDGE_1, EDGE_1_NAT_WAN):
        assert connect(network, origin, address).returncode != 0


def test_a_neighbour_on_the_lan_reaches_the_node(network: Lab, tmp_path: Path) -> None:
    """The NAT router stands for a neighbour: without a firewall of the node's own it gets through."""
    listen(network, "edge-1", tmp_path)
    assert connect(network, "edge-1-nat", EDGE_1).stdout.strip() == "192.168.11.1"


def test_a_direct_lab_routes_between_sites(make_lab: MakeLab, tmp_path: Path) -> None:
    """With direct=True cloud and edges see each other's own addresses and there are no NAT routers."""
    lab = make_lab()
    lab.up(edges=1, direct=True)
    listen(lab, "cloud", tmp_path)
    assert connect(lab, "edge-1", str(lab.topology.address("cloud"))).stdout.strip() == str(
        lab.topology.address("edge-1")
    )
    assert [node.name for node in lab.topology.nodes] == ["internet", "relay", "cloud", "edge-1"]


def test_nodes_have_private_files_and_names(network: Lab) -> None:
    """Each node has its own /etc/edgelink, state, runtime, /tmp/ray, robots, /dev/shm, devices and host name."""
    for directory in [*map(str, MOUNT_POINTS), "/dev/shm"]:
        network.exec("edge-1", ["touch", f"{directory}/mine"], check=True)
        for other in ("edge-2", "cloud"):
            assert network.exec(other, ["test", "-e", f"{directory}/mine"]).returncode == 1
        assert not Path(directory, "mine").exists()
    assert network.exec("edge-1", ["hostname"], capture=True).stdout == "edge-1\n"
    assert network.exec("edge-1", ["ls", "/sys/class/net"], capture=True).stdout.split() == ["eth0", "lo"]
    assert "advertise" in network.exec("edge-2", ["cat", "/etc/edgelink/edgelink.yaml"], capture=True).stdout


def test_exec_passes_everything_through(network: Lab) -> None:
    """Exit status, standard streams and arguments are the command's own; the environment is the node's."""
    assert network.exec("cloud", ["sh", "-c", "exit 42"]).returncode == 42
    assert network.exec("cloud", ["sh", "-c", "kill -TERM $$"]).returncode == -signal.SIGTERM
    assert network.exec("cloud", ["no-such-command"], capture=True).returncode == 127
    echo = network.exec("cloud", ["sh", "-c", 'cat; echo "$1" >&2', "sh", "a b  c"], stdin="in\n", capture=True)
    assert (echo.stdout, echo.stderr) == ("in\n", "a b  c\n")
    environ = network.exec("cloud", ["env"], capture=True).stdout
    assert "CUDA_VISIBLE_DEVICES=\n" in environ
    assert "PYTEST_CURRENT_TEST" not in environ
    assert network.exec("cloud", ["pwd"], capture=True, cwd=Path("/tmp/ray")).stdout == "/tmp/ray\n"
    which = network.exec("cloud", ["sh", "-c", "command -v edgelink"], capture=True).stdout.strip()
    assert Path(which).parent == Path(sys.executable).parent


def test_enter_becomes_the_command(network: Lab) -> None:
    """What `lab exec` does: stdin, stdout and exit status of the command are those of the calling process."""
    script = (
        f"from edgelink.lab import Lab; Lab({network.name!r}).enter('edge-1', ['sh', '-c', 'hostname; cat; exit 7'])"
    )
    result = subprocess.run([sys.executable, "-c", script], input="in", capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (7, "edge-1\nin", "")


def test_unknown_nodes_and_absent_labs_are_named(network: Lab, make_lab: MakeLab) -> None:
    """A mistyped node is answered with the list of nodes; a lab that is not up with how to build it."""
    with pytest.raises(LabError, match="its nodes are: internet, relay, cloud-nat"):
        network.exec("edge-9", ["true"])
    with pytest.raises(LabError, match="is not up"):
        make_lab().exec("cloud", ["true"])
    with pytest.raises(LabError, match="is already there"):
        network.up()
    with pytest.raises(DeadlineError, match=r"sleep 60 .* 0\.1 s"):
        network.exec("cloud", ["sleep", "60"], timeout_s=0.1)


def test_down_leaves_nothing(make_lab: MakeLab, tmp_path: Path) -> None:
    """Processes that ignore SIGTERM, have left their session or moved to another namespace of the node go too."""
    with locked_root() as root:  # what labs have made goes with the last of them, be it this one or another
        made_by_labs = _made_mount_points(root)
        present = {path for path in MOUNT_POINTS if path.exists()} - made_by_labs
    shared_memory = set(Path("/dev/shm").iterdir())
    lab = make_lab()
    lab.up()
    networks = {identity for node in lab.topology.nodes if (identity := _network_id(lab, node.name))}
    left = lab.node_directory("cloud") / "left"
    left.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "edgelink-test", left], check=True)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    lab.popen("cloud", ["python", "-c", stubborn], tmp_path / "a.log")
    lab.exec(
        "edge-1", ["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & setsid unshare --net sleep 600 >/dev/null 2>&1 &"]
    )
    lab.exec("edge-1", ["sh", "-c", "mkdir /tmp/ray/session; echo > /dev/shm/plasma"])
    # By process, not by namespace: the kernel gives the number of one that is gone to the next one that is made.
    processes = [PinnedProcess.of(pid) for pid in pids_in(networks)]
    assert len(processes) > len(networks)
    lab.down()
    assert traces(lab) == []
    assert [process for process in processes if process.is_alive] == []
    assert {path for path in present if not path.exists()} == set()
    assert {path for path in MOUNT_POINTS if path.exists()} - present == set() or any_other_lab()
    assert set(Path("/dev/shm").iterdir()) - shared_memory == set() or any_other_lab()
    lab.down()  # idempotent


def _made_mount_points(root: Path) -> set[Path]:
    record = root / ".made-mount-points"
    return set(map(Path, json.loads(record.read_text()))) if record.exists() else set()


def test_who_gets_the_number_of_a_namespace_that_is_gone_is_left_alone(make_lab: MakeLab) -> None:
    """While a lab is removed somebody else makes a mount namespace: a container, `unshare`, a unit of systemd."""
    lab = make_lab()
    lab.up(edges=1)
    bystanders: list[subprocess.Popen[bytes]] = []
    looks = itertools.count()

    def others() -> set[int]:
        """Asked with each look for the lab's processes. What it names dies, and is the reason for a third look."""
        if next(looks) != 1:  # with the second one the node's own processes are gone
            return set()
        bystanders.extend(_in_a_mount_namespace_of_its_own() for _ in range(10))
        return {bystanders[-1].pid}

    try:
        kill_all_in([netns_path(lab.name, "edge-1")], others)
        assert bystanders[-1].wait(10) == -signal.SIGKILL
        assert [process.poll() for process in bystanders[:-1]] == [None] * 9
        with pytest.raises(LabError, match="gone"):
            lab.pids("edge-1")
    finally:
        for process in bystanders:
            process.kill()
            process.wait()


def _in_a_mount_namespace_of_its_own() -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["unshare", "--mount", "sleep", "600"])
    ours = namespace_id("/proc/self/ns/mnt")
    wait_until("it is in there", lambda: namespace_id(f"/proc/{process.pid}/ns/mnt"), wanted=lambda seen: seen != ours)
    return process


def any_other_lab() -> bool:
    return LAB_ROOT.exists() or (NETNS_DIRECTORY.is_dir() and any(NETNS_DIRECTORY.glob("edgelink-*")))


@pytest.mark.parametrize(
    "killed_at",
    ["mount_points.make_missing", "namespaces.start_holders", "namespaces.connect", "namespaces.apply_firewall"],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_down_after_a_kill_in_the_middle_of_up(make_lab: MakeLab, killed_at: str, when: str) -> None:
    """SIGKILL at any step of building leaves something that `down` removes, and after which `up` works."""
    lab = make_lab()
    script = textwrap.dedent(f"""
        import os, signal
        from edgelink.lab import Lab, lab as module
        owner, _, name = {killed_at!r}.partition(".")
        owner = getattr(module, owner)
        original = getattr(owner, name)
        def dying(*args, **kwargs):
            if {when == "after"}:
                original(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)
        setattr(owner, name, dying)
        Lab({lab.name!r}).up()
    """)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == -signal.SIGKILL, result.stderr
    with pytest.raises(LabError, match="half built"):
        lab.exec("cloud", ["true"])
    lab.down()
    assert traces(lab) == []
    lab.up(edges=1)
    assert lab.exec("edge-1", ["true"]).returncode == 0


def test_a_failed_up_removes_what_it_built(make_lab: MakeLab) -> None:
    """An error in the middle of building leaves nothing to clean up."""
    lab = make_lab()
    with pytest.raises(LabError, match="mount tmpfs on /dev/shm"):
        lab.up(shm_size="no size")
    assert traces(lab) == []


def test_two_labs_side_by_side(make_lab: MakeLab, tmp_path: Path) -> None:
    """They share no network, and removing one does not touch the other."""
    one, two = make_lab(), make_lab()
    one.up(edges=1)
    two.up(edges=1)
    listen(one, "relay", tmp_path)
    assert connect(one, "cloud", RELAY).returncode == 0
    assert connect(two, "cloud", RELAY).returncode != 0
    two.exec("cloud", ["touch", "/tmp/ray/kept"], check=True)
    one.down()
    assert traces(one) == []
    for directory in MOUNT_POINTS:
        assert two.exec("cloud", ["mountpoint", "-q", str(directory)]).returncode == 0
    assert two.exec("cloud", ["test", "-e", "/tmp/ray/kept"]).returncode == 0
    assert two.exec("cloud", ["ping", "-c1", "-W2", RELAY], capture=True).returncode == 0


def test_start_stop_and_kill_a_daemon(make_lab: MakeLab, tmp_path: Path) -> None:
    """start runs the node's verb in a session of its own; stop asks it to end and waits; kill does not ask."""
    lab = make_lab()
    program = tmp_path / "bin" / "edgelink"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\ntrap 'echo stopping; exit 0' TERM\nsleep 600 &\necho daemon $@ on $(hostname)\nwait\n"
    )
    program.chmod(0o755)
    path = {"PATH": f"{program.parent}:/usr/bin:/bin:/usr/sbin"}
    lab.up(edges=1)
    for node, verb in {"relay": "bootstrap", "cloud": "head", "edge-1": "edge"}.items():
        lab.start(node, ["--flag"], env=path)
        with pytest.raises(LabError, match="already runs"):
            lab.start(node, env=path)
        words = wait_until(f"{node} speaks", lab.daemon_log(node).read_text)
        assert words == f"daemon {verb} --flag on {node}\n"
    lab.stop("relay")
    assert lab.daemon("relay") is None
    assert lab.daemon_log("relay").read_text().endswith("stopping\n")
    lab.kill("cloud")
    assert lab.daemon("cloud") is None
    assert len(lab.pids("cloud")) == 1  # the child that the daemon could no longer end
    lab.stop("cloud")  # idempotent
    with pytest.raises(LabError, match="is a router"):
        lab.start("internet")


def test_up_is_fast(make_lab: MakeLab) -> None:
    """A lab without daemons is there at once, so that every test can have its own."""
    lab = make_lab()
    started = os.times().elapsed
    lab.up()
    took_s = os.times().elapsed - started
    print(f"up after {took_s:.2f} s")
    assert took_s < 30


def test_prerequisites_are_named(make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing program is named with the package that has it, before anything is made."""
    monkeypatch.setattr(shutil, "which", lambda program: None if program == "nft" else program)
    lab = make_lab()
    with pytest.raises(MissingDependencyError, match="apt-get install nftables"):
        lab.up()
    assert traces(lab) == []

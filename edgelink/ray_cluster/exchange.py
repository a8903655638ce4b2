"""The exchange before a launch: what the nodes see of each other over the overlay; a short Ray driver of its own.

Run by the *user's* interpreter with one JSON question on stdin; needs the standard library and ray, and torch where the
nodes have it. On each node one actor runs, which is this file's `Peer`. It judges nothing: JSON lines on stdout tell
what was seen, as it is seen (:mod:`edgelink.training.preflight` judges).

    {"address": "10.10.0.2:6379", "nodes": [{"name", "ip", "ray_node_id"}, …], "device": "et0",
     "exchange": true, "paths": {"edge-1": ["/data"]}, "measure": [["cloud", "edge-1"], …]}

The first node is the head. A node without a ``ray_node_id`` is the one that is alive at its address.

    waiting  nodes whose Ray has not answered for 3 s
    facts    of one node: devices with their addresses and MTUs
    silent   nodes of which Ray brings no answer, and whether small and large packets reach their raylets
    links    each pair and direction that was tried: connected, small and large packets, how
             many bytes of these arrived; whose calls came in
    measuring, measured   the links of the pairs that are asked for: round trips and rate, each direction
    torch    of each node: its version, or None and why there is none
    gloo     of each node: None, or why its all-reduce failed
    paths    of one node: those that are not there, each with the reason
    done     always the last
"""

import fcntl
import json
import os
import socket
import struct
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

if __name__ != "__main__":  # there the text of that file goes before this one
    from edgelink.ray_cluster.link_meter import Meter, measure_links, unconfirmed

SMALL = b"edgelink"  # asked and answered
LARGE_BYTES = 32768  # two dozen packets of a usual overlay
CONNECT_S = 3.5  # the kernel calls at once, after 1 s and after 3 s
ANSWER_S = 10.0  # of a process that a busy machine has to give the time; a network's fault shows before
LARGE_S = 3.0
SILENT_AFTER_S = 3.0  # until then nobody wonders why a node does not answer
NO_ANSWER_S = 45.0  # a board with an SD card takes its time to start a worker
IMPORT_S = 90.0  # likewise, for torch
STAT_S = 10.0  # a file server that is away answers nothing
GLOO_S = 15.0
MOST_PAIRED = 8  # of more nodes, only some pairs exchange large packets: each with the next one, and with the head
GROUP = 32  # of more nodes, only those of one group and the head connect to each other
TENSORS = (4, 65536)  # elements
_SIOCGIFADDR, _SIOCGIFMTU = 0x8915, 0x8921  # <linux/sockios.h>
_SYN_RECV = "03"  # <net/tcp_states.h>


class Peer(Meter):
    """On one node: listens, calls the others, reduces.

    All methods may run at once. Pickled by value: the nodes do not have this file.
    """

    def __init__(self, ip: str, *, exchanges: bool) -> None:
        self.ip = ip
        self.calling: set[str] = set()  # addresses whose calls came in and were not answered as far as they heard
        self.port = 0  # where calls of the others are answered
        if exchanges:
            listener = socket.create_server((ip, 0), backlog=256)
            self.port = listener.getsockname()[1]
            threading.Thread(target=self.serve, args=(listener,), daemon=True).start()

    def serve(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(ANSWER_S + LARGE_S)
                if connection.recv(len(SMALL), socket.MSG_WAITALL) != SMALL:
                    return
                connection.sendall(SMALL)
                left = LARGE_BYTES
                while left and (data := connection.recv(left)):
                    left -= len(data)
                connection.sendall(SMALL)
            except OSError:
                return  # the caller tells of it

    def facts(self) -> "dict[str, Any]":
        devices = {}
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode()[:15])
                try:
                    mtu = struct.unpack("16si", fcntl.ioctl(probe.fileno(), _SIOCGIFMTU, request)[:20])[1]
                    address = socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
                except OSError:
                    continue  # no IPv4 address
                devices[name] = {"ip": address, "mtu": mtu}
        return {
            "port": self.port,
            "devices": devices,
            "told_device": os.environ.get("RLINF_COMM_NET_DEVICES"),
        }

    def ask(self, others: "list[tuple[str, str, int, bool]]") -> "list[dict[str, Any]]":
        """What became of a call to each of (name, address, port, whether to send large packets, too)."""
        is_over = threading.Event()
        watch = threading.Thread(target=self.watch_calls, args=(is_over,), daemon=True)
        watch.start()
        try:
            with ThreadPoolExecutor(min(32, len(others) or 1)) as pool:
                return list(pool.map(lambda other: self.call(*other), others))
        finally:
            is_over.set()

    def call(self, name: str, ip: str, port: int, is_large: bool) -> "dict[str, Any]":  # noqa: FBT001
        link = {"to": name, "connected": False, "small": False, "large": None, "arrived": 0, "error": ""}
        try:
            with socket.create_connection((ip, port), CONNECT_S, source_address=(self.ip, 0)) as connection:
                link["connected"] = True
                connection.settimeout(ANSWER_S)
                connection.sendall(SMALL)
                link["small"] = connection.recv(len(SMALL), socket.MSG_WAITALL) == SMALL
                if link["small"] and is_large:
                    self.send_large(connection, link)
        except TimeoutError:
            link["error"] = "timed out"
        except OSError as error:
            link["error"] = error.strerror or str(error)
        return link

    def send_large(self, connection: socket.socket, link: "dict[str, Any]") -> None:
        link["large"], sent = False, 0
        deadline_s = time.monotonic() + LARGE_S
        try:
            while sent < LARGE_BYTES:
                connection.settimeout(max(0.01, deadline_s - time.monotonic()))
                sent += connection.send(bytes(LARGE_BYTES - sent))
            connection.settimeout(max(0.01, deadline_s - time.monotonic()))
            link["large"] = connection.recv(len(SMALL), socket.MSG_WAITALL) == SMALL
        finally:
            link["arrived"] = sent - unconfirmed(connection)

    def watch_calls(self, is_over: threading.Event) -> None:
        """Note half-open connections; they go when the kernel gives up on them."""
        while not is_over.wait(0.2):
            self.look_at_calls()

    def look_at_calls(self) -> None:
        try:
            with open("/proc/net/tcp") as table:  # noqa: PTH123
                for line in list(table)[1:]:
                    local, remote, state = line.split()[1:4]
                    if state == _SYN_RECV and int(local.rpartition(":")[2], 16) == self.port:
                        self.calling.add(socket.inet_ntoa(struct.pack("=I", int(remote.partition(":")[0], 16))))
        except (OSError, ValueError):
            pass

    def heard(self) -> "list[str]":
        """The addresses of those whose calls came in and were not answered as far as they could hear."""
        self.look_at_calls()
        return sorted(self.calling)

    def import_torch(self) -> "tuple[str | None, str]":
        """Its version, or None and why there is none. Not before it is of use: seconds of CPU on every node."""
        try:
            import torch
            import torch.distributed
        except ImportError as error:
            return None, f"no torch ({error})"
        except Exception as error:
            return None, f"torch cannot be imported: {error!r}"[:300]
        if torch.distributed.is_available() and torch.distributed.is_gloo_available():
            return str(torch.__version__), ""
        return None, f"torch {torch.__version__} has no gloo"

    def open_store(self, size: int) -> int:
        """The port at which the members of a group meet."""
        from torch.distributed import TCPStore

        self.store = TCPStore(self.ip, 0, size, True, wait_for_workers=False)
        return int(self.store.port)

    def all_reduce(self, rank: int, size: int, master: str, port: int, device: "str | None") -> "str | None":
        """None, or why it failed. ``device``: what gloo is told; None: what this node's own environment says."""
        from datetime import timedelta

        import torch
        from torch import distributed

        os.environ["GLOO_SOCKET_IFNAME"] = device or os.environ.get("RLINF_COMM_NET_DEVICES", "")
        patience = timedelta(seconds=GLOO_S)
        try:
            store = self.store if rank == 0 else distributed.TCPStore(master, port, size, False, patience)
            distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
            for elements in TENSORS:
                tensor = torch.full((elements,), float(rank + 1))
                distributed.all_reduce(tensor)
                if not bool((tensor == size * (size + 1) / 2).all()):
                    return f"the sum of {elements} elements is wrong"
        except Exception as error:
            return f"{type(error).__name__}: {error}".splitlines()[0][:300]
        return None

    def missing(self, paths: "list[str]") -> "dict[str, str]":
        found = {}
        for path in paths:
            try:
                os.stat(path)  # noqa: PTH116
            except OSError as error:
                found[path] = error.strerror or str(error)
        return found


class Exchange:
    """One question's answer, told line by line."""

    def __init__(self, question: "dict[str, Any]") -> None:
        self.nodes: list[dict[str, Any]] = question["nodes"]
        self.names = [node["name"] for node in self.nodes]
        self.ips = {node["name"]: node["ip"] for node in self.nodes}
        self.question = question
        self.peers: dict[str, Any] = {}
        self.ports: dict[str, int] = {}

    def run(self, ray: Any) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        exchanges = self.question["exchange"]
        actor = ray.remote(Peer)
        alive = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node.get("Alive")}
        for node in self.nodes:
            node.setdefault("ray_node_id", alive.get(node["ip"]))
            if node["ray_node_id"] is None:
                tell("silent", nodes={node["name"]: {"error": f"Ray lists nobody at {node['ip']}"}})
                return
            pinned = NodeAffinitySchedulingStrategy(node["ray_node_id"], soft=False)
            options = {"num_cpus": 0, "max_concurrency": 8, "scheduling_strategy": pinned}
            self.peers[node["name"]] = actor.options(**options).remote(node["ip"], exchanges=exchanges)
        if self.gather_facts(ray):
            self.look_at_paths(ray)
            if exchanges and len(self.nodes) > 1 and self.try_links(ray):
                self.measure(ray)  # before torch keeps the processors busy
                if self.question.get("reduce", True):
                    self.reduce(ray)
        for peer in self.peers.values():
            ray.kill(peer)

    def gather_facts(self, ray: Any) -> bool:
        """Whether every node has answered; what hinders the others is told."""
        waiting = {peer.facts.remote(): name for name, peer in self.peers.items()}
        started_s = time.monotonic()
        pool = ThreadPoolExecutor(32)
        looks: dict[str, Any] | None = None
        while waiting:
            done, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0.1)
            for reference in done:
                name = waiting.pop(reference)
                try:
                    facts = ray.get(reference)
                except Exception as error:
                    tell("silent", nodes={name: {"error": last_line(error)}})
                    return False
                self.ports[name] = facts["port"]
                if self.question["exchange"]:
                    tell("facts", node=name, **facts)
            waited_s = time.monotonic() - started_s
            if waiting and waited_s > SILENT_AFTER_S and looks is None:
                tell("waiting", nodes=list(waiting.values()))
                raylets = {node["NodeID"]: node["NodeManagerPort"] for node in ray.nodes()}
                looks = {
                    node["name"]: pool.submit(knock, node["ip"], raylets.get(node["ray_node_id"], 0))
                    for node in self.nodes
                    if node["name"] in waiting.values()
                }
            if looks and all(look.done() for look in looks.values()):
                seen = {name: look.result() for name, look in looks.items() if name in waiting.values()}
                bad = {name: each for name, each in seen.items() if not (each["small"] and each["large"])}
                if bad or (seen and waited_s > NO_ANSWER_S):
                    tell("silent", nodes=bad or seen)
                    return False
        return True

    def look_at_paths(self, ray: Any) -> None:
        asked = {self.peers[name].missing.remote(paths): name for name, paths in self.question["paths"].items()}
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=STAT_S) if asked else ([], [])
        for reference in done:
            tell("paths", node=asked[reference], missing=ray.get(reference))
        for reference in late:
            why = f"no answer within {STAT_S:g} s"
            tell("paths", node=asked[reference], missing=dict.fromkeys(self.question["paths"][asked[reference]], why))

    def try_links(self, ray: Any) -> bool:
        """Whether every call got through; gloo is tried only then."""
        calls = {}
        for name in self.names:
            others = [(to, self.ips[to], self.ports[to], large) for to, large in partners(self.names, name)]
            calls[self.peers[name].ask.remote(others)] = name
        links = []
        patience_s = CONNECT_S + ANSWER_S + LARGE_S + 2.0
        done, late = ray.wait(list(calls), num_returns=len(calls), timeout=patience_s)
        for reference in done:
            links += [{"from": calls[reference], **link} for link in ray.get(reference)]
        for reference in late:
            links.append({"from": calls[reference], "to": None, "error": f"no answer within {patience_s:g} s"})
        if all(link["small"] and link["large"] is not False for link in links if "small" in link) and not late:
            tell("links", links=links, heard={})
            return True
        asked = {peer.heard.remote(): name for name, peer in self.peers.items()}
        done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=CONNECT_S)
        tell("links", links=links, heard={asked[reference]: ray.get(reference) for reference in done})
        return False

    def measure(self, ray: Any) -> None:
        if pairs := self.question.get("measure"):
            tell("measuring", pairs=pairs)
            tell("measured", links=measure_links(ray, self.peers, self.ips, pairs))

    def reduce(self, ray: Any) -> None:
        asked = {peer.import_torch.remote(): name for name, peer in self.peers.items()}
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=IMPORT_S)
        versions = {asked[reference]: ray.get(reference) for reference in done}
        versions.update({asked[reference]: (None, f"not imported within {IMPORT_S:g} s") for reference in late})
        tell("torch", nodes={name: {"version": version, "problem": why} for name, (version, why) in versions.items()})
        if not all(version for version, _ in versions.values()):
            return
        started_s = time.monotonic()
        asked = {}
        for members in groups(self.names):
            port = ray.get(self.peers[members[0]].open_store.remote(len(members)))
            for rank, name in enumerate(members):
                where = (rank, len(members), self.ips[members[0]], port, self.question["device"])
                asked[self.peers[name].all_reduce.remote(*where)] = name
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=2 * GLOO_S)
        problems = {asked[reference]: ray.get(reference) for reference in done}
        problems.update({asked[reference]: f"not done within {2 * GLOO_S:g} s" for reference in late})
        tell("gloo", problems=problems, seconds=round(time.monotonic() - started_s, 3))


def groups(names: "list[str]") -> "list[list[str]]":
    """Who reduces together: all, or, of many, those beside each other; nobody alone."""
    count = max(1, -(-len(names) // GROUP))
    size, more = divmod(len(names), count)
    found, start = [], 0
    for number in range(count):
        end = start + size + (number < more)
        found.append(names[start:end])
        start = end
    return found


def partners(names: "list[str]", name: str) -> "list[tuple[str, bool]]":
    """Whom a node calls, and whether with large packets, too: in both directions, and no more than a group in all."""
    own = next(group for group in groups(names) if name in group)
    wanted = dict.fromkeys((other for other in own if other != name), len(names) <= MOST_PAIRED)
    at = names.index(name)
    beside = {names[at - 1], names[(at + 1) % len(names)], *(names if at == 0 else names[:1])} - {name}
    return list({**wanted, **dict.fromkeys(beside, True)}.items())


def knock(ip: str, port: int) -> "dict[str, Any]":
    """Whether small and large packets reach a raylet's gRPC server: HTTP/2 frames of an unknown type, which RFC 9113
    has it ignore. Its kernel confirms them, so that it may be as busy as it likes."""
    seen = {"small": False, "large": False, "error": ""}
    try:
        with socket.create_connection((ip, port), CONNECT_S) as connection:
            seen["small"] = True  # answered by its kernel
            connection.settimeout(LARGE_S)
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            frame = b"\0\x20\0\xee\0\0\0\0\0" + bytes(8192)
            sent, deadline_s = 0, time.monotonic() + LARGE_S
            for _ in range(LARGE_BYTES // 8192):
                connection.sendall(frame)
                sent += len(frame)
            while not seen["large"] and time.monotonic() < deadline_s:
                seen["large"] = sent - unconfirmed(connection) >= len(frame)
                time.sleep(0.02)
            seen["error"] = "" if seen["large"] else "timed out"
    except TimeoutError:
        seen["error"] = "timed out"
    except OSError as error:
        seen["error"] = error.strerror or str(error)
    return seen


def last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]


def tell(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def main() -> None:
    question = json.load(sys.stdin)
    import ray

    started_s = time.monotonic()
    ray.init(address=question["address"], log_to_driver=False, logging_level="ERROR")
    tell("ray", seconds=round(time.monotonic() - started_s, 3))
    Exchange(question).run(ray)
    tell("done", seconds=round(time.monotonic() - started_s, 3))
    os._exit(0)  # leaving Ray in order takes a second, and nothing is left to be done


if __name__ == "__main__":
    main()

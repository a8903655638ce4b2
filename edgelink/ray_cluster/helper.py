"""Asks Ray who its nodes are; run by the *user's* interpreter (``ray.python``), the only file here that imports ray.

It needs nothing but the standard library and ray, and uses the GCS client directly: joining the cluster with ray.init
would take seconds, start processes and count as a driver. Answers are JSON lines on stdout:

    helper.py nodes      --address IP:PORT
    helper.py wait-alive --address IP:PORT --ip IP --rank N --timeout SECONDS   exit status 1: time is up
    helper.py watch      --address IP:PORT --interval SECONDS          a line at each change, until stdin ends
    helper.py bury       --address IP:PORT [--ip IP] [--node NAME] [--id HEX …]   exit status 1: some are still there
    helper.py detached   --address IP:PORT
    helper.py later                           imports ray, then takes one of these as a JSON list of words from stdin

``bury`` takes nodes out of Ray whose raylet is known to be dead, which Ray with patient health checks would find out
minutes later: all that are alive under this IP, that were started by the EdgeLink node NAME, or that have these ids.
``detached`` names the actors that outlived the job that made them: their names are taken, and they hold resources.
"""

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # the directory of this file must not shadow anybody's modules

import argparse
import json
import select
import socket
import struct
import time
from typing import Any

RANK_LABEL = "edgelink.rank"
NODE_LABEL = "edgelink.node"
RANK_RESOURCE_PREFIX = "edgelink-rank-"
UNREGISTER_NODE = "/ray.rpc.NodeInfoGcsService/UnregisterNode"
BURIED_WITHIN_S = 3.0
REACH_TIMEOUT_S = 5.0
LATER_S = 60.0
ACCELERATORS = (("GPU", "NV_GPU"), ("NPU", "NPU"), ("TPU", "TPU"))  # Ray's resource, RLinf's name
OTHER_GPUS = {"accelerator_type:AMD": "AMD_GPU", "accelerator_type:Intel": "INTEL_GPU"}  # which Ray counts as GPU, too


def rank_of(info: Any) -> "int | None":
    """The node rank that the node was started with, or None."""
    if RANK_LABEL in info.labels:
        return int(info.labels[RANK_LABEL])
    for name in info.resources_total:
        if name.startswith(RANK_RESOURCE_PREFIX):
            return int(name[len(RANK_RESOURCE_PREFIX) :])
    return None


def describe(info: Any) -> "dict[str, Any]":
    """One member as a plain dictionary."""
    accelerator, count = "NO_ACCEL", 0
    for resource, name in ACCELERATORS:
        if info.resources_total.get(resource, 0) >= 1:
            accelerator, count = name, int(info.resources_total[resource])
            break
    if accelerator == "NV_GPU":
        named = (
            name for start, name in OTHER_GPUS.items() if any(each.startswith(start) for each in info.resources_total)
        )
        accelerator = next(named, accelerator)
    return {
        "node_id": info.node_id.hex(),
        "ip": info.node_manager_address,
        "rank": rank_of(info),
        "alive": info.state == 0,  # GcsNodeInfo.ALIVE
        "hostname": info.node_manager_hostname,
        "accelerator": accelerator,
        "accelerator_count": count,
        "cpus": float(info.resources_total.get("CPU", 0)),
        "started_ms": info.start_time_ms,
    }


def connect(address: str) -> Any:
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), REACH_TIMEOUT_S).close()  # Ray's client needs 40 s to say no
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # here: 0.3 s, argument errors come first

    return GcsClient(address=address)


def nodes(client: Any, timeout_s: float = 10.0) -> "list[dict[str, Any]]":
    return sorted(
        (describe(info) for info in client.get_all_node_info(timeout=timeout_s).values()),
        key=lambda node: (node["rank"] is None, node["rank"], -node["started_ms"]),
    )


def wait_alive(client: Any, ip: str, rank: int, timeout_s: float) -> int:
    """0 once a node with this address and rank is alive."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = nodes(client)
        for node in found:
            if node["alive"] and node["ip"] == ip and node["rank"] == rank:
                print(json.dumps({**node, "cluster_id": client.cluster_id.hex()}), flush=True)
                return 0
        if time.monotonic() >= deadline_s:
            print(json.dumps({"nodes": found}), flush=True)
            return 1
        time.sleep(0.1)


def watch(client: Any, interval_s: float) -> int:
    last = None
    while True:
        found = nodes(client)
        if found != last:
            print(json.dumps(found), flush=True)
            last = found
        if select.select([sys.stdin], [], [], interval_s)[0]:
            return 0  # whoever asked is gone


def temp_dir_of_head(infos: Any, client: Any) -> str:
    """Return the directory that a worker takes from its head: 2.48 keeps it as a key, later ones with the node."""
    told = next((str(getattr(i, "temp_dir", "")) for i in infos if i.state == 0 and i.is_head_node), "")
    return told or (client.internal_kv_get(b"temp_dir", b"session", timeout=10.0) or b"").decode()


def bury(client: Any, address: str, ip: "str | None", node: "str | None", ids: "list[str]") -> int:
    """0 once none of them is alive any more; says which were, and which are left."""
    from ray.core.generated import gcs_service_pb2

    def alive(infos: Any) -> "list[str]":
        return [
            info.node_id.hex()
            for info in infos
            if info.state == 0
            and (
                info.node_manager_address == ip
                or (node is not None and info.labels.get(NODE_LABEL) == node)
                or info.node_id.hex() in ids
            )
        ]

    infos = list(client.get_all_node_info(timeout=10.0).values())
    found = alive(infos)
    left, failure = list(found), ""
    for node_id in found:
        request = gcs_service_pb2.UnregisterNodeRequest(node_id=bytes.fromhex(node_id))
        request.node_death_info.reason = request.node_death_info.UNEXPECTED_TERMINATION
        request.node_death_info.reason_message = "EdgeLink: the raylet has ended on its machine"
        try:
            grpc_call(address, UNREGISTER_NODE, request.SerializeToString(), metadata(client))
        except OSError as error:
            failure = str(error)
    deadline_s = time.monotonic() + BURIED_WITHIN_S
    while left and not failure:
        listed = alive(client.get_all_node_info(timeout=10.0).values())
        left = [node_id for node_id in left if node_id in listed]
        if left and time.monotonic() >= deadline_s:
            failure = f"still listed as alive {BURIED_WITHIN_S:g} s later"
        elif left:
            time.sleep(0.05)
    answer = {"buried": [node_id for node_id in found if node_id not in left], "left": left, "failure": failure}
    answer.update({"cluster_id": client.cluster_id.hex(), "temp_dir": temp_dir_of_head(infos, client)})
    print(json.dumps(answer), flush=True)
    return 1 if left else 0


def detached(address: str) -> int:
    """Prints the detached actors of jobs that have ended. Always 0."""
    from ray._raylet import GcsClientOptions, GlobalStateAccessor  # type: ignore[attr-defined]
    from ray.core.generated import gcs_pb2

    options = GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=True)
    accessor = GlobalStateAccessor(options)
    accessor.connect()
    jobs = [gcs_pb2.JobTableData.FromString(data) for data in accessor.get_job_table()]
    ended = {job.job_id for job in jobs if job.is_dead}
    actors = [gcs_pb2.ActorTableData.FromString(data) for data in accessor.get_actor_table(None, None)]
    left = [
        {
            "name": actor.name,
            "namespace": actor.ray_namespace,
            "class": actor.class_name,
            "ip": actor.address.ip_address,
            "pid": actor.pid,
        }
        for actor in actors
        if actor.is_detached and actor.state != gcs_pb2.ActorTableData.DEAD and actor.job_id in ended
    ]
    print(json.dumps({"actors": sorted(left, key=lambda actor: (actor["namespace"], actor["name"]))}), flush=True)
    return 0


def later() -> int:
    """Whoever asks finds Ray imported; 0 as well when nobody did within a minute."""
    from ray.core.generated import gcs_service_pb2  # noqa: F401

    if not select.select([sys.stdin], [], [], LATER_S)[0]:
        return 0
    question = sys.stdin.readline()
    return main(json.loads(question)) if question else 0


def metadata(client: Any) -> "dict[str, str]":
    """What Ray's own clients send along: to which cluster they speak, and the token."""
    found = {"ray_cluster_id": client.cluster_id.hex()}
    try:
        from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]  # Ray 2.52 and later
    except ImportError:
        return found
    loader = AuthenticationTokenLoader.instance()
    if loader.has_token():
        found.update(loader.get_token_for_http_header())
    return found


def grpc_call(address: str, method: str, message: bytes, headers: "dict[str, str]", timeout_s: float = 5.0) -> bool:
    """One unary gRPC call; whether it was accepted. What the answer says is not read, what it did is seen elsewhere.

    By hand, because grpcio comes with ``ray[default]`` only, and Ray's own client has no binding for these calls.
    An accepted call is answered with a message, a refused one with headers alone. Raises OSError when nobody answers.
    """
    host, _, port = address.rpartition(":")
    fields = {":method": "POST", ":scheme": "http", ":path": method, ":authority": address}
    fields.update({"te": "trailers", "content-type": "application/grpc"})
    fields.update({name.lower(): value for name, value in headers.items()})
    block = b"".join(b"\0" + _hpack_string(name) + _hpack_string(value) for name, value in fields.items())
    with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(SETTINGS, 0, 0, b"")
            + _frame(HEADERS, END_HEADERS, 1, block)
            + _frame(DATA, END_STREAM, 1, struct.pack(">BI", 0, len(message)) + message)
        )
        reader, is_accepted = connection.makefile("rb"), False
        while len(header := reader.read(9)) == 9:
            length, kind, flags = int.from_bytes(header[:3], "big"), header[3], header[4]
            payload = reader.read(length)
            if kind == SETTINGS and not flags & ACK:
                connection.sendall(_frame(SETTINGS, ACK, 0, b""))
            elif kind == PING and not flags & ACK:
                connection.sendall(_frame(PING, ACK, 0, payload))
            elif kind in (RST_STREAM, GOAWAY) or (kind == HEADERS and flags & END_STREAM):
                return is_accepted
            is_accepted = is_accepted or kind == DATA
        raise ConnectionError(f"{address} hung up")


# Of HTTP/2 (RFC 9113).
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
ACK = END_STREAM = 1
END_HEADERS = 4


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _hpack_string(text: str) -> bytes:
    """A literal of RFC 7541: its length with a prefix of 7 bits, then the bytes as they are."""
    data = text.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    length, rest = bytearray([127]), len(data) - 127
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    length.append(rest)
    return bytes(length) + data


def main(argv: "list[str] | None" = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("nodes", "wait-alive", "watch", "bury", "detached"):
        command = commands.add_parser(name)
        command.add_argument("--address", required=True)
        if name == "wait-alive":
            command.add_argument("--ip", required=True)
            command.add_argument("--rank", required=True, type=int)
            command.add_argument("--timeout", required=True, type=float)
        if name == "bury":
            command.add_argument("--ip")
            command.add_argument("--node")
            command.add_argument("--id", action="append", default=[])
        if name == "watch":
            command.add_argument("--interval", default=1.0, type=float)
    commands.add_parser("later")
    arguments = parser.parse_args(argv)
    if arguments.command == "later":
        return later()
    client = connect(arguments.address)
    if arguments.command == "wait-alive":
        return wait_alive(client, arguments.ip, arguments.rank, arguments.timeout)
    if arguments.command == "detached":
        return detached(arguments.address)
    if arguments.command == "watch":
        return watch(client, arguments.interval)
    if arguments.command == "bury":
        return bury(client, arguments.address, arguments.ip, arguments.node, arguments.id)
    print(json.dumps(nodes(client)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

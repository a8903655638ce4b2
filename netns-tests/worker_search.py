"""A driver whose tasks look for secrets, as any code in a Ray worker could: files, processes, sockets, EasyTier's RPC.

``worker_search.py NEEDLES [ADDRESS…]``: NEEDLES is a JSON file of names and secrets, each written backwards, so that
neither the file nor a message that carries it is a find. Without addresses it looks itself, else a task on each node.
Prints a JSON line: by address, what was found where, and what was looked at.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import socket
import stat
import sys
from pathlib import Path


def pids() -> list[str]:
    return [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def look(backwards: dict[str, str]) -> dict[str, object]:
    needles = {name: text[::-1].encode() for name, text in backwards.items()}
    forms = {name: (raw, base64.b64encode(raw).rstrip(b"=")) for name, raw in needles.items()}
    found, looked = [], {"files": 0, "processes": 0, "refused": 0}

    def search(where: str, content: bytes) -> None:
        found.extend(f"{name} in {where}" for name, shapes in forms.items() if any(form in content for form in shapes))

    def read(path: str, kind: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            looked["refused"] += 1
            return
        with os.fdopen(descriptor, "rb") as file:
            try:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    search(path, file.read(4 << 20))
                    looked[kind] += 1
            except OSError:
                looked["refused"] += 1

    own = str(os.getpid())
    for pid in pids():
        if pid == own:
            continue
        for name in ("cmdline", "environ"):
            read(f"/proc/{pid}/{name}", "processes")
    roots = [Path("/") / root for root in ("var/lib/edgelink", "run", "etc", "dev/shm", "var/log/edgelink", "tmp/ray")]
    for pid in pids():  # what others have mounted
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() in ("easytier-core", "mosquitto"):
                roots.append(Path(f"/proc/{pid}/root/var/lib/edgelink"))
        except OSError:
            continue
    for root in roots:
        for directory, _, files in os.walk(root, onerror=lambda _: looked.update(refused=looked["refused"] + 1)):
            for name in files:
                read(str(Path(directory, name)), "files")
    for directory in ("/run/edgelink",):
        for path in Path(directory).rglob("*.sock") if os.access(directory, os.X_OK) else ():
            for request in ("GET /status", "GET /log", "GET /environment", "GET /paths", "POST /run"):
                try:
                    with socket.socket(socket.AF_UNIX) as end:
                        end.settimeout(5)
                        end.connect(str(path))
                        end.sendall(f"{request} HTTP/1.0\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}".encode())
                        answer = b""
                        while part := end.recv(65536):
                            answer += part
                        search(f"{path}: {request}", answer)
                        looked["files"] += 1
                except OSError:
                    looked["refused"] += 1
    rpc = []
    for host in ("127.0.0.1", "127.0.0.2", socket.gethostname()):
        try:
            with socket.create_connection((host, 15888), 2):
                rpc.append(host)
        except OSError:
            looked["refused"] += 1
    libc = ctypes.CDLL(None, use_errno=True)
    traced = []
    for pid in pids():
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            uid = Path(f"/proc/{pid}").stat().st_uid
        except OSError:
            continue
        if name in ("easytier-core", "mosquitto", "edgelink") and uid != os.getuid():
            try:
                with Path(f"/proc/{pid}/mem").open("rb"):
                    traced.append(f"memory of {name}")
            except OSError:
                looked["refused"] += 1
            if os.getuid() and libc.ptrace(16, int(pid), 0, 0) == 0:  # PTRACE_ATTACH
                libc.ptrace(17, int(pid), 0, 0)
                traced.append(f"{name} can be traced")
    return {"uid": os.getuid(), "found": sorted(found), "rpc": rpc, "traced": traced, "looked": looked}


def main() -> None:
    needles = json.loads(Path(sys.argv[1]).read_text())
    if len(sys.argv) == 2:
        print(json.dumps({"here": look(needles)}))
        return
    import ray

    ray.init(logging_level="error", log_to_driver=False)
    task = ray.remote(look)
    asked = {ip: task.options(resources={f"node:{ip}": 0.001}).remote(needles) for ip in sys.argv[2:]}
    print(json.dumps({ip: ray.get(answer, timeout=60) for ip, answer in asked.items()}))


if __name__ == "__main__":
    main()

"""The example for Slurm, as an ordinary user: relay and head on the first node of an allocation, edges on the others.

Slurm itself is played: `scontrol` lists the nodes, and `srun` hands what it is to start over to this test, which starts
it on the lab's nodes, as slurmd would.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import MakeLab
from test_variants import TRAINER, add_users

from edgelink.lab import CLOUD, Lab

EDGES = ("edge-1", "edge-2")
SCRIPT = Path(__file__).parent.parent / "docs" / "examples" / "slurm" / "edgelink.sbatch"
OWN = "/tmp/ray"
JOB_S = 240.0
BECOME = ["setpriv", f"--reuid={TRAINER}", f"--regid={TRAINER}", "--clear-groups", "--"]
SCONTROL = '#!/bin/sh\necho "$3" | tr , "\\n"\n'
SRUN = """#!/usr/bin/env python3
import json, os, pathlib, signal, sys, time
spool = pathlib.Path(os.environ["PLAYED_SLURM"])
options, argv = [], sys.argv[1:]
while argv[0].startswith("--"):
    options.append(argv.pop(0))
nodes = next(word.partition("=")[2] for word in options if word.startswith("--nodelist=")).split(",")
step = spool / f"step-{os.getpid()}"
signal.signal(signal.SIGTERM, lambda *_: step.with_suffix(".term").touch())
asked = {"nodes": nodes, "argv": argv, "env": dict(os.environ), "cwd": os.getcwd()}
step.with_suffix(".new").write_text(json.dumps(asked))
step.with_suffix(".new").rename(step.with_suffix(".json"))
while not step.with_suffix(".status").exists():
    time.sleep(0.05)
sys.exit(int(step.with_suffix(".status").read_text()))
"""
TRAINING = """
import os, ray
ray.init(logging_level="error", log_to_driver=False)
where = ray.remote(lambda: (ray.util.get_node_ip_address(), os.getuid()))
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
found = ray.get([where.options(scheduling_strategy=affinity(node, soft=False)).remote() for node in nodes])
print("found", sorted(found), flush=True)
raise SystemExit(7)
"""

pytestmark = [
    pytest.mark.timeout(420),
    pytest.mark.skipif(os.environ.get("EDGELINK_SOAK") != "1", reason="an example, a minute: `make soak`"),
]


@contextmanager
def played_slurm(lab: Lab, directory: Path) -> Iterator[None]:
    """Starts what the job's `srun` asks for, one process a node, and tells how it ended."""
    over = threading.Event()

    def serve(file: Path) -> None:
        asked = json.loads(file.read_text())
        argv, cwd = [*BECOME, *asked["argv"]], Path(asked["cwd"])
        tasks = [
            lab.popen(node, argv, directory / f"{file.stem}-{node}.log", env=asked["env"], cwd=cwd)
            for node in asked["nodes"]
        ]
        is_told = False
        while any(task.poll() is None for task in tasks):
            if file.with_suffix(".term").exists() and not is_told:
                is_told = True
                for task in tasks:
                    task.send_signal(signal.SIGTERM)
            over.wait(0.05)
        file.with_suffix(".status").write_text(str(max(abs(task.returncode) for task in tasks)))

    def look() -> None:
        while not over.is_set():
            for file in directory.glob("step-*.json"):
                taken = file.with_suffix(".taken")
                file.rename(taken)
                thread = threading.Thread(target=serve, args=(taken,), daemon=True)
                thread.start()
            over.wait(0.05)

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


@pytest.fixture
def submitted_from() -> Iterator[Path]:
    """A directory of the user's that all nodes see."""
    with tempfile.TemporaryDirectory(prefix="job-") as directory:
        os.chown(directory, TRAINER, TRAINER)
        yield Path(directory)


def test_one_allocation_is_one_cluster(make_lab: MakeLab, submitted_from: Path) -> None:
    """The command runs on the first node, sees all nodes, ends the job with its status; nothing is left on any."""
    lab = make_lab()
    lab.up(edges=len(EDGES), direct=True)
    nodes = (CLOUD, *EDGES)
    for node in nodes:
        add_users(lab, node)
        # As systemd sets it on every machine: whoever is a user may ping.
        lab.exec(node, ["sysctl", "-w", "net.ipv4.ping_group_range=0 2147483647"], capture=True, check=True)
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN)):
        (submitted_from / name).write_text(text)
        (submitted_from / name).chmod(0o755)
    environment = {
        "PATH": f"{submitted_from}:{lab.environment(CLOUD)['PATH']}",
        "HOME": "/dev/shm/trainer",
        "PLAYED_SLURM": str(submitted_from),
        "SLURM_JOB_ID": "42",
        "SLURM_JOB_NODELIST": ",".join(nodes),
        "SLURM_SUBMIT_DIR": str(submitted_from),
        "SLURM_TMPDIR": OWN,
        "EDGELINK_RELAY__CIDR": "198.51.100.0/24",
    }
    job = [*BECOME, "bash", str(SCRIPT), "python", "-c", TRAINING]
    with played_slurm(lab, submitted_from):
        ran = lab.exec(CLOUD, job, capture=True, env=environment, cwd=submitted_from, timeout_s=JOB_S)
    steps = "".join(log.read_text() for log in sorted(submitted_from.glob("*.log")))
    words = ran.stdout + ran.stderr + steps
    assert ran.returncode == 7, words
    addresses = ["198.51.100.10", "198.51.100.2", "198.51.100.6"]
    assert f"found {[(address, TRAINER) for address in addresses]}" in ran.stdout, words
    assert not list(submitted_from.glob(".edgelink-*")), "the token's directory"
    for node in nodes:
        assert not lab.pids(node), f"{node}: {words}"

"""The example for Slurm, in a real Slurm of three nodes, as an ordinary user: relay and head on the first node of an
allocation, edges on the others.

Every node of the lab runs `slurmd`, the first one `slurmctld` too. Each task is bound to as few processors as it asked
for, as most sites have it, and a node's own disk is named by the site's TaskProlog.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import MakeLab
from faults import command
from machines import wait_until
from test_variants import TRAINER, add_users

from edgelink.lab import CLOUD, Lab

NODES = {CLOUD: "198.51.100.2", "edge-1": "198.51.100.6", "edge-2": "198.51.100.10"}
SCRIPT = Path(__file__).parent.parent / "docs" / "examples" / "slurm" / "edgelink.sbatch"
OWN = "/tmp/ray"
JOB_S = 300.0
BECOME = ["setpriv", f"--reuid={TRAINER}", f"--regid={TRAINER}", "--clear-groups", "--"]
CPUS = os.cpu_count() or 1
SITE = f"""
ClusterName=lab
SlurmctldHost={CLOUD}({NODES[CLOUD]})
SlurmUser=root
AuthInfo=socket={{own}}/munge.socket
StateSaveLocation={{own}}/state
SlurmctldPidFile={{own}}/slurmctld.pid
SlurmctldLogFile={{own}}/slurmctld.log
SlurmdSpoolDir={{own}}/spool-%n
SlurmdPidFile={{own}}/slurmd-%n.pid
SlurmdLogFile={{own}}/slurmd-%n.log
TaskProlog={{own}}/task-prolog
TaskPlugin=task/affinity
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
PartitionName=all Nodes=ALL Default=YES State=UP
"""
TASK_PROLOG = f"#!/bin/sh\necho export SLURM_TMPDIR={OWN}\n"
TRAINING = """
import os, ray
ray.init(logging_level="error", log_to_driver=False)
where = ray.remote(lambda: (ray.util.get_node_ip_address(), os.getuid(), len(os.sched_getaffinity(0))))
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
found = ray.get([where.options(scheduling_strategy=affinity(node, soft=False)).remote() for node in nodes])
print("found", sorted(found), flush=True)
raise SystemExit(7)
"""
# It saves when it is asked to end, as a training should.
ENDLESS = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("training", flush=True)
while True:
    time.sleep(0.1)
"""

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("EDGELINK_SOAK") != "1", reason="an example, four minutes: `make soak`"),
]


class Site:
    """A Slurm whose nodes are a lab's, and a directory of the user's that all nodes see."""

    def __init__(self, lab: Lab, own: Path, home: Path) -> None:
        self.lab = lab
        self.home = home
        self.configuration = own / "slurm.conf"
        self.environment = {
            "SLURM_CONF": str(self.configuration),
            "HOME": "/dev/shm/trainer",
            "EDGELINK_RELAY__CIDR": "198.51.100.0/24",
        }

    def as_user(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return self.lab.exec(
            CLOUD, [*BECOME, *argv], capture=True, env=self.environment, cwd=self.home, timeout_s=JOB_S
        )

    def submit(self, *argv: str, options: tuple[str, ...] = ()) -> str:
        """The number of a job on all nodes."""
        words = ("--parsable", f"--nodes={len(NODES)}", "--output=%j.out", *options, str(SCRIPT), *argv)
        made = self.as_user("sbatch", *words)
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    def said(self, job: str) -> str:
        """By the job's steps, all in one file."""
        output = self.home / f"{job}.out"
        return output.read_text() if output.exists() else ""

    def wait_for_end(self, job: str) -> str:
        """Its last state and exit status, as Slurm tells them."""

        def told() -> dict[str, str]:
            shown = self.as_user("scontrol", "show", "job", job)
            assert shown.returncode == 0, shown.stderr + self.said(job)
            return dict(word.split("=", 1) for word in shown.stdout.split() if "=" in word)

        over = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL")
        found = wait_until(f"job {job} is over", told, JOB_S, wanted=lambda job: job["JobState"] in over)
        return f"{found['JobState']} {found['ExitCode']}"

    def assert_nothing_left(self, job: str) -> None:
        """Of the user's processes and files, on any node. Slurm itself ends what does not."""

        def left() -> list[str]:
            found = []
            for node in NODES:
                pids = [pid for pid in self.lab.pids(node) if _uid_of(pid) == TRAINER]
                found += [f"{node}: {command(pid)} ({pid})" for pid in pids]
                if (self.lab.host_path(node, Path(OWN)) / f"edgelink-{job}").exists():
                    found.append(f"{node}: its directory")
            return found

        wait_until("nothing is left of the job", left, 30, wanted=lambda found: found == [])
        assert not list(self.home.glob(".edgelink-*")), "the token's directory"


def _print_logs(own: Path) -> None:
    """Pytest shows them where a test has failed."""
    for log in sorted([*own.glob("*.log"), *own.glob("*.out")]):
        print(f"==> {log.name} <==", *log.read_text(errors="replace").splitlines()[-40:], sep="\n")


def _uid_of(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except FileNotFoundError:
        return None


@pytest.fixture(scope="module")
def site(make_shared_lab: MakeLab) -> Iterator[Site]:
    missing = [program for program in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(program) is None]
    assert not missing, f"apt-get install munge slurmctld slurmd slurm-client, or `make soak`; missing: {missing}"
    lab = make_shared_lab()
    lab.up(edges=len(NODES) - 1, direct=True)
    for node in NODES:
        add_users(lab, node)
        # As systemd sets it on every machine: whoever is a user may ping.
        lab.exec(node, ["sysctl", "-w", "net.ipv4.ping_group_range=0 2147483647"], capture=True, check=True)
    with ExitStack() as stack:
        own, home = (Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=name))) for name in ("slurm-", "job-"))
        own.chmod(0o755)
        os.chown(home, TRAINER, TRAINER)
        made = Site(lab, own, home)
        nodes = [f"NodeName={name} NodeAddr={address} CPUs={CPUS}" for name, address in NODES.items()]
        made.configuration.write_text("\n".join([SITE.format(own=own), *nodes, ""]))
        (own / "task-prolog").write_text(TASK_PROLOG)
        (own / "task-prolog").chmod(0o755)
        key = own / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        (own / "state").mkdir()
        stack.callback(_print_logs, own)

        def start(node: str, *argv: str) -> None:
            log = own / f"{argv[0]}-{node}.out"
            process = lab.popen(node, argv, log, env={"SLURM_CONF": str(made.configuration)}, cwd=Path("/"))
            stack.callback(process.wait)
            stack.callback(process.send_signal, signal.SIGTERM)

        kinds = ("key-file", "socket", "pid-file", "log-file", "seed-file")
        files = [f"--{kind}={own}/munge.{kind.partition('-')[0]}" for kind in kinds]
        start(CLOUD, "munged", "--foreground", *files)
        wait_until("munge answers", (own / "munge.socket").exists)
        start(CLOUD, "slurmctld", "-D")
        for node in NODES:
            start(node, "slurmd", "-D", "-N", node)

        def idle() -> str:
            return made.as_user("sinfo", "--noheader", "--format=%D %T").stdout.strip()

        wait_until("all nodes of the site are idle", idle, 60, wanted=lambda told: told == f"{len(NODES)} idle")
        yield made
        made.as_user("scancel", "--user=trainer", "--signal=KILL", "--full")


def test_one_allocation_is_one_cluster(site: Site) -> None:
    """The command runs on the first node, sees all nodes with all of their processors, ends the job with its status;
    nothing is left on any."""
    job = site.submit("python", "-c", TRAINING)
    assert site.wait_for_end(job) == "FAILED 7:0", site.said(job)
    found = [(address, TRAINER, CPUS) for address in sorted(NODES.values())]
    assert f"found {found}" in site.said(job), site.said(job)
    site.assert_nothing_left(job)


def test_where_one_node_does_not_join_nothing_is_left_on_the_others(site: Site) -> None:
    """The user may not write on one node's disk: the job fails, and says so."""
    disk = site.lab.host_path("edge-2", Path(OWN))
    mode = disk.stat().st_mode
    disk.chmod(0o700)
    try:
        job = site.submit("python", "-c", TRAINING)
        assert site.wait_for_end(job).startswith("FAILED"), site.said(job)
        assert "ermission denied" in site.said(job), site.said(job)
        site.assert_nothing_left(job)
    finally:
        disk.chmod(mode)


def test_before_the_time_is_over_the_training_saves(site: Site) -> None:
    """Slurm's signal, a minute before, reaches the command, whose own end is that of the job."""
    job = site.submit("python", "-c", ENDLESS, options=("--time=3",))
    assert site.wait_for_end(job) == "COMPLETED 0:0", site.said(job)
    assert "saved" in site.said(job).splitlines(), site.said(job)
    site.assert_nothing_left(job)


def test_a_job_that_is_cancelled_leaves_nothing(site: Site) -> None:
    """`scancel` ends all of the job's processes at once: the training still saves."""
    job = site.submit("python", "-c", ENDLESS)
    wait_until("it trains", lambda: site.said(job), JOB_S, wanted=lambda said: "training" in said.splitlines())
    site.as_user("scancel", job)
    assert site.wait_for_end(job).startswith("CANCELLED"), site.said(job)
    assert "saved" in site.said(job).splitlines(), site.said(job)
    site.assert_nothing_left(job)

"""`edgelink run` hears with which words a framework's program was started, and compares what only the shell knew."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_process import start_edgelink
from test_cli_driver_run import Head, head  # noqa: F401

from edgelink.errors import ExitCode
from edgelink.launch.command_report import StartedProgram, command_reports
from edgelink.process import import_hook

pytestmark = pytest.mark.processes

# verl's own words in its examples: an array, and numbers that the shell makes up its mind about.
SCRIPT = """
SUBMIT="python3 -m ray.dashboard.modules.job.cli submit --"
[ -z "$SUBMITS" ] || $SUBMIT python3 -m verl.trainer.main_ppo trainer.nnodes=9
TRAINER=(
    trainer.nnodes=${NNODES:-3}
    trainer.n_gpus_per_node=${GPUS:-4}
)
python3 -m verl.trainer.main_ppo "${TRAINER[@]}" || true
touch after
"""
# Two nodes of four GPUs, all free.
RAYS_STATE = """
class GlobalState:
    def _initialize_global_state(self, options):
        pass
    def available_resources_per_node(self):
        return {"a": {"GPU": 4.0, "CPU": 64.0}, "b": {"GPU": 4.0, "CPU": 64.0}}
    def node_table(self):
        ips = {"a": "10.10.0.2", "b": "10.10.0.3"}
        resources = self.available_resources_per_node()
        return [
            {"NodeID": name, "NodeManagerAddress": ip, "Resources": resources[name], "Alive": True}
            for name, ip in ips.items()
        ]
    def placement_group_table(self):
        return {}
    def _connect_and_get_accessor(self):
        return self
    def get_actor_table(self, job, state):
        return []
"""
RAYLET = """
class GcsClientOptions:
    @staticmethod
    def create(*_, **__):
        return None
"""


# Where the answer takes longer than two seconds it has begun to wait for its devices, for ever.
MAIN = """
import os, pathlib, signal
if os.environ.get("VERL_WAITS"):
    signal.pause()
pathlib.Path("trained").touch()
"""


@pytest.fixture
def verl(head: Head) -> Head:
    """A head whose drivers begin with the import hook, and a directory with verl, Ray and a script."""
    code = head.directory / "code"
    files = {
        "verl/__init__.py": "",
        "verl/trainer/__init__.py": "",
        "verl/trainer/main_ppo.py": MAIN,
        "ray/__init__.py": "",
        "ray/_raylet.py": RAYLET,
        "ray/dashboard/modules/job/cli.py": "import pathlib; pathlib.Path('submitted').touch()",
        "ray/dashboard/__init__.py": "",
        "ray/dashboard/modules/__init__.py": "",
        "ray/dashboard/modules/job/__init__.py": "",
        "ray/core/__init__.py": "",
        "ray/core/generated/__init__.py": "",
        "ray/core/generated/gcs_pb2.py": "",
        "ray/_private/__init__.py": "",
        "ray/_private/state.py": RAYS_STATE,
    }
    for name, text in files.items():
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(text)
    (head.directory / "train.sh").write_text(SCRIPT)
    hook = import_hook.provide(head.directory / "import-hook", os.getuid())
    environment = {
        "RAY_ADDRESS": "10.10.0.2:6379",
        "RLINF_COMM_NET_DEVICES": "et0",
        "EDGELINK_RAY_PYTHON": sys.executable,
        import_hook.HOOK: str(hook),
        "PYTHONPATH": str(code),
    }
    head.grant = {"environment": environment}
    return head


async def run(verl: Head, *options: str, **shell: str) -> tuple[int | None, str]:
    """Its exit status, and what it said."""
    command = (*options, "--no-preflight", "--", "bash", "train.sh")
    shell = {"PYTHONPATH": str(verl.directory / "code"), **shell}
    process = await start_edgelink(verl.directory, "run", *command, cwd=verl.directory, env=shell)
    _, words = await process.communicate()
    return process.returncode, words.decode()


async def test_what_only_the_shell_knew_is_refused_once_it_is_known(verl: Head) -> None:
    """The whole script is ended, also one that would go on; the sentence is that of the check before a start."""
    status, words = await run(verl, VERL_WAITS="1")
    assert "its program starts" in words
    assert "trainer.nnodes=3 trainer.n_gpus_per_node=4" in words
    assert "--no-resource-check" in words
    assert status == ExitCode.CONFIG
    assert not (verl.directory / "trained").exists()
    (attempt,) = verl.records[-1]["attempts"]
    assert "trainer.nnodes=3" in attempt["what_followed"]


async def test_a_job_that_a_script_submits_is_refused(verl: Head) -> None:
    """Ray starts it elsewhere, so what is submitted counts."""
    status, words = await run(verl, NNODES="2", SUBMITS="1")
    assert status == ExitCode.CONFIG, words
    assert "trainer.nnodes=9 trainer.n_gpus_per_node=8" in words
    assert not (verl.directory / "after").exists()


async def test_what_fits_is_started(verl: Head) -> None:
    """As the shell's own variables say it."""
    status, words = await run(verl, NNODES="2")
    assert (status, (verl.directory / "trained").exists()) == (0, True), words
    assert "not compared" not in words


async def test_the_refusal_can_be_overridden(verl: Head) -> None:
    """`--no-resource-check`."""
    status, words = await run(verl, "--no-resource-check")
    assert (status, (verl.directory / "trained").exists()) == (0, True), words


async def test_without_the_hook_it_is_said_that_nothing_was_compared(verl: Head) -> None:
    """Nobody will report then."""
    verl.grant["environment"].pop(import_hook.HOOK)
    status, words = await run(verl)
    assert (status, (verl.directory / "trained").exists()) == (0, True), words
    assert "not compared" in words


RLINF_SCRIPT = """
python3 examples/train.py --config-path "$PWD/examples/config/" --config-name ${CONFIG_NAME:-large} || true
touch after
"""
SECTION = """
cluster:
  num_nodes: {}
  component_placement:
    actor,rollout: all
    env: {}
"""


@pytest.fixture
def rlinf(verl: Head) -> Head:
    """The same with RLinf, and one node of two GPUs."""
    code = verl.directory / "code"
    (code / "rlinf").mkdir()
    (code / "rlinf/__init__.py").write_text("")
    config = verl.directory / "examples/config"
    config.mkdir(parents=True)
    (config / "large.yaml").write_text(SECTION.format(9, "all"))
    (config / "small.yaml").write_text(SECTION.format(1, "all"))
    (config.parent / "train.py").write_text(f"import rlinf\n{MAIN}")
    (verl.directory / "train.sh").write_text(RLINF_SCRIPT)
    asker = verl.directory / f"import-hook/{os.getuid()}/report_command.py"
    asker.write_text(asker.read_text().replace("WAIT_S = 2.0", "WAIT_S = 60.0"))  # on a busy machine, too
    verl.alive = [{"rank": 0, "ip": "10.10.0.2", "accelerator": "NV_GPU", "accelerator_count": 2}]
    return verl


async def test_the_configuration_that_a_script_of_rlinf_chooses_is_judged(rlinf: Head) -> None:
    """Whatever the shell makes of its options; RLinf itself would wait for nodes for ever."""
    status, words = await run(rlinf)
    assert status == ExitCode.CONFIG, words
    assert "num_nodes" in words
    assert "large.yaml" in words
    assert not (rlinf.directory / "trained").exists()
    status, words = await run(rlinf, CONFIG_NAME="small")
    assert (status, (rlinf.directory / "trained").exists()) == (0, True), words


async def test_a_configuration_other_than_the_cluster_files_is_said(rlinf: Head) -> None:
    """The run was placed by the file; the program will place by its own."""
    (rlinf.directory / "other.yaml").write_text(SECTION.format(1, "0"))
    for name, is_said in (("other.yaml", True), ("examples/config/small.yaml", False)):
        status, words = await run(rlinf, "--cluster", name, CONFIG_NAME="small")
        assert status == 0, words
        assert ("another cluster section" in words) is is_said


def start(code: str, directory: Path, sock: str, *before: str) -> subprocess.CompletedProcess[str]:
    """A program that begins with the hook, and has a verl to import."""
    (directory / "verl").mkdir(exist_ok=True)
    (directory / "verl/__init__.py").write_text("")
    (directory / "train.py").write_text(code)
    hook = import_hook.provide(directory / "import-hook", os.getuid())
    environment = {**os.environ, "EDGELINK_RUN_SOCKET": sock, **import_hook.variables(hook, str(directory))}
    command = [sys.executable, *before, "train.py", "a b", "x=1"]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


async def heard(code: str, directory: Path, *before: str) -> tuple[list[Sequence[str]], str]:
    """The words of each program that reported, and what the first one printed."""
    told: list[StartedProgram] = []

    def may_go_on(started: StartedProgram) -> bool:
        told.append(started)
        return True

    with command_reports(directory / "sock", may_go_on) as variables:
        done = await asyncio.to_thread(start, code, directory, variables["EDGELINK_RUN_SOCKET"], *before)
    assert done.returncode == 0, done.stderr
    assert all(each.package == "verl" for each in told)
    return [each.words[1:] for each in told], done.stdout


async def test_a_program_reports_its_words_once(tmp_path: Path) -> None:
    """As the kernel has them, options of Python included. Its children, and the program, see nothing of it."""
    code = """
import importlib, multiprocessing, os, subprocess, sys
import verl
def child():
    import verl
if __name__ == "__main__":
    importlib.reload(verl)
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=child)
        process.start()
        process.join()
    subprocess.run([sys.executable, "-c", "import verl"], check=True)
    print("EDGELINK_RUN_SOCKET" in os.environ)
"""
    words, output = await heard(code, tmp_path, "-W", "ignore")
    assert words == [("-W", "ignore", "train.py", "a b", "x=1")]
    assert output == "False\n"


async def test_who_imports_no_framework_reports_nothing(tmp_path: Path) -> None:
    """Scripts start many a small Python."""
    assert await heard("import json", tmp_path) == ([], "")


@pytest.mark.parametrize("what", ["gone", "silent", "noise"])
async def test_a_program_waits_two_seconds_at_most(tmp_path: Path, what: str) -> None:
    """Also where nobody listens any more, or says what it does not understand."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        if what == "noise":
            writer.write(b"[]\n")
        else:
            await reader.read()  # until it hangs up
        writer.close()

    code = "import time; began = time.monotonic(); import verl; print(time.monotonic() - began)"
    if what == "gone":
        done = start(code, tmp_path, str(tmp_path / "sock"))
    else:
        async with await asyncio.start_unix_server(answer, tmp_path / "sock"):
            done = await asyncio.to_thread(start, code, tmp_path, str(tmp_path / "sock"))
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 10  # two seconds, and a busy machine
    assert (float(done.stdout) > 1.5) == (what == "silent")


async def test_a_program_that_is_refused_ends(tmp_path: Path) -> None:
    """Even where it would catch whatever an import raises; `run` says why."""
    code = "try:\n    import verl\nexcept Exception:\n    pass\nprint('went on')"
    with command_reports(tmp_path / "sock", lambda _: False) as variables:
        done = await asyncio.to_thread(start, code, tmp_path, variables["EDGELINK_RUN_SOCKET"])
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.CONFIG, "", "")


def test_where_nobody_can_listen_nobody_reports(tmp_path: Path) -> None:
    """A socket's path has 107 bytes at most; the run goes on."""
    with command_reports(tmp_path / ("x" * 200), lambda _: True) as variables:
        assert variables == {}


def test_what_nobody_understands_is_no_report(tmp_path: Path) -> None:
    """And costs the next one nothing."""
    import socket

    with command_reports(tmp_path / "sock", lambda started: started.words == ("python", "x")):
        answers = []
        for message in (
            b"noise\n",
            b"[]\n",
            json.dumps({"package": "verl", "python": "", "words": ["python", "x"]}).encode() + b"\n",
        ):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(tmp_path / "sock"))
                connection.sendall(message)
                connection.settimeout(30)
                answers.append(connection.makefile("rb").readline())
    assert answers == [b"", b"", b'{"go_on": true}\n']

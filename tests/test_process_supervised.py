"""Supervising real children: they outlive us, are found again, and end when told to."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from full_disk import Disk

from edgelink import log
from edgelink.clock import SystemClock
from edgelink.conditions import ConditionSet
from edgelink.errors import NotRecordedError, ProcessError, ProcessStartError
from edgelink.process import (
    Identity,
    ProcessSpec,
    SessionLauncher,
    SupervisedProcess,
    identify,
    is_alive,
    marked_pids,
    procfs,
)
from edgelink.process.script import Script
from edgelink.state_files import StateFiles
from edgelink.testing import eventually

SLEEPER = "import time; time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
)


def spec(tmp_path: Path, code: str, **changes: object) -> ProcessSpec:
    values: dict[str, object] = {
        "name": "child",
        "argv": (sys.executable, "-c", code),
        "env": {"PATH": os.environ["PATH"]},
        "cwd": tmp_path,
        "log_path": tmp_path / "logs" / "child.log",
        "config_hash": "h1",
    }
    return ProcessSpec(**(values | changes))  # type: ignore[arg-type]


def supervised(tmp_path: Path) -> SupervisedProcess:
    return SupervisedProcess("child", tmp_path / "processes" / "child.json", SessionLauncher(), SystemClock())


async def started(process: SupervisedProcess, tmp_path: Path) -> Identity:
    """As another daemon sees it: what closes at exec is closed a moment before the kernel shows the environment."""
    identity = await process.start(spec(tmp_path, SLEEPER))
    await eventually(lambda: procfs.environment_of(identity.pid))
    return identity


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[SupervisedProcess]:
    process = supervised(tmp_path)
    yield process
    await process.stop(term_timeout_s=0.1)


async def test_a_started_process_is_recorded_privately_in_its_own_session(
    process: SupervisedProcess, tmp_path: Path
) -> None:
    """start() returns only after the identity is on disk, 0600, and the child leads its own session."""
    identity = await process.start(spec(tmp_path, SLEEPER))

    record = tmp_path / "processes" / "child.json"
    assert Identity.from_dict(json.loads(record.read_text())) == identity
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert os.getsid(identity.pid) == identity.pid
    assert process.is_running
    assert process.config_hash == "h1"


async def test_a_child_whose_record_has_no_room_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs, and its record is on disk when there is room; until then its mark tells the next daemon."""
    disk = Disk(monkeypatch)
    files = StateFiles(ConditionSet(SystemClock(), [], [StateFiles.condition]))
    record = tmp_path / "processes" / "child.json"
    process = SupervisedProcess("child", record, SessionLauncher(), SystemClock(), files=files)
    disk.is_full = True
    identity = await started(process, tmp_path)
    try:
        assert process.is_running
        with pytest.raises(NotRecordedError, match="No space left"):
            await files.reconcile()
        disk.is_full = False
        assert supervised(tmp_path).adopt() == identity
        record.unlink()
        await files.reconcile()
        assert Identity.from_dict(json.loads(record.read_text())) == identity
    finally:
        await process.stop(term_timeout_s=0.1)


async def test_output_goes_to_a_private_file_and_never_to_a_pipe(process: SupervisedProcess, tmp_path: Path) -> None:
    """stdout and stderr are appended to a 0600 file, stdin is empty: the child does not depend on us."""
    await process.start(
        spec(tmp_path, "import sys; print('out'); print('err', file=sys.stderr); print(sys.stdin.read())")
    )
    await process.wait()

    log_path = tmp_path / "logs" / "child.log"
    assert sorted(log_path.read_text().split()) == ["err", "out"]
    assert stat.S_IMODE(log_path.stat().st_mode) == 0o600


async def test_the_environment_is_exactly_what_was_listed(process: SupervisedProcess, tmp_path: Path) -> None:
    """Nothing is inherited, and systemd's notification socket is never passed on."""
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    await process.start(spec(tmp_path, code, env={"A": "1", "NOTIFY_SOCKET": "/run/x"}))
    await process.wait()

    names = set(json.loads((tmp_path / "logs" / "child.log").read_text()))
    assert {"A", "EDGELINK_CHILD"} <= names
    assert not names & {"NOTIFY_SOCKET", "HOME", "PATH"}


async def test_an_exit_status_is_reported_and_the_child_reaped(process: SupervisedProcess, tmp_path: Path) -> None:
    """wait() gives the status of our own child, also to a second caller, and leaves no zombie."""
    go = tmp_path / "go"
    os.mkfifo(go)
    identity = await process.start(spec(tmp_path, f"import sys; open({str(go)!r}).read(); sys.exit(3)"))
    go.write_text("")  # from here on it may end

    assert await asyncio.gather(process.wait(), process.wait()) == [3, 3]
    assert not process.is_running
    with pytest.raises(ProcessLookupError):
        procfs.read_stat(identity.pid)


async def test_a_child_that_ended_before_anybody_looked_is_waited_for(
    process: SupervisedProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine it may have ended when its identity is asked for: its status and last words are not lost."""

    def late(pid: int, config_hash: str) -> Identity:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return identify(pid, config_hash)

    monkeypatch.setattr("edgelink.process.launcher.identify", late)
    await process.start(spec(tmp_path, "print('no such luck'); raise SystemExit(3)"))
    assert await process.wait() == 3
    assert process.last_words() == "no such luck"
    assert not process.is_running


async def test_death_by_signal_is_a_negative_status(process: SupervisedProcess, tmp_path: Path) -> None:
    """wait() tells a signal from an exit status, as subprocess does."""
    identity = await process.start(spec(tmp_path, SLEEPER))
    os.kill(identity.pid, signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL


async def test_waiting_can_be_cancelled_without_harm(process: SupervisedProcess, tmp_path: Path) -> None:
    """A cancelled wait() neither ends the child nor spoils the next wait()."""
    identity = await process.start(spec(tmp_path, SLEEPER))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await process.wait()
    assert process.is_running
    os.kill(identity.pid, signal.SIGTERM)
    assert await process.wait() == -signal.SIGTERM


async def test_a_process_that_ignores_sigterm_is_killed(process: SupervisedProcess, tmp_path: Path) -> None:
    """The ladder ends with SIGKILL, and the record is gone afterwards."""
    identity = await process.start(spec(tmp_path, STUBBORN))
    await eventually(lambda: "ready" in process.last_words())

    await process.stop(term_timeout_s=0.1)

    assert not is_alive(identity)
    assert process.identity is None
    assert not (tmp_path / "processes" / "child.json").exists()


async def test_stopping_ends_the_children_of_the_child_too(process: SupervisedProcess, tmp_path: Path) -> None:
    """Grandchildren of the session do not outlive stop(), even when their parent has died before."""
    code = (
        "import subprocess, sys\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid, flush=True)"
    )
    await process.start(spec(tmp_path, code))
    await process.wait()
    grandchild = int(process.last_words(1))
    assert procfs.read_stat(grandchild)

    await process.stop()

    await eventually(lambda: _is_gone(grandchild))


async def test_stopping_twice_or_never_started_is_harmless(process: SupervisedProcess, tmp_path: Path) -> None:
    """stop() is idempotent."""
    await process.stop()
    await process.start(spec(tmp_path, SLEEPER))
    await process.stop()
    await process.stop()


async def test_starting_twice_is_refused(process: SupervisedProcess, tmp_path: Path) -> None:
    """A running child is never silently doubled."""
    await process.start(spec(tmp_path, SLEEPER))
    with pytest.raises(ProcessError, match="already running"):
        await process.start(spec(tmp_path, SLEEPER))


async def test_a_missing_program_is_named(process: SupervisedProcess, tmp_path: Path) -> None:
    """What cannot be executed is a ProcessStartError that names the file, and leaves no record."""
    with pytest.raises(ProcessStartError, match="/no/such/program"):
        await process.start(spec(tmp_path, "", argv=("/no/such/program",)))
    assert not process.is_running
    assert not (tmp_path / "processes" / "child.json").exists()


async def test_a_second_daemon_adopts_the_running_process(process: SupervisedProcess, tmp_path: Path) -> None:
    """The next daemon finds the same pid, can wait for its end, read its words and stop it."""
    identity = await process.start(spec(tmp_path, "print('hello', flush=True); " + SLEEPER))
    await eventually(lambda: "hello" in process.last_words())
    successor = supervised(tmp_path)

    assert successor.adopt() == identity
    assert successor.is_running
    assert successor.config_hash == "h1"
    assert successor.last_words() == "hello"
    await successor.stop()
    assert not is_alive(identity)


async def test_a_process_whose_program_is_renamed_is_still_ours(process: SupervisedProcess, tmp_path: Path) -> None:
    """As when pip or an operator puts a newer one in its place; also by a record that names the program, as once."""
    program = tmp_path / "sleep"
    shutil.copy(shutil.which("sleep") or "", program)
    identity = await process.start(spec(tmp_path, "", argv=(str(program), "60")))
    record = tmp_path / "processes" / "child.json"
    record.write_text(json.dumps({"executable": str(program)} | json.loads(record.read_text())))

    program.rename(tmp_path / "sleep.old")
    shutil.copy(tmp_path / "sleep.old", program)

    assert process.is_running
    assert supervised(tmp_path).adopt() == identity


async def started_script(process: SupervisedProcess, tmp_path: Path, script: Path) -> Identity:
    """A child that an interpreter runs from ``script``, once it has spoken."""
    script.write_text(f"#!{sys.executable} -I\nprint('hello', flush=True)\n{SLEEPER}\n")
    script.chmod(0o755)
    identity = await process.start(spec(tmp_path, "", argv=(str(script), "-c", str(tmp_path))))
    await eventually(lambda: process.last_words() == "hello")
    return identity


async def test_the_identity_of_a_script_names_it_by_path_and_content(
    process: SupervisedProcess, tmp_path: Path
) -> None:
    """On disk as well; and the next daemon, which reads it from the kernel, finds the same."""
    script = tmp_path / "program"
    identity = await started_script(process, tmp_path, script)

    recorded = json.loads((tmp_path / "processes" / "child.json").read_text())["script"]
    assert recorded == {"path": str(script), "sha256": hashlib.sha256(script.read_bytes()).hexdigest()}
    assert supervised(tmp_path).adopt() == identity

    (tmp_path / "processes" / "child.json").unlink()
    assert supervised(tmp_path).adopt() == identity


async def test_a_script_that_is_replaced_on_disk_is_still_ours(process: SupervisedProcess, tmp_path: Path) -> None:
    """An upgrade cuts nothing: the child is known by its mark, and from then on with the present content."""
    script = tmp_path / "program"
    identity = await started_script(process, tmp_path, script)
    newer = tmp_path / "newer"
    newer.write_text(script.read_text() + "# of the next version\n")
    newer.rename(script)

    assert process.is_running
    adopted = supervised(tmp_path).adopt()
    assert adopted is not None
    assert adopted.pid == identity.pid
    assert adopted.script == Script(str(script), hashlib.sha256(script.read_bytes()).hexdigest())


async def test_a_script_that_becomes_another_program_is_still_ours(process: SupervisedProcess, tmp_path: Path) -> None:
    """As somebody's wrapper around easytier-core: what runs is no script any more."""
    script = tmp_path / "wrapper"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    identity = await process.start(spec(tmp_path, "", argv=(str(script),)))
    await eventually(lambda: procfs.arguments_of(identity.pid) == ("sleep", "60"))

    assert process.is_running
    adopted = supervised(tmp_path).adopt()
    assert adopted is not None
    assert adopted.pid == identity.pid


@pytest.mark.parametrize("field", ["path", "sha256"])
async def test_a_stranger_that_runs_another_script_is_not_adopted(
    process: SupervisedProcess, tmp_path: Path, field: str
) -> None:
    """Even with the pid, start time and boot that are recorded; it is left alone, and the record forgotten."""
    stranger = SupervisedProcess("stranger", tmp_path / "other" / "child.json", SessionLauncher(), SystemClock())
    identity = await started_script(stranger, tmp_path, tmp_path / "program")
    try:
        values = identity.to_dict()
        values["script"] = values["script"] | {field: "another"}
        record = tmp_path / "processes" / "child.json"
        record.parent.mkdir()
        record.write_text(json.dumps(values | {"log_path": "/dev/null"}))

        assert process.adopt() is None
        await process.stop()
        assert is_alive(identity)
        assert not record.exists()
    finally:
        await stranger.stop()


async def test_a_script_that_a_former_daemon_recorded_without_its_name_is_adopted(
    process: SupervisedProcess, tmp_path: Path
) -> None:
    """Its record knew pid, start time and boot only; an upgrade of the daemon cuts nothing."""
    identity = await started_script(process, tmp_path, tmp_path / "program")
    record = tmp_path / "processes" / "child.json"
    values = json.loads(record.read_text())
    del values["script"]
    record.write_text(json.dumps(values))

    adopted = supervised(tmp_path).adopt()
    assert adopted is not None
    assert adopted.pid == identity.pid


async def test_an_orphan_whose_record_was_never_written_is_found(process: SupervisedProcess, tmp_path: Path) -> None:
    """A daemon killed between exec and record leaves no unknown child: its mark gives it away."""
    identity = await started(process, tmp_path)
    (tmp_path / "processes" / "child.json").unlink()

    successor = supervised(tmp_path)

    assert successor.adopt() == identity
    assert (tmp_path / "processes" / "child.json").exists()


async def test_an_orphan_of_a_lost_state_directory_is_found(process: SupervisedProcess, tmp_path: Path) -> None:
    """The mark names the directory, not what lay there; the configuration hash says what is to be done with it."""
    identity = await started(process, tmp_path)
    shutil.rmtree(tmp_path / "processes")

    successor = supervised(tmp_path)

    assert successor.adopt() == identity
    assert successor.config_hash == "h1"


async def test_what_runs_for_another_node_with_the_same_paths_is_no_orphan(
    process: SupervisedProcess, tmp_path: Path
) -> None:
    """In another mount namespace the same path is another directory."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "processes").mkdir()
    mark = f"EDGELINK_CHILD=child@{tmp_path / 'processes'}"
    with sleeper_that_finds(elsewhere, tmp_path / "processes", mark) as stranger:
        await eventually(lambda: stranger.pid in marked_pids(mark))
        assert process.adopt() is None


@contextmanager
def sleeper_that_finds(directory: Path, path: Path, mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with ``mark`` that finds ``directory`` at ``path``, in a mount namespace of its own."""
    script = f"mount --bind {directory} {path} && echo there && exec env {mark} sleep 1000"
    argv = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as child:
        try:
            assert child.stdout is not None
            if child.stdout.readline() != b"there\n":
                pytest.skip("this machine gives no mount namespaces to its users")
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize("field, value", [("start_ticks", 1), ("boot_id", "other")])
async def test_a_stranger_with_our_pid_is_not_adopted(
    process: SupervisedProcess, tmp_path: Path, field: str, value: object
) -> None:
    """A recycled pid (other start time or boot) is refused, left alone, and the record forgotten."""
    stranger = SupervisedProcess("stranger", tmp_path / "other" / "child.json", SessionLauncher(), SystemClock())
    identity = await stranger.start(spec(tmp_path, SLEEPER))
    try:
        record = tmp_path / "processes" / "child.json"
        record.parent.mkdir()
        record.write_text(json.dumps(identity.to_dict() | {"log_path": "/dev/null", field: value}))

        assert process.adopt() is None
        await process.stop()
        assert is_alive(identity)
        assert not record.exists()
    finally:
        await stranger.stop()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}'])
def test_a_damaged_record_is_no_process(tmp_path: Path, content: str) -> None:
    """Half a record never stops a daemon from starting."""
    record = tmp_path / "processes" / "child.json"
    record.parent.mkdir()
    record.write_text(content)
    assert supervised(tmp_path).adopt() is None


async def test_last_words_hide_secrets(process: SupervisedProcess, tmp_path: Path) -> None:
    """What a child says is shown without the secrets it says."""
    log.hide("a-very-secret-word")
    go = tmp_path / "go"
    os.mkfifo(go)
    await process.start(spec(tmp_path, f"open({str(go)!r}).read(); print('my a-very-secret-word')"))
    go.write_text("")  # from here on it may end
    await process.wait()
    assert process.last_words() == "my ***"


def _is_gone(pid: int) -> bool:
    try:
        return procfs.read_stat(pid).is_zombie
    except ProcessLookupError:
        return True

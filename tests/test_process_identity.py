"""What is read about processes, their output files and their ports."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import subprocess
import sys
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from living import living

from edgelink.process import identify, is_alive, marked_pids, marked_pids_of, output, procfs, usage
from edgelink.process.ports import accepted, is_port_free, port_holder, ports_of_root
from edgelink.process.script import Script, script_of


def test_an_identity_is_alive_until_its_process_is_gone() -> None:
    """is_alive() is True for the very process and False afterwards, a zombie included."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        identity = identify(child.pid, "h")
        assert is_alive(identity)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, not reaped: a zombie
        assert not is_alive(identity)
    with pytest.raises(ProcessLookupError):
        identify(child.pid, "h")


@pytest.mark.parametrize(
    "before, is_found",
    [
        (["{python}", "-I"], True),
        (["/opt/env/bin/python3.11"], True),
        (["/bin/sh"], True),
        (["{python}", "-m", "json.tool"], False),  # what follows is a module's argument
        (["{python}", "-c", "input()"], False),
        (["/usr/bin/easytier-core", "-c"], False),  # a file is not what this program runs
    ],
)
def test_the_script_of_a_command_line_is_what_its_interpreter_runs(
    tmp_path: Path, before: list[str], is_found: bool
) -> None:
    """The first file that Python or a shell is given; no file that another program is given."""
    file = tmp_path / "file"
    file.write_text("x = 1\n")
    found = script_of([word.format(python=sys.executable) for word in before] + [str(file), "other"])
    assert found == (Script(str(file), hashlib.sha256(b"x = 1\n").hexdigest()) if is_found else None)


def test_a_file_that_names_its_interpreter_is_a_script(tmp_path: Path) -> None:
    """As we execute it, and as the kernel shows it then. A pipe is not read."""
    file = tmp_path / "program"
    file.write_text("#!/bin/sh\n")
    assert script_of([str(file), "-c", "x"]) == script_of(["/bin/sh", str(file), "-c", "x"]) is not None
    file.write_text("\x7fELF")
    assert script_of([str(file), "-c", "x"]) is None
    file.unlink()
    assert script_of(["/bin/sh", str(file)]) is None
    os.mkfifo(file)
    assert script_of(["/bin/sh", str(file)]) is None
    assert script_of(["sh", "program"]) is None
    assert script_of([]) is None


def test_usage_tells_cpu_and_memory() -> None:
    """usage() of ourselves is positive and plausible."""
    used = usage(os.getpid())
    assert used.cpu_s > 0
    assert used.rss_bytes > 1_000_000


def test_marked_processes_are_found_by_the_exact_mark() -> None:
    """marked_pids() finds descendants too, and does not take a longer value for the mark."""
    environment = {"PATH": os.environ["PATH"], "MARK": f"one-{os.getpid()}"}
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"], env=environment, start_new_session=True) as child:
        try:
            found: list[int] = []
            while len(found) < 2:
                found = marked_pids(f"MARK=one-{os.getpid()}")
            assert child.pid in found
            assert marked_pids("MARK=one-") == []
        finally:
            os.killpg(child.pid, 9)


def test_a_mark_is_believed_of_certain_users_only(tmp_path: Path) -> None:
    """Anybody can put our mark into an environment of their own."""
    mark = f"EDGELINK_TEST={tmp_path}"
    name, _, value = mark.partition("=")
    with living({name: value}) as pid:
        assert marked_pids_of(mark, tmp_path, {os.geteuid()}) == [pid]
        assert marked_pids_of(mark, tmp_path) == [pid]
        assert marked_pids_of(mark, tmp_path, {os.geteuid() + 1}) == []


def test_a_process_may_have_any_bytes_as_its_name() -> None:
    """A name that is no UTF-8 must not keep us from looking at the processes of the machine."""
    rename = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\xd0 (x) \\xff', 0, 0, 0); print(flush=True); input()"
    argv = [sys.executable, "-c", rename]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            assert b"\xff" in Path(f"/proc/{child.pid}/comm").read_bytes(), "else this test shows nothing"
            assert procfs.session_members(child.pid) == [child.pid]
            assert "(x)" in procfs.command_of(child.pid)
        finally:
            child.kill()


def test_the_members_of_a_control_group_are_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of either version, below it too, in whatever slice; not of one that is called alike, and no zombie."""
    lines = {
        1: "0::/init.scope\n",
        2: "0::/system.slice/edgelink-ray.service\n",
        3: "12:pids:/system.slice/edgelink-ray.service\n1:name=systemd:/system.slice/edgelink-ray.service/inner\n",
        4: "0::/system.slice/edgelink-ray.service-2\n",
        5: "0::/system.slice/edgelink-ray.service\n",
    }
    for pid, text in lines.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(text)
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) {'Z' if pid == 5 else 'S'}" + " 0" * 40)
    (tmp_path / "6").mkdir()  # it ends just now
    (tmp_path / "self").mkdir()
    monkeypatch.setattr(procfs, "_PROC", tmp_path)
    assert sorted(procfs.cgroup_members("edgelink-ray.service")) == [2, 3]


def test_scrubbing_overwrites_in_place(tmp_path: Path) -> None:
    """A secret is replaced by as many asterisks; a writer that has the file open goes on at its end."""
    path = tmp_path / "log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"secret=s3cr3t-word and s3cr3t-word\n")
        assert output.scrub(path, ["s3cr3t-word"]) == 2
        writer.write(b"next\n")
    assert path.read_text() == "secret=*********** and ***********\nnext\n"
    assert output.scrub(tmp_path / "missing", ["x"]) == 0


def test_a_log_is_bounded_while_its_writer_lives(tmp_path: Path) -> None:
    """bound() keeps one older file, 0600, and the writer's next line begins the new one."""
    path = tmp_path / "log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"x" * 100)
        assert not output.bound(path, 100)
        assert output.bound(path, 99)
        writer.write(b"next\n")
    assert path.read_text() == "next\n"
    older = tmp_path / "log.1"
    assert older.stat().st_size == 100
    assert stat.S_IMODE(older.stat().st_mode) == 0o600
    assert not output.bound(tmp_path / "missing", 1)


def test_what_is_kept_of_a_flood_is_bounded_too(tmp_path: Path) -> None:
    """A writer that fills the log between two looks would fill the disk with its older part."""
    path = tmp_path / "log"
    path.write_bytes(b"old" * 100_000 + b"end" * 50_000)
    assert output.bound(path, 150_000)
    assert (tmp_path / "log.1").read_bytes() == b"end" * 50_000


def test_the_tail_of_a_missing_log_is_empty(tmp_path: Path) -> None:
    """tail() of nothing is nothing."""
    assert output.tail(tmp_path / "missing", 5) == ""


def test_last_words_command_no_terminal(tmp_path: Path) -> None:
    """They are quoted in messages, of a file that another user's `ray start` wrote; lines and tabs stay."""
    (tmp_path / "ray.log").write_text("one\n\ttwo \x1b[2J\nthree\x07\n")
    assert output.tail(tmp_path / "ray.log", 2) == "\ttwo �[2J\nthree�"


@pytest.mark.parametrize("protocol, kind", [("tcp", socket.SOCK_STREAM), ("udp", socket.SOCK_DGRAM)])
def test_the_holder_of_a_port_is_named(protocol: str, kind: socket.SocketKind) -> None:
    """A busy port is seen as busy, and its holder named by pid; a free one is free."""
    with socket.socket(socket.AF_INET, kind) as holder:
        holder.bind(("127.0.0.1", 0))
        if protocol == "tcp":
            holder.listen()
        port = holder.getsockname()[1]
        assert not is_port_free(protocol, "127.0.0.1", port)  # type: ignore[arg-type]
        assert f"(pid {os.getpid()})" in port_holder(protocol, port)  # type: ignore[arg-type]
    assert is_port_free(protocol, "127.0.0.1", port)  # type: ignore[arg-type]
    assert port_holder(protocol, port) == "another process"  # type: ignore[arg-type]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_who_is_connected_to_a_port_here_is_known(family: socket.AddressFamily) -> None:
    """Also where the program listens by IPv6 for both. A connection that was made from here is not meant."""
    loopback = IPv4Address("127.0.0.1")
    address = ("", 0) if family is socket.AF_INET else ("::", 0)
    with socket.create_server(address, family=family, dualstack_ipv6=family is socket.AF_INET6) as server:
        port = server.getsockname()[1]
        assert port not in {each.port for each in accepted(loopback)}
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0]:
            found = {each.port: each for each in accepted(loopback)}
            assert (found[port].remote, bool(found[port].name)) == (loopback, True)
            assert client.getsockname()[1] not in found
        assert port not in {each.port for each in accepted(IPv4Address("127.0.0.9"))}


@pytest.mark.skipif(os.geteuid() != 0, reason="looks at the ports of root's programs")
def test_the_ports_of_roots_programs_are_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        name = Path("/proc/self/comm").read_text().strip()
        assert server.getsockname()[1] in ports_of_root({name, "sshd"})[name]
        assert ports_of_root({"no such program"}) == {}

"""The Ansible role for a whole network, as the page has it.

Three booted machines with a small Debian and sshd. Ansible reaches each through its own network namespace. EdgeLink
comes from a web server with the packages that are made for it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import booted
import pytest
import yaml
from booted import BootedNode
from conftest import MakeLab
from machines import wait_until
from made_once import debian_python, made_once, packages
from test_tutorial import MIRROR, PORT, person
from typed_page import DOCS

from edgelink.lab import CLOUD, INTERNET, RELAY
from edgelink.lab.namespaces import netns_path
from edgelink.overlay.acquisition import default_cache_dir, find_easytier

ROLE = DOCS / "examples/ansible"
# As the inventory of the example names them, and the lab.
MACHINES = {"relay.example.org": RELAY, "cloud": CLOUD, "franka-1": "edge-1"}
NOT_THERE = "franka-2"
PLAYBOOK_S = 420.0
TOKEN_FILE = Path("/run/edgelink-token")
# To the machine's sshd, which no other machine reaches.
PROXY = """#!/bin/bash
exec nsenter --net="$1" bash -c 'exec 3<>/dev/tcp/127.0.0.1/22; cat <&3 & cat >&3; kill $!'
"""

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("easytier"),
    pytest.mark.long,
]
if reason := booted.reason_to_skip():
    pytestmark.append(pytest.mark.skip(reason=reason))


@dataclass
class Site:
    """The machines, the web server's folder, and who sits at a laptop with Ansible."""

    machines: dict[str, BootedNode]
    mirror: Path
    address: str
    laptop: Path
    ansible: Path

    def play(self, *arguments: str) -> dict[str, dict[str, int]]:
        """Run ``ansible-playbook``; by machine, how many tasks changed something, failed and so on."""
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.laptop),
            "ANSIBLE_HOST_KEY_CHECKING": "False",
            "ANSIBLE_SSH_ARGS": "-o ControlMaster=no -o UserKnownHostsFile=/dev/null",
            "LC_ALL": "C.UTF-8",
        }
        command = [self.ansible / "bin/ansible-playbook", "-i", "inventory.ini", *arguments]
        done = subprocess.run(
            list(map(str, command)),
            cwd=self.laptop,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=PLAYBOOK_S,
        )
        print(done.stdout)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "elt1_" not in done.stdout + done.stderr
        recap = re.findall(r"^(\S+) +: (ok=.*)$", done.stdout, re.MULTILINE)
        return {name: {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line)} for name, line in recap}

    def without(self, name: str) -> tuple[str, str]:
        return "--limit", f"all:!{name}"


def ansible(factory: pytest.TempPathFactory) -> Path:
    """An environment with Ansible, in the locked versions."""

    def make(directory: Path) -> None:
        uv, lock = Path(sys.prefix) / "bin/uv", Path(__file__).with_name("ansible.lock")
        python = directory / "venv/bin/python"
        subprocess.run(
            [uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, directory / "venv"], check=True
        )
        install = [uv, "pip", "install", "--quiet", "--require-hashes", "--requirements", lock]
        subprocess.run([*install, "--python", python], check=True)

    return made_once(factory, "ansible", make) / "venv"


@pytest.fixture(scope="module")
def site(make_shared_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """All machines booted, with nothing of EdgeLink on them."""
    if debian_python() is None:
        pytest.skip("this machine's Debian has a Python before 3.11")
    work = tmp_path_factory.mktemp("site")
    served = work / "served"
    shutil.copytree(packages(tmp_path_factory), served / "edgelink")
    lab = make_shared_lab()
    lab.up(edges=1)
    log = work / "mirror.log"
    server = lab.popen(
        INTERNET, [sys.executable, "-u", "-m", "http.server", str(PORT), "--directory", str(served)], log
    )
    address = f"http://{lab.topology.node(RELAY).gateway}:{PORT}"
    laptop = work / "laptop"
    shutil.copytree(ROLE, laptop)
    inventory = laptop / "inventory.ini"
    inventory.write_text(inventory.read_text().replace(MIRROR, address))
    (laptop / "proxy").write_text(PROXY)
    (laptop / "proxy").chmod(0o755)
    (laptop / "host_vars").mkdir()
    key = laptop / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    easytier = find_easytier(None, default_cache_dir())
    machines = {name: BootedNode(lab, node, easytier) for name, node in MACHINES.items()}

    def prepare(name: str) -> None:
        machine = machines[name]
        lab.host_path(MACHINES[name], Path("/etc/edgelink/edgelink.yaml")).unlink()
        machine.install()
        person(machine.root, name.partition(".")[0])
        allowed = machine.root / "root/.ssh/authorized_keys"
        allowed.parent.mkdir(mode=0o700, exist_ok=True)
        allowed.write_text(key.with_suffix(".pub").read_text())
        units = ("systemctl", "--quiet", f"--root={machine.root}")
        subprocess.run([*units, "unmask", "ssh.service"], check=True)
        subprocess.run([*units, "enable", "ssh.service"], check=True, capture_output=True)
        reach = f"-o ProxyCommand='{laptop}/proxy {netns_path(lab.name, MACHINES[name])}'"
        variables = {"ansible_user": "root", "ansible_ssh_private_key_file": str(key), "ansible_ssh_common_args": reach}
        (laptop / f"host_vars/{name}.yml").write_text(yaml.safe_dump(variables))
        machine.boot()
        machine.run("systemctl", "is-system-running", "--wait")

    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(prepare, machines))
        wait_until("the mirror answers", log.read_text)
        yield Site(machines, served / "edgelink", address, laptop, ansible(tmp_path_factory))
    finally:
        server.kill()
        server.wait()
        with ThreadPoolExecutor() as pool:
            list(pool.map(BootedNode.remove, machines.values()))


def test_ansible_sets_a_network_up_and_then_changes_nothing(site: Site) -> None:
    """Relay, head and edge are Ready; no log of theirs has a token."""
    first = site.play("site.yml", *site.without(NOT_THERE))
    assert set(first) == set(site.machines)
    assert all(told["changed"] for told in first.values())
    for machine in site.machines.values():
        status = machine.status()
        assert status is not None
        assert status["ready"]
        assert "elt1_" not in machine.run("journalctl", "--no-pager", "--boot", "--output=cat", check=True).stdout
        assert not machine.path(TOKEN_FILE).exists()
    again = site.play("site.yml", *site.without(NOT_THERE))
    assert {name: told["changed"] for name, told in again.items()} == dict.fromkeys(first, 0)

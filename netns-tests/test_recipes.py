"""The recipes for many machines, as the page has them: an Ansible role for a whole network, cloud-init at a first boot.

Four booted machines with a small Debian and sshd. Ansible reaches each through its own network namespace. EdgeLink
comes from a web server with the packages that are made for it. The tests build on each other, in order.
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
from made_once import REPOSITORY, debian_python, made_once, packages
from test_packages import as_version
from test_tutorial import MIRROR, PORT, person
from typed_page import DOCS

from edgelink.lab import CLOUD, INTERNET, RELAY
from edgelink.lab.namespaces import netns_path
from edgelink.overlay.acquisition import default_cache_dir, find_easytier

sys.path.insert(0, str(REPOSITORY / ".ci/packages"))
from packages import make_installer

PAGE = DOCS / "how-to/many-machines.md"
ROLE = DOCS / "examples/ansible"
# As the inventory of the example names them, and the lab.
MACHINES = {"relay.example.org": RELAY, "cloud": CLOUD, "franka-1": "edge-1", "franka-2": "edge-2"}
BY_CLOUD_INIT = "franka-2"
# debootstrap does not find what is named by a virtual package only.
CLOUD_INIT = ("cloud-init", "python3-cffi-backend")
PLAYBOOK_S = 420.0
TOKEN_FILE = Path("/run/edgelink-token")
# To the machine's sshd, which no other machine reaches.
PROXY = """#!/bin/bash
exec nsenter --net="$1" bash -c 'exec 3<>/dev/tcp/127.0.0.1/22; cat <&3 & cat >&3; kill $!'
"""

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("easytier"),
    pytest.mark.story,
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


def user_data() -> list[str]:
    """What the page has for cloud-init: a node's, and a relay's."""
    found: list[str] = re.findall(r"^```yaml\n(#cloud-config\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return found


@pytest.fixture(scope="module")
def site(make_shared_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """All machines but one booted, with nothing of EdgeLink on them."""
    if debian_python() is None:
        pytest.skip("this machine's Debian has a Python before 3.11")
    work = tmp_path_factory.mktemp("site")
    served = work / "served"
    shutil.copytree(packages(tmp_path_factory), served / "edgelink")
    lab = make_shared_lab()
    lab.up(edges=2)
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
        machine.install(packages=CLOUD_INIT if name == BY_CLOUD_INIT else ())
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
        if name != BY_CLOUD_INIT:
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


def everywhere(site: Site) -> dict[str, BootedNode]:
    """The machines that are on."""
    return {name: machine for name, machine in site.machines.items() if machine.is_booted}


def test_ansible_sets_a_network_up_and_then_changes_nothing(site: Site) -> None:
    """Relay, head and edge are Ready; no log of theirs has a token."""
    first = site.play("site.yml", *site.without(BY_CLOUD_INIT))
    assert set(first) == set(everywhere(site))
    assert all(told["changed"] for told in first.values())
    for machine in everywhere(site).values():
        status = machine.status()
        assert status is not None
        assert status["ready"]
        assert "elt1_" not in machine.run("journalctl", "--no-pager", "--boot", "--output=cat", check=True).stdout
        assert not machine.path(TOKEN_FILE).exists()
    again = site.play("site.yml", *site.without(BY_CLOUD_INIT))
    assert {name: told["changed"] for name, told in again.items()} == dict.fromkeys(first, 0)


def test_a_machine_joins_at_its_first_boot(site: Site) -> None:
    """By the page's user data, which cloud-init itself finds valid, and a token for several machines."""
    of_node, of_relay = user_data()
    made = site.machines["relay.example.org"].run(
        *("edgelink", "token", "create", "--role", "edge", "--uses", "20", "--ttl", "2h"), check=True
    )
    machine = site.machines[BY_CLOUD_INIT]
    seed = machine.root / "var/lib/cloud/seed/nocloud"
    seed.mkdir(parents=True)
    (seed / "user-data").write_text(of_node.replace(MIRROR, site.address).replace("elt1_…", made.stdout.strip()))
    (seed / "meta-data").write_text(f"instance-id: first\nlocal-hostname: {BY_CLOUD_INIT}\n")
    own = machine.root / "etc/cloud/cloud.cfg.d/99-lab.cfg"
    own.write_text("datasource_list: [NoCloud]\nnetwork: {config: disabled}\nlocale: C.UTF-8\n")
    subprocess.run(["systemctl", "--quiet", f"--root={machine.root}", "enable", "cloud-init.service"], check=True)
    machine.boot()
    for name, text in (("node", of_node), ("relay", of_relay)):
        (machine.path(Path("/root")) / name).write_text(text)
        machine.run("cloud-init", "schema", "--config-file", f"/root/{name}", check=True)
    told = machine.run("cloud-init", "status", "--wait", "--long", timeout_s=300)
    output = machine.path(Path("/var/log/cloud-init-output.log"))
    assert "status: done" in told.stdout, told.stdout + output.read_text()
    status = machine.wait_ready(10)
    assert status["hostname"] == BY_CLOUD_INIT
    assert machine.run("systemctl", "is-enabled", "edgelink-edge").stdout.strip() == "enabled"
    assert not machine.path(TOKEN_FILE).exists()


def test_ansible_upgrades_under_easytier_and_ray(site: Site, tmp_path: Path) -> None:
    """Other packages on the mirror: each machine installs them, and its daemon alone is started again."""
    machines = {name: machine for name, machine in everywhere(site).items() if name != BY_CLOUD_INIT}
    nodes = {name: machine for name, machine in machines.items() if name != "relay.example.org"}
    before = {name: machine.children() for name, machine in nodes.items()}
    daemons = {name: (machine.status() or {})["pid"] for name, machine in machines.items()}
    (package,) = site.mirror.glob("*.deb")
    newer = site.mirror / package.name.replace("_0.1.0_", "_99_")
    (site.mirror / as_version("99", package, tmp_path, site.mirror)).rename(newer)
    make_installer(site.mirror, "99", "")
    told = site.play("site.yml", *site.without(BY_CLOUD_INIT))
    assert all(of_machine["changed"] for of_machine in told.values())
    for name, machine in machines.items():
        version = machine.run("dpkg-query", "--showformat=${Version}", "--show", "edgelink", check=True).stdout
        assert version == "99"
        assert machine.wait_ready()["pid"] != daemons[name]
    assert {name: machine.children() for name, machine in nodes.items()} == before


def test_ansible_takes_a_node_away(site: Site) -> None:
    """Out of the network, and EdgeLink off its machine; again, there is nothing left to do."""
    machine = site.machines["franka-1"]
    site.play("remove.yml", "--limit", "franka-1")
    assert machine.run("sh", "-c", "command -v edgelink").returncode != 0
    assert not machine.path(Path("/var/lib/edgelink/membership.json")).exists()
    again = site.play("remove.yml", "--limit", "franka-1")
    assert again["franka-1"]["changed"] == 0
    for other in ("relay.example.org", "cloud", BY_CLOUD_INIT):
        site.machines[other].wait_ready()

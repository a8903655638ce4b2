"""Somebody who has all that a node had on disk, in some place of the lab's network: on a LAN, or on the Internet."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab_broker import AS_NODE
from machines import can_ping, overlay_ip, wait_until

from edgelink.config import Paths
from edgelink.lab import Lab

# Who is let in dials no more; who is turned away, once a second.
_DIALS = re.compile(r'connecting to peer dst="?(tcp://[^,"\s]+)')
# Before any rule of EdgeLink's, which drops what comes from an address that nobody was granted.
_WITNESS = """table ip {name}
delete table ip {name}
table ip {name} {{
  chain arrived {{
    type filter hook prerouting priority -400
    iifname "et0" ip saddr {source} counter
  }}
}}
"""


class Intruder:
    """That node's EasyTier, started by hand with its own configuration file, which also dials ``dials``.

    ``as_ip`` takes another overlay address than its own, so as not to disturb it.
    """

    def __init__(self, lab: Lab, place: str, stolen: Path, *dials: str, as_ip: str | None = None) -> None:
        self.place = place
        self._lab = lab
        self._stolen = stolen
        toml = (stolen / Paths().easytier_config.name).read_text()
        if as_ip is not None:
            lines = [f'ipv4 = "{as_ip}/24"' if line.startswith("ipv4 =") else line for line in toml.splitlines()]
            toml = "\n".join(lines)
        found = re.search(r'^ipv4 = "([^/"]+)', toml, re.MULTILINE)
        assert found
        self._ip = found[1]
        peers = "".join(f'\n[[peer]]\nuri = "{dial}"\n' for dial in dials)
        directory = lab.node_directory(place) / "intruder"
        directory.mkdir(exist_ok=True)
        config, self._log = directory / "easytier.toml", directory / "intruder.log"
        self._log.write_text("")
        self._dials = set(re.findall(r'^uri = "(.+)"', toml + peers, re.MULTILINE))
        assert self._dials >= set(dials)
        config.write_text(toml + peers)
        self._core = lab.popen(place, ["easytier-core", "-c", str(config)], self._log, cwd=directory)

    def is_up(self) -> bool:
        return "et0" in self._lab.exec(self.place, ["ip", "link"], capture=True).stdout

    def reaches(self, node: str) -> bool:
        """Whether a packet of its comes out of that node's EasyTier, whatever the firewall behind it does."""
        name = f"witness_{self.place.replace('-', '_')}"
        self._lab.exec(node, ["nft", "-f", "-"], stdin=_WITNESS.format(name=name, source=self._ip), check=True)
        can_ping(self._lab, self.place, overlay_ip(self._lab, node))
        counted = self._lab.exec(node, ["nft", "list", "table", "ip", name], capture=True, check=True).stdout
        self._lab.exec(node, ["nft", "delete", "table", "ip", name], check=True)
        return "packets 0 " not in counted

    def tried(self) -> Counter[str]:
        """How often it dialled, by whom: once more than it was turned away."""
        found = Counter(dict.fromkeys(self._dials, 0))
        found.update(_DIALS.findall(self._log.read_text()))
        return found

    def broker_says(self) -> str:
        login = [sys.executable, str(AS_NODE), str(self._stolen), "login"]
        answer = self._lab.exec(self.place, login, capture=True, timeout_s=60)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.strip()

    def end(self) -> None:
        self._core.kill()
        self._core.wait(10)


def assert_kept_out(intruders: Iterable[Intruder], nodes: Iterable[str]) -> None:
    """They dial in vain, several times each; nothing of theirs reaches a node, and the broker refuses."""
    found, targets = list(intruders), list(nodes)
    before = {intruder.place: intruder.tried() for intruder in found}
    for intruder in found:
        wait_until(f"{intruder.place}: its device is there", intruder.is_up)
    for intruder in found:  # EasyTier dials at its start, and every second after
        wait_until(
            f"{intruder.place}: it was turned away",
            intruder.tried,
            wanted=lambda tried, old=before[intruder.place]: all(tried[dial] >= old[dial] + 3 for dial in tried),
        )
    pairs = [(intruder, target) for intruder in found for target in targets]
    with ThreadPoolExecutor(len(pairs)) as threads:
        reached = list(threads.map(lambda pair: pair[0].reaches(pair[1]), pairs))
    got_in = [(intruder.place, target) for (intruder, target), arrived in zip(pairs, reached, strict=True) if arrived]
    assert got_in == []
    assert {intruder.broker_says() for intruder in found} == {"refused"}

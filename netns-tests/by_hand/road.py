"""Walk the by-hand road: a person at each of the lab's machines, typing the commands of ``node.sh``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgelink.lab import Lab
from edgelink.overlay import stun

_SCRIPT = Path(__file__).with_name("node.sh")
_OBJECT_STORE_BYTES = 120 * 1024 * 1024
_NODES = """
import json, sys
from ray._raylet import GcsClient
nodes = GcsClient(address=sys.argv[1]).get_all_node_info(timeout=10).values()
print(json.dumps([{"ip": n.node_manager_address, "alive": n.state == 0, "node_id": n.node_id.hex()} for n in nodes]))
"""


@dataclass(frozen=True)
class ByHandRoad:
    """Addresses are the ones somebody wrote down on paper."""

    lab: Lab
    easytier_flags: str = ""

    @staticmethod
    def overlay_ip(node: str) -> str:
        return {"relay": "10.10.0.1", "cloud": "10.10.0.2"}.get(node) or f"10.10.0.{10 + int(node.split('-')[1])}"

    def type(self, node: str, *words: str, timeout_s: float = 480) -> None:
        """One command line on one machine; its own waiting included. LabError when it fails."""
        environ = {"OBJECT_STORE_BYTES": str(_OBJECT_STORE_BYTES), "RAY_EXTRA_FLAGS": "--num-cpus=1 --num-gpus=0"}
        environ |= {"EASYTIER_EXTRA_FLAGS": self.easytier_flags}
        self.lab.exec(
            node, [str(_SCRIPT), *words], env=environ, cwd=Path("/"), capture=True, timeout_s=timeout_s, check=True
        )

    def overlay(self, *nodes: str) -> None:
        for node in nodes:
            self._resolve_stun_servers(node)
            if node == "relay":
                self.type(node, "relay")
            else:
                self.type(node, "overlay", node, self.overlay_ip(node))

    def _resolve_stun_servers(self, node: str) -> None:
        """As a machine with a resolver does, and nobody answers: a lab's look-ups are refused at once, which EasyTier
        repeats without a pause, on half a core."""
        hosts = self.lab.node_directory(node) / "hosts"
        entries = "".join(f"127.0.0.1 {name}\n" for name in stun.NAMES)
        if entries not in (before := hosts.read_text()):
            hosts.write_text(before + entries)

    def head(self) -> None:
        self.type("cloud", "head", self.overlay_ip("cloud"))

    def edge(self, number: int) -> None:
        node = f"edge-{number}"
        self.type(node, "edge", self.overlay_ip(node), str(number), self.overlay_ip("cloud"))

    def ray_nodes(self) -> list[dict[str, Any]]:
        """What Ray itself says, asked on the head."""
        address = f"{self.overlay_ip('cloud')}:6379"
        answer = self.lab.exec(
            "cloud",
            ["python", "-W", "ignore", "-c", _NODES, address],
            env={"RAY_AUTH_MODE": "disabled"},
            capture=True,
            check=True,
            timeout_s=60,
        )
        nodes: list[dict[str, Any]] = json.loads(answer.stdout.splitlines()[-1])
        return nodes

    def stop(self, *nodes: str) -> None:
        for node in nodes:
            self.type(node, "stop")

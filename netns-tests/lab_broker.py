"""A lab's broker as an attacker sees it: what it says to a node, recorded, and all of it in wrong hands."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import seized_broker
from faults import kill
from machines import Machine, wait_until
from seized_broker import Lie, Target

from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.lab import RELAY, Lab
from edgelink.launch.remote_request import ExecRequest
from edgelink.member.network_watch import known_state
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.topics import Topics
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.broker import find_mosquitto

AS_NODE = Path(__file__).with_name("as_node.py")
_SPEAK = Path(__file__).with_name("speak.py")
_PORT = 8883


class Recorder:
    """Somebody who has a node's password listens to what the broker says to it of the network's secret."""

    def __init__(self, lab: Lab, node: str, log: Path) -> None:
        self._log = log
        self._process = lab.popen(node, [sys.executable, str(AS_NODE), str(Paths().state), "record"], log)
        wait_until(f"{node}: state and secrets are recorded", lambda: len(self._words()) >= 2)

    def _words(self) -> list[Lie]:
        written = self._log.read_text().splitlines(keepends=True)
        lines = [line for line in written if line.startswith("{") and line.endswith("\n")]
        words = [json.loads(line) for line in lines]
        return [(word["topic"], base64.b64decode(word["payload"])) for word in words]

    def end(self) -> list[Lie]:
        """All that was said, in its order, but the last on each topic, which is true still."""
        wait_until("the end of the change is recorded", self._words, wanted=lambda words: len(words) >= 6)
        self._process.kill()
        self._process.wait(10)
        words = self._words()
        last = dict(words)
        return [(topic, payload) for topic, payload in words if last[topic] != payload]


class SeizedBroker:
    """Takes the place of the relay's: its TLS key, no rules. The relay's daemon is dead meanwhile.

    The attacker also has the keys of all members but of the one to whom it speaks.
    """

    def __init__(self, lab: Lab, directory: Path) -> None:
        self._lab = lab
        self._keys = AuthorityKeys.load(Machine(lab, RELAY).paths.authority_keys)
        self._topics = Topics(self._keys.network_id)
        self._stranger = AuthorityKeys.load_or_create(directory / "stranger", SystemClock())
        self._members: dict[str, NodeKey] = {}
        self._inside = Paths().runtime / "seized"

    def topics_of(self, node: str) -> tuple[str, str]:
        return (self._topics.network, self._topics.secrets(self._members[node].node_id))

    def lies(self, recorded: dict[str, list[Lie]]) -> list[Lie]:
        """To all whose words were ``recorded``; each hears what was said to the others, too."""
        paths = {name: Machine(self._lab, name).paths for name in recorded}
        self._members = {name: NodeKey.load(path.node_key) for name, path in paths.items()}
        words = list(dict.fromkeys(word for said in recorded.values() for word in said))
        found: list[Lie] = []
        for name, key in self._members.items():
            others = tuple(other for other in self._members.values() if other != key)
            target = Target(self._topics, key.node_id, key.verify_key_b64, others, self._stranger)
            state = known_state(paths[name].state)
            assert state is not None
            found += seized_broker.lies(target, state, words)
        return found

    def requests_for_programs(self, node: str, *argv: str) -> list[Lie]:
        """Requests to a node whose words were recorded, signed by the true keys of all others, on all it listens to."""
        own, topics = self._members[node], self._topics
        found: list[Lie] = []
        for key in self._members.values():
            key_of_connection = base64.b64encode(secrets.token_bytes(32)).decode()
            request = ExecRequest(
                network_id=topics.network_id,
                node_id=own.node_id,
                challenge=secrets.token_hex(32),
                node_key=key_of_connection,
                asker_key=key_of_connection,
                argv=argv,
            )
            payload = key.sign(Kind.EXEC_REQUEST, request).model_dump_json().encode()
            of_node = (topics.lease, topics.secrets, topics.node_reply)
            for topic in (*self.topics_of(node), topics.directory, topics.cluster, topics.report_request):
                found.append((topic, payload))
            found += [(topic(own.node_id), payload) for topic in of_node]
        return found

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While this broker answers, in place of the relay's own."""
        self._lab.kill(RELAY)
        kill(self._lab, RELAY, "mosquitto")
        directory = self._lab.host_path(RELAY, self._inside)
        directory.mkdir(mode=0o700)
        conf = seized_broker.write_conf(directory, self._inside, self._keys, "0.0.0.0", _PORT)
        (directory / "ca.pem").write_text(self._keys.ca_pem)
        program, _ = find_mosquitto()
        child = self._lab.popen(RELAY, [str(program), "-c", str(conf)], directory / "log")
        try:
            wait_until("it listens", self._listening, wanted=lambda ports: f":{_PORT} " in ports)
            yield
            assert child.poll() is None, (directory / "log").read_text()
        finally:
            child.kill()
            child.wait(10)

    def _listening(self) -> str:
        return self._lab.exec(RELAY, ["ss", "-Hltn"], capture=True).stdout

    def say(self, words: list[Lie]) -> None:
        """To all members, once they are there."""
        said = {
            "listeners": [key.node_id for key in self._members.values()],
            "words": [(topic, base64.b64encode(payload).decode()) for topic, payload in words],
        }
        ca = self._inside / "ca.pem"
        argv = [sys.executable, str(_SPEAK), f"127.0.0.1:{_PORT}", str(ca), self._keys.network_id]
        self._lab.exec(RELAY, argv, stdin=json.dumps(said), capture=True, check=True, timeout_s=120)

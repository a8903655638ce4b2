"""What is signed before a program runs on another node (ADR 0044). All of it goes over the overlay, on one connection::

    node    hello: its key for this connection and a challenge, signed by the node        ──▶
                    ◀── the asker's key for this connection; from here on all is sealed        asker
                    ◀── request: program, node, both keys, the challenge, signed by the asker's node
    node    the program's output, and at last its exit status                             ──▶

A request names its node and the challenge that this node made for this connection, so it is good here, now and once.
"""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from edgelink.config.models import ExecConfig, Port
from edgelink.errors import UntrustedError
from edgelink.launch.app_connections_asked import ConnectionsQuestion
from edgelink.protocol.keys import Kind, open_envelope
from edgelink.protocol.payloads import Base64, CutText, Directory, DirectoryEntry, Envelope, NodeId, Payload, Role

REQUEST_WITHIN_S = 30.0
_CHALLENGE = r"^[0-9a-f]{64}$"
_End = Annotated[str, Field(pattern=r"^[0-9.]{7,15}:[0-9]{1,5}$")]
SshKey = Annotated[str, Field(pattern=r"^[a-z0-9@.-]{1,64} [A-Za-z0-9+/=]{1,4096}$")]


class ExecHello(Payload):
    """Signed by the node that would run a program."""

    network_id: str
    node_id: NodeId
    challenge: str = Field(pattern=_CHALLENGE)
    key: Base64
    ssh_keys: tuple[SshKey, ...] = Field((), max_length=8, description="public keys of its sshd, as in known_hosts")


class AboutConnections(Payload):
    """What a node is asked of the connections of its apps (:class:`ConnectionsQuestion`)."""

    ports: tuple[Port, ...] = Field((), max_length=64)
    peer: IPv4Address | None = None
    closes: tuple[tuple[_End, _End], ...] = Field((), max_length=1024)

    @property
    def question(self) -> ConnectionsQuestion:
        """The same without pydantic."""
        return ConnectionsQuestion(self.ports, None if self.peer is None else str(self.peer), self.closes)


class ExecRequest(Payload):
    """Signed by the node on which somebody asks. It asks for a program, or about connections."""

    network_id: str
    node_id: NodeId = Field(description="the node that is to run it")
    challenge: str = Field(pattern=_CHALLENGE)
    node_key: Base64
    asker_key: Base64
    argv: tuple[str, ...] = ()
    connections: AboutConnections | None = None
    env: dict[str, str] = Field({})
    cwd: str | None = None
    has_input: bool = False
    asked_by: CutText = Field("", description="the user on the asking node")

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        if bool(self.argv) == (self.connections is not None):
            raise ValueError("a request asks for one thing: a program, or connections")
        return self


def accepts(config: ExecConfig, asker: DirectoryEntry) -> bool:
    """Return whether this node runs programs for ``asker``; pure. ``head`` is the role: no node has it by its name."""
    who = config.accept.removeprefix("from ").split() if config.accept != "off" else []
    return ("head" in who and asker.role is Role.HEAD) or (asker.hostname != "head" and asker.hostname in who)


def askers(config: ExecConfig, directory: Directory | None, node_id: str) -> frozenset[IPv4Address]:
    """Return the overlay addresses of the nodes that may ask this one; pure."""
    known = directory.entries if directory else ()
    return frozenset(each.overlay_ip for each in known if each.node_id != node_id and accepts(config, each))


def open_hello(envelope: Envelope, node: DirectoryEntry, network_id: str) -> ExecHello:
    """Return the hello of ``node``. Raises UntrustedError if another node, or one of another network, says it."""
    hello = open_envelope(envelope, Kind.EXEC_HELLO, ExecHello, node.verify_key)
    if (hello.node_id, hello.network_id) != (node.node_id, network_id):
        raise UntrustedError(f"what answers at {node.overlay_ip} is not {node.hostname}")
    return hello


def open_request(envelope: Envelope, asker: DirectoryEntry, hello: ExecHello, asker_key: str) -> ExecRequest:
    """Return the request of ``asker`` that answers ``hello``.

    Raises:
        UntrustedError: another key has signed it, or it is for another node, connection or network.
    """
    request = open_envelope(envelope, Kind.EXEC_REQUEST, ExecRequest, asker.verify_key)
    wanted = (hello.network_id, hello.node_id, hello.challenge, hello.key, asker_key)
    if (request.network_id, request.node_id, request.challenge, request.node_key, request.asker_key) != wanted:
        raise UntrustedError(f"a request of {asker.hostname} that was made for another node or connection")
    return request


def ssh_host_keys(directory: Path = Path("/etc/ssh")) -> tuple[str, ...]:
    """Return the public keys of this machine's sshd; empty where there is none."""
    found = []
    for file in sorted(directory.glob("ssh_host_*_key.pub")):
        with suppress(OSError, ValueError):
            kind, key, *_ = file.read_text().split()
            found.append(f"{kind} {key}")
    return tuple(found[:8])

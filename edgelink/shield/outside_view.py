"""How this node looks from outside: it has a relay knock (``POST /knock``), and says which ports were to be tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from edgelink.api.server import Caller, Route, route
from edgelink.clock import Clock
from edgelink.config import Config
from edgelink.errors import EdgelinkError, UsageError
from edgelink.facts.board import Board
from edgelink.facts.facts import Facts
from edgelink.overlay.knock import MAX_PORTS, KnockError, ask_relay
from edgelink.process import ports
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Directory
from edgelink.ray_cluster import command
from edgelink.ray_cluster.rendezvous import wanted_ranges
from edgelink.relay.knocker import Knocker

# What machines and the routers before them often answer on: ssh, web, and what Ray and torch listen on by default.
_OFTEN = (22, 80, 443, 8080, 10001, 29500)


def knock_route(
    config: Config,
    board: Board[Facts],
    key: NodeKey,
    clock: Clock,
    closed: Callable[[], Sequence[tuple[int, int]] | None],
) -> Route:
    """``POST /knock``: answer with what a relay found, and what is ``closed`` beside Ray's own ports; for root."""

    async def knock(caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        caller.require()
        trainings = closed()
        ranges = wanted_ranges(config) if trainings is None else trainings
        more = [int(port) for port in body.get("ports", ())]
        asked, not_asked = asked_ports(config, more, ports.listeners(), ranges)
        membership, directory = board.facts.running, board.facts.directory
        if membership is None or directory is None:
            raise KnockError("this node knows no relay yet", hint="`edgelink status` says what it waits for")
        servers = one_a_host(membership.secrets.stun_servers)
        if not servers:
            raise KnockError("no relay of this network answers STUN, and so none knocks", hint="set relay.stun_ports")
        failure: EdgelinkError | None = None
        for server in servers:
            try:
                found = await ask_relay(
                    server,
                    asked,
                    key=key,
                    network_id=membership.network_id,
                    relay_keys=relay_keys(directory),
                    clock=clock,
                )
            except EdgelinkError as error:
                failure = error
                continue
            return {
                "relay": server,
                "asked": asked,
                "not_asked": not_asked,
                "closed": trainings,
                **found.model_dump(mode="json", include={"address", "open", "silent"}),
            }
        assert failure is not None
        raise failure

    return route("POST", "/knock", knock)


def member_knocker(board: Board[Facts], key: NodeKey, membership: Membership, clock: Clock) -> Knocker:
    """Return the knocker of a relay without a registry. It knocks for the nodes in the directory."""

    def verify_key_of(node_id: str) -> str | None:
        directory = board.facts.directory
        entry = directory.entry(node_id) if directory else None
        return entry.verify_key if entry else None

    return Knocker(
        key=key,
        network_id=membership.network_id,
        overlay=membership.lease.cidr,
        verify_key_of=verify_key_of,
        clock=clock,
    )


def relay_keys(directory: Directory) -> Callable[[str], str | None]:
    """Return what finds the public key of a relay by its node id. None: that node is no relay."""
    return {entry.node_id: entry.verify_key for entry in directory.relay_entries}.get


def one_a_host(servers: Iterable[str]) -> list[str]:
    """A relay answers on two ports; one of them is enough. Pure."""
    by_host = {server.rpartition(":")[0]: server for server in reversed(list(servers))}
    return list(reversed(by_host.values()))


def asked_ports(
    config: Config,
    wanted: Sequence[int],
    listening: Iterable[ports.Listener],
    trainings: Sequence[Sequence[int]],
) -> tuple[list[int], list[int]]:
    """What a relay is asked to try: ``wanted``, EdgeLink's and Ray's, what often answers, and what listens here; and
    what one knock has no room for.

    Of many listeners there are some of each kind, from all over its ports: Ray's workers, which one rule closes, do not
    keep out the training's.

    Args:
        trainings: the ranges that are closed beside Ray's own ports.

    Raises:
        UsageError: more were wanted than one knock takes, or one that is no port.
    """
    if len(wanted) > MAX_PORTS or any(not 0 < port < 65536 for port in wanted):
        raise UsageError(f"at most {MAX_PORTS} ports from 1 to 65535 can be tried at once")
    rays = command.listening_ports(config.ray, is_head=True, has_client=True).values()
    own = (ports.port_of(url) for url in config.overlay.listeners)
    known = list(filter(None, dict.fromkeys([*wanted, *own, config.overlay.rpc_port, *rays, *_OFTEN])))
    of_workers: list[int] = []
    of_trainings: list[int] = []
    others: list[int] = []
    for port in sorted({listener.port for listener in listening} - set(known)):
        if config.ray.min_worker_port <= port <= config.ray.max_worker_port:
            of_workers.append(port)
        elif ports.is_within(port, trainings):
            of_trainings.append(port)
        else:
            others.append(port)
    asked, not_asked = known[:MAX_PORTS], known[MAX_PORTS:]
    kinds = sorted((of_workers, of_trainings, others), key=len)
    for index, kind in enumerate(kinds):
        taken = _spread(kind, (MAX_PORTS - len(asked)) // (len(kinds) - index))
        asked += taken
        not_asked += [port for port in kind if port not in taken]
    return asked, not_asked


def _spread(numbers: Sequence[int], most: int) -> list[int]:
    """That many of them, as far apart as they are."""
    count = min(len(numbers), most)
    return [numbers[index * len(numbers) // count] for index in range(count)]

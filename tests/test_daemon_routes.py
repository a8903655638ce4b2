"""What each kind of daemon answers on its socket."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from edgelink.config import Config, Paths
from edgelink.daemon.additional_relay import AdditionalRelay
from edgelink.daemon.edge import Edge
from edgelink.daemon.head import Head
from edgelink.daemon.relay import Relay
from edgelink.daemon.this_machine import ThisMachine
from edgelink.overlay.link import LinkState
from edgelink.protocol.payloads import RelayAddresses
from edgelink.testing import FakeClock

EVERYWHERE = {"GET /status", "POST /stop", "GET /log", "GET /board", "GET /paths", "GET /peers", "POST /ping"}
EXEC = {"POST /exec/look", "POST /exec/sign", "POST /exec/ssh-keys", "POST /exec/connections"}
NODES = {*EVERYWHERE, *EXEC, "POST /renew", "POST /knock", "GET /environment", "POST /restart-ray"}
RUNS = {
    "POST /run",
    "POST /run/record",
    "POST /run/apps",
    "POST /run/metrics",
    "GET /driver-environment",
    "GET /placement/nodes",
}
HEADS = {*NODES, *RUNS, "GET /nodes", "POST /wait", "POST /reports", "GET /heard", "POST /stop-all", "POST /want-ray"}
LEASES = {"GET /leases", "GET /leases/{node}", "PATCH /leases/{node}", "DELETE /leases/{node}"}
TOKENS = {"GET /tokens", "POST /tokens", "DELETE /tokens/{token_id}"}
ACCESS = {"GET /access", "POST /access", "DELETE /access"}
RELAYS = {*EVERYWHERE, "POST /renew", *LEASES, *TOKENS, *ACCESS, "GET /registry", "POST /registry"}


def answered(daemon: Edge | Head | Relay | AdditionalRelay) -> set[str]:
    """Every request that the daemon answers. The router refuses two handlers for one request."""
    app = web.Application()
    app.add_routes(daemon.routes())
    found = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource}
    return {f"{method} {path}" for method, path in found if method != "HEAD"}


def test_each_daemon_answers_what_its_commands_ask(tmp_path: Path) -> None:
    """A relay without a registry answers what a registry is asked for as well: it says where that is."""
    clock, paths = FakeClock(), Paths(tmp_path / "state", tmp_path / "run")
    config = Config.model_validate({"relay": {"advertise": ("relay.example",)}})
    assert answered(Edge(config, paths, clock, ThisMachine(), None)) == NODES
    assert answered(Head(config, paths, clock, ThisMachine(), None)) == HEADS | {
        "POST /dashboard",
        "POST /dashboard/logout",
    }
    relay = Relay(config, paths, clock, ThisMachine(), None)
    relay.settle(LinkState())
    with_registry = answered(relay)
    relay.own.store.close()
    assert with_registry == RELAYS | {"POST /revoke", "POST /rotate-secret"}
    addresses = RelayAddresses(broker_addresses=(), overlay_peers=())
    assert answered(AdditionalRelay(config, paths, clock, ThisMachine(), addresses, None)) == with_registry

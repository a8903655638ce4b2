"""The way to the relays: their names, their TCP ports."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from edgelink.doctor.check import NOT_ROOT, Finding, Surroundings, failed, limited, listed, ok, skipped
from edgelink.doctor.probes import (
    LOOKUP_S,
    NAME_UNKNOWN,
    Greeting,
    NotARelay,
    broker_of,
    broker_pinned,
    connected,
    easytier,
)
from edgelink.errors import TokenError
from edgelink.process import ports
from edgelink.protocol.tls import client_context
from edgelink.protocol.token import Token
from edgelink.wording import few

Targets = dict[tuple[str, int], Greeting]

_SLOW_S = 1.0
_LET_OUT = "let these ports out here, and in at the relay and its provider's firewall"
_PORTAL = (
    "a captive portal or a proxy that opens connections sits between, or the relay hangs: log in at the portal with a "
    "browser, have the proxy let these ports through unread, see `edgelink status` on the relay"
)
_NO_MEMBERSHIP = "this machine is no node of a network (the check `membership`)"


def relay_name(surroundings: Surroundings) -> Finding:
    """Are the relays' names known here?

    Where they are dialled by DNS names; by which resolver, and how long that takes.
    """
    membership = surroundings.membership
    if membership is None:
        return skipped(_NO_MEMBERSHIP) if surroundings.may_read_state else NOT_ROOT
    hosts = [urlsplit(f"//{address}").hostname for address in membership.addresses]
    hosts += [urlsplit(url).hostname for url in membership.secrets.overlay_peers]
    names = list(dict.fromkeys(host for host in hosts if host and not _is_address(host)))
    if not names:
        return ok("relays are dialled by their addresses" if any(hosts) else "no other relay is dialled")
    found = surroundings.probes.resolve(names)
    resolvers = [
        line.split()[1]
        for line in surroundings.text("etc/resolv.conf").splitlines()
        if line.startswith("nameserver ") and len(line.split()) > 1
    ]
    by = f"nameserver {listed(resolvers)}" if resolvers else "no nameserver in /etc/resolv.conf"
    if unknown := [name for name, lookup in found.items() if not lookup.found]:
        is_silent = any(found[name].took_s >= LOOKUP_S for name in unknown)
        return failed(
            f"{f'no answer within {LOOKUP_S:g} s to' if is_silent else 'nobody knows here'} {listed(unknown)} ({by})",
            "mend /etc/resolv.conf, or have the relay advertise its address (relay.advertise)",
        )
    slowest_s = max(lookup.took_s for lookup in found.values())
    if slowest_s >= _SLOW_S:
        return limited(
            f"it takes long until {listed(names)} is known ({by})", "mend /etc/resolv.conf", f"{slowest_s:.1f} s"
        )
    return ok(
        f"{listed([f'{name} is {listed(lookup.found)}' for name, lookup in found.items()])}", f"{slowest_s:.2f} s"
    )


def relay_reachable(surroundings: Surroundings) -> Finding:
    """Do the relays answer from here at their TCP ports, and is it they who answer?

    The broker's, by TLS with the network's own certificate, and EasyTier's, by its own first words, where it is dialled
    by TCP. A captive portal, a proxy that opens TLS, and a port that takes connections and says nothing are none.
    Before the machine has enrolled, the token in `EDGELINK_TOKEN_FILE` says which broker it has to be.
    """
    brokers, dialled = _targets(surroundings)
    if not brokers and surroundings.membership is None:
        return skipped(_NO_MEMBERSHIP) if surroundings.may_read_state else NOT_ROOT
    asked = surroundings.probes.connect({**brokers, **dialled})
    answers = {target: answer for target, answer in asked.items() if answer != NAME_UNKNOWN}
    if asked and not answers:
        return skipped("the check `relay-name` says why not")
    wrong = {target: why for target, why in answers.items() if isinstance(why, str)}
    figure = listed([f"{host}:{port} {ms:.0f} ms" for (host, port), ms in answers.items() if not isinstance(ms, str)])
    if not wrong:
        ports = few(sorted({port for _, port in answers}), 4)
        return ok(f"relay ports {ports} reachable" if answers else "there is no other relay", figure)
    others = {target: why for target, why in wrong.items() if isinstance(why, NotARelay)}
    silent = {target: why for target, why in wrong.items() if target not in others}
    parts = (("no connection to", silent, _LET_OUT), ("no relay of this network answers at", others, _PORTAL))
    told = "; ".join(f"{what} {_told(found)}" for what, found, _ in parts if found)
    remedy = "; ".join(advice for _, found, advice in parts if found)
    is_cut_off = any(group.keys() & answers.keys() and not group.keys() - wrong.keys() for group in (brokers, dialled))
    return (failed if is_cut_off else limited)(told, remedy, figure)


def _targets(surroundings: Surroundings) -> tuple[Targets, Targets]:
    """Brokers and EasyTiers. Before this machine has enrolled: the brokers of the token that it was given."""
    membership = surroundings.membership
    if membership is None:
        token = _token(surroundings)
        return {} if token is None else dict.fromkeys(token.endpoints, broker_pinned(token.ca_sha256)), {}
    broker = broker_of(client_context(membership.ca_pem, membership.network_id))
    brokers: Targets = {_target(f"//{address}"): broker for address in membership.addresses}
    dialled: Targets = {
        _target(url): easytier if url.startswith("tcp:") else connected
        for url in membership.secrets.overlay_peers
        if url.startswith(("tcp:", "ws")) and surroundings.config.overlay.kind != "existing"
    }
    return brokers, dialled


def _token(surroundings: Surroundings) -> Token | None:
    file = surroundings.environ.get("EDGELINK_TOKEN_FILE", "-")
    if file == "-" or not surroundings.may_read_state:  # there may be a membership that is not ours to see
        return None
    with suppress(OSError, UnicodeDecodeError, TokenError):
        return Token.parse(Path(file).read_text())
    return None


def _told(wrong: Mapping[tuple[str, int], str]) -> str:
    return listed([f"tcp {host}:{port} ({why})" for (host, port), why in wrong.items()])


def _target(url: str) -> tuple[str, int]:
    return urlsplit(url).hostname or "", ports.port_of(url)


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        ip_address(host)
        return True
    return False

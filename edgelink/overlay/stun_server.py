"""The relay's own STUN server (RFC 8489): it tells whoever asks from which address and port the question came.

Two nodes behind NAT need that to find a direct path, and so need nobody else's servers (decision 0017). Binding
requests only, without credentials, over UDP and IPv4. From CHANGE-REQUEST (RFC 5780) the other port is served; another
address, which a relay does not have, is refused with 420.

Everybody can ask, under anybody's address. So an answer is hardly larger than its question, and what comes too fast is
dropped: a client whose hole punching fails at once may ask thousands of times a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import IPv4Address
from typing import ClassVar

from edgelink.clock import Clock
from edgelink.condition_table.informing import STUN_SERVING
from edgelink.conditions import ConditionSet
from edgelink.overlay.stun_message import CHANGE_REQUEST, parse, refusal, success
from edgelink.rate import RateLimit, exceeded
from edgelink.reconcile import Wakeup

# A site may have many nodes behind one address: one detection is 18 requests, a round of attempts two each.
PER_SOURCE, ALL = (50.0, 400), (2000.0, 4000)  # questions a second, and at once
_RETRY_S = 15.0
Others = Callable[[bytes, tuple[str, int], Callable[[bytes], None]], None]  # data, from where, how to answer


class StunServer:
    """Keeps the relay's STUN ports open; a reconciler that sets ``StunServing``."""

    name: ClassVar[str] = "stun"
    condition: ClassVar[str] = STUN_SERVING.name

    def __init__(
        self, ports: Sequence[int], conditions: ConditionSet, clock: Clock, *, others: Others, host: str = "0.0.0.0"
    ) -> None:
        """``others`` takes what is no STUN."""
        self.wakeup = Wakeup()
        self._ports = tuple(ports)
        self._host = host
        self._conditions = conditions
        self._clock = clock
        self._sources, self._all = RateLimit(*PER_SOURCE), RateLimit(*ALL)
        self._open: dict[int, asyncio.DatagramTransport] = {}
        self._others = others

    async def reconcile(self) -> float:
        """Open what is not open; a port that somebody else holds is tried again."""
        loop = asyncio.get_running_loop()
        problems = []
        for port in self._ports:
            if port in self._open:
                continue
            try:
                transport, _ = await loop.create_datagram_endpoint(
                    partial(_Endpoint, self, port), local_addr=(self._host, port)
                )
            except OSError as error:
                problems.append(f"udp {port}: {error.strerror or error}")
                continue
            self._open[port] = transport
        if problems:
            self._conditions.set_false(
                self.condition,
                "PortBusy",
                f"{'; '.join(problems)}; nodes behind NAT find fewer direct paths: free it, or choose relay.stun_ports",
            )
        else:
            self._conditions.set_true(
                self.condition, "Serving", f"STUN is answered on udp {', '.join(map(str, self._ports))}"
            )
        return _RETRY_S

    def close(self) -> None:
        """Give the ports back. Idempotent."""
        for transport in self._open.values():
            transport.close()
        self._open.clear()

    def received(self, port: int, data: bytes, source: tuple[str, int]) -> None:
        """Answer one datagram that came to ``port``, or drop it."""
        limits = {"source": (self._sources, source[0]), "all": (self._all, "all")}
        if exceeded(limits, self._clock.monotonic_s()) is not None:
            return  # dropped, not delayed
        request = parse(data)
        if request is None:
            self._others(data, source, partial(self._send, port, source))
            return
        if request.unknown or request.change_address:
            self._open[port].sendto(refusal(request, request.unknown or (CHANGE_REQUEST,)), source)
            return
        others = [other for other in self._open if other != port]
        if request.change_port and not others:
            self._open[port].sendto(refusal(request, (CHANGE_REQUEST,)), source)
            return
        answer = success(request, (IPv4Address(source[0]), source[1]))
        self._open[others[0] if request.change_port else port].sendto(answer, source)

    def _send(self, port: int, target: tuple[str, int], data: bytes) -> None:
        if (transport := self._open.get(port)) is not None:
            transport.sendto(data, target)

    def lost(self, port: int) -> None:
        """A port was closed under us."""
        if self._open.pop(port, None) is not None:
            self.wakeup.set()


class _Endpoint(asyncio.DatagramProtocol):
    def __init__(self, server: StunServer, port: int) -> None:
        self._server = server
        self._port = port

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._server.received(self._port, data, addr)

    def error_received(self, exc: Exception) -> None:
        """An answer that could not be delivered; whoever asked has gone."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.lost(self._port)

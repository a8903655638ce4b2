"""Serve a node's metrics, where :mod:`edgelink.api.sites` may serve at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from edgelink.api.metrics import CONTENT_TYPE, Sample, exposition
from edgelink.api.sites import Place, Sites
from edgelink.clock import Clock
from edgelink.log import get_logger
from edgelink.reconcile import Wakeup

_LOOK_S = 15.0
_FRESH_S = 1.0  # every local user may ask, and the answer of a head with 500 nodes is tens of milliseconds of its loop
log = get_logger("metrics")


class MetricsServer:
    """Answers ``GET /metrics``."""

    def __init__(
        self,
        *,
        port: int,
        places: Callable[[], Awaitable[list[Place]]],
        samples: Callable[[], Awaitable[list[Sample]]],
        clock: Clock,
    ) -> None:
        """``places`` tells where to listen at this moment."""
        self.wakeup = Wakeup()
        self._port = port
        self._places = places
        self._samples = samples
        self._clock = clock
        self._text: asyncio.Future[bytes] | None = None
        self._asked_s = 0.0

    async def run(self) -> None:
        """Follow the places; ends by cancellation only."""
        app = web.Application()
        app.router.add_get("/metrics", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        sites = Sites(runner, self._port, self._clock, self._told)
        try:
            while True:
                await sites.follow(await self._places())
                await self.wakeup.wait(_LOOK_S)
        finally:
            sites.close()
            await runner.cleanup()

    def _told(self, place: Place, error: OSError | None) -> None:
        address = f"{place.address}:{self._port}"
        if error is not None:
            hint = "set another metrics.port (metrics.relay_port on the relay), or metrics.listen: nowhere"
            log.warning("metrics.not_served", address=address, error=str(error), hint=hint)
        else:
            log.info("metrics.served", address=address, device=place.device or "lo")

    async def _answer(self, _request: web.Request) -> web.Response:
        now_s = self._clock.monotonic_s()
        if self._text is None or (self._text.done() and now_s - self._asked_s >= _FRESH_S):
            self._text, self._asked_s = asyncio.ensure_future(self._exposed()), now_s
        body = await asyncio.shield(self._text)  # one who goes away leaves it to the others
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _exposed(self) -> bytes:
        return exposition(await self._samples()).encode()

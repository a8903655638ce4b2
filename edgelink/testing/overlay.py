"""Fakes of what the parts of the overlay look at: the device and the process."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address

from edgelink.overlay.link import LinkMonitor, LinkState, LocalNetwork, Way
from edgelink.process import Identity, ProcessSpec, SupervisedProcess


class FakeLinks(LinkMonitor):
    """A device that is whatever ``state`` says; setting it wakes the watchers.

    ``uplinks`` are the addresses of the machine's other devices, each with a gateway; the last leads everywhere.
    """

    def __init__(self) -> None:
        super().__init__()
        self._state = LinkState()
        self.networks: list[LocalNetwork] = []
        self.uplinks: dict[str, IPv4Address] = {"eth0": IPv4Address("192.168.1.2")}

    @property
    def state(self) -> LinkState:
        return self._state

    @state.setter
    def state(self, state: LinkState) -> None:
        self._state = state
        self._wake_all()

    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def observe(self, device: str) -> LinkState:
        return self._state

    async def way_to(self, target: IPv4Address) -> Way | None:
        if not self.uplinks:
            return None
        device, source = list(self.uplinks.items())[-1]
        return Way(device, source, source - 1)

    async def local_networks(self, exclude_device: str) -> list[LocalNetwork]:
        return self.networks

    async def own_addresses(self, exclude_device: str) -> frozenset[IPv4Address]:
        return frozenset(self.uplinks.values())


class FakeProcess(SupervisedProcess):
    """A process that runs from ``start`` (or ``adoptable``) until ``end`` or ``stop``."""

    def __init__(self, adoptable: Identity | None = None) -> None:
        self.name = "fake"
        self.identity: Identity | None = None
        self.started: list[ProcessSpec] = []
        self.stops = 0
        self.words = ""
        self._adoptable = adoptable
        self._status: int | None = None
        self._ended = asyncio.Event()
        self._runs = False

    @property
    def is_running(self) -> bool:
        return self._runs

    @property
    def exit_status(self) -> int | None:
        return self._status

    def adopt(self) -> Identity | None:
        self.identity, self._adoptable = self._adoptable, None
        self._runs = self.identity is not None
        if self._runs:
            self._ended.clear()
        return self.identity

    async def start(self, spec: ProcessSpec) -> Identity:
        self.started.append(spec)
        self.identity = Identity(1000 + len(self.started), 1, "boot", spec.config_hash)
        self._runs = True
        self._ended.clear()
        return self.identity

    async def wait(self) -> int | None:
        if self._runs:
            await self._ended.wait()
        return self._status

    async def stop(self, *, term_timeout_s: float = 5, kill_timeout_s: float = 5) -> None:
        self.stops += self._runs
        self.end(-15)
        self.identity = None

    def end(self, status: int) -> None:
        """The process ends by itself."""
        self._status, self._runs = status, False
        self._ended.set()

    def last_words(self, lines: int = 20) -> str:
        return self.words

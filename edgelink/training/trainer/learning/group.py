"""What several learners tell each other; with one learner, nothing."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DEVICE_VARIABLE = "RLINF_COMM_NET_DEVICES"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # of the machine, in each of its containers
_LEAST_PATIENCE_S = 1800.0  # torch's own for gloo; NCCL's is ten minutes


class Alone:
    """A group of one."""

    rank, world = 0, 1
    notice = ""  # what slows it down, for people

    def add_up(self, tensor: Any) -> None:
        """Replace ``tensor`` by its sum over all learners."""

    def gather(self, row: NDArray[Any]) -> list[NDArray[Any]]:
        """The rows of all learners, by rank; equal everywhere."""
        return [row]

    def follow_first(self, tensor: Any) -> None:
        """Replace ``tensor`` by the first learner's."""

    def close(self) -> None:
        """No further calls."""


class Group(Alone):
    """One of ``world`` learners in a process group of torch's: gloo, and NCCL where all of them can.

    Args:
        rendezvous: as the first learner's :class:`Meeting` says.
        patience_s: as :class:`Settings` has it; sums that an outage holds up are waited for as long.
    """

    def __init__(
        self,
        torch: Any,
        rank: int,
        world: int,
        rendezvous: str,
        device: Any,
        meeting: Meeting | None,
        patience_s: float = 0.0,
    ) -> None:
        import torch.distributed as distributed

        self.rank, self.world = rank, world
        self._torch, self._distributed = torch, distributed
        use_overlay_device()
        host, _, port = rendezvous.rpartition(":")
        timeout = _timeout(patience_s)
        store = meeting.store if meeting else distributed.TCPStore(host, int(port), world, False, timeout)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)
        self._by_nccl = None
        # As plain numbers: torch's own exchange of objects would unpickle what comes from the network.
        told = [[int(number) for number in row] for row in self.gather(_collectives(torch, distributed, device))]
        if any(card for card, _, _ in told):
            # By what all have said: of different decisions some would wait for the others until the time is up.
            if not (hindrance := hindrance_to_nccl(told)):
                self._by_nccl = distributed.new_group(backend="nccl", timeout=timeout)
            else:
                self.notice = f"the learners exchange gradients by gloo, on their CPUs, and not by NCCL: {hindrance}"

    def add_up(self, tensor: Any) -> None:
        if self._by_nccl is not None or tensor.device.type == "cpu":
            self._distributed.all_reduce(tensor, group=self._by_nccl)
            return
        there = tensor.cpu()
        self._distributed.all_reduce(there)
        tensor.copy_(there)

    def follow_first(self, tensor: Any) -> None:
        if self._by_nccl is not None or tensor.device.type == "cpu":
            self._distributed.broadcast(tensor, src=0, group=self._by_nccl)
            return
        there = tensor.cpu()
        self._distributed.broadcast(there, src=0)
        tensor.copy_(there)

    def gather(self, row: NDArray[Any]) -> list[NDArray[Any]]:
        own = self._torch.from_numpy(np.array(row))
        rows = [self._torch.empty_like(own) for _ in range(self.world)]
        self._distributed.all_gather(rows, own)
        return [found.numpy() for found in rows]

    def close(self) -> None:
        self._distributed.destroy_process_group()


class Meeting:
    """Where the learners find each other: a store that the first one keeps, on its overlay address only."""

    def __init__(self, host: str, world: int, patience_s: float = 0.0) -> None:
        import torch.distributed as distributed

        with socket.create_server((host, 0)) as listening:
            self.rendezvous = f"{host}:{listening.getsockname()[1]}"
            self.store = distributed.TCPStore(
                host,
                listening.getsockname()[1],
                world,
                is_master=True,
                timeout=_timeout(patience_s),
                wait_for_workers=False,
                master_listen_fd=listening.detach(),
            )


def _timeout(patience_s: float) -> timedelta:
    return timedelta(seconds=max(_LEAST_PATIENCE_S, patience_s))


_MAKES = {1: "NCCL", 2: "RCCL"}  # NVIDIA's and AMD's, which is called NCCL in torch, too


def _collectives(torch: Any, distributed: Any, device: Any) -> NDArray[Any]:
    """Which accelerator this learner is on (0: none), and whose NCCL of which version its torch has (0: none)."""
    if device.type != "cuda":
        return np.zeros(3, np.int64)
    found = torch.cuda.get_device_properties(0)
    # As NCCL tells accelerators apart: to it two parts of one (MIG) are the same.
    bus = [getattr(found, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    identity = f"{_BOOT_ID.read_text()} {found.uuid if None in bus else bus}"
    card = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:7], "big") or 1
    version = 0
    if distributed.is_nccl_available():
        for number in torch.cuda.nccl.version()[:3]:
            version = version * 1000 + int(number)
    return np.asarray([card, 2 if torch.version.hip else 1, version], np.int64)


def hindrance_to_nccl(learners: Sequence[Sequence[int]]) -> str:
    """Why they cannot use it, in words; empty: they can.

    Args:
        learners: what each one has told, by rank: its card, its NCCL's make and version.
    """
    first: dict[int, int] = {}
    for rank, (card, *library) in enumerate(learners):
        if not card:
            return f"actor:{rank} learns on its CPU"
        if not library[1]:
            return f"the torch of actor:{rank} has none"
        if card in first:
            return f"actor:{first[card]} and actor:{rank} share an accelerator; place each on one of its own"
        first[card] = rank
        if library != list(learners[0][1:]):  # it refuses other versions of itself
            return f"actor:0 has {_named(*learners[0][1:])}, actor:{rank} {_named(*library)}"
    return ""


def _named(make: int, version: int) -> str:
    return f"{_MAKES.get(make, '?')} {version // 1_000_000}.{version // 1000 % 1000}.{version % 1000}"


def dealt(samples: Sequence[int], world: int) -> list[list[int]]:
    """Indices of the fragments that each of ``world`` learners gets: as even as whole fragments can be.

    Args:
        samples: of each fragment.
    """
    shares: list[list[int]] = [[] for _ in range(world)]
    loads = [0] * world
    for index in sorted(range(len(samples)), key=lambda index: -samples[index]):
        least = loads.index(min(loads))
        shares[least].append(index)
        loads[least] += samples[index]
    return [sorted(share) for share in shares]


def use_overlay_device() -> None:
    """Gloo and NCCL take the device that the cluster's traffic goes over, unless told otherwise."""
    if device := os.environ.get(_DEVICE_VARIABLE):
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, device)

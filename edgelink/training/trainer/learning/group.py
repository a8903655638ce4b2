"""What several learners tell each other; with one learner, nothing."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DEVICE_VARIABLE = "RLINF_COMM_NET_DEVICES"
_LEAST_PATIENCE_S = 1800.0  # torch's own for gloo; NCCL's is ten minutes


class Alone:
    """A group of one."""

    rank, world = 0, 1

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
    """One of ``world`` learners in a process group of torch's: gloo, and NCCL where each has an accelerator of its own.

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
        identity = f"{socket.gethostname()} {torch.cuda.get_device_properties(0).uuid}" if device.type == "cuda" else ""
        # As plain bytes: torch's own exchange of objects would unpickle what comes from the network.
        own = np.frombuffer(hashlib.sha256(identity.encode()).digest(), np.uint8)
        accelerators = [found.tobytes() for found in self.gather(own if identity else np.zeros_like(own))]
        if each_has_its_own(accelerators) and distributed.is_nccl_available():
            self._by_nccl = distributed.new_group(backend="nccl", timeout=timeout)

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


def each_has_its_own(accelerators: Sequence[bytes]) -> bool:
    """What NCCL asks for: no learner without an accelerator (zeros), and no two of them on one."""
    return all(map(any, accelerators)) and len(set(accelerators)) == len(accelerators)


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

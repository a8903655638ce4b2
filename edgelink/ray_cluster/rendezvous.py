"""The ports where the processes of a training meet: torch's store, gloo, NCCL, a driver's own servers.

Nobody pins them: they are the kernel's ephemeral ports, and those that torch uses when it is told none. They are closed
by range, because a driver is the caller's process, in no control group of ours. What listened in the range before
and is not the training's stays open: sshd on port 50022 must not lock its operator out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from edgelink.config import Config
from edgelink.log import get_logger
from edgelink.process import ports
from edgelink.ray_cluster.firewall import merged, without

TORCH_PORTS = (29400, 29500)  # torchrun's rendezvous, and MASTER_PORT where nobody sets it
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_KERNELS_DEFAULT = (32768, 60999)
_OF_A_TRAINING = (b"EDGELINK_", b"RAY_", b"RLINF_")  # the environment of drivers and all that they start
_log = get_logger("firewall")


def wanted_ranges(config: Config) -> tuple[tuple[int, int], ...]:
    """What `firewall.rendezvous_ports` says, or the kernel's ephemeral ports and torch's own."""
    if config.firewall.rendezvous_ports is not None:
        return merged(config.firewall.rendezvous_ports)
    return merged([ephemeral_range(), *((port, port) for port in TORCH_PORTS)])


def ephemeral_range(path: Path = _EPHEMERAL) -> tuple[int, int]:
    """From which the kernel takes the port of whoever asks for none, in this network namespace."""
    with suppress(OSError, ValueError):
        first, last = path.read_text().split()
        return int(first), int(last)
    return _KERNELS_DEFAULT


def closed_ranges(
    config: Config, is_rays: Callable[[int], bool], listeners: Callable[[], Iterable[ports.Listener]] = ports.listeners
) -> tuple[tuple[int, int], ...]:
    """The ranges to close now: the wanted ones but for what somebody else listens on already.

    Args:
        is_rays: whether a process is one of this node's Ray.
        listeners: who listens on TCP, on more than loopback.
    """
    wanted = wanted_ranges(config)
    others = {config.relay.broker_port, *(ports.port_of(url) for url in config.relay.easytier_listeners)}
    others |= {ports.port_of(url) for url in config.overlay.listeners}
    for listener in listeners() if wanted else ():
        if any(first <= listener.port <= last for first, last in wanted) and not _is_trainings(listener.pid, is_rays):
            _log.info("firewall.left_open", port=listener.port, listener=f"{listener.name} (pid {listener.pid})")
            others.add(listener.port)
    return without(wanted, others)


def _is_trainings(pid: int | None, is_rays: Callable[[int], bool]) -> bool:
    """One whose process cannot be told is taken for a training's: closed."""
    if pid is None or is_rays(pid):
        return True
    with suppress(OSError):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return any(variable.startswith(_OF_A_TRAINING) for variable in variables)
    return True

"""The ports where the processes of a training meet: torch's store, gloo, NCCL, a driver's own servers.

Nobody pins them: they are the kernel's ephemeral ports, and those that torch uses when it is told none. They are closed
by range, because a driver is the caller's process, in no control group of ours. What listened in the range before
and is not known to be the training's stays open: sshd on port 50022 must not lock its operator out. For the same reason
no more is closed than the ephemeral ports of a kernel that nobody tuned: another range may be nearly every port.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from edgelink.config import Config
from edgelink.log import get_logger
from edgelink.process import ports
from edgelink.process.port_ranges import Ranges, listed, merged, within, without

TORCH_PORTS = (29400, 29500)  # torchrun's rendezvous, and MASTER_PORT where nobody sets it
_PROC_SYS = Path("/proc/sys")
_KERNELS_DEFAULT = (32768, 60999)
_OF_A_TRAINING = (b"EDGELINK_", b"RAY_", b"RLINF_")  # the environment of drivers and all that they start
_ROOT = 0
_log = get_logger("firewall")


def wanted_ranges(config: Config, proc_sys: Path = _PROC_SYS) -> tuple[tuple[int, int], ...]:
    """What `firewall.rendezvous_ports` says, or torch's own ports and the kernel's ephemeral ones as far as they lie
    in its default range."""
    if config.firewall.rendezvous_ports is not None:
        return merged(config.firewall.rendezvous_ports)
    return merged([*within(ephemeral_ranges(proc_sys), _KERNELS_DEFAULT), *((port, port) for port in TORCH_PORTS)])


def open_ranges(config: Config, proc_sys: Path = _PROC_SYS) -> tuple[tuple[int, int], ...]:
    """Where a training may listen, too, and what is not closed unless `firewall.rendezvous_ports` asks for it."""
    if config.firewall.rendezvous_ports is not None:
        return ()
    return beyond_default(ephemeral_ranges(proc_sys))


def beyond_default(ephemeral: Ranges) -> tuple[tuple[int, int], ...]:
    """What of these ports no kernel that nobody tuned gives a training; pure."""
    return without(ephemeral, [_KERNELS_DEFAULT, *((port, port) for port in TORCH_PORTS)])


def ephemeral_ranges(proc_sys: Path = _PROC_SYS) -> tuple[tuple[int, int], ...]:
    """From which the kernel takes the port of whoever asks for none, in this network namespace."""
    first, last = _KERNELS_DEFAULT
    with suppress(OSError, ValueError):
        first, last = map(int, (proc_sys / "net/ipv4/ip_local_port_range").read_text().split())
    reserved: list[tuple[int, int]] = []
    with suppress(OSError, ValueError):
        for part in (proc_sys / "net/ipv4/ip_local_reserved_ports").read_text().strip().split(","):
            low, _, high = part.partition("-")
            reserved.append((int(low), int(high or low)))
    return without([(first, last)], reserved)


def closed_ranges(
    config: Config,
    is_rays: Callable[[int], bool],
    ray_uid: int | None = None,
    listeners: Callable[[], Iterable[ports.Listener]] = ports.listeners,
) -> tuple[tuple[int, int], ...]:
    """The ranges to close now: the wanted ones but for what somebody else listens on already.

    Args:
        is_rays: whether a process is one of this node's Ray.
        ray_uid: the user that Ray runs as; None while that is not known.
        listeners: who listens on TCP, on more than loopback.
    """
    wanted = wanted_ranges(config)
    if beyond := open_ranges(config):
        _log.warning("firewall.range_too_wide", ephemeral_ports_left_open=listed(beyond))
    others = set[int]()
    for listener in listeners() if wanted else ():
        is_wanted = any(first <= listener.port <= last for first, last in wanted)
        if is_wanted and not _is_trainings(listener, is_rays, ray_uid):
            who = f"{listener.name} (pid {listener.pid})" if listener.pid else f"somebody of uid {listener.uid}"
            _log.info("firewall.left_open", port=listener.port, listener=who)
            others.add(listener.port)
    return without(wanted, [*((port, port) for port in others), *own_ports(config)])


def own_ports(config: Config) -> tuple[tuple[int, int], ...]:
    """Where EdgeLink itself answers others; pure. These are never closed as a training's."""
    urls = (*config.relay.easytier_listeners, *config.overlay.listeners)
    return merged((port, port) for port in (config.relay.broker_port, *map(ports.port_of, urls)))


def _is_trainings(listener: ports.Listener, is_rays: Callable[[int], bool], ray_uid: int | None) -> bool:
    """One whose process cannot be told is, if it is of Ray's own user: root has sshd and the kernel's services, too."""
    if listener.pid is not None:
        if is_rays(listener.pid):
            return True
        with suppress(OSError):
            variables = Path(f"/proc/{listener.pid}/environ").read_bytes().split(b"\0")
            return any(variable.startswith(_OF_A_TRAINING) for variable in variables)
    return listener.uid == ray_uid != _ROOT

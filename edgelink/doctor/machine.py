"""The machine itself: memory, disks, clock, GPU, Wi-Fi."""

from __future__ import annotations

import re
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, NamedTuple

from edgelink.doctor.check import NOT_ROOT, Finding, Surroundings, failed, limited, ok, skipped
from edgelink.ray_cluster.local_ray import noted_user_uid
from edgelink.ray_cluster.temp_dir import temp_dir_here, why_not_private

_MIB = 1024 * 1024
_LEAST_MEMORY = 0.05  # Ray's memory monitor ends workers from 95 % on
_LEAST_STATE_BYTES = 50 * _MIB
_LITTLE_STATE_BYTES = 300 * _MIB
_LEAST_RUNTIME_BYTES = 1 * _MIB
_LEAST_INODES = 200
_LEAST_RAY_DISK = 0.05  # Ray makes no objects on a disk that is 95 % full
_LITTLE_RAY_DISK = 0.08
_LEAST_OBJECT_STORE_BYTES = 80 * _MIB  # Ray refuses to start with less
_LARGE_OBJECT_STORE_BYTES = 10**10  # Ray takes no more by itself, unless /dev/shm is larger
# Version 1, then 2: the limit in bytes, if there is one, what is taken, and how much of it by files under which names.
_CONTROL_GROUPS = (
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_"),
    ("memory.max", "memory.current", "memory.stat", ""),
)
_SKEW_S = 2.0
_FAR_SKEW_S = 60.0
_MOST_CLOCKS = 4
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_ASKED_OF_CARDS = "name,driver_version,mig.mode.current"


class _Memory(NamedTuple):
    total: int  # bytes, as are free ones
    free: int


def _of_machine(surroundings: Surroundings) -> _Memory | None:
    found = dict(re.findall(r"^(MemTotal|MemAvailable):\s+(\d+)", surroundings.text("proc/meminfo"), re.M))
    if len(found) < 2:
        return None
    return _Memory(int(found["MemTotal"]) * 1024, int(found["MemAvailable"]) * 1024)


def _of_container(surroundings: Surroundings, machine: _Memory) -> _Memory | None:
    """By the control group whose files are the only ones that a container sees. Outside of one there are no such."""
    for *names, prefix in _CONTROL_GROUPS:
        limit, used, parts = (surroundings.text("sys/fs/cgroup", name) for name in names)
        if not used.isdigit():
            continue
        cached = sum(int(size) for size in re.findall(rf"^{prefix}(?:in)?active_file (\d+)$", parts, re.M))
        total = min(int(limit), machine.total) if limit.isdigit() else machine.total
        return _Memory(total, max(0, total - max(0, int(used) - cached)))
    return None


def memory(surroundings: Surroundings) -> Finding:
    """Is there memory left?

    Ray ends the newest worker as soon as 95 % of the memory are in use: the machine's, or what its container may take.
    """
    machine = _of_machine(surroundings)
    if machine is None:
        return skipped("the kernel does not say")
    least = min(filter(None, (machine, _of_container(surroundings, machine))), key=lambda it: it.free / it.total)
    of = "the container's " if least is not machine else ""
    figure = f"{least.free // _MIB} of {of}{least.total // _MIB} MiB free"
    if least.free < least.total * _LEAST_MEMORY:
        return failed("Ray ends workers in this state", "end what takes the memory (`ps aux --sort=-rss`)", figure)
    return ok("memory is enough for Ray's memory monitor", figure)


def state_disk(surroundings: Surroundings) -> Finding:
    """Can EdgeLink write down its state?

    Leases, credentials and secrets are on disk before they are used; on a full or read-only disk no change is taken up.
    """
    paths = surroundings.paths
    figures = []
    for directory, least_bytes, little_bytes in (
        (paths.state, _LEAST_STATE_BYTES, _LITTLE_STATE_BYTES),
        (paths.runtime, _LEAST_RUNTIME_BYTES, _LEAST_RUNTIME_BYTES),
    ):
        try:
            space = surroundings.probes.space(directory)
        except PermissionError:
            return NOT_ROOT
        figures.append(f"{_size(space.free_bytes)} free at {directory}")
        if space.is_read_only:
            return failed(f"{directory} is read-only", "make it writable again; `dmesg` says why the kernel has not")
        if space.free_inodes is not None and space.free_inodes < _LEAST_INODES:
            return failed(f"{directory} has no inodes left", "free some there (`df -i`)", f"{space.free_inodes} inodes")
        if space.free_bytes < least_bytes:
            return failed(f"{directory} is full", "free some space there (`df -h`)", figures[-1])
        if space.free_bytes < little_bytes:
            return limited(f"there is little room at {directory}", "free some space there (`df -h`)", figures[-1])
    return ok("the disk has room for state and logs", figures[0])


def ray_disk(surroundings: Surroundings) -> Finding:
    """Is there room for what Ray writes?

    Ray makes no objects any more while the disk of its temporary directory is more than 95 % full.
    """
    if not surroundings.has_ray:
        return skipped(surroundings.why_no_ray)
    directory = temp_dir_here(surroundings.paths, surroundings.config.ray.temp_dir)
    try:
        space = surroundings.probes.space(surroundings.root / directory.relative_to("/"))
    except PermissionError:  # it is in somebody's private directory
        return NOT_ROOT
    free = space.free_bytes / max(space.total_bytes, 1)
    figure = f"{free:.0%} of {_size(space.total_bytes)} free at {directory}"
    remedy = f"free some space there (old {directory}/session_* directories?), or set ray.temp_dir on the head"
    if space.is_read_only:
        return failed(f"{directory} is read-only", remedy)
    if free < _LEAST_RAY_DISK:
        return failed("Ray makes no objects on a disk that is 95 % full", remedy, figure)
    if free < _LITTLE_RAY_DISK:
        return limited("Ray makes no objects once this disk is 95 % full", remedy, figure)
    return ok("the disk has room for Ray", figure)


def ray_directory_private(surroundings: Surroundings) -> Finding:
    """Is Ray's directory closed to other users?

    Ray opens its sessions to every user of the machine: sockets, and the code that jobs bring. The directory around
    them (`ray.temp_dir`) has to belong to Ray's user, mode 0700, below directories that nobody else may write to.
    """
    if not surroundings.has_ray:
        return skipped(surroundings.why_no_ray)
    private = temp_dir_here(surroundings.paths, surroundings.config.ray.temp_dir).parent
    directory = surroundings.root / private.relative_to("/")
    if (uid := noted_user_uid(surroundings.paths)) is None:
        return skipped("Ray was not started here yet") if surroundings.may_read_state else NOT_ROOT
    if why := why_not_private(directory, uid):
        return failed(
            f"other users may run code as Ray's user: {why}",
            f"`chown {uid} {private}; chmod 700 {private}`, and let only root or that user write to what is above it",
        )
    return ok("no other user may enter Ray's directory", str(private))


def shared_memory(surroundings: Surroundings) -> Finding:
    """Does Ray's object store fit into `/dev/shm`?

    Docker gives 64 MiB, in which Ray does not start; where the store does not fit, Ray puts it on the disk in /tmp.
    """
    if not surroundings.has_ray:
        return skipped(surroundings.why_no_ray)
    total = surroundings.probes.space(surroundings.root / "dev/shm").total_bytes
    wanted = surroundings.config.ray.object_store_memory or _default_object_store(surroundings, total)
    figure = f"{_size(total)}; the object store takes {_size(wanted)}"
    remedy = (
        f"mount -o remount,size={wanted // _MIB * 10 // 9 + 1}M /dev/shm, in Docker `--shm-size`, or a smaller "
        "ray.object_store_memory"
    )
    if total < _LEAST_OBJECT_STORE_BYTES:
        return failed("shared memory is smaller than the smallest object store that Ray starts with", remedy, figure)
    if total < wanted:
        return limited("Ray's object store does not fit into /dev/shm: Ray puts it on the disk", remedy, figure)
    return ok("Ray's object store fits into shared memory", figure)


def _default_object_store(surroundings: Surroundings, shared_memory_bytes: int) -> int:
    """What Ray takes where nothing is configured: Ray 2.48's and 2.60's rule (ray/_private/utils.py)."""
    machine = _of_machine(surroundings)
    if machine is None:
        return _LEAST_OBJECT_STORE_BYTES
    free = (_of_container(surroundings, machine) or machine).free
    most = max(_LARGE_OBJECT_STORE_BYTES, int(shared_memory_bytes * 0.95))
    return max(_LEAST_OBJECT_STORE_BYTES, min(free * 3 // 10, most))


def clock(surroundings: Surroundings) -> Finding:
    """Does this machine's clock agree with the other nodes'?

    The other nodes are asked by echoes over the overlay. Where nobody answers, it counts whether the kernel
    knows its clock to be kept right (NTP).
    """
    probes = surroundings.probes
    asked = {name for daemon in surroundings.daemons for name in daemon.get("rtt_ms") or ()}
    peers = {address: name for name, address in surroundings.peers.items() if name in asked or not asked}
    offsets = probes.clock_offsets_s(list(peers)[:_MOST_CLOCKS], surroundings.config.overlay.device) if peers else {}
    remedy = "keep the clock right: `apt-get install systemd-timesyncd`, `timedatectl set-ntp true`"
    if not offsets:
        if probes.is_clock_synchronised() is False and not surroundings.daemons:
            return limited("nothing keeps this machine's clock right, as far as the kernel knows", remedy)
        return skipped("no other node says what time it is")
    address = min(offsets, key=lambda each: abs(offsets[each]))  # who is far from all is wrong himself
    figure = f"{abs(offsets[address]):.2f} s {'behind' if offsets[address] > 0 else 'ahead of'} {peers[address]}"
    if abs(offsets[address]) >= _FAR_SKEW_S:
        return failed("this clock is wrong: certificates of other services are refused, logs mislead", remedy, figure)
    if abs(offsets[address]) >= _SKEW_S:
        return limited("this clock differs: logs and reports of several nodes do not line up", remedy, figure)
    return ok("the clock agrees with the other nodes'", figure)


def wifi_power_save(surroundings: Surroundings) -> Finding:
    """Does the Wi-Fi that leads to the network sleep between packets?

    Power saving holds packets back for up to some hundred milliseconds.
    """
    device = surroundings.uplink
    if device is None or not surroundings.is_there(surroundings.root / "sys/class/net" / device / "wireless"):
        return skipped("the way to the Internet is no Wi-Fi")
    answer = surroundings.probes.run(["iw", "dev", device, "get", "power_save"])
    if answer.printed is None:
        return skipped(f"`iw dev {device} get power_save` does not say: {answer.complaint}")
    if answer.printed.endswith("on"):
        return limited(
            f"{device} sleeps between packets: round trips take up to some hundred ms more",
            f"iw dev {device} set power_save off; for good: wifi.powersave = 2 in NetworkManager's configuration",
        )
    return ok(f"{device} does not sleep between packets")


def gpu(surroundings: Surroundings) -> Finding:
    """Do the NVIDIA GPUs of this machine work, and does Ray count them?

    The cards on the bus, the driver, `nvidia-smi`, and what Ray counts (`ray.num_gpus`; on the head also Ray's word).
    `nvidia-smi` has 3 s: without persistence mode it waits until the driver has started every card, which takes longer
    where there are many.
    """
    wanted = surroundings.config.ray.num_gpus
    if not surroundings.has_ray:
        return skipped(surroundings.why_no_ray)
    if wanted == 0:
        return skipped("Ray is told to count none here (ray.num_gpus: 0)")
    devices = [path for path in _glob(surroundings.root / "dev", "nvidia*") if path.name[6:].isdigit()]
    if not devices:
        return _without_device(surroundings, wanted)
    try:
        answer = surroundings.probes.run(["nvidia-smi", f"--query-gpu={_ASKED_OF_CARDS}", "--format=csv,noheader"])
    except TimeoutExpired as error:
        return limited(
            f"nvidia-smi has not answered within {error.timeout:g} s: each question waits until the driver has started "
            "the cards",
            "have it keep them started: `nvidia-smi -pm 1` (persistence mode; at each boot: nvidia-persistenced); "
            "if nvidia-smi hangs all the same, `dmesg | grep NVRM` says more",
            f"{len(devices)} NVIDIA devices",
        )
    if answer.printed is None:
        return failed(
            f"there are {len(devices)} NVIDIA devices, but nvidia-smi fails: {answer.complaint}",
            "`dmesg | grep NVRM` says more; after an update of the driver the machine has to be rebooted",
        )
    rows = [line.rpartition(", ") for line in answer.printed.splitlines()]
    cards = [card for card, _, _ in rows]
    is_split = any(mig == "Enabled" for _, _, mig in rows)  # of whose parts more may be counted than there are cards
    figure = f"{len(cards)} × {cards[0]}" if cards else "none"
    if wanted is not None and wanted > len(cards) and not is_split:
        return failed(f"Ray is told to count {wanted} GPUs", "set ray.num_gpus to what is there", figure)
    counted = next((row["gpus"] for row in _own_rows(surroundings)), None)
    if wanted is None and counted is not None and counted < len(cards):
        return limited(
            f"Ray counts {counted:g} of {len(cards)} GPUs here",
            "see what `ray.python -c 'import torch; print(torch.cuda.device_count())'` says; `edgelink restart-ray`; "
            "if CUDA_VISIBLE_DEVICES hides the others from the daemon on purpose, say so by ray.num_gpus",
            figure,
        )
    return ok("the GPUs answer", figure)


def _without_device(surroundings: Surroundings, wanted: int | None) -> Finding:
    cards = [
        path
        for path in _glob(surroundings.root / "sys/bus/pci/devices", "*")
        if surroundings.text(*path.relative_to(surroundings.root).parts, "vendor") == _NVIDIA
        and surroundings.text(*path.relative_to(surroundings.root).parts, "class").startswith(_DISPLAY)
    ]
    others = [
        name
        for name in ("kfd", "accel", "davinci0", "nvhost-gpu", "nvmap")
        if (surroundings.root / "dev" / name).exists()
    ]
    if cards:
        return (failed if wanted else limited)(
            "an NVIDIA GPU is in the machine, but its driver gives no device",
            "install or load the driver (`modprobe nvidia`); in a container `--gpus all`; else ray.num_gpus: 0",
            f"{len(cards)} on the bus",
        )
    if wanted and not others:
        return failed(f"Ray is told to count {wanted} GPUs, and there is none", "correct ray.num_gpus")
    return skipped("no NVIDIA GPU in this machine")


def _own_rows(surroundings: Surroundings) -> list[dict[str, Any]]:
    rows = surroundings.probes.nodes(surroundings.paths) if "head" in surroundings.roles else []
    return [row for row in rows if row.get("path") == "self" and row.get("ray") == "alive"]


def _glob(directory: Path, pattern: str) -> list[Path]:
    return sorted(directory.glob(pattern)) if directory.is_dir() else []


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:.0f} MiB" if size_bytes < 10240 * _MIB else f"{size_bytes / 1024 / _MIB:.0f} GiB"

"""Every check that ``edgelink doctor`` runs, by topic, in the order in which it tells them."""

from __future__ import annotations

from collections.abc import Mapping

from edgelink.doctor import (
    daemons,
    direct_paths,
    exposure,
    firewalls,
    kernel,
    machine,
    overlay,
    rays,
    relays,
    ride_through,
    robots,
    software,
    state,
)
from edgelink.doctor.check import Check

TOPICS: Mapping[str, tuple[Check, ...]] = {
    "node": (
        daemons.daemon_ready,
        daemons.nodes_answer,
        software.daemon_current,
        state.membership,
        state.secrets_private,
        machine.state_disk,
    ),
    "machine": (
        kernel.tun,
        kernel.capabilities,
        machine.memory,
        machine.clock,
        kernel.open_files,
        kernel.process_limit,
        kernel.inotify,
        machine.wifi_power_save,
    ),
    "network": (
        relays.relay_name,
        relays.relay_reachable,
        direct_paths.stun_answers,
        overlay.echo_answered,
        kernel.conntrack,
        kernel.congestion_control,
        rays.ports_free,
        kernel.ephemeral_ports,
    ),
    "overlay": (
        software.easytier,
        software.mosquitto,
        overlay.foreign_easytier,
        overlay.overlay_network,
        overlay.overlay_mtu,
        overlay.reverse_names,
    ),
    "outages": (
        ride_through.ride_through_agrees,
        ride_through.tcp_resumes,
        ride_through.tcp_outlives,
        ride_through.tcp_probes,
        ride_through.collectives_wait,
    ),
    "exposure": (
        exposure.firewall_in_place,
        firewalls.other_firewalls,
    ),
    "ray": (
        software.interpreter,
        software.versions,
        machine.gpu,
        machine.shared_memory,
        machine.ray_disk,
        machine.ray_directory_private,
        rays.foreign_ray,
        rays.leftover_ray_token,
    ),
    "shell": (
        rays.ray_environment,
        rays.collective_devices,
        rays.proxy,
        rays.environment_size,
    ),
    "robots": (
        robots.robot_answers,
        robots.robot_stopped,
    ),
}

CHECKS: tuple[Check, ...] = tuple(check for checks in TOPICS.values() for check in checks)

"""Every check that ``edgelink doctor`` runs, in the order in which it tells them."""

from __future__ import annotations

from edgelink.doctor import daemons, direct_paths, exposure, ride_through
from edgelink.doctor.check import Check

CHECKS: tuple[Check, ...] = (
    daemons.daemon_ready,
    ride_through.ride_through_agrees,
    ride_through.tcp_resumes,
    ride_through.tcp_outlives,
    ride_through.collectives_wait,
    direct_paths.stun_answers,
    exposure.firewall_in_place,
    exposure.other_firewalls,
)

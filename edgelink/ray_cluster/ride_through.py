"""From ``ride_through`` to what Ray and the collectives have to be told, pure.

An outage of up to ``ride_through`` must cost a pause only. Whatever gives up on a silent peer by the clock has to
wait longer than that: the outage, the time until TCP tries again after it, and a margin. Names and defaults are those
of Ray's ``ray_config_def.h``; a name that a version of Ray does not know is ignored by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from edgelink.config.defaults import DEFAULT_RIDE_THROUGH_S, LONGEST_RTO_MS
from edgelink.duration import in_words
from edgelink.errors import ConfigError

_MARGIN_S = 30
_HEALTH_CHECK_PERIOD_S = 10
_HEALTH_CHECK_TIMEOUT_S = 5
# What Ray (in ms) and torch (in s) do by themselves; never made shorter.
_SUBSCRIBER_TIMEOUT_S = 300
_FETCH_TIMEOUT_S = 600
_NCCL_HEARTBEAT_TIMEOUT_S = 480

RLINF_TIMEOUT = "RLINF_TIMEOUT"  # minutes; RLinf gives it to every gloo and NCCL group, 180 by itself
NCCL_HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
GRPC_TIMEOUT = "EDGELINK_GRPC_TIMEOUT_MS"  # read by the import hook of Python programs


def patience_s(ride_through_s: int) -> int:
    """How long whatever waits for a silent peer must wait at least.

    On a kernel without a cap on TCP's retransmission time-out the first retry comes up to the length of the outage
    after its end, 120 s at most: nodes must live through that as well, wherever in the cluster such a kernel runs.
    """
    return ride_through_s + min(ride_through_s, LONGEST_RTO_MS // 1000) + _MARGIN_S


def ray_settings(ride_through_s: int) -> dict[str, str]:
    """The environment of `ray start` on every node and of the drivers: the same everywhere.

    Left at their defaults on purpose: the raylet's liveness check (it ends a raylet only when the GCS *says* that it is
    dead, and then sooner is better), and the reconnect time-outs of raylet and worker clients, after which Ray asks the
    GCS whether the peer is dead, and goes on.
    """
    patience = patience_s(ride_through_s)
    return {
        # A check fails at once where the peer's address is unreachable: counted by the period alone.
        "RAY_health_check_period_ms": _ms(_HEALTH_CHECK_PERIOD_S),
        "RAY_health_check_timeout_ms": _ms(_HEALTH_CHECK_TIMEOUT_S),
        "RAY_health_check_failure_threshold": str(math.ceil(patience / _HEALTH_CHECK_PERIOD_S)),
        # A raylet and its workers end when the GCS has been out of reach for so long.
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(patience),
        "RAY_gcs_server_request_timeout_seconds": str(patience),
        # gRPC ends connections whose pings are not answered; it also makes this TCP_USER_TIMEOUT.
        "RAY_grpc_keepalive_timeout_ms": _ms(patience),
        "RAY_grpc_client_keepalive_timeout_ms": _ms(patience),
        # Who has not asked for news for so long gets none any more.
        "RAY_subscriber_timeout_ms": _ms(max(patience, _SUBSCRIBER_TIMEOUT_S)),
        "RAY_fetch_fail_timeout_milliseconds": _ms(max(patience, _FETCH_TIMEOUT_S)),
        # NCCL's watchdog asks a store on another node, and torch ends a process whose watchdog is stuck.
        NCCL_HEARTBEAT: str(max(patience, _NCCL_HEARTBEAT_TIMEOUT_S)),
        **grpc_setting(ride_through_s),  # of Python programs, which Ray's settings do not reach
    }


def grpc_setting(ride_through_s: int) -> dict[str, str]:
    """The variable that tells the import hook how long gRPC has to wait, also in a program without Ray."""
    return {GRPC_TIMEOUT: _ms(patience_s(ride_through_s))}


def ride_through_identity(ride_through_s: int) -> dict[str, int]:
    """What of it asks for another `ray start` when it changes: nothing, as long as it is the default."""
    return {} if ride_through_s == DEFAULT_RIDE_THROUGH_S else {"ride_through_s": ride_through_s}


def buried_after_s(ride_through_s: int) -> tuple[int, int]:
    """When the GCS declares a node dead that nobody reports: unreachable at once, or silent."""
    checks = math.ceil(patience_s(ride_through_s) / _HEALTH_CHECK_PERIOD_S)
    return checks * _HEALTH_CHECK_PERIOD_S, checks * (_HEALTH_CHECK_PERIOD_S + _HEALTH_CHECK_TIMEOUT_S)


def check_collectives(environ: Mapping[str, str], ride_through_s: int) -> None:
    """Refuse a caller's own time-outs that end a collective before the outage that it is to ride through.

    Raises:
        ConfigError: naming both.
    """
    patience = patience_s(ride_through_s)
    for name, unit_s, unit in ((RLINF_TIMEOUT, 60, "minutes"), (NCCL_HEARTBEAT, 1, "seconds")):
        text = environ.get(name)
        if text is None:
            continue
        least = math.ceil(patience / unit_s)
        try:
            value = int(text)
        except ValueError as error:
            raise ConfigError(
                f"{name}={text}: is not a whole number of {unit}", hint=f"unset it, or set it to {least} or more"
            ) from error
        if value < least:
            raise ConfigError(
                f"{name}={text} ({unit}) disagrees with the network's ride_through of {in_words(ride_through_s)}: "
                "a collective would give up during an outage that the cluster rides through",
                hint=f"unset {name}, set it to {least} or more, or make ride_through shorter on the head",
                reason="RideThroughDisagrees",
            )


def check_agreement(own: int | None, of_head: int) -> None:
    """Refuse a ``ride_through`` in this node's own configuration that is not the head's.

    Raises:
        ConfigError: naming both.
    """
    if own is not None and own != of_head:
        raise ConfigError(
            f"ride_through: {in_words(own)} in this node's configuration disagrees with the head's {in_words(of_head)}",
            hint="remove the key here: edges follow the head; to change it for all, set it on the head",
            reason="RideThroughDisagrees",
        )


def _ms(seconds: int) -> str:
    return str(seconds * 1000)

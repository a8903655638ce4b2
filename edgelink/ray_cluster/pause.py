"""A member of the cluster that does not answer while Ray still counts it as alive: Ray rides through its outage."""

from __future__ import annotations

from dataclasses import dataclass

from edgelink.duration import brief
from edgelink.ray_cluster.ride_through import buried_after_s


@dataclass(frozen=True)
class Pause:
    """One member's silence.

    Attributes:
        since_s: its last answer, on the monotonic clock.
        told_by: who says that it is silent, joined by " and ": "echo", "registry", and of this machine "overlay" (not
            up) and "route" (none into it for that node).
        is_metered: a question costs money at either end, so it is asked seldom.
        asked_since_s: the first question that it did not answer.
    """

    since_s: float
    told_by: str
    is_metered: bool = False
    asked_since_s: float = 0.0

    def gives_up_in_s(self, now_s: float, ride_through_s: int) -> float:
        """Seconds until Ray may give the member up at the earliest. Ray rarely does so at once then."""
        at_once_s, _ = buried_after_s(ride_through_s)
        return max(0.0, self.since_s + at_once_s - now_s)


def pause_in_words(paused_s: float, gives_up_in_s: float, told_by: str) -> str:
    """For people: how long it lasts, who says so, and until when."""
    left = f"gives it up in {brief(gives_up_in_s)} or later" if gives_up_in_s > 0 else "may give it up any moment"
    return f"no answer for {brief(paused_s)}, says {told_by}; Ray rides through, and {left}"

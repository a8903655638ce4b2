"""Public fakes: what EdgeLink's own unit tests, and yours, use instead of the outside world."""

from edgelink.testing.clock import FakeClock, eventually

__all__ = ["FakeClock", "eventually"]

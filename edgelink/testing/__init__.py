"""Public fakes: what EdgeLink's own unit tests, and yours, use instead of the outside world."""

from edgelink.testing.clock import FakeClock, eventually
from edgelink.testing.memory_transport import MemoryBroker, MemoryTransport
from edgelink.testing.ports import reserved_port
from edgelink.testing.tasks import beside

__all__ = ["FakeClock", "MemoryBroker", "MemoryTransport", "beside", "eventually", "reserved_port"]

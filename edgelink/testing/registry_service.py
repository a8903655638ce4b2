"""The registry's service for tests, without a relay's daemon around it."""

from __future__ import annotations

from typing import Any

from edgelink.protocol.inbox import Inbox
from edgelink.protocol.outgoing import Outbox
from edgelink.relay.registry_service import RegistryService
from edgelink.testing.registry_client import NoReports


class LoneService(RegistryService):
    """Tells nobody of changes, knows of no EasyTier, and makes no reports, unless it is given something else."""

    def __init__(self, **given: Any) -> None:
        alone = {
            "on_change": lambda: None,
            "on_secret_step": lambda: None,
            "is_listed": lambda _ip: False,
            "outbox": Outbox(),
            "reports": NoReports(),
            "easytier_deaths": Inbox(),
        }
        super().__init__(**{**alone, **given})

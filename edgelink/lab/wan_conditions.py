"""What a machine's way to the internet adds: as people write it, and as numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgelink.errors import LabError

_MAX_RTT_MS = 10_000.0
_RATES_MBIT = (0.05, 10_000.0)
_QUANTITY = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>ms|s|%|kbit|mbit|gbit)")
_UNITS = {
    "rtt": {"ms": 1.0, "s": 1000.0},
    "jitter": {"ms": 1.0, "s": 1000.0},
    "loss": {"%": 1.0},
    "rate": {"kbit": 0.001, "mbit": 1.0, "gbit": 1000.0},
}
_FIELDS = {"rtt": "rtt_ms", "jitter": "jitter_ms", "loss": "loss_percent", "rate": "rate_mbit"}


@dataclass(frozen=True)
class WanConditions:
    """What a machine's way to the internet adds.

    Attributes:
        rtt_ms: to the round trip.
        jitter_ms: by how much the round trip varies, up and down, evenly; packets keep their order.
        loss_percent: of the packets, in each direction.
        rate_mbit: in each direction, as a link's bits on the wire; None: as fast as the machine.
    """

    rtt_ms: float = 0.0
    jitter_ms: float = 0.0
    loss_percent: float = 0.0
    rate_mbit: float | None = None

    def __post_init__(self) -> None:
        low, high = _RATES_MBIT
        rules = (
            (0 <= self.rtt_ms <= _MAX_RTT_MS, f"a round trip of {self.rtt_ms:g} ms", f"0 to {_MAX_RTT_MS:g} ms"),
            (0 <= self.jitter_ms <= self.rtt_ms, f"a jitter of {self.jitter_ms:g} ms", "at most the round trip"),
            (0 <= self.loss_percent <= 100, f"a loss of {self.loss_percent:g} %", "0 to 100 %"),
            (
                self.rate_mbit is None or low <= self.rate_mbit <= high,
                f"a rate of {self.rate_mbit} Mbit/s",
                f"{low:g} to {high:g} Mbit/s",
            ),
        )
        for is_right, what, allowed in rules:
            if not is_right:
                raise LabError(f"a link cannot have {what}", hint=f"possible: {allowed}")

    def changed(self, texts: Mapping[str, str | None]) -> WanConditions:
        """With what people wrote, such as ``{"rtt": "80ms", "loss": "1%", "rate": "20mbit"}``; None stays as it is.

        Raises LabError; ``rate`` may be "none".
        """
        values = {_FIELDS[name]: quantity(name, text) for name, text in texts.items() if text is not None}
        return replace(self, **values)  # type: ignore[arg-type]

    def __str__(self) -> str:
        parts = [f"rtt +{self.rtt_ms:g} ms"] if self.rtt_ms else []
        parts += [f"jitter {self.jitter_ms:g} ms"] if self.jitter_ms else []
        parts += [f"loss {self.loss_percent:g} %"] if self.loss_percent else []
        parts += [f"{self.rate_mbit:g} Mbit/s"] if self.rate_mbit is not None else []
        return ", ".join(parts)


def quantity(name: str, text: str) -> float | None:
    """A number in milliseconds, percent or Mbit/s; None for a rate of "none". Raises LabError."""
    if name == "rate" and text == "none":
        return None
    units = _UNITS[name]
    if text == "0":
        return 0.0
    found = _QUANTITY.fullmatch(text.strip().lower())
    if found is None or found["unit"] not in units:
        raise LabError(f"--{name} {text}: not a number with its unit", hint=f"write {name} as 20{next(iter(units))}")
    return float(found["number"]) * units[found["unit"]]

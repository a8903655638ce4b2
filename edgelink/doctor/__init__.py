"""Named checks of this machine: what each found, the figure behind it, and what to do."""

from edgelink.doctor.check import Check, Finding, Surroundings, Verdict
from edgelink.doctor.table import CHECKS

__all__ = ["CHECKS", "Check", "Finding", "Surroundings", "Verdict"]

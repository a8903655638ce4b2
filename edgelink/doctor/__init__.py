"""Named checks of this machine: what each found, the figure behind it, and what to do."""

from edgelink.doctor.check import Check, Finding, Surroundings, Verdict
from edgelink.doctor.examine import examine
from edgelink.doctor.table import CHECKS, TOPICS

__all__ = ["CHECKS", "TOPICS", "Check", "Finding", "Surroundings", "Verdict", "examine"]

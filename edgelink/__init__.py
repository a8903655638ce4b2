"""EdgeLink: one Ray cluster from a cloud GPU box and robots or simulators behind NAT.

This module stays free of imports: the built-in trainer ships the package to workers whose
interpreters have none of the daemon's dependencies.
"""

__version__ = "0.1.0"

"""Numbers that commands need without the models of the configuration, and what the kernel does by default."""

DEFAULT_RIDE_THROUGH_S = 300
LONGEST_RTO_MS = 120_000  # what kernels without the cap have built in

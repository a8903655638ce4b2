"""A node's side of the registry: it enrols, claims to be itself, follows its lease and the network's secret."""

"""The composition roots: what a relay, a head and an edge are made of."""

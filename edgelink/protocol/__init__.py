"""What travels between the nodes, and how: payloads, topics, keys, tokens, sessions. Data and wire, no decisions."""

"""Nothing of a node answers strangers: the tables around its ports, and what is open on purpose."""

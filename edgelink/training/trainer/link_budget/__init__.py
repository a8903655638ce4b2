"""What the links between the nodes carry, and what a training wants of them. Pure; standard library only."""

"""What a daemon does for programs: it lets them run here, and says who may ask."""

"""How a driver or another program of the user is started, followed and ended."""

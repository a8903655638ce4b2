"""Robots: the interface behind which one stands, and the built-in cell."""

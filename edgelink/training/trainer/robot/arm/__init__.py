"""A simulated arm: its physics, its reach task as a gymnasium environment, and itself as a robot in real time."""

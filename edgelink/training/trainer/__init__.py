"""The built-in trainer: small but true reinforcement learning across cloud and edges.

A policy is learned in the cloud (PPO, torch) from what simulators and robots on the edges send. It runs in the user's
interpreter, with ray, torch, gymnasium and numpy and nothing of EdgeLink but this package, which it ships to the
workers itself. Torch is imported by the learner only, gymnasium by simulators only; the edges infer with numpy.

Modules of this package import the standard library and each other; the third-party imports stand where they are used.
"""

"""Runs of a head: who takes part, whose run it is, how far its nodes are; and what each daemon does for programs."""

"""Facts and decisions: one board with the latest value of each fact, and the parts that decide by them (ADR 0039).

:mod:`edgelink.facts.board` holds the values, :mod:`edgelink.facts.part` runs what decides.
"""

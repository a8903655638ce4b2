"""What daemons are made of, and how they live and end.

``edge.py``, ``head.py``, ``relay.py`` and ``additional_relay.py`` are lists of parts: made in this order, asked over
these routes, run as these tasks, ended in that order. The groups of parts that several daemons share are beside them.
"""

"""A client of learner.py: a number ten times a second. ``stuck`` in its folder makes it hold its breath for ever.

``actor.py HOST PORT``
"""

import pathlib
import socket
import sys
import time

with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
    print("connected", flush=True)
    answers = connection.makefile("rb")
    for number in range(10**9):
        connection.sendall(b"%d\n" % number)
        answers.readline()
        if number % 20 == 0:
            print(f"sent {number}", flush=True)
        if (stuck := pathlib.Path("stuck")).exists():
            stuck.unlink()
            time.sleep(1e6)
        time.sleep(0.1)

"""A plain TCP server: it says every 0.2 s how many numbers it has got, to each client, and reads what they send.

``learner.py HOST PORT``. It is no gRPC: a test of what EdgeLink does, not of a library.
"""

import socket
import sys
import threading

counted = 0


def serve(connection: socket.socket) -> None:
    global counted
    with connection:
        for line in connection.makefile("rb"):
            counted += 1
            if counted % 20 == 0:
                print(f"counted {counted}", flush=True)
            connection.sendall(line)


with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    print("listening", flush=True)
    while True:
        client, (address, _) = server.accept()
        threading.Thread(target=serve, args=(client,), daemon=True).start()

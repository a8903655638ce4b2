"""``easytier-cli``: asks a running core of the wheel, and prints its answer as JSON, whatever ``-o`` says."""

from __future__ import annotations

import argparse
import json
import socket
import sys

from edgelink.easytier_wheel import DEFAULT_RPC_PORT

_CONNECT_TIMEOUT_S = 4.0
_ANSWER_TIMEOUT_S = 8.0


def main() -> int:
    """Entry of the program."""
    parser = argparse.ArgumentParser("easytier-cli", allow_abbrev=False)
    parser.add_argument("-p", "--rpc-portal", default=f"127.0.0.1:{DEFAULT_RPC_PORT}")
    parser.add_argument("-o", "--output", choices=("table", "json"), help="it is JSON in any case")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("words", nargs="+", metavar="COMMAND", help="peer, route, node, connector [add|remove URL]")
    found = parser.parse_args()
    host, _, port = found.rpc_portal.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S) as connection:
            connection.settimeout(_ANSWER_TIMEOUT_S)
            connection.sendall(json.dumps({"words": found.words, "verbose": found.verbose}).encode() + b"\n")
            answer = json.loads(connection.makefile("rb").readline())
    except (OSError, ValueError) as error:
        sys.stderr.write(f"Error: failed to get manage client\n\nCaused by: {error}\n")
        return 1
    if "error" in answer:
        sys.stderr.write(f"Error: {answer['error']}\n")
        return 1
    sys.stdout.write(json.dumps(answer["ok"], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

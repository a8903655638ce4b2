"""A driver as far as a robot knows it: answers on loopback, says where and by which token, until its input ends."""

from __future__ import annotations

import sys

from edgelink.training.trainer.robot.link import EchoServer


def main() -> None:
    server = EchoServer("127.0.0.1")
    print(server.address, server.token, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

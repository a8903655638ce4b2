"""The arm itself: its physics in real time, in a process of its own, as a device on a wire. Run by ``ArmRobot``.

Standard input is a SOCK_SEQPACKET socket to the control process. Commands: joint speeds (shares of the greatest),
``begin`` with a seed, ``brake``. Answers: the state after every period, without being asked. Like the controller of a
real arm it has a watchdog of its own: without commands for ``COMMAND_TIMEOUT_S`` it brakes. It ends with the wire.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
from contextlib import suppress

import numpy as np

from edgelink.training.trainer.robot.arm.model import FEATURES, JOINTS, TIMESTEP_S, ArmModel
from edgelink.training.trainer.robot.realtime import NS, be_on_time, next_instant, now_ns, sleep_until

PERIOD_S = 2 * TIMESTEP_S  # 250 Hz
COMMAND_TIMEOUT_S = 0.1
SPEEDS, BEGIN, BRAKE = 0, 1, 2
COMMAND = struct.Struct(f"=q{JOINTS}d")  # what; speeds, or the seed as first number
STATE = struct.Struct(f"=qqd{FEATURES}f")  # attempts begun, is it braked, distance (m), observation
_PHASE_NS = NS // 1000  # off the control loop's instants: a command always comes between the same two periods
_MOST_PERIODS = 10  # made up for after a hiccup; physics that is further behind stays behind


class Plant:
    """The arm between two looks at the wire."""

    def __init__(self) -> None:
        self.arm = ArmModel()
        self.speeds = np.zeros(JOINTS)
        self.commanded_ns = 0
        self.begun = 0
        self.is_braked = True

    def command(self, packet: bytes, at_ns: int) -> None:
        what, *numbers = COMMAND.unpack(packet)
        self.commanded_ns = at_ns
        self.is_braked = what == BRAKE
        self.speeds = np.zeros(JOINTS)
        if what == BEGIN:
            self.begun += 1
            self.arm.begin(np.random.default_rng(int(numbers[0])))
        elif what == SPEEDS:
            self.speeds = np.asarray(numbers)

    def advance(self, at_ns: int, timesteps: int) -> None:
        if at_ns - self.commanded_ns > COMMAND_TIMEOUT_S * NS:
            self.is_braked = True
            self.speeds = np.zeros(JOINTS)
        self.arm.advance(self.speeds, timesteps)

    def state(self) -> bytes:
        return STATE.pack(self.begun, self.is_braked, self.arm.distance_m, *self.arm.observation())


def run(wire: socket.socket, plant: Plant) -> None:
    """Until the other end is closed."""
    wire.setblocking(False)
    period_ns = round(PERIOD_S * NS)
    due_ns = next_instant(now_ns(), period_ns, _PHASE_NS)
    while True:
        sleep_until(due_ns)
        at_ns = now_ns()
        periods = (at_ns - due_ns) // period_ns + 1
        due_ns += periods * period_ns
        try:
            while packet := wire.recv(COMMAND.size):
                plant.command(packet, at_ns)
            return
        except BlockingIOError:
            pass
        except ConnectionError:
            return
        plant.advance(at_ns, min(periods, _MOST_PERIODS) * round(PERIOD_S / TIMESTEP_S))
        with suppress(BlockingIOError, ConnectionError):  # nobody reads just now: the next state is as good
            wire.send(plant.state())


def main() -> None:
    # A device does not end with the service: before that the control process brings it to rest.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wire = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    plant = Plant()
    be_on_time(int(sys.argv[1]), None)
    run(wire, plant)


if __name__ == "__main__":
    main()

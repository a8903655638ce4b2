"""A robot cell, simulated in real time: carts with poles, ticking on a clock of their own in a process of their own.

Run by :class:`edgelink.training.trainer.robot.cell_driver.CellDriver`; nobody else has to. Talks JSON over a
SOCK_SEQPACKET socket pair whose end is its standard input, one message a packet::

    driver → cell   {"actions": [0, 1, …]}     in force from the next tick on; answered after one control period
                    {"report": true}           answered at once
    cell → driver   {"tick": …, "states": …, "failed": …, "cut": …, "final_states": …}   or   {"report": {…}}

A command is in force until the next one, or until it is stale: then the safe action is taken. The brakes engage and
each rig is put back to its start and held there until the next command. The ticks go on all the while. The cell ends
when the driver's end of the socket is closed, however that came about.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

CONTROL_PERIOD_S = 0.02  # the step of the CartPole task: what is learned on the simulator holds here
ATTEMPT_S = 10.0  # 500 steps, as in CartPole-v1
STALE_AFTER_S = 0.5  # bridges a scheduling hiccup, not an outage
_TICK_FILE_PERIOD_S = 0.1
_MAX_BURST = 5  # ticks made up for after a hiccup; more are dropped, as a real controller would

# The constants of the CartPole task (Barto, Sutton, Anderson 1983).
_GRAVITY, _CART_KG, _POLE_KG, _HALF_POLE_M, _FORCE_N = 9.8, 1.0, 0.1, 0.5, 10.0
_MAX_POSITION_M, _MAX_ANGLE_RAD = 2.4, 12 * 2 * math.pi / 360


class Rigs:
    """The physics of ``count`` carts with poles."""

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self._generator = np.random.default_rng(seed)
        self.states = self._start(count)

    def _start(self, count: int) -> Any:
        return self._generator.uniform(-0.05, 0.05, size=(count, 4))

    def advance(self, actions: Any, duration_s: float) -> None:
        """Push each cart left (0) or right (1) for ``duration_s``."""
        position, speed, angle, spin = self.states.T
        force = np.where(actions == 1, _FORCE_N, -_FORCE_N)
        sine, cosine = np.sin(angle), np.cos(angle)
        mass = _CART_KG + _POLE_KG
        push = (force + _POLE_KG * _HALF_POLE_M * spin**2 * sine) / mass
        spin_change = (_GRAVITY * sine - cosine * push) / (_HALF_POLE_M * (4.0 / 3.0 - _POLE_KG * cosine**2 / mass))
        speed_change = push - _POLE_KG * _HALF_POLE_M * spin_change * cosine / mass
        self.states = np.stack(
            [
                position + duration_s * speed,
                speed + duration_s * speed_change,
                angle + duration_s * spin,
                spin + duration_s * spin_change,
            ],
            axis=1,
        )

    def fallen(self) -> Any:
        return (np.abs(self.states[:, 0]) > _MAX_POSITION_M) | (np.abs(self.states[:, 2]) > _MAX_ANGLE_RAD)

    def home(self, which: Any) -> None:
        """Put the chosen rigs back to their start."""
        self.states[which] = self._start(int(np.count_nonzero(which)))


class Cell:
    """The controller: ticks, applies commands, watches over staleness. Knows time only as tick numbers."""

    def __init__(self, rigs: int, tick_hz: float, seed: int) -> None:
        self._rigs = Rigs(rigs, seed)
        self._tick_s = 1.0 / tick_hz
        self._ticks_per_control = max(1, round(CONTROL_PERIOD_S * tick_hz))
        self._stale_ticks = max(self._ticks_per_control + 1, round(STALE_AFTER_S * tick_hz))
        self._attempt_ticks = round(ATTEMPT_S * tick_hz)
        self.ticks = 0
        self.commands = 0
        self.safe_holds = 0
        self.is_held = True  # until the first command
        self._actions = np.zeros(rigs, dtype=int)
        self._commanded_at = 0
        self._reply_at: int | None = None
        self._age = np.zeros(rigs, dtype=int)
        self._forget_ends()

    def _forget_ends(self) -> None:
        self._failed = np.zeros(self._rigs.count, dtype=bool)
        self._cut = np.zeros(self._rigs.count, dtype=bool)
        self._finals = self._rigs.states.copy()

    def command(self, actions: list[int]) -> None:
        self._actions = np.asarray(actions, dtype=int)
        self._commanded_at = self.ticks
        self._reply_at = self.ticks + self._ticks_per_control
        self.commands += 1
        self.is_held = False

    def tick(self) -> dict[str, Any] | None:
        """Advance by one tick; the observation, if a control period ends with it."""
        self.ticks += 1
        if not self.is_held and self.ticks - self._commanded_at > self._stale_ticks:
            self._hold()
        if not self.is_held:
            self._rigs.advance(self._actions, self._tick_s)
            self._age += 1
            fallen = self._rigs.fallen()
            self._end(fallen, self._failed)
            self._end((self._age >= self._attempt_ticks) & ~fallen, self._cut)
        if self._reply_at is None or self.ticks < self._reply_at:
            return None
        self._reply_at = None
        return self.observation()

    def _hold(self) -> None:
        self.is_held = True
        self.safe_holds += 1
        self._end(np.ones(self._rigs.count, dtype=bool), self._cut)

    def _end(self, which: Any, mark: Any) -> None:
        """Note how the chosen rigs' attempts ended and start new ones; the first end since the last look counts."""
        if not which.any():
            return
        fresh = which & ~self._failed & ~self._cut
        self._finals[fresh] = self._rigs.states[fresh]
        mark |= fresh
        self._rigs.home(which)
        self._age[which] = 0

    def observation(self) -> dict[str, Any]:
        """What happened since the last observation; ends are told once."""
        answer = {
            "tick": self.ticks,
            "states": self._rigs.states.tolist(),
            "failed": self._failed.tolist(),
            "cut": self._cut.tolist(),
            "final_states": self._finals.tolist(),
        }
        self._forget_ends()
        return answer


class TickClock:
    """When ticks are due, and how regularly they really came."""

    def __init__(self, tick_hz: float, now_s: float) -> None:
        self._period_s = 1.0 / tick_hz
        self.due_s = now_s + self._period_s
        self._last_s = now_s
        self.max_gap_s = 0.0
        self.dropped = 0

    def take_due(self, now_s: float) -> int:
        """How many ticks to run now."""
        if now_s < self.due_s:
            return 0
        count = int((now_s - self.due_s) / self._period_s) + 1
        self.due_s += count * self._period_s
        self.dropped += max(0, count - _MAX_BURST)
        self.max_gap_s = max(self.max_gap_s, now_s - self._last_s)
        self._last_s = now_s
        return min(count, _MAX_BURST)


def run(link: socket.socket, cell: Cell, tick_hz: float, tick_file: Path | None) -> None:
    """Tick until the driver's end of ``link`` is gone."""
    clock = TickClock(tick_hz, time.monotonic())
    write_at_s = 0.0
    link.setblocking(False)
    while True:
        readable, _, _ = select.select([link], [], [], max(0.0, clock.due_s - time.monotonic()))
        if readable and not _serve(link, cell, clock, tick_hz):
            return
        now_s = time.monotonic()
        for _ in range(clock.take_due(now_s)):
            answer = cell.tick()
            if answer is not None:
                _send(link, answer)
        if tick_file is not None and now_s >= write_at_s:
            write_at_s = now_s + _TICK_FILE_PERIOD_S
            _write(tick_file, _report(cell, clock, tick_hz))


def _serve(link: socket.socket, cell: Cell, clock: TickClock, tick_hz: float) -> bool:
    try:
        packet = link.recv(65536)
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    if not packet:
        return False
    message = json.loads(packet)
    if "actions" in message:
        cell.command(message["actions"])
    else:
        _send(link, {"report": _report(cell, clock, tick_hz)})
    return True


def _send(link: socket.socket, message: dict[str, Any]) -> None:
    # A driver that does not read must not stop the clock; one that is gone is seen by the next recv.
    with contextlib.suppress(BlockingIOError, ConnectionError):
        link.send(json.dumps(message).encode())


def _report(cell: Cell, clock: TickClock, tick_hz: float) -> dict[str, Any]:
    return {
        "ticks": cell.ticks,
        "tick_hz": tick_hz,
        "max_tick_gap_s": round(clock.max_gap_s, 4),
        "dropped_ticks": clock.dropped,
        "commands": cell.commands,
        "safe_holds": cell.safe_holds,
        "is_held": cell.is_held,
    }


def _write(path: Path, report: dict[str, Any]) -> None:
    """Whole or not at all, for readers at any moment; needs no fsync, it is about this very second."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(json.dumps(report) + "\n")
    temporary.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rigs", type=int, required=True)
    parser.add_argument("--tick-hz", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--tick-file", type=Path)
    arguments = parser.parse_args()
    link = socket.socket(fileno=sys.stdin.fileno())
    cell = Cell(arguments.rigs, arguments.tick_hz, arguments.seed)
    _send(link, cell.observation())  # "ready"
    run(link, cell, arguments.tick_hz, arguments.tick_file)


if __name__ == "__main__":
    main()

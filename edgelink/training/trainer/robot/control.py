"""The control process of one robot: makes the robot, says what it is, and runs its loop. Started by the attendant.

It starts with a socket to the attendant as its standard input, on which it gets its settings and says hello; after that
it talks to nobody but through shared memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.acting import Actor, PolicyActor, ReplayActor, read_commands
from edgelink.training.trainer.robot.deadman import Cause, State
from edgelink.training.trainer.robot.event_log import EventLog
from edgelink.training.trainer.robot.hooks import Hooks
from edgelink.training.trainer.robot.interface import Robot, RobotSettings, Sensed, load_robot
from edgelink.training.trainer.robot.loop import ControlLoop
from edgelink.training.trainer.robot.names import Names
from edgelink.training.trainer.robot.plain import report_json
from edgelink.training.trainer.robot.realtime import be_on_time, outlive_workers
from edgelink.training.trainer.robot.settings import DEVICE_TIMEOUT_S, ControlSettings
from edgelink.training.trainer.robot.shared import Layout, SharedBlock, WeightsReader

_MESSAGE_BYTES = 1 << 20
_STOP_TRIES = 20
_LOOK_S = 0.05
_DISK_TIMEOUT_S = 10.0
_OUTLIVED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LEFT_ALONE = "its attendant has died: nobody was left who could hear the env worker, or a person"


def main() -> None:
    """The life of the process."""
    _outlive_signals()
    outlive_workers()
    link = _take_link()
    packet, locks, _, _ = socket.recv_fds(link, _MESSAGE_BYTES, 1)
    _keep_from_children(locks)  # held for as long as this process lives, whatever becomes of the attendant
    settings = ControlSettings.from_json(packet.decode())
    try:
        _serve(settings, link)
    except BaseException as error:  # others' code; it is told to whoever started us
        with contextlib.suppress(OSError):
            link.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode(errors="replace"))


def _outlive_signals() -> None:
    """What ends a terminal or a service must not end the robot's clock in mid-motion: the attendant decides.

    By a handler, for a child would inherit that they are ignored, and the robot's code could not end what it started.
    """
    for number in _OUTLIVED:
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)  # a vendor's library may not expect that a call is broken off
    os.register_at_fork(after_in_child=_end_by_signals)


def _take_link() -> socket.socket:
    """What the robot's code starts inherits the standard input, and would be taken for this process when it is gone."""
    link = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.register_at_fork(after_in_child=link.close)
    return link


def _keep_from_children(locks: Sequence[int]) -> None:
    """By one that lives longer, the robot would be locked for whoever comes next."""
    held = list(locks)
    for lock in held:
        os.set_inheritable(lock, False)  # what is executed; and what is forked:
    os.register_at_fork(after_in_child=lambda: _close(held))


def _close(descriptors: list[int]) -> None:
    while descriptors:  # once: in a child of the child, the numbers are other files'
        os.close(descriptors.pop())


def _end_by_signals() -> None:
    """In a child that is forked; of a program that is executed the kernel does it."""
    for number in _OUTLIVED:
        signal.signal(number, signal.SIG_DFL)


def _serve(settings: ControlSettings, link: socket.socket) -> None:
    """Make the robot and command it to the end; from when it is there, nothing ends this without a stop."""
    factory, about = load_robot(settings.robot), settings.settings
    device = _device(getattr(factory, "device", _no_device)(about))
    with _only_one(device, link):
        robot = factory(about)
        try:
            _check_rate(robot.rate_hz, about.rate_hz)
            _check_shape(robot.observe(), robot.spaces, robot.rigs)
            names = Names.of(robot.spaces, robot.observation_names, robot.action_names)
            block = SharedBlock(Layout(robot.spaces, robot.rigs, settings.ring_rows, robot.action_repeat))
            parent, watchdog_s = _pid_of_other_end(link), settings.watchdog_s
            actor = _actor(settings, robot, block)
            loop = ControlLoop(robot, block, settings.deadman, actor, watchdog_s=watchdog_s, parent=parent)
            hello = {
                "spaces": asdict(robot.spaces),
                "names": names.to_dict(),
                "rigs": int(robot.rigs),  # numpy's own numbers are none for JSON
                "rate_hz": float(robot.rate_hz),
                "action_repeat": int(robot.action_repeat),
                "resumes": settings.deadman.resume or robot.resumes,
                "notes": be_on_time(settings.priority, settings.cpu),
                "pid": os.getpid(),
                "device": device,
            }
            with contextlib.suppress(OSError):  # whoever started us did not wait; the robot is at rest
                _command(loop, lambda: socket.send_fds(link, [json.dumps(hello).encode()], [block.descriptor]))
        except BaseException:
            _stop(lambda: _has_stopped(robot))
            with contextlib.suppress(BaseException):
                robot.close()
            raise
        stand_in = _stand_in(settings, loop, block)
        _leave(robot, block, link)
    if stand_in is not None:  # the hook and the disk have their time
        stand_in.join(settings.hook_timeout_s + _DISK_TIMEOUT_S)


def _actor(settings: ControlSettings, robot: Robot, block: SharedBlock) -> Actor:
    if settings.replay:
        return ReplayActor(block.words, read_commands(Path(settings.replay), robot))
    return PolicyActor(WeightsReader(block), robot.spaces, settings.settings.seed)


def _command(loop: ControlLoop, say_hello: Callable[[], object]) -> None:
    """The robot is stopped at last, whatever ends the loop."""
    try:
        say_hello()
        loop.run()
    finally:
        _stop(loop.stop)


def _stop(has_stopped: Callable[[], bool]) -> None:
    """Until it has, or has failed so often that there is no use in it."""
    for _ in range(_STOP_TRIES):
        if has_stopped():
            return
        time.sleep(_LOOK_S)


def _has_stopped(robot: Robot) -> bool:
    try:
        robot.stop()
    except BaseException:  # others' code; there is nothing safer to do than the same again
        return False
    return True


def _stand_in(settings: ControlSettings, loop: ControlLoop, block: SharedBlock) -> threading.Thread | None:
    """For an attendant that died while the robot was not at rest: now that it is, run the stop hook and record the
    stop, as that would have done. In a thread: what hangs keeps the robot's code from nothing."""
    if loop.left_alone_in in (None, State.STOPPED):  # or it has seen to that itself
        return None
    cause = Cause(block.words.cause).name.lower()

    def serve() -> None:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # the hook's, too
        events = EventLog(settings.events_file, lambda write: write())
        hooks = Hooks(settings, events.add)
        hooks.stopped("stopped", cause)
        events.add("stopped", cause=cause, reason=_LEFT_ALONE)
        hooks.finish()

    with contextlib.suppress(RuntimeError):  # no thread is to be had
        thread = threading.Thread(target=serve, name="stand-in", daemon=True)
        thread.start()
        return thread
    return None


def _pid_of_other_end(link: socket.socket) -> int:
    """The attendant's, also if it is gone by now and another process is our parent."""
    pid: int = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def _no_device(settings: RobotSettings) -> str:
    del settings
    return ""


def _device(found: object) -> str:
    """What the robot's code names; nothing, where it does not know: that is no name, which would be another's too."""
    if found is None:
        return ""
    if not isinstance(found, str):
        raise ValueError(f"its device() gave {found!r}; it is a text, such as an address, or empty if it is not known")
    return found


def _only_one(device: str, link: socket.socket) -> contextlib.AbstractContextManager[object]:
    """What nobody else in this network namespace has meanwhile: a socket's name, which the kernel frees when its holder
    dies.

    Raises:
        OSError: somebody else has it and keeps it, or whoever started us does not wait any more.
    """
    if not device:
        return contextlib.nullcontext()
    name = b"\0edgelink-robot-" + hashlib.sha256(device.encode()).hexdigest().encode()
    ends_s = time.monotonic() + DEVICE_TIMEOUT_S
    with contextlib.ExitStack() as unless_had:
        held = unless_had.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        _check_wanted(link)
        while not _is_bound(held, name):
            if time.monotonic() > ends_s:
                raise OSError(
                    f"another control process commands {device} and has not come to rest for "
                    f"{DEVICE_TIMEOUT_S:.0f} s; look at `sudo edgelink robot status`"
                )
            time.sleep(_LOOK_S)
            _check_wanted(link)
        unless_had.pop_all()
    os.register_at_fork(after_in_child=held.close)  # by a child that lives longer the device would be kept
    return held


def _is_bound(held: socket.socket, name: bytes) -> bool:
    try:
        held.bind(name)
    except OSError:
        return False
    return True


def _check_wanted(link: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        if not link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            raise ConnectionError("nobody waits for the robot any more")


def _check_rate(rate_hz: float, wanted_hz: float | None) -> None:
    if wanted_hz is not None and rate_hz != wanted_hz:
        raise ValueError(
            f"robot.rate_hz is {wanted_hz:g}, but this robot goes at {rate_hz:g} control instants per second whatever "
            "it is told; leave robot.rate_hz out, or have the robot's code use settings.rate_hz"
        )


def _check_shape(sensed: Sensed, spaces: Spaces, rigs: int) -> None:
    axes = {"float32": 1, "uint8": 3}.get(spaces.observation_dtype)
    if len(spaces.observation_shape) != axes:  # anything else would fail in the learner, far from here
        raise ValueError(
            f"its spaces say {spaces.observation_dtype} of shape {spaces.observation_shape}; a robot's observations "
            "are float32 numbers in one row, or a uint8 image (height, width, channels)"
        )
    seen, wanted = sensed.observations, (rigs, *spaces.observation_shape)
    if np.shape(seen) != wanted or seen.dtype != spaces.observation_dtype:
        raise ValueError(
            f"observe() gave {seen.dtype} of shape {np.shape(seen)}, its spaces say "
            f"{spaces.observation_dtype} of shape {wanted}"
        )
    for name, kind in (("rewards", np.number), ("terminated", np.bool_), ("truncated", np.bool_)):
        found = getattr(sensed, name)
        if np.shape(found) != (rigs,) or not np.issubdtype(getattr(found, "dtype", object), kind):
            raise ValueError(
                f"observe() gave {found!r} as {name}; it is an array of {kind.__name__}, one a rig: {rigs}"
            )


def _leave(robot: Robot, block: SharedBlock, link: socket.socket) -> None:
    block.words.leaving = 1
    report = {}
    with contextlib.suppress(BaseException):  # the robot is at rest; what its code says now changes nothing
        report = robot.report()
    with contextlib.suppress(BaseException):
        robot.close()
    block.words.ended = 1
    with contextlib.suppress(OSError):
        link.send(report_json(report))


if __name__ == "__main__":
    main()

"""Signals to processes, and the wait for their ends."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys

from edgelink.process.pidfd import signal_and_wait

_FEW_DESCRIPTORS = """
import asyncio, json, os, resource, signal, subprocess
from edgelink.process.pidfd import signal_and_wait

def descriptors():
    return len(os.listdir("/proc/self/fd"))

async def main(pids):
    before = descriptors()
    await signal_and_wait(pids, signal.SIGTERM, 60)
    ends = [os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) for pid in pids]
    print(json.dumps({"signals": [end and end.si_status for end in ends], "left_open": descriptors() - before}))

children = [subprocess.Popen(["sleep", "60"]) for _ in range(64)]
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    asyncio.run(main([child.pid for child in children]))
finally:
    for child in children:
        child.kill()
"""


def test_more_processes_than_descriptors_are_ended() -> None:
    """All of them are signalled and waited for, and no descriptor stays open: a Ray may be that large."""
    done = subprocess.run([sys.executable, "-c", _FEW_DESCRIPTORS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"signals": [signal.SIGTERM] * 64, "left_open": 0}


def test_one_that_does_not_end_keeps_no_other_from_its_signal() -> None:
    """The time-out is that of all together, and what is gone already is none of them."""
    ignores = ["sh", "-c", "trap '' TERM; echo ready; exec sleep 60"]
    with (
        subprocess.Popen(ignores, stdout=subprocess.PIPE) as stubborn,
        subprocess.Popen(["sleep", "60"]) as other,
        subprocess.Popen(["true"]) as gone,
    ):
        try:
            assert stubborn.stdout is not None
            stubborn.stdout.readline()
            gone.wait()
            asyncio.run(signal_and_wait([gone.pid, stubborn.pid, other.pid], signal.SIGTERM, 0.01))
            assert other.wait(60) == -signal.SIGTERM
            assert stubborn.poll() is None
        finally:
            stubborn.kill()
            other.kill()

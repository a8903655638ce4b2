"""Run checks side by side, as most of them wait; one that hangs or has a defect does not hold up the others."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterable
from subprocess import TimeoutExpired

from edgelink.clock import Clock, SystemClock
from edgelink.doctor.busy import BUSY_PATIENCE_S, Processors
from edgelink.doctor.check import Check, Finding, Surroundings, failed, name_of

PATIENCE_S = 4.5


def examine(
    surroundings: Surroundings, checks: Iterable[Check], *, clock: Clock | None = None, patience_s: float = PATIENCE_S
) -> dict[str, Finding]:
    """Return what each check found, by its name, in their order.

    A check that does not answer within ``patience_s`` has failed. On a machine whose processors are all busy it has
    20 s.
    """
    clock = clock or SystemClock()
    found: dict[str, Finding] = {}

    def answer(check: Check) -> None:
        try:
            finding = check(surroundings)
        except TimeoutExpired as error:
            finding = failed(
                f"`{shlex.join(error.cmd)}` has not ended within {error.timeout:g} s",
                "run it by hand to see why it hangs",
            )
        except Exception as error:  # a defect: of this check alone
            finding = failed(
                f"this check itself failed: {type(error).__name__}: {error}", "a defect of EdgeLink's: report it"
            )
        found[name_of(check)] = finding

    checks = list(checks)
    # Daemon threads: one that hangs on a dead disk does not keep the command from ending.
    threads = [threading.Thread(target=answer, args=(check,), daemon=True) for check in checks]
    processors, started_s = Processors(surroundings.proc / "stat"), clock.monotonic_s()
    for thread in threads:
        thread.start()

    def wait(at_most_s: float) -> None:
        for thread in threads:
            thread.join(max(0.0, started_s + at_most_s - clock.monotonic_s()))

    wait(patience_s)
    if processors.were_busy:
        wait(BUSY_PATIENCE_S)
    late = failed(
        f"no answer within {clock.monotonic_s() - started_s:.1f} s",
        "something that it looks at hangs: a disk, a name server, a program",
    )
    return {name_of(check): found.get(name_of(check), late) for check in checks}

"""What people see of a network in each of its usual states, whole and at 80 columns: ``tests/words`` has the screens.

Real daemons say it, on virtual time. The commands are typed on their machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import structlog
from page_scripts import NODE, answer_of, put_scripts
from sim import Box, Sim, play, ready
from sim_machine import EASYTIER, RAY_START_S, RAYLET
from telling import Words

from edgelink import __version__
from edgelink.cli.main import main
from edgelink.daemon.head import Head
from edgelink.daemon.leave import tell_left

WIDTH = 80
# A moment, and how long something lasts: the order of the daemons' tasks is drawn, and moves them by a second.
_TIMES = ((re.compile(r"\b\d\d:\d\d:\d\d\b"), "hh:mm:ss"), (re.compile(r"\b(\d+ ?m(in )?)?[1-9]\d* ?s\b"), "N s"))
_PAGE = """
import {{ verdictOf, figuresOf }} from "./summary.js";
import {{ WORDS, SIGNS }} from "./dom.js";
const state = {snapshot};
const {{ text, more }} = verdictOf(state.nodes, state.head, {at_ms});
const figures = figuresOf(state, {at_ms}).map((each) => each.join(" ").trim());
const nodes = Object.values(state.nodes).flatMap(({{ health, hostname, brief, wrong }}) =>
  [`${{SIGNS[health]}} ${{hostname}}: ${{WORDS[health]}}, ${{brief}}`, ...wrong.map((each) => `    ${{each}}`)]);
const events = state.events.map(({{ severity, text, detail }}) => [`${{SIGNS[severity]}} ${{text}}`, detail]);
const told = events.map((each) => each.filter(Boolean).join(": "));
console.log(JSON.stringify([more ? `${{text}} (${{more}})` : text, figures.join(", "), ...nodes, ...told]));
"""

State = Callable[[Sim, Box, Box], Awaitable[None]]


def _run(box: Box, argv: tuple[str, ...]) -> tuple[str, int]:
    told = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        patch.chdir(box.machine.directory)  # where it lies differs, and so would the ends of lines
        for name, value in (("COLUMNS", str(WIDTH)), ("EDGELINK_RUNTIME_DIR", "r"), ("EDGELINK_STATE_DIR", "s")):
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["edgelink", *argv])
        with pytest.raises(SystemExit) as end:
            main()
    return told.getvalue(), int(end.value.code or 0)


async def typed(box: Box, *argv: str) -> str:
    """What `edgelink ARGV` prints on that machine, and its exit status. No time passes meanwhile."""
    with ThreadPoolExecutor(1) as threads:
        command = threads.submit(_run, box, argv)
        turns = itertools.count()
        while not command.done():
            time.sleep(1e-7 * next(turns))  # noqa: ASYNC251 - for the command, which is in another thread
            await asyncio.sleep(0)
    said, code = command.result()
    assert [line for line in said.splitlines() if len(line) > WIDTH] == []
    return f"{box.name}$ edgelink {' '.join(argv)}\n{said}exit status {code}"


async def well(_sim: Sim, _head: Box, _edge: Box) -> None:
    """Both nodes, and the relay."""


async def starting(sim: Sim, _head: Box, edge: Box) -> None:
    await edge.stop()
    await sim.passes(5)
    edge.start()
    await sim.until(edge.has("RayJoined", "Joining"), within_s=10)
    await sim.passes(0.8 * RAY_START_S)


async def paused(sim: Sim, head: Box, edge: Box) -> None:
    edge.machine.is_cut = True
    await sim.until(head.has("NodesReady", "NodesPaused"), within_s=10)
    await sim.passes(30)


async def off(sim: Sim, _head: Box, edge: Box) -> None:
    await edge.stop()
    await sim.passes(5)


async def left(sim: Sim, _head: Box, edge: Box) -> None:
    membership = edge.membership
    await edge.stop()
    assert await tell_left(membership, edge.machine)
    await sim.passes(5)


async def no_daemon(sim: Sim, _head: Box, edge: Box) -> None:
    await edge.kill()
    await sim.passes(30)


async def no_overlay(sim: Sim, _head: Box, edge: Box) -> None:
    edge.machine.broken.add(EASYTIER)
    edge.machine.end(EASYTIER)
    await sim.passes(40)


async def no_ray(sim: Sim, _head: Box, edge: Box) -> None:
    edge.machine.end(RAYLET)
    await sim.until(edge.has("RayJoined", "Joining"), within_s=10)
    await sim.passes(0.8 * RAY_START_S)


async def no_head(sim: Sim, head: Box, edge: Box) -> None:
    await head.stop()
    await edge.stop()
    edge.start()
    await sim.passes(30)


async def no_relay(sim: Sim, _head: Box, _edge: Box) -> None:
    sim.boxes[0].machine.is_cut = True
    await sim.passes(60)


STATES = [well, starting, paused, off, left, no_daemon, no_overlay, no_ray, no_head, no_relay]


def played(state: State, look: Callable[[Sim], Awaitable[None]]) -> None:
    """Have a network come to ``state``, then look at it."""

    async def told(sim: Sim) -> None:
        _, head, edge = await ready(sim, "cloud", "edge-1")
        await state(sim, head, edge)
        await look(sim)

    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # what daemons log is on none of the screens
    play(told)


def without_times(said: str) -> str:
    for pattern, name in _TIMES:
        said = pattern.sub(name, said)
    return said


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_the_terminals_of_a_network(state: State, words: Words) -> None:
    async def look(sim: Sim) -> None:
        for surface, *options in (["status"], ["nodes"], ["wait", "--timeout", "0s"]):
            for box in sim.boxes:
                said = without_times(await typed(box, surface, *options))
                words.on(surface, said, **{"EdgeLink VERSION": f"EdgeLink {__version__}"})

    played(state, look)


@pytest.mark.skipif(NODE is None, reason="needs node")
@pytest.mark.parametrize("state", [state for state in STATES if state is not no_head], ids=lambda state: state.__name__)
def test_the_page_of_a_network(state: State, words: Words, tmp_path: Path) -> None:
    async def look(sim: Sim) -> None:
        head = sim.boxes[1].daemon
        assert isinstance(head, Head)
        snapshot, at_ms = json.dumps(head.page.feed.newest), 1000 * sim.clock.now().timestamp()
        said = answer_of(tmp_path, _PAGE.format(snapshot=snapshot, at_ms=at_ms))
        words.on("page", without_times("\n".join(said)))

    put_scripts(tmp_path)
    played(state, look)

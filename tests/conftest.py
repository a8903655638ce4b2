"""What all tests have in common."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import hypothesis
import pytest
import structlog
from in_memory import IN_MEMORY
from telling import IS_WRITING, Words, write_words

from edgelink import conditions, log
from edgelink.condition_table import KINDS, declared
from edgelink.conditions import ConditionSet, Status
from edgelink.testing import reserved_port

# Who is started in the background of a script has SIGINT ignored, and so would all that is started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if IN_MEMORY is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", IN_MEMORY)  # pytest's own word for where tmp_path is

# Whoever asks Ray for something starts a Ray of its own otherwise, whose threads outlive the test.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"

# Several processes share the cores already, and the nets are tiny.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Few examples of each property; `make soak` has as many as Hypothesis takes by itself. A busy machine is no defect:
# 200 ms for an example, and a second to make the first ones, are Hypothesis' own bounds.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("short", hypothesis.settings.get_profile("patient"), max_examples=15)
hypothesis.settings.load_profile("patient" if os.environ.get("EDGELINK_SOAK") else "short")

# Hundreds of modules and thousands of tests stay until the end: looking for garbage among them, each 700 objects, was a
# fifth of the time.
gc.set_threshold(20_000, 20, 100)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """In a new checkout nothing is compiled: each worker begins with its share, and finds that of the others done."""
    tests, worker = Path(__file__).parent, getattr(session.config, "workerinput", None)
    if worker is None or tests not in {Path(argument).resolve() for argument in session.config.args}:
        return
    number = int(worker["workerid"].removeprefix("gw"))
    for file in sorted(tests.glob("test_*.py"))[number :: worker["workercount"]]:
        with suppress(Exception, pytest.skip.Exception):  # collecting it says what is wrong
            importlib.import_module(file.stem)


def pytest_collection_finish() -> None:
    """What is there now is looked at no more."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that import torch come first: with ``--dist worksteal`` one process gets them all, and no other waits.

    The first one reads a gigabyte, from a disk that others may use: an import that is broken off fails all of them.
    """
    if IS_WRITING:
        items[:] = [item for item in items if "words" in getattr(item, "fixturenames", ())]
    items.sort(key=lambda item: item.get_closest_marker("torch") is None)
    for item in items:
        for kind, timeout_s in (("torch", 300), ("processes", 120)):  # of some, a busy machine takes 3 s for each start
            if item.get_closest_marker(kind) and not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(timeout_s))


def pytest_sessionfinish(exitstatus: int) -> None:
    if IS_WRITING and exitstatus == pytest.ExitCode.OK:
        write_words()


_KINDS = {kind.name for kind in KINDS}
_PRODUCT = str(Path(conditions.__file__).parent)
_undeclared: set[str] = set()
_set = ConditionSet.set


def _noted(self: ConditionSet, kind: str, status: Status, reason: str, message: str, *, final: bool = False) -> None:
    known = declared(kind, reason)
    is_wrong = kind in _KINDS and (known is None or known.status is not status)
    if is_wrong and _caller().startswith(_PRODUCT):
        _undeclared.add(f"{kind} {status} {reason}")
    _set(self, kind, status, reason, message, final=final)


def _caller() -> str:
    """The file of whoever sets it: tests may make up what they like."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == conditions.__file__:
        frame = frame.f_back
    return frame.f_code.co_filename if frame else ""


ConditionSet.set = _noted  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def declared_reasons() -> Iterator[None]:
    """What the daemons' parts say in any test, errors included, is in the table of conditions, with that status."""
    yield
    found = sorted(_undeclared)
    _undeclared.clear()
    assert found == [], "not in edgelink/condition_table"


@pytest.fixture(autouse=True)
def forgotten_secrets() -> Iterator[None]:
    """The secrets of a test are forgotten after it: each line of log is searched for all, and here are thousands."""
    before = set(log._hidden)
    yield
    log._hidden.intersection_update(before)
    log._longest_first = None


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that ran in this process has set up its log, and hides what informs."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test prints has no width, unless the test gives it one."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def port() -> Iterator[int]:
    """Of 127.0.0.1, for a server of the test's own."""
    with reserved_port() as number:
        yield number


@pytest.fixture
def words(request: pytest.FixtureRequest) -> Iterator[Words]:
    """What people are told in this test, compared with ``tests/words``."""
    heard = Words(request.path.stem, request.node.name)
    yield heard
    heard.compare()

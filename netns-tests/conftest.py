"""The frame of the tests on a real kernel: labs of their own, skipped with a reason where they cannot run, and
everything worth reading collected when one fails.

A failed test leaves logs, addresses and routes of every node under ``build/netns-failures/<test>/``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from truth import assert_told_truly
from xdist.scheduler import LoadScopeScheduling

from edgelink.errors import EasyTierNotFoundError, EdgelinkError
from edgelink.files import write_atomic
from edgelink.lab import Lab
from edgelink.overlay.acquisition import CORE_VARIABLE, WHEEL, default_cache_dir, find_easytier

# Who is started in the background of a script has SIGINT ignored, and so would all that is started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault(CORE_VARIABLE, WHEEL)  # what `make setup` installs, by hand as by EdgeLink
sys.path.insert(0, str(Path(__file__).parent))  # by_hand is imported by tests and benchmarks

_FAILURES = Path(__file__).parent.parent / "build" / "netns-failures"
_LAST_LINES = 15  # of each log of a lab
_SHORT_S = 10  # such groups fill the gaps at the end
_TIMEOUT_S = 300  # one test, its lab's building and removal included
_SECONDS = Path(__file__).with_name("seconds.json")  # of each group of tests; `make netns-seconds` writes it
_GROUPS = pytest.StashKey[dict[str, str]]()  # by node id
_GROUPS_FILE = pytest.StashKey[Path]()
_LOOK = {
    "addresses": ["ip", "-details", "address"],
    "routes": ["ip", "route", "show", "table", "all"],
    "sockets": ["ss", "-tunap"],
    "firewall": ["nft", "list", "ruleset"],
}


def _reason_to_skip() -> str | None:
    if os.geteuid() != 0:
        return "needs root: makes network namespaces"
    if missing := [program for program in ("nft", "ip", "nsenter", "ping") if shutil.which(program) is None]:
        return f"needs {', '.join(missing)} on PATH: `make setup` installs them"
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-seconds", action="store_true", help=f"write what each group took to {_SECONDS.name}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group tests by the world that they share, and let the groups that took longest begin first."""
    here = Path(__file__).parent
    seconds = json.loads(_SECONDS.read_text())
    reason = _reason_to_skip()
    groups = config.stash.setdefault(_GROUPS, {})
    for item in items:
        groups[item.nodeid] = _group_of(item)
        if not item.path.is_relative_to(here):
            continue
        item.add_marker(pytest.mark.netns)
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
    items.sort(key=lambda item: -seconds.get(groups[item.nodeid], 0))
    if (worker := getattr(config, "workerinput", None)) is not None:
        write_atomic(Path(worker["groups"]), json.dumps(groups))


def _group_of(item: pytest.Item) -> str:
    """The mark's name, the file of a test that shares a fixture with others of its file, else the test itself."""
    if mark := item.get_closest_marker("xdist_group"):
        return str(mark.args[0])
    fixtures = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else ()
    is_shared = item.get_closest_marker("story") or any(each[-1].scope == "module" for each in fixtures)
    return item.path.name if is_shared else f"{item.path.name}::{item.name}"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Only workers collect tests: each leaves its groups in a file, which is the same for all."""
    stash = node.config.stash
    if _GROUPS_FILE not in stash:
        stash[_GROUPS_FILE] = Path(tempfile.mkdtemp(prefix="edgelink-tests-")) / "groups.json"
    node.workerinput["groups"] = str(stash[_GROUPS_FILE])


class GroupScheduling(LoadScopeScheduling):
    """xdist's own way to hand out groups (``--dist loadgroup``, 3.8) changes a node id that pytest 9 does not read."""

    def _split_scope(self, nodeid: str) -> str:
        if _GROUPS not in self.config.stash:
            self.config.stash[_GROUPS] = json.loads(self.config.stash[_GROUPS_FILE].read_text())
        return self.config.stash[_GROUPS][nodeid]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log)


def pytest_unconfigure(config: pytest.Config) -> None:
    if file := config.stash.get(_GROUPS_FILE, None):
        shutil.rmtree(file.parent, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the seconds of each group, and write them where that is asked for."""
    config = terminalreporter.config
    groups = config.stash.get(_GROUPS, {})
    spent_s: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                spent_s[groups.get(report.nodeid, report.nodeid)] += report.duration
    if config.getoption("durations") is not None:
        terminalreporter.section("seconds of groups")
        for group, seconds in spent_s.most_common():
            terminalreporter.write_line(f"{seconds:7.1f} {group}")
    if config.getoption("record_seconds", default=False):
        known = json.loads(_SECONDS.read_text())
        known |= {group: round(seconds) for group, seconds in spent_s.items() if seconds >= _SHORT_S}
        _SECONDS.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and report.when in ("setup", "call"):
        for lab in _labs_of(item):
            folder = _FAILURES / re.sub(r"[^\w.-]+", "_", item.name) / lab.name
            collect(lab, folder)
            report.sections.append(("lab", f"logs, addresses and routes of every node: {folder}"))
            if lab.name not in item.session.stash.setdefault(_TOLD, set()):
                item.session.stash[_TOLD].add(lab.name)
                report.sections.append(("the ends of its logs", ends_of_logs(lab)))
    if report.failed and item.parent is not None and item.get_closest_marker("story"):
        item.parent.stash.setdefault(_FAILED, item.name)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Hold the views of the labs of a test with this mark against an observer, faults and all."""
    if item.get_closest_marker("told_truly") is None:
        return (yield)
    with tempfile.TemporaryDirectory() as directory, assert_told_truly(lambda: _labs_of(item), Path(directory)):
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The tests of a story build on each other: after one that failed, the rest would tell nothing."""
    if item.get_closest_marker("story") and item.parent is not None and (failed := item.parent.stash.get(_FAILED, "")):
        pytest.skip(f"builds on {failed}, which failed")


_LABS = pytest.StashKey[list[Lab]]()
_FAILED = pytest.StashKey[str]()
_TOLD = pytest.StashKey[set[str]]()  # labs whose logs have been shown


def _labs_of(item: pytest.Item) -> list[Lab]:
    """The test's own labs, and those that it shares with the rest of its file."""
    return [lab for node in item.listchain() for lab in node.stash.get(_LABS, [])]


def collect(lab: Lab, folder: Path) -> None:
    """Copy logs and the kernel's view of every node; whatever cannot be had is left out."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(EdgelinkError):
        for node in lab.topology.nodes:
            target = folder / node.name
            target.mkdir(parents=True)
            for log in lab.node_directory(node.name).rglob("*"):
                if log.suffix not in (".log", ".out", ".err"):
                    continue
                with contextlib.suppress(OSError):
                    shutil.copy(log, target / log.name)
            for name, argv in _LOOK.items():
                with contextlib.suppress(EdgelinkError, OSError):
                    answer = lab.exec(node.name, argv, capture=True, timeout_s=10)
                    (target / f"{name}.txt").write_text(answer.stdout + answer.stderr)


def ends_of_logs(lab: Lab) -> str:
    """For who has the test's output, and not the machine that it ran on."""
    told = []
    with contextlib.suppress(EdgelinkError):
        for node in lab.topology.nodes:
            for log in sorted(lab.node_directory(node.name).glob("*.log")):
                with contextlib.suppress(OSError):
                    lines = log.read_text(errors="replace").splitlines()
                    told += [f"==> {node.name}/{log.name} <==", *lines[-_LAST_LINES:]]
    return "\n".join(told)


class MakeLab(Protocol):
    def __call__(self) -> Lab: ...


@pytest.fixture
def make_lab(request: pytest.FixtureRequest) -> Iterator[MakeLab]:
    """Makes labs that are not up yet, with a fresh name each; all are removed after the test."""
    with _making_labs(request.node) as make:
        yield make


@pytest.fixture(scope="module")
def make_shared_lab(request: pytest.FixtureRequest) -> Iterator[MakeLab]:
    """The same for a lab that all tests of a file share."""
    with _making_labs(request.node) as make:
        yield make


@contextlib.contextmanager
def _making_labs(owner: pytest.Item | pytest.Collector) -> Iterator[MakeLab]:
    labs = owner.stash.setdefault(_LABS, [])

    def make() -> Lab:
        lab = Lab(f"test-{secrets.token_hex(4)}", extra_path=_easytier_directory())
        labs.append(lab)
        return lab

    try:
        yield make
    finally:
        for lab in labs:
            lab.down()


@pytest.fixture
def network(make_lab: MakeLab) -> Lab:
    """A lab with two edges, without any daemon."""
    lab = make_lab()
    lab.up(edges=2)
    return lab


def _easytier_directory() -> list[Path]:
    try:
        return [find_easytier(None, default_cache_dir()).core.parent]
    except EasyTierNotFoundError:
        return []


@pytest.fixture
def easytier() -> None:
    """The test needs a real easytier-core; `make setup` gets one."""
    if not _easytier_directory():
        pytest.fail("no easytier-core found: run `make setup`")

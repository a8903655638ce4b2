"""What was installed or changed since Ray was started is told, and nothing else is."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
from importlib.metadata import distributions
from pathlib import Path

import pytest

from edgelink.clock import SystemClock
from edgelink.conditions import ConditionSet, Status
from edgelink.process import Identity
from edgelink.ray_cluster.drift import DriftReconciler, Snapshot, StartBook, compare, installed, take_snapshot
from edgelink.ray_cluster.interpreter import Interpreter, inspect_interpreter

RAYLET = Identity(pid=100, start_ticks=7, boot_id="b", config_hash="h")
BEFORE = Snapshot(
    interpreter="/python 1 1",
    packages={"torch": ("2.5.0", 1), "ray": ("2.60.0", 1), "old_one": ("1.0", 1)},
    environment={"PATH": "aa", "RAY_x": "bb"},
)


def install(site: Path, name: str, *, at_s: int = 1) -> None:
    (site / f"{name}.dist-info").mkdir(exist_ok=True)
    os.utime(site / f"{name}.dist-info", (at_s, at_s))


def changed(**changes: object) -> Snapshot:
    return BEFORE.model_copy(update=changes)


def test_the_same_is_the_same() -> None:
    """No alarm for a mere look."""
    assert compare(BEFORE, changed()).reason == "AsStarted"
    assert compare(BEFORE, changed(environment={})).status is Status.TRUE, (
        "an environment that is not known is no other"
    )


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"interpreter": "/python 2 1"}, "InterpreterChanged", []),
        (
            {"packages": {"torch": ("2.6.0", 2), "ray": ("2.60.0", 2), "new_one": ("3", 2)}},
            "InstalledAfterStart",
            ["torch 2.5.0 → 2.6.0", "ray 2.60.0 (installed again)", "new_one 3 (new)", "old_one 1.0 (removed)"],
        ),
        ({"environment": {"PATH": "aa", "RAY_x": "cc", "RAY_y": "d"}}, "EnvironmentChanged", ["RAY_x, RAY_y"]),
    ],
)
def test_each_change_is_named_with_the_remedy(changes: dict[str, object], reason: str, words: list[str]) -> None:
    """What is told is what can be acted on."""
    verdict = compare(BEFORE, changed(**changes))
    assert (verdict.status, verdict.reason) == (Status.FALSE, reason)
    for word in (*words, "`edgelink restart-ray`"):
        assert word in verdict.message
    assert "PATH" not in verdict.message


def test_usage_statistics_are_no_reason_to_restart(tmp_path: Path) -> None:
    """What an older EdgeLink noted of them, too, says nothing of the workers."""
    interpreter = Interpreter(tmp_path / "python3", "3.11.7", "2.60.0", 0, package_paths=())
    older = take_snapshot(interpreter, {"PATH": "/bin"})
    noted = older.model_copy(update={"environment": {**older.environment, "RAY_USAGE_STATS_ENABLED": "aa"}})
    now = take_snapshot(
        interpreter, {"PATH": "/bin", "RAY_USAGE_STATS_ENABLED": "0", "RAY_USAGE_STATS_REPORT_URL": "x"}
    )
    assert compare(noted, now).reason == "AsStarted"
    assert now == older


def test_many_changes_make_no_endless_sentence() -> None:
    """A whole environment may have been made anew."""
    packages = {f"package{number:03}": ("1", 1) for number in range(300)}
    assert "and 295 more" in compare(BEFORE, changed(packages=packages)).message


def test_installed_are_the_packages_that_an_import_would_find(tmp_path: Path) -> None:
    """The first directory on the path counts; spellings of a name are one; what is no directory is left out."""
    own, shared = tmp_path / "own", tmp_path / "shared"
    own.mkdir()
    shared.mkdir()
    install(own, "My_Package-2.0")
    install(shared, "my_package-1.0")
    install(shared, "other-3.1.dev0+local")
    (shared / "other").mkdir()
    assert {name: version for name, (version, _) in installed([tmp_path / "gone", own, shared]).items()} == {
        "my_package": "2.0",
        "other": "3.1.dev0+local",
    }


async def test_this_very_interpreters_packages_are_found() -> None:
    """As importlib finds them, without importing anything."""
    interpreter = await inspect_interpreter(Path(sys.executable))
    assert interpreter.package_paths
    found = {name: version for name, (version, _) in installed(interpreter.package_paths).items()}
    known = {(d.metadata["Name"].lower().replace("-", "_"), d.version) for d in distributions() if d.metadata["Name"]}
    assert {name for name, version in known if name in ("ray", "pydantic", "pytest")} <= found.keys()
    assert all(found[name] == version for name, version in known if name in ("ray", "pydantic", "pytest"))


async def test_a_package_that_comes_after_the_start_is_told(tmp_path: Path) -> None:
    """From a real directory to the condition; another raylet than the noted one proves nothing."""
    site = tmp_path / "site"
    site.mkdir()
    python = tmp_path / "python3"
    shutil.copy("/bin/true", python)
    interpreter = Interpreter(python, "3.11.7", "2.60.0", 0, package_paths=(site,))
    install(site, "ray-2.60.0")
    environment = {"PATH": "/bin", "EDGELINK_RAY_OF": "/state"}
    running: Identity | None = None
    book = StartBook(tmp_path / "book.json")
    conditions = ConditionSet(SystemClock(), (), ("RayCurrent",))
    drift = DriftReconciler(
        raylet=lambda: running, book=book, now=lambda: take_snapshot(interpreter, environment), conditions=conditions
    )

    async def reason() -> str:
        await drift.reconcile()
        return conditions.get("RayCurrent").reason

    assert await reason() == "RayNotRunning"
    running = RAYLET
    assert await reason() == "StartNotNoted"
    book.note(RAYLET, take_snapshot(interpreter, environment))
    assert await reason() == "AsStarted"
    environment["EDGELINK_RAY_OF"] = "/another"
    assert await reason() == "AsStarted", "our own marks are no settings"
    install(site, "wandb-0.19")
    assert await reason() == "InstalledAfterStart"
    assert "wandb 0.19 (new)" in conditions.get("RayCurrent").message
    running = Identity(pid=100, start_ticks=8, boot_id="b", config_hash="h")
    assert await reason() == "StartNotNoted"
    book.note(running, take_snapshot(interpreter, environment))
    python.unlink()
    assert await reason() == "InterpreterChanged"


async def test_the_daemon_goes_on_while_the_packages_are_looked_at(tmp_path: Path) -> None:
    """They may lie on a file server that does not answer: whoever waits for it is a thread, not the overlay."""
    is_asked, answers = threading.Event(), threading.Event()

    def ask_the_server() -> None:
        is_asked.set()
        assert answers.wait(20), "nobody else came to anything"

    conditions = ConditionSet(SystemClock(), (), ("RayCurrent",))
    book = StartBook(tmp_path / "book.json")
    drift = DriftReconciler(raylet=lambda: RAYLET, book=book, now=ask_the_server, conditions=conditions)
    looking = asyncio.create_task(drift.reconcile())
    await asyncio.to_thread(is_asked.wait, 20)
    answers.set()
    await looking
    assert conditions.get("RayCurrent").reason == "RayNotRunning"

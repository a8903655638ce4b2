"""Which interpreter, in which versions, and as whom."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from telling import refuses

from edgelink.clock import SystemClock
from edgelink.config import Config, Paths, RayConfig
from edgelink.errors import ConfigError, MissingDependencyError, RayClusterError
from edgelink.ray_cluster.helper_runner import RayTools
from edgelink.ray_cluster.interpreter import Interpreter, how_to_install, inspect_interpreter, resolve_user, user_of
from edgelink.ray_cluster.local_ray import LocalRay
from edgelink.ray_cluster.ray_capabilities import RayCapabilities

OWN = os.geteuid()


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def interpreter(owner_uid: int) -> Interpreter:
    return Interpreter(Path("/usr/bin/python3"), "3.11.2", "2.60.0", owner_uid)


async def test_versions_come_from_the_interpreter_itself() -> None:
    """Ray's version is read from package metadata of the named interpreter."""
    found = await inspect_interpreter(Path(sys.executable))
    assert found.ray_version == version("ray")
    assert found.packages.get("torch") == version("torch")
    assert found.python_version == ".".join(map(str, sys.version_info[:3]))


async def test_first_python3_with_ray_on_path_is_taken(tmp_path: Path) -> None:
    """One without Ray and one that cannot run are passed over."""
    answers = {
        "a": "echo '[\"3.9.1\", null, false, [], {}]'",
        "b": "exit 3",
        "c": 'echo \'["3.10.1", "2.50.0", true, [], {}]\'',
    }
    for name, text in answers.items():
        (tmp_path / name).mkdir()
        script(tmp_path / name / "python3", text)
    tmp_path.chmod(0o755)
    found = await inspect_interpreter(None, {"PATH": ":".join(str(tmp_path / name) for name in answers)})
    assert found.python == tmp_path / "c/python3"
    assert found.has_client
    assert found.versions.python_series == "3.10"


async def test_named_interpreter_without_ray_is_an_error(tmp_path: Path) -> None:
    """The message names the interpreter and what to do."""
    python = script(tmp_path / "python3", "echo '[\"3.9.1\", null, false, [], {}]'")
    with pytest.raises(MissingDependencyError, match="has no Ray"):
        await inspect_interpreter(python)


@pytest.mark.parametrize(
    ("python", "is_own"),
    [
        ("/usr/bin/python3", False),
        ("/bin/python3.11", False),
        ("/opt/train/bin/python", True),
        ("/usr/local/bin/python3", True),
    ],
)
def test_pip_is_not_asked_to_change_the_distributions_interpreter(python: str, *, is_own: bool) -> None:
    """It refuses to since PEP 668, in Debian 12 for one."""
    told = how_to_install(Path(python), "ray>=2.47")
    assert (f"`{python} -m pip install 'ray>=2.47'`" in told) is is_own
    assert ("-m venv" in told) is not is_own


async def test_an_interpreter_that_says_more_than_asked_is_understood(tmp_path: Path) -> None:
    """A sitecustomize may print; the answer is the last line."""
    python = script(tmp_path / "python3", 'echo "welcome to the lab"; echo \'["3.10.1", "2.50.0", true, [], {}]\'')
    assert (await inspect_interpreter(python)).ray_version == "2.50.0"


async def test_an_interpreter_that_prints_without_end_is_an_error(tmp_path: Path) -> None:
    """Neither its output nor what it complains of is kept without bound; it is ended, and the message says why."""
    python = script(tmp_path / "python3", f"echo $$ > {tmp_path}/pid; exec yes")
    with pytest.raises(ConfigError, match="printed more than 4 MiB") as caught:
        await inspect_interpreter(python)
    assert caught.value.condition_reason == "OutputTooLong"
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()
    complains = script(tmp_path / "python3", 'yes | head -c 9000000 >&2; echo \'["3.10.1", "2.50.0", true, [], {}]\'')
    assert (await inspect_interpreter(complains)).ray_version == "2.50.0"


async def test_a_helper_that_prints_without_end_is_an_error(tmp_path: Path) -> None:
    """As above, when the same interpreter asks Ray for us."""
    tmp_path.chmod(0o755)
    python = script(tmp_path / "python3", "exec yes")
    tools = RayTools(replace(interpreter(OWN), python=python), user_of(OWN), RayCapabilities.for_version("2.60.0"))
    ray = LocalRay(Config(), Paths(state=tmp_path / "state", runtime=tmp_path / "run"), SystemClock())
    with pytest.raises(RayClusterError, match="printed more than 4 MiB") as caught:
        await ray.bury(tools, "--id", "a", token_auth=False, head="127.0.0.1:1")
    assert caught.value.condition_reason == "OutputTooLong"


async def test_a_helper_of_an_interpreter_that_is_gone_is_an_error(tmp_path: Path) -> None:
    """Its environment is being made anew, say: no defect of ours, and tried again."""
    tools = RayTools(
        replace(interpreter(OWN), python=tmp_path / "python3"), user_of(OWN), RayCapabilities.for_version("2.60.0")
    )
    ray = LocalRay(Config(), Paths(state=tmp_path / "state", runtime=tmp_path / "run"), SystemClock())
    with pytest.raises(RayClusterError, match="python3 cannot be run: No such file") as caught:
        await ray.bury(tools, "--id", "a", token_auth=False, head="127.0.0.1:1")
    assert caught.value.retryable


@pytest.mark.parametrize("text", [None, "echo broken >&2; exit 1", "echo no versions", "true"])
async def test_named_interpreter_that_does_not_run_is_an_error(tmp_path: Path, text: str | None) -> None:
    """A missing file and a failing one are configuration errors that name the key."""
    python = tmp_path / "python3" if text is None else script(tmp_path / "python3", text)
    with pytest.raises(ConfigError, match=r"ray\.python"):
        await inspect_interpreter(python)


async def test_who_is_named_is_asked_where_root_may_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home on a file server that takes root for nobody."""
    python = script(tmp_path / "python3", 'echo \'["3.10.1", "2.60.0", true, [], {}]\'')
    tmp_path.chmod(0o755)
    lstat = Path.lstat

    def refused(path: Path) -> os.stat_result:
        if path == python:
            raise PermissionError(13, "Permission denied", str(path))
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", refused)
    paths = Paths(state=tmp_path / "state", runtime=tmp_path / "run")
    paths.state.mkdir()
    own = {"python": str(python), "allow_root": True}
    named = Config.model_validate({"ray": {**own, "user": user_of(OWN).name}})
    tools = await LocalRay(named, paths, SystemClock()).prepare()
    assert (tools.interpreter.ray_version, tools.user.uid) == ("2.60.0", OWN)
    with refuses(ConfigError, python, "ray.user"):
        await LocalRay(Config.model_validate({"ray": own}), paths, SystemClock()).prepare()


def test_owner_of_the_interpreter_runs_ray() -> None:
    """A virtual environment's owner is whose training it is."""
    assert resolve_user(RayConfig(), interpreter(1234), {"SUDO_USER": "root"}, euid=0).uid == 1234


def test_sudo_user_runs_ray_of_a_system_interpreter() -> None:
    """/usr/bin/python3 belongs to root: then who called sudo is meant."""
    assert resolve_user(RayConfig(), interpreter(0), {"SUDO_USER": "nobody"}, euid=0).name == "nobody"


def test_root_is_refused_unless_allowed() -> None:
    """Ray runs arbitrary code of the driver: as root only on demand."""
    with pytest.raises(ConfigError) as caught:
        resolve_user(RayConfig(), interpreter(0), {}, euid=0)
    assert caught.value.condition_reason == "RayAsRoot"
    with pytest.raises(ConfigError):
        resolve_user(RayConfig(user="root"), interpreter(1234), {}, euid=0)
    assert resolve_user(RayConfig(allow_root=True), interpreter(0), {"SUDO_USER": "nobody"}, euid=0).uid == 0


def test_named_user_wins_and_must_exist() -> None:
    """ray.user is taken as it is; a typing error is reported."""
    assert resolve_user(RayConfig(user="nobody"), interpreter(1234), {}, euid=0).name == "nobody"
    with pytest.raises(ConfigError, match="no user 'nobdy'"):
        resolve_user(RayConfig(user="nobdy"), interpreter(1234), {}, euid=0)


def test_another_user_needs_root() -> None:
    """An unprivileged daemon says that it cannot change users."""
    with pytest.raises(ConfigError, match="cannot change"):
        resolve_user(RayConfig(user="nobody"), interpreter(1234), {}, euid=4321)


def test_a_uid_without_an_account_has_a_home() -> None:
    """Containers run as such users."""
    assert user_of(3_999_999).home == Path("/tmp")

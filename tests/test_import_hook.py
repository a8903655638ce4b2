"""The import hook as Python programs meet it: each test starts some, with a grpc that writes down its options."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

import pytest

from edgelink.process import import_hook

PATIENCE = {"grpc.keepalive_timeout_ms": 450000, "grpc.http2.ping_timeout_ms": 450000}
# With the signatures of grpcio 1.85; what is made is its options.
GRPC = """
def insecure_channel(target, options=None, compression=None):
    return options
def secure_channel(target, credentials, options=None, compression=None):
    return options
def server(thread_pool, handlers=None, interceptors=None, options=None, maximum_concurrent_rpcs=None):
    return options
"""
GRPC_AIO = """
def insecure_channel(target, options=None, compression=None, interceptors=None):
    return options
def secure_channel(target, credentials, options=None, compression=None, interceptors=None):
    return options
def server(migration_thread_pool=None, handlers=None, interceptors=None, options=None):
    return options
"""
TELL = "import json, grpc; print(json.dumps(dict(grpc.insecure_channel('x') or {})))"
pytestmark = pytest.mark.processes


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    found = import_hook.provide(tmp_path / "import-hook", os.getuid())
    assert found is not None
    return found


@pytest.fixture
def grpc(tmp_path: Path) -> Path:
    """A directory that has grpc."""
    (tmp_path / "lib/grpc/aio").mkdir(parents=True)
    (tmp_path / "lib/grpc/__init__.py").write_text(GRPC + "from grpc import aio\n")
    (tmp_path / "lib/grpc/aio/__init__.py").write_text(GRPC_AIO)
    return tmp_path / "lib"


def environment(hook: Path | None, *directories: Path, timeout_ms: str = "450000") -> dict[str, str]:
    path = ":".join(map(str, directories))
    own = {"PATH": os.environ["PATH"], "EDGELINK_GRPC_TIMEOUT_MS": timeout_ms}
    return {**own, "PYTHONPATH": path, **import_hook.variables(hook, path)}


def run(environ: dict[str, str], *arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *arguments], env=environ, capture_output=True, text=True, timeout=50, check=False)


def options_of(environ: dict[str, str], *arguments: str, python: str = sys.executable) -> dict[str, int]:
    """What the program gave to its channel."""
    done = run(environ, *arguments, python=python)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "make",
    [
        *(
            "insecure_channel('x')",
            "insecure_channel('x', [('own', 1)])",
            "insecure_channel('x', options=(('own', 1),))",
        ),
        *("secure_channel('x', None)", "secure_channel('x', None, [('own', 1)])", "server(None, options=[('own', 1)])"),
        *("server(None)", "server(None, (), (), [('own', 1)], 4)", "insecure_channel('x', iter([('own', 1)]))"),
    ],
)
def test_every_channel_and_server_is_patient(hook: Path, grpc: Path, make: str) -> None:
    """Of grpc and of grpc.aio, however the program gives its own options, which stay."""
    for module in ("grpc", "grpc.aio"):
        if module == "grpc.aio" and make.endswith(", 4)"):
            continue  # has no fifth
        code = f"import json, grpc; print(json.dumps(dict({module}.{make})))"
        assert options_of(environment(hook, grpc), "-c", code) == {**PATIENCE, **({"own": 1} if "own" in make else {})}


@pytest.mark.parametrize("name", PATIENCE)
def test_a_program_that_set_its_own_keeps_it(hook: Path, grpc: Path, name: str) -> None:
    """Whoever wants to hear of a dead peer sooner has said so."""
    code = TELL.replace("'x'", f"'x', [({name!r}, 5)]")
    assert options_of(environment(hook, grpc), "-c", code) == {name: 5}


def test_it_imports_grpc_for_nobody(hook: Path, grpc: Path) -> None:
    """Nor anything else that a program would have to pay for, and it leaves sys.path as it would be without it."""
    code = "import sys; print(*sys.modules, *sys.path, sep='\\n')"
    without, with_hook = (run(environment(each, grpc), "-c", code).stdout.splitlines() for each in (None, hook))
    assert "grpc" not in with_hook
    assert [each for each in with_hook if each != "sitecustomize"] == without


def test_grpc_is_as_it_would_be(hook: Path, grpc: Path) -> None:
    """Its loader, its spec, its absence where it is looked for only, and what its functions say of themselves."""
    code = """
import importlib.util, inspect, json, sys
assert importlib.util.find_spec("grpc") and "grpc" not in sys.modules
import grpc
print(type(grpc.__loader__).__name__, grpc.__spec__.loader is grpc.__loader__, inspect.signature(grpc.server))
print(json.dumps(dict(importlib.reload(grpc).insecure_channel("x"))))
"""
    told, reloaded = run(environment(hook, grpc), "-c", code).stdout.splitlines()
    wanted = "(thread_pool, handlers=None, interceptors=None, options=None, maximum_concurrent_rpcs=None)"
    assert told == f"SourceFileLoader True {wanted}"
    assert json.loads(reloaded) == PATIENCE


def test_grpc_that_was_imported_before_is_patient(hook: Path, grpc: Path, tmp_path: Path) -> None:
    """By the user's sitecustomize, which runs first."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("import grpc\n")
    assert options_of(environment(hook, tmp_path / "own", grpc), "-c", TELL) == PATIENCE


def a_venv(directory: Path, *, sitecustomize: str, usercustomize: str = "") -> str:
    """An interpreter that has these among its packages, as conda and Debian do."""
    venv.create(directory, with_pip=False, system_site_packages=bool(usercustomize))
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "sitecustomize.py").write_text(sitecustomize)
    if usercustomize:
        (packages / "usercustomize.py").write_text(usercustomize)
    return str(directory / "bin/python")


def test_the_users_own_sitecustomize_runs_first(hook: Path, grpc: Path, tmp_path: Path) -> None:
    """And usercustomize after it; both are who they would be without the hook."""
    first = "import sys; print('sitecustomize', [type(each).__name__ for each in sys.meta_path][:1])\n"
    python = a_venv(tmp_path / "venv", sitecustomize=first, usercustomize="print('usercustomize')\n")
    environ = environment(hook, grpc)
    code = f"import sitecustomize, usercustomize; print(sitecustomize.__file__)\n{TELL}"
    lines = run(environ, "-c", code, python=python).stdout.splitlines()
    assert lines[1:3] == ["usercustomize", str(next(tmp_path.glob("venv/lib/python*/site-packages/sitecustomize.py")))]
    assert lines[0].startswith("sitecustomize [")
    assert not lines[0].startswith("sitecustomize ['Finder'")
    assert json.loads(lines[3]) == PATIENCE


@pytest.mark.parametrize(
    "broken", ["raise RuntimeError('of mine')", "import no_such_module", "import sys; sys.exit(3)"]
)
def test_a_broken_sitecustomize_is_told_of_as_without(hook: Path, grpc: Path, tmp_path: Path, broken: str) -> None:
    """Python's own words, and exit status; the program runs as it would, and is patient."""
    python = a_venv(tmp_path / "venv", sitecustomize=broken)
    without, with_hook = (run(environment(each, grpc), "-c", TELL, python=python) for each in (None, hook))
    assert with_hook.stderr.splitlines()[-1] == without.stderr.splitlines()[-1]
    assert with_hook.returncode == without.returncode
    if not with_hook.returncode:
        assert with_hook.stderr == without.stderr
        assert json.loads(with_hook.stdout) == PATIENCE


def test_two_hooks_are_one(hook: Path, grpc: Path, tmp_path: Path) -> None:
    """RLinf puts the head's PYTHONPATH before a node's own, which may have its hook elsewhere."""
    second = import_hook.provide(tmp_path / "import-hook", 12345)
    assert second is not None
    assert options_of(environment(hook, second, grpc), "-c", TELL) == PATIENCE


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_are_patient(hook: Path, grpc: Path, tmp_path: Path, method: str) -> None:
    """Whatever way multiprocessing makes them."""
    program = tmp_path / "program.py"
    program.write_text(
        "import json, multiprocessing\n"
        "def tell():\n    import grpc\n    print(json.dumps(dict(grpc.insecure_channel('x'))))\n"
        "if __name__ == '__main__':\n"
        f"    child = multiprocessing.get_context({method!r}).Process(target=tell)\n"
        "    child.start()\n    child.join()\n"
    )
    assert options_of(environment(hook, grpc), str(program)) == PATIENCE


def test_uv_run_and_a_module_are_patient(hook: Path, grpc: Path, tmp_path: Path) -> None:
    """`uv run` starts another interpreter, with the same environment."""
    uv = Path(sys.executable).with_name("uv")
    (grpc / "tell.py").write_text(TELL)
    environ = environment(hook, grpc) | {"HOME": str(tmp_path), "UV_CACHE_DIR": str(tmp_path / "cache")}
    words = ("run", "--offline", "--no-project", "--python", sys.executable, "python", "-m", "tell")
    done = run(environ, *words, python=str(uv))
    assert json.loads(done.stdout) == PATIENCE, done.stderr


@pytest.mark.parametrize("switch", ["-S", "-I", "-E"])
def test_who_wants_no_site_gets_none(hook: Path, grpc: Path, switch: str) -> None:
    """Python itself leaves the hook out then; nothing else is different."""
    code = TELL.replace("import json", f"import sys; sys.path.insert(0, {str(grpc)!r}); import json")
    assert options_of(environment(hook, grpc), switch, "-c", code) == {}


@pytest.mark.parametrize(
    "words", [("EDGELINK_IMPORT_HOOK", ""), ("EDGELINK_GRPC_TIMEOUT_MS", ""), ("EDGELINK_GRPC_TIMEOUT_MS", "x")]
)
def test_without_a_figure_nothing_is_done(hook: Path, grpc: Path, words: tuple[str, str]) -> None:
    """As with the hook's own variable empty: the way to switch it off for one program."""
    name, value = words
    assert options_of({**environment(hook, grpc), name: value}, "-c", TELL) == {}


@pytest.mark.parametrize(
    ("script", "is_patient"),
    [
        *(
            ("ray/dashboard/agent.py", False),
            ("ray/dashboard/dashboard.py", False),
            ("ray/_private/log_monitor.py", False),
        ),
        *(("ray/autoscaler/_private/monitor.py", False), ("ray/_private/runtime_env/agent/main.py", False)),
        *(("ray/_private/workers/default_worker.py", True), ("ray/rllib/examples/train.py", True)),
        *(("home/ray/util/train.py", True), ("ray.py", True)),
    ],
)
def test_rays_own_processes_are_left_alone(
    hook: Path, grpc: Path, tmp_path: Path, script: str, is_patient: bool
) -> None:
    """They have Ray's own patience. What runs the user's code is none of them."""
    for name in ("ray/_raylet.so", script):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(TELL)
    if script.startswith("home"):
        (tmp_path / "ray/_raylet.so").unlink()
    assert options_of(environment(hook, grpc), str(tmp_path / script)) == (PATIENCE if is_patient else {})


def test_a_module_of_ray_is_left_alone(hook: Path, grpc: Path) -> None:
    """`python -m ray.util.client.server`; a module of anybody else is not."""
    for package, wanted in (("ray", {}), ("rays_friend", PATIENCE)):
        (grpc / package / "util").mkdir(parents=True)
        for name in ("__init__.py", "_raylet.so", "util/__init__.py"):
            (grpc / package / name).write_text("")
        (grpc / package / "util/tell.py").write_text(TELL)
        assert options_of(environment(hook, grpc), "-W", "ignore", "-m", f"{package}.util.tell") == wanted


@pytest.mark.parametrize(
    "broken",
    ["raise ImportError('of its own')", "server = insecure_channel = None", "import sys; sys.modules['grpc'] = 7"],
)
def test_a_strange_grpc_fails_by_itself(hook: Path, grpc: Path, broken: str) -> None:
    """The program meets what it would meet without the hook."""
    (grpc / "grpc/__init__.py").write_text(broken)
    without, with_hook = (run(environment(each, grpc), "-c", "import grpc; print(grpc)") for each in (None, hook))
    own = [line for line in with_hook.stderr.splitlines() if str(hook) not in line and "exec_module" not in line]
    assert (with_hook.stdout, own, with_hook.returncode) == (
        without.stdout,
        without.stderr.splitlines(),
        without.returncode,
    )


def test_the_real_grpc_calls_and_answers(hook: Path) -> None:
    """A server and channels of grpcio with its types, also asynchronous ones."""
    code = """
import asyncio, concurrent.futures, grpc
class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)
server = grpc.server(concurrent.futures.ThreadPoolExecutor(1), handlers=(Handler(),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
async def ask():
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        return await channel.unary_unary("/x/y")(b"aio")
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    print(channel.unary_unary("/x/y")(b"plain"), asyncio.run(ask()), grpc.server.__wrapped__.__name__)
server.stop(None)
"""
    done = run(environment(hook), "-c", code)
    assert done.stdout.split() == ["b'plain'", "b'aio'", "server"], done.stderr


def costs_ms(lines: Iterable[str]) -> float:
    """Of sitecustomize, from `python -X importtime`."""
    found = [line for line in lines if line.rpartition("|")[2].strip() == "sitecustomize"]
    return int(found[-1].split("|")[1]) / 1000  # the last is ours, and includes those that it looked for


def test_it_costs_less_than_a_millisecond_a_start(hook: Path) -> None:
    """Also where nobody may keep what Python compiled of it."""
    environ = environment(hook)
    starts = [costs_ms(run(environ, "-X", "importtime", "-c", "").stderr.splitlines()) for _ in range(15)]
    assert min(starts) < 1


def test_older_pythons_read_it() -> None:
    """JetPack and the drivers of robots have older ones than EdgeLink's own."""
    folder = Path(import_hook.__file__).parent
    for name in ("sitecustomize.py", "grpc_patience.py", "report_command.py"):
        ast.parse((folder / name).read_text(), feature_version=(3, 8))


def test_what_was_cleared_is_put_back(hook: Path) -> None:
    """A runtime directory may be cleared, and an upgrade brings other files."""
    whole = {path.name: path.read_bytes() for path in hook.glob("*.py")}
    (hook / "sitecustomize.py").unlink()
    (hook / "grpc_patience.py").write_text("of an older one")
    assert import_hook.provide(hook.parent, os.getuid()) == hook
    assert {path.name: path.read_bytes() for path in hook.glob("*.py")} == whole
    assert {path.stat().st_mode & 0o777 for path in hook.glob("*.py")} == {0o644}


def test_a_place_that_cannot_be_written_costs_the_hook_only(tmp_path: Path) -> None:
    """A full disk, say: programs run without it."""
    (tmp_path / "file").write_text("")
    assert import_hook.provide(tmp_path / "file" / "hook", 0) is None
    assert import_hook.variables(None) == {}


@pytest.mark.parametrize(
    ("own", "wanted"),
    [("", "/hook"), ("/a:/b", "/hook:/a:/b"), ("/a:/hook", "/hook:/a"), (":/a", "/hook::/a"), ("/hook", "/hook")],
)
def test_it_is_first_once(own: str, wanted: str) -> None:
    """An empty entry, which means the present directory, is made by nobody and taken from nobody."""
    assert import_hook.in_front("/hook", own) == wanted

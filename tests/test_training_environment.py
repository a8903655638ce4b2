"""What of a caller's environment reaches a driver, by framework."""

from __future__ import annotations

import json
import string

import pytest
from any_text import any_text
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelink.training.driver_environment import JOB_CONFIG, Fate, Grant, decide, kind_of
from edgelink.training.framework import FRAMEWORKS, OPENRLHF, PLAIN, RLINF, VERL, Framework, Kind

OF_RAY = {"HOME": "/home/robot", "USER": "robot", "LOGNAME": "robot", "PATH": "/opt/venv/bin:/usr/bin", "LANG": "C"}
OF_HEAD = {
    "EDGELINK_RAY_PYTHON": "/opt/venv/bin/python3",
    "RAY_ADDRESS": "10.10.0.2:6379",
    "RAY_AUTH_MODE": "disabled",
    "RAY_health_check_period_ms": "10000",
    "RLINF_NODE_RANK": "0",
    "RLINF_COMM_NET_DEVICES": "et0",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "900",
    "no_proxy": "localhost,10.10.0.0/24",
}
GRANT = Grant(environment=OF_HEAD, of_ray=OF_RAY)
SHELL = {
    "HOME": "/root",
    "USER": "root",
    "PATH": "/root/bin:/usr/bin",
    "LANG": "de_DE.UTF-8",
    "https_proxy": "http://proxy:3128",
    "no_proxy": "intranet",
    "TMPDIR": "/scratch",
    "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
    "CUDA_VISIBLE_DEVICES": "1",
    "SSH_AUTH_SOCK": "/tmp/agent",
    "AWS_SECRET_ACCESS_KEY": "s",
    "WANDB_API_KEY": "k",
    "HF_HOME": "/data/hf",
    "HYDRA_FULL_ERROR": "1",
    "RLINF_CODE_WORKING_DIR": "/src/rlinf",
    "RLINF_TIMEOUT": "30",
    "PYTHONPATH": "/src",
    "TERM": "xterm",
}
LEFTOVERS = {
    "RLINF_NODE_RANK": "7",
    "RLINF_COMM_NET_DEVICES": "wlan0",
    "RAY_ADDRESS": "192.0.2.1:1",
    "RAY_RUNTIME_ENV_CREATE_WORKING_DIR": "/x",
    "RAY_health_check_period_ms": "1",
    "GLOO_SOCKET_IFNAME": "eth0",
    "MASTER_ADDR": "192.0.2.1",
    "LOCAL_RANK": "1",
    "EDGELINK_TOKEN_FILE": "/home/me/token",
    "NOTIFY_SOCKET": "/run/systemd/notify",
}
ALL = pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=lambda framework: framework.name)


def variables(
    caller: dict[str, str], framework: Framework, grant: Grant = GRANT, **given: str | None
) -> dict[str, str]:
    return decide(caller, grant, framework, tuple(given.items())).variables


def carried_by_rlinf(driver: dict[str, str]) -> dict[str, str]:
    """What RLinf gives to the workers on all nodes: whatever differs from the head's Ray."""
    of_ray = {**OF_RAY, "RLINF_NODE_RANK": "0", "RLINF_COMM_NET_DEVICES": "et0"}
    return {name: value for name, value in driver.items() if of_ray.get(name) != value}


def test_rlinf_carries_nothing_that_is_the_heads_own() -> None:
    """Settings of the training, and what the head itself sets, are all that differs from its Ray's environment."""
    carried = carried_by_rlinf(variables(SHELL | LEFTOVERS, RLINF))
    settings = {name: SHELL[name] for name in ("WANDB_API_KEY", "HF_HOME", "HYDRA_FULL_ERROR", "RLINF_TIMEOUT")}
    settings |= {name: SHELL[name] for name in ("RLINF_CODE_WORKING_DIR", "PYTHONPATH", "TERM")}
    overlay = {"no_proxy": OF_HEAD["no_proxy"], "NO_PROXY": OF_HEAD["no_proxy"], "MASTER_ADDR": "10.10.0.2"}
    of_head = {name: value for name, value in OF_HEAD.items() if name not in ("RLINF_NODE_RANK", "no_proxy")}
    del of_head["RLINF_COMM_NET_DEVICES"]
    assert carried == settings | overlay | of_head


@ALL
def test_leftovers_reach_no_driver(framework: Framework) -> None:
    """What another cluster, torchrun or another machine left behind would mislead Ray and RLinf."""
    found = variables(LEFTOVERS, framework)
    assert not set(found.items()) & set(LEFTOVERS.items())
    assert (found["RLINF_NODE_RANK"], found["RLINF_COMM_NET_DEVICES"]) == ("0", "et0")
    assert (found["RAY_ADDRESS"], found["RAY_AUTH_MODE"]) == ("10.10.0.2:6379", "disabled")
    assert found["MASTER_ADDR"] == "10.10.0.2"


@pytest.mark.parametrize(
    "name",
    [
        *("POLARIS_DATA_PATH", "DREAMZERO_PATH", "LINGBOT_VLA_PATH", "DUAL_FRANKA_DATA_ROOT", "PI05_BASE_CKPT"),
        *("VLM_TREND_REWARD_DATA_ROOT", "ROBOCASA365_OPENPI_CKPT", "DIFFUSION_PATH", "REWARD_PATH", "LLMASJUDGE_MODEL"),
        *("SERPER_API_KEY", "NUMBA_DISABLE_JIT", "RLINF_KEYBOARD_DEVICE", "CONFIG_NAME", "NODES", "STEPS"),
        *("SFT_REPO_ID", "FRANKA_ROBOT_IP", "ROBOT_IP", "EMBODICHAIN_PATH", "RLINF_CART_K_T", "TOTAL_NUM_ENVS"),
    ],
)
def test_what_rlinfs_guides_have_people_export_reaches_the_driver(name: str) -> None:
    """Its scripts read some of it, as `NODES=2 run_embodiment.sh` does."""
    assert variables({name: "2"}, RLINF)[name] == "2"


def test_a_driver_of_rlinf_that_fails_ends_with_another_status_than_0() -> None:
    """Whoever sets it otherwise wants it so."""
    assert variables({}, RLINF)["HYDRA_FULL_ERROR"] == "1"
    assert variables({"HYDRA_FULL_ERROR": "0"}, RLINF)["HYDRA_FULL_ERROR"] == "0"
    of_ray = Grant(environment=OF_HEAD, of_ray={**OF_RAY, "HYDRA_FULL_ERROR": "0"})
    assert variables({}, RLINF, of_ray)["HYDRA_FULL_ERROR"] == "0"
    assert "HYDRA_FULL_ERROR" not in variables({}, VERL)


def test_terraforms_variables_are_no_settings() -> None:
    """Though TensorFlow's begin alike: they hold passwords and tokens."""
    found = variables({"TF_VAR_password": "s", "TF_TOKEN_app": "s", "TF_CPP_MIN_LOG_LEVEL": "2"}, RLINF)
    assert [name for name in found if name.startswith("TF_")] == ["TF_CPP_MIN_LOG_LEVEL"]


@ALL
def test_a_driver_has_what_the_heads_ray_was_given(framework: Framework) -> None:
    """`ray.environment` of the head, which no other node gets; the caller's own setting wins."""
    given = {"LD_LIBRARY_PATH": "/opt/vendor/lib", "MUJOCO_GL": "egl", "ROS_DOMAIN_ID": "7"}
    grant = Grant(environment=OF_HEAD, of_ray={**OF_RAY, **given})
    found = variables({}, framework, grant)
    assert given.items() <= found.items()
    handed_on = json.loads(found.get(JOB_CONFIG, "{}")).get("runtime_env", {}).get("env_vars", {})
    assert set(given).isdisjoint(handed_on)
    assert variables({"MUJOCO_GL": "glfw"}, framework, grant)["MUJOCO_GL"] == "glfw"


@ALL
def test_settings_of_the_training_reach_every_driver(framework: Framework) -> None:
    """Trackers, model hubs, Hydra, and what RLinf's users set on purpose."""
    own = {name: value for name, value in SHELL.items() if kind_of(name) in (Kind.SETTING, Kind.CODE, Kind.TERMINAL)}
    assert {"WANDB_API_KEY", "HF_HOME", "HYDRA_FULL_ERROR", "RLINF_CODE_WORKING_DIR"} <= set(own)
    assert own.items() <= variables(SHELL, framework).items()


@pytest.mark.parametrize("framework", [OPENRLHF, VERL], ids=lambda framework: framework.name)
def test_who_carries_nothing_keeps_the_callers_environment(framework: Framework) -> None:
    """Their workers have their node's own: the driver's HOME, proxy and devices stay where they are."""
    found = variables(SHELL, framework)
    changed = {"PATH", "no_proxy"}
    assert {name: value for name, value in SHELL.items() if name not in changed}.items() <= found.items()
    assert found["PATH"] == "/opt/venv/bin:/root/bin:/usr/bin"
    assert found["no_proxy"] == "intranet,localhost,10.10.0.0/24"
    assert found["NO_PROXY"] == "localhost,10.10.0.0/24"


def test_what_may_be_rlinf_gives_no_home_and_no_proxy_away() -> None:
    """Everything else of an unknown program's caller stays."""
    found = variables(SHELL, PLAIN)
    assert (found["HOME"], found["USER"], found["no_proxy"]) == ("/home/robot", "robot", OF_HEAD["no_proxy"])
    assert "https_proxy" not in found
    assert found["PATH"] == "/opt/venv/bin:/root/bin:/usr/bin"
    kept = set(SHELL) - {"HOME", "USER", "https_proxy", "no_proxy", "PATH"}
    assert {name: SHELL[name] for name in kept}.items() <= found.items()


def test_a_named_variable_is_passed() -> None:
    """By driver.pass_env or --env; a proxy then keeps its exceptions, and never the overlay's traffic."""
    grant = Grant(environment=OF_HEAD, of_ray=OF_RAY, pass_env=("AWS_*", "https_proxy"))
    found = variables(SHELL, RLINF, grant, HOME=None, MISSING=None)
    assert (found["AWS_SECRET_ACCESS_KEY"], found["https_proxy"], found["HOME"]) == ("s", "http://proxy:3128", "/root")
    assert found["no_proxy"] == "intranet,localhost,10.10.0.0/24"
    assert "MISSING" not in found
    assert "TMPDIR" not in found


def test_patterns_do_not_undo_what_the_head_sets() -> None:
    """A wide pattern is not meant for another cluster's address; --env with a value is meant as it is said."""
    grant = Grant(environment=OF_HEAD, of_ray=OF_RAY, pass_env=("*",))
    assert variables(SHELL | LEFTOVERS, RLINF, grant)["RAY_ADDRESS"] == "10.10.0.2:6379"
    assert variables(LEFTOVERS, RLINF, GLOO_SOCKET_IFNAME="eth9")["GLOO_SOCKET_IFNAME"] == "eth9"


def test_a_drivers_own_heartbeat_timeout_stays() -> None:
    """It was checked against ride_through before."""
    name = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
    assert variables({name: "9000"}, RLINF)[name] == "9000"
    assert variables({}, RLINF)[name] == "900"


@pytest.mark.parametrize(
    ("framework", "accelerators", "expected"),
    [
        (VERL, {"NV_GPU"}, {"GLOO_SOCKET_IFNAME": "et0", "NCCL_SOCKET_IFNAME": "et0"}),
        (
            VERL,
            {"NPU", "NO_ACCEL"},
            {
                "GLOO_SOCKET_IFNAME": "et0",
                "HCCL_SOCKET_IFNAME": "et0",
                "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": "1",
            },
        ),
        (
            VERL,
            {"AMD_GPU"},
            {
                "GLOO_SOCKET_IFNAME": "et0",
                "NCCL_SOCKET_IFNAME": "et0",
                "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1",
                "RAY_EXPERIMENTAL_NOSET_ROCR_VISIBLE_DEVICES": "1",
            },
        ),
        (VERL, {"KUNLUN_XPU"}, {"GLOO_SOCKET_IFNAME": "et0", "BKCL_SOCKET_IFNAME": "et0"}),
        (OPENRLHF, set(), {"GLOO_SOCKET_IFNAME": "et0"}),
        (RLINF, {"NV_GPU"}, {}),  # from each node's own RLINF_COMM_NET_DEVICES
    ],
)
def test_collectives_get_the_overlays_device(
    framework: Framework, accelerators: set[str], expected: dict[str, str]
) -> None:
    """By the vendors that are there; for the driver, and through Ray's job configuration for its workers."""
    found = variables({}, framework, Grant(environment=OF_HEAD, accelerators=frozenset(accelerators)))
    assert {n: v for n, v in found.items() if n.endswith("_IFNAME") or "NOSET" in n} == expected
    assert (JOB_CONFIG in found) == framework.tells_workers
    if framework.tells_workers:
        assert json.loads(found[JOB_CONFIG]) == {"runtime_env": {"env_vars": expected}}


def test_workers_of_verl_get_the_settings_and_what_is_named() -> None:
    """verl's trainer is a worker itself: its tracker's key has to be there. The head's own environment does not go."""
    grant = Grant(environment=OF_HEAD, of_ray=OF_RAY, pass_env=("AWS_*",))
    noset = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
    found = variables({**SHELL, noset: "1"}, VERL, grant, MY_DATA="/data")
    told = json.loads(found[JOB_CONFIG])["runtime_env"]["env_vars"]
    assert set(told) == {
        *("WANDB_API_KEY", "HF_HOME", "HYDRA_FULL_ERROR", "AWS_SECRET_ACCESS_KEY", "MY_DATA"),
        *("GLOO_SOCKET_IFNAME", noset),
    }
    assert (found["RAY_HEAD_IP"], found["RAY_HEAD_PORT"]) == ("10.10.0.2", "6379")


def test_what_is_listed_tells_no_secret() -> None:
    """Each variable once, with a reason; only values that the head sets are shown."""
    decided = decide(SHELL | LEFTOVERS, GRANT, RLINF)
    listed = [each.to_dict() for each in decided.decisions]
    assert all(each["why"] for each in listed)
    assert len({each["name"] for each in listed}) == len(listed)
    assert {each["name"]: each["fate"] for each in listed}["https_proxy"] == "dropped"
    assert {each["name"]: each.get("value") for each in listed}["WANDB_API_KEY"] is None
    assert "http://proxy:3128" not in json.dumps(listed)


@ALL
def test_what_is_handed_on_to_workers_is_listed_by_name_alone(framework: Framework) -> None:
    """What was given on the command line, and Ray's job configuration, hold the same secrets."""
    given = (("MY_TOKEN", "given-secret"), ("WANDB_API_KEY", None))
    caller = {"WANDB_API_KEY": "own-secret", "HF_TOKEN": "own-secret"}
    decided = decide(caller, GRANT, framework, given)
    assert decided.variables["MY_TOKEN"] == "given-secret"
    listed = {each["name"]: each for each in (each.to_dict() for each in decided.decisions)}
    assert "secret" not in json.dumps(listed)
    assert listed["MY_TOKEN"]["fate"] == "set"
    if framework.tells_workers:
        assert {"MY_TOKEN", "WANDB_API_KEY", "HF_TOKEN"} <= set(listed[JOB_CONFIG]["variables"])


def test_a_head_that_does_not_say_what_its_ray_has_leaves_home_and_path() -> None:
    """Nothing runs without them."""
    found = decide({"HOME": "/root", "PATH": "/usr/bin"}, Grant(), RLINF)
    assert found.variables == {"HOME": "/root", "PATH": "/usr/bin"}
    assert found.names(Fate.PASSED) == ["HOME", "PATH"]


FIRST = string.ascii_letters + "_"
NAMES = st.sampled_from(sorted(SHELL | LEFTOVERS)) | st.tuples(
    st.sampled_from(FIRST), st.text(FIRST + string.digits, max_size=20)
).map("".join)


@settings(deadline=None)  # a busy machine is no defect
@given(caller=st.dictionaries(NAMES, any_text(5)))
def test_every_variable_has_one_fate(caller: dict[str, str]) -> None:
    """Whatever the shell holds: nothing unlisted, and what RLinf carries of it is a setting, code or the terminal's."""
    for framework in FRAMEWORKS.values():
        decided = decide(caller, GRANT, framework)
        assert set(caller) <= {each.name for each in decided.decisions}
        assert set(decided.names(Fate.DROPPED)).isdisjoint(decided.variables)
    passed = decide(caller, GRANT, RLINF).names(Fate.PASSED)
    assert {kind_of(name) for name in passed} <= {Kind.SETTING, Kind.CODE, Kind.TERMINAL}


HOOK = "/run/edgelink/import-hook/0"


@ALL
def test_every_driver_begins_with_the_import_hook(framework: Framework) -> None:
    """In front of the caller's own code; a caller without any gets no empty entry, which would be its directory."""
    with_hook = Grant(environment=OF_HEAD | {"EDGELINK_IMPORT_HOOK": HOOK}, of_ray=OF_RAY)
    assert variables(SHELL, framework, with_hook)["PYTHONPATH"] == f"{HOOK}:/src"
    assert variables(SHELL, framework, with_hook, PYTHONPATH="/other")["PYTHONPATH"] == f"{HOOK}:/other"
    assert variables({}, framework, with_hook)["PYTHONPATH"] == HOOK
    assert variables(SHELL, framework)["PYTHONPATH"] == "/src"


@ALL
def test_one_run_may_leave_the_import_hook_out(framework: Framework) -> None:
    """`--env EDGELINK_IMPORT_HOOK=`."""
    with_hook = Grant(environment=OF_HEAD | {"EDGELINK_IMPORT_HOOK": HOOK}, of_ray=OF_RAY)
    assert variables(SHELL, framework, with_hook, EDGELINK_IMPORT_HOOK="")["PYTHONPATH"] == "/src"

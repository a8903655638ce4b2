"""The driver's environment, pure: what of the caller's reaches it, what does not, what is set; each with its reason.

RLinf copies every variable of the driver that differs from the head's environment at `ray start` to all nodes, over
theirs. So whatever is this machine's own either is what the head's Ray has as well, or is not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from edgelink.process import import_hook
from edgelink.ray_cluster.interpreter import SYSTEM_PATH
from edgelink.ray_cluster.ride_through import NCCL_HEARTBEAT, RLINF_TIMEOUT
from edgelink.training.framework import Framework, Kind

NOSET = "RAY_EXPERIMENTAL_NOSET_{}_VISIBLE_DEVICES"
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # read by `ray.init`: what `ray job submit` hands to its drivers

# First match wins. What is not in here is Kind.OTHER.
_KINDS: tuple[tuple[Kind, str], ...] = (
    # Settings of RLinf and Ray that people set on purpose, and that mean the same on every node.
    (Kind.SETTING, f"RLINF_LOG_LEVEL {RLINF_TIMEOUT} RLINF_CATCH_FAILURE RLINF_EXT_MODULE RLINF_PATH_ENV_MERGE_MODE"),
    (Kind.SETTING, "RLINF_CODE_WORKING_DIR RLINF_DATA_ROOT RLINF_COMPAT RLINF_QWENFAST_MAX_ACTION_TOKENS"),
    (Kind.SETTING, "RLINF_KEYBOARD_DEVICE RLINF_TYPESENSE_* RLINF_CART_* RLINF_*HF_DATASETS_CACHE*"),
    (Kind.SETTING, "RAY_DEDUP_LOGS RAY_COLOR_PREFIX RAY_BACKEND_LOG_LEVEL RAY_PROFILING RAY_DEBUG"),
    (Kind.SETTING, "RAY_RUNTIME_ENV_HOOK RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO RAY_EXPERIMENTAL_NOSET_*"),
    (Kind.LEFTOVER, "RLINF_* RAY_* EDGELINK_*"),
    (Kind.LEFTOVER, "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_* NODE_RANK"),
    (Kind.LEFTOVER, "MASTER_ADDR MASTER_PORT TORCHELASTIC_* *_SOCKET_IFNAME CCL_MNIC_NAME"),
    (Kind.LEFTOVER, "NOTIFY_SOCKET LISTEN_FDS LISTEN_PID INVOCATION_ID JOURNAL_STREAM"),
    (Kind.HOME, "HOME USER LOGNAME"),
    (Kind.SEARCH_PATH, "PATH"),
    (Kind.NETWORK, "http_proxy https_proxy ftp_proxy all_proxy HTTP_PROXY HTTPS_PROXY FTP_PROXY ALL_PROXY"),
    (Kind.NETWORK, "no_proxy NO_PROXY"),
    (Kind.CODE, "PYTHONPATH"),
    (Kind.TERMINAL, "TERM COLORTERM NO_COLOR FORCE_COLOR CLICOLOR* COLUMNS LINES"),
    (Kind.MACHINE, "*_VISIBLE_DEVICES ONEAPI_DEVICE_SELECTOR ZE_AFFINITY_MASK"),
    (Kind.MACHINE, "LD_* TMPDIR TMP TEMP LANG LANGUAGE LC_* TZ PYTHONHOME VIRTUAL_ENV* CONDA_* _CE_* HOSTNAME"),
    (Kind.MACHINE, "LIBRARY_PATH CPATH CMAKE_PREFIX_PATH PKG_CONFIG_PATH MANPATH CUDA_HOME CUDA_PATH"),
    (Kind.SESSION, "SSH_* XDG_* DBUS_* DISPLAY WAYLAND_DISPLAY XAUTHORITY GPG_* SUDO_* TMUX* STY WINDOWID"),
    (Kind.SESSION, "SHELL SHLVL PWD OLDPWD _ PS1 MAIL EDITOR VISUAL PAGER LESS* LS_COLORS DEBIAN_FRONTEND"),
    (Kind.OTHER, "TF_VAR_* TF_TOKEN_* TF_CLI_*"),  # Terraform's, not TensorFlow's
    (Kind.SETTING, "WANDB_* HF_* HUGGINGFACE_* HYDRA_* TRANSFORMERS_* TOKENIZERS_* DIFFUSERS_* MODELSCOPE_* VLLM_*"),
    (Kind.SETTING, "SGLANG_* SGL_* FLASHINFER_* TORCH_* TORCHDYNAMO_* TORCHINDUCTOR_* PYTORCH_* TRITON_* NCCL_*"),
    (Kind.SETTING, "GLOO_* HCCL_* MCCL_* CUDA_* OMP_* MKL_* OPENBLAS_* KMP_* NUMEXPR_* XLA_* JAX_* TF_* DS_*"),
    (Kind.SETTING, "DEEPSPEED_* MEGATRON_* NVTE_* TENSORBOARD_* MLFLOW_* SWANLAB_* CLEARML_* COMET_* NEPTUNE_*"),
    (Kind.SETTING, "PYTHONUNBUFFERED PYTHONHASHSEED PYTHONFAULTHANDLER PYTHONWARNINGS PYTHONDONTWRITEBYTECODE"),
    (Kind.SETTING, "MUJOCO_* PYOPENGL_* EGL_* VK_* LIBERO_* ROBOTWIN_* OMNIGIBSON_* ISAAC* CARB_* MANISKILL_*"),
    (Kind.SETTING, "MS_* METAWORLD_* CALVIN_* ROBOCASA_* BEHAVIOR_* OPENPI_* LEROBOT_* ROBOT_PLATFORM EMBODIED_PATH"),
    (Kind.SETTING, "EXP_PATH REPO_PATH OPENRLHF_* VERL_*"),
    # What the guides and scripts of RLinf have people export beside these (main of 2026-08-22).
    (
        Kind.SETTING,
        "*_DATA_ROOT *_DATA_PATH *_CKPT CKPT_PATH *_REPO_ID POLARIS_* DREAMZERO_* LINGBOT_* GR00T_* STARVLA_*",
    ),
    (
        Kind.SETTING,
        "DIFFUSION_PATH REWARD_PATH OPENSORA_PATH WAN_PATH VGGT_PATH VLM_* ABOT_PATH SERL_PATH MBRIDGE_ROOT",
    ),
    (Kind.SETTING, "EMBODICHAIN_* EMBODIED_CONFIG_DIR EVALUATIONS_PATH ROBOCASA365_* EVO1_* DOSW1_* TOKENIZER_DIR"),
    (Kind.SETTING, "LLMASJUDGE_* SERPER_API_KEY JINA_API_KEY FRANKA_* GELLO_* ROBOT_IP TRAINER_IP CAMERA_SERIALS"),
    (Kind.SETTING, "CONFIG_NAME NODES STEPS TOTAL_NUM_ENVS SAVE_INTER EVAL_NAME EVAL_ROLLOUT_EPOCH OFFLINE_RL_CONFIG"),
    (Kind.SETTING, "NUMBA_* OPENCV_* OMNI_KIT_* AV_LOG_* LIBAV_* LIBDAV1D_*"),
)
_PATTERNS = tuple((pattern, kind) for kind, patterns in _KINDS for pattern in patterns.split())
# Whose collectives use which device variable; gloo's is everybody's.
_SOCKET_NAMES = {
    "NV_GPU": "NCCL_SOCKET_IFNAME",
    "AMD_GPU": "NCCL_SOCKET_IFNAME",  # RCCL kept the name
    "NPU": "HCCL_SOCKET_IFNAME",
    "MUSA_GPU": "MCCL_SOCKET_IFNAME",
    "KUNLUN_XPU": "BKCL_SOCKET_IFNAME",
    "INTEL_GPU": "CCL_MNIC_NAME",
}
_NO_PROXY = ("no_proxy", "NO_PROXY")  # which of the two is read differs between libraries
_GIVEN = "--env"


class Fate(StrEnum):
    PASSED = "passed"
    DROPPED = "dropped"
    SET = "set"


@dataclass(frozen=True)
class Decision:
    """What becomes of one variable. ``value`` is None where it is dropped."""

    name: str
    fate: Fate
    why: str
    value: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Without what may be a secret: the caller's own values, what ``--env`` gave, what Ray is told of both.

        Of what Ray is told, ``variables`` names each.
        """
        shown: dict[str, Any] = {}
        if self.fate is Fate.SET and self.value is not None and self.why != _GIVEN:
            is_job = self.name == JOB_CONFIG
            shown = {"variables": sorted(_told_by(self.value))} if is_job else {"value": self.value}
        return {"name": self.name, "fate": self.fate.value, "why": self.why, **shown}


@dataclass(frozen=True)
class Grant:
    """What the head gives to a driver.

    ``of_ray``: what of the head's environment at `ray start` is that machine's own.
    ``pass_env``: ``driver.pass_env``. ``accelerators``: of all nodes, by RLinf's names.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    of_ray: Mapping[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    accelerators: frozenset[str] = frozenset()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Grant:
        return cls(
            environment=values.get("environment", {}),
            of_ray=values.get("of_ray", {}),
            pass_env=tuple(values.get("pass_env", ())),
            accelerators=frozenset(values.get("accelerators", ())),
        )


@dataclass(frozen=True)
class DriverEnvironment:
    """One decision a variable, sorted by name."""

    decisions: tuple[Decision, ...]

    @property
    def variables(self) -> dict[str, str]:
        """The driver's whole environment."""
        return {each.name: each.value for each in self.decisions if each.value is not None}

    def names(self, fate: Fate) -> list[str]:
        return [each.name for each in self.decisions if each.fate is fate]


def kind_of(name: str) -> Kind:
    """Whose a variable of that name is."""
    return next((kind for pattern, kind in _PATTERNS if fnmatchcase(name, pattern)), Kind.OTHER)


def decide(
    caller: Mapping[str, str],
    grant: Grant,
    framework: Framework,
    given: Sequence[tuple[str, str | None]] = (),
) -> DriverEnvironment:
    """What becomes of each variable of ``caller``, and which are set, for a driver of ``framework``; pure.

    Later wins: what is passed by its kind or by ``driver.pass_env``, what the head sets, ``given``.

    Args:
        given: ``--env``: name and value; with None as the value, the caller's own is passed.
    """
    named = [name for name, value in given if value is None]
    decided: dict[str, Decision] = {}
    for name, own in caller.items():
        decided[name] = _of_caller(name, own, grant, framework, named)
    for each in _set_by_head(caller, grant, framework, decided):
        decided[each.name] = each
    for name, value in given:
        if value is not None:
            decided[name] = Decision(name, Fate.SET, _GIVEN, value)
        elif name in caller:
            decided[name] = Decision(name, Fate.PASSED, _GIVEN, caller[name])
    if (hook := decided.get(import_hook.HOOK)) is not None and hook.value:
        code = decided.get("PYTHONPATH")
        path = import_hook.in_front(hook.value, code.value or "" if code else "")
        decided["PYTHONPATH"] = Decision("PYTHONPATH", Fate.SET, "EdgeLink's import hook first", path)
    if framework.tells_workers:
        told = {name for name, _ in given}
        job = _job_config(decided, told, grant.pass_env, grant.environment)
        decided[JOB_CONFIG] = Decision(JOB_CONFIG, Fate.SET, "what Ray hands on to the workers", job)
        # The program's own runtime_env has the last word; without this Ray refuses a variable that is in both.
        override = "RAY_OVERRIDE_JOB_RUNTIME_ENV"
        decided[override] = Decision(override, Fate.SET, "the program's own runtime_env wins over it", "1")
    return DriverEnvironment(tuple(decided[name] for name in sorted(decided)))


def _of_caller(name: str, value: str, grant: Grant, framework: Framework, named: Sequence[str]) -> Decision:
    kind = kind_of(name)
    if name in named:
        return Decision(name, Fate.PASSED, _GIVEN, value)
    if pattern := _matching(name, grant.pass_env):
        return Decision(name, Fate.PASSED, f"driver.pass_env: {pattern}", value)
    if kind is Kind.LEFTOVER:
        return Decision(name, Fate.DROPPED, kind.value)
    if kind not in framework.keeps_out:
        return Decision(name, Fate.PASSED, kind.value if kind is not Kind.OTHER else "the caller's own", value)
    if name in grant.of_ray:
        return Decision(name, Fate.SET, f"{kind.value}: as the head's Ray has it", grant.of_ray[name])
    if kind in (Kind.HOME, Kind.SEARCH_PATH):  # nothing runs without them
        return Decision(name, Fate.PASSED, f"{kind.value}; the head does not say what its Ray has", value)
    who = "RLinf" if framework.name == "rlinf" else "RLinf, if it is one,"
    return Decision(name, Fate.DROPPED, f"{kind.value}; {who} would give it to all nodes")


def _set_by_head(
    caller: Mapping[str, str], grant: Grant, framework: Framework, decided: Mapping[str, Decision]
) -> Iterator[Decision]:
    for name, value in grant.of_ray.items():
        if name not in caller:
            yield Decision(name, Fate.SET, f"{kind_of(name).value}: as the head's Ray has it", value)
    for name, value in grant.environment.items():
        if name in _NO_PROXY:
            continue
        if name == NCCL_HEARTBEAT and name in caller:  # the caller's own was checked, see check_collectives
            continue
        yield Decision(name, Fate.SET, "the head's", value)
    yield from _without_proxy(caller, grant, decided)
    python = grant.environment.get("EDGELINK_RAY_PYTHON")
    path = decided.get("PATH")
    if python and (path is None or path.fate is Fate.PASSED):
        value = in_front(str(Path(python).parent), caller.get("PATH", SYSTEM_PATH))
        yield Decision("PATH", Fate.SET, "the caller's, ray.python's directory first", value)
    head_ip, _, port = grant.environment.get("RAY_ADDRESS", "").rpartition(":")
    if not head_ip:
        return
    yield Decision("MASTER_ADDR", Fate.SET, "the head's overlay address", head_ip)
    if framework.names_head:
        yield Decision("RAY_HEAD_IP", Fate.SET, "the head's overlay address", head_ip)
        yield Decision("RAY_HEAD_PORT", Fate.SET, "of the head's GCS", port)
    if framework.tells_workers:
        device = grant.environment["RLINF_COMM_NET_DEVICES"]
        names = {"GLOO_SOCKET_IFNAME", *(_SOCKET_NAMES[kind] for kind in grant.accelerators if kind in _SOCKET_NAMES)}
        for name in sorted(names):
            yield Decision(name, Fate.SET, "the overlay's device", device)
    for name, (value, why) in framework.sets.items():
        if name not in caller and name not in grant.of_ray:
            yield Decision(name, Fate.SET, why, value)
    for accelerator in sorted(grant.accelerators):
        for vendor in framework.noset.get(accelerator, ()):
            name = NOSET.format(vendor)
            if name not in caller:
                yield Decision(name, Fate.SET, f"{framework.name} chooses the devices of {accelerator} itself", "1")


def _without_proxy(caller: Mapping[str, str], grant: Grant, decided: Mapping[str, Decision]) -> Iterator[Decision]:
    """The overlay is reached without a proxy; the caller's own exceptions matter where a proxy of theirs is passed."""
    overlay = grant.environment.get("no_proxy", "")
    if not overlay:
        return
    passes = any(each.fate is Fate.PASSED and kind_of(each.name) is Kind.NETWORK for each in decided.values())
    for name in _NO_PROXY:
        own = caller.get(name, "") if passes else ""
        value = ",".join(part for part in (own, overlay) if part)
        yield Decision(name, Fate.SET, "the overlay is reached without a proxy", value)


def _job_config(
    decided: Mapping[str, Decision], told: set[str], pass_env: Sequence[str], of_head: Mapping[str, str]
) -> str:
    """Ray's words for: these variables, for all workers of this driver."""
    ours = {"GLOO_SOCKET_IFNAME", *_SOCKET_NAMES.values()}
    variables = {
        name: each.value
        for name, each in sorted(decided.items())
        if each.value is not None
        and (
            name in told
            or name in ours
            or _matching(name, pass_env)
            or fnmatchcase(name, NOSET.format("*"))
            or (
                kind_of(name) is Kind.SETTING
                and each.fate is Fate.PASSED
                and name not in of_head
                and not name.startswith(("RAY_", "RLINF_"))
            )
        )
    }
    return json.dumps({"runtime_env": {"env_vars": variables}})


def _told_by(job_config: str) -> dict[str, str]:
    """The variables of a job configuration that we made."""
    variables: dict[str, str] = json.loads(job_config)["runtime_env"]["env_vars"]
    return variables


def _matching(name: str, patterns: Sequence[str]) -> str | None:
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


def in_front(directory: str, path: str) -> str:
    """``path`` with ``directory`` as its first entry, once."""
    return ":".join([directory, *(entry for entry in path.split(":") if entry != directory)])

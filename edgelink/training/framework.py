"""The frameworks whose drivers are run: what each wants of its environment, as data, and which one a command is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from edgelink.errors import UsageError
from edgelink.training.command_words import is_commands_of, lines_of

_MAX_SCRIPT_BYTES = 1024 * 1024
_MOST_NESTED = 3  # scripts that start scripts
_MODULE = re.compile(r"-m[A-Za-z_][\w.]*")  # python -mMODULE


class Kind(StrEnum):
    """Whose a variable of the caller's environment is."""

    SETTING = "a setting of the training"
    CODE = "where the driver finds its code"
    TERMINAL = "of the terminal"
    NETWORK = "this machine's way to the Internet"
    HOME = "this machine's user"
    SEARCH_PATH = "this machine's programs"
    MACHINE = "this machine's own"
    SESSION = "of this login session"
    LEFTOVER = "another cluster's, another process's or the service manager's"
    OTHER = "not known"


@dataclass(frozen=True)
class Framework:
    """What is particular to one framework; ``plain`` is every other command.

    ``keeps_out``: what of the caller's environment does not reach the driver.
    ``tells_workers``: workers get nothing of the driver's environment by themselves, so Ray hands them a part of it.
    ``noset``: by accelerator, whose visible devices it wants to choose itself.
    ``sets``: what its drivers are given where the caller has no other value, each with why.
    ``modules``: importing one of them, or running one with ``-m``, is a sure sign.
    ``without_ray``: modules that run on this machine alone.
    """

    name: str
    keeps_out: frozenset[Kind] = frozenset()
    tells_workers: bool = False
    names_head: bool = False
    syncs_code: bool = False
    noset: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    sets: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    modules: tuple[str, ...] = ()
    without_ray: re.Pattern[str] | None = None


# RLinf gives every worker on every node whatever of the driver's environment differs from the head's at `ray start`.
RLINF = Framework(
    "rlinf",
    keeps_out=frozenset({Kind.NETWORK, Kind.HOME, Kind.SEARCH_PATH, Kind.MACHINE, Kind.SESSION, Kind.OTHER}),
    syncs_code=True,
    # Its main ends a driver with status 0 unless its own hook has seen the exception, which Hydra keeps from it.
    sets=MappingProxyType({"HYDRA_FULL_ERROR": ("1", "a driver that fails is to end with another status than 0")}),
    modules=("rlinf",),
)
OPENRLHF = Framework(
    "openrlhf",
    tells_workers=True,
    modules=("openrlhf",),
    without_ray=re.compile(r"openrlhf\.cli\.(?!.*ray)"),  # SFT, DPO, RM, KD, …: only train_ppo_ray and its like use Ray
)
VERL = Framework(
    "verl",
    tells_workers=True,
    names_head=True,
    noset=MappingProxyType({"AMD_GPU": ("ROCR", "HIP"), "NPU": ("ASCEND_RT",)}),
    modules=("verl",),
    without_ray=re.compile(r"verl\.(trainer\.sft_trainer|trainer\.main_eval|model_merger)$"),
)
# Nothing is known of it, so it may be RLinf in disguise: what would do harm on other machines is kept out.
PLAIN = Framework("plain", keeps_out=frozenset({Kind.NETWORK, Kind.HOME}))

FRAMEWORKS = {framework.name: framework for framework in (RLINF, OPENRLHF, VERL, PLAIN)}


@dataclass(frozen=True)
class Detected:
    framework: Framework
    why: str
    is_sure: bool = True

    def __str__(self) -> str:
        return f"framework {self.framework.name}: {self.why}"


def framework_of(name: str | None, argv: Sequence[str], directory: Path) -> Detected:
    """The framework of that name, or else the one that ``argv``, run in ``directory``, is sure to be.

    Raises:
        UsageError: there is none of that name.
    """
    if name is None:
        return detect(argv, directory)
    try:
        return Detected(FRAMEWORKS[name], "as --framework says")
    except KeyError:
        raise UsageError(f"--framework {name}: there are {', '.join(FRAMEWORKS)}") from None


def with_cluster_file(detected: Detected) -> Detected:
    """What a command with a cluster file is: where it is not sure, RLinf, as the file's form is RLinf's.

    ``bash -c`` and its like hide what they start, and RLinf would carry the caller's whole environment to all nodes.
    """
    if detected.is_sure:
        return detected
    why = detected.why.partition(" (")[0]
    return Detected(RLINF, f"a cluster file is RLinf's, and {why}; if CMD is something else, give --framework plain")


def detect(argv: Sequence[str], directory: Path, depth: int = _MOST_NESTED) -> Detected:
    """By the first module or script that ``argv`` names and that is known; what is not sure is ``plain``.

    What a script or ``bash -c`` starts is looked at likewise, ``depth`` times. Wrappers need no list of their own:
    ``env``, ``torchrun``, ``deepspeed`` or ``uv run`` have the same words in them, and what follows ``-c`` and ``-m``
    of ``taskset`` or ``numactl`` is no module that is known.
    """
    found = _unknown("the command names no framework")
    for before, word, following in zip(["", *argv], argv, [*argv[1:], ""], strict=False):
        if Path(word).name == "edgelink" and following == "train":
            return Detected(PLAIN, "the built-in trainer")
        module = following if word in ("-m", "--module") else word[2:] if _MODULE.fullmatch(word) else ""
        if module:
            found = _of_module(module) or _of_local_module(directory, module)
        elif following and (word == "-c" or is_commands_of(before, word)):
            found = _of_commands(following, "the code after -c", directory, depth)
        elif word.endswith((".py", ".sh", ".bash")):
            return _of_script(directory / word, directory, depth)  # what follows are its own arguments
        if found.is_sure:
            return found
    return found


def _of_module(module: str) -> Detected | None:
    for framework in FRAMEWORKS.values():
        if module.partition(".")[0] in framework.modules:
            if framework.without_ray and framework.without_ray.match(module):
                return Detected(PLAIN, f"{module} runs without Ray")
            return Detected(framework, f"module {module}")
    return None


def _of_local_module(directory: Path, module: str) -> Detected:
    script = directory / f"{module.replace('.', '/')}.py"
    return (
        _of_script(script, directory, 0)
        if script.is_file()
        else _unknown(f"module {module} is no framework that is known")
    )


def _of_script(script: Path, directory: Path, depth: int) -> Detected:
    try:
        with script.open(errors="replace") as file:
            text = file.read(_MAX_SCRIPT_BYTES)
    except OSError:
        return _unknown(f"{script.name} cannot be read")
    if script.suffix != ".py":
        return _of_shell_script(script, text, directory, depth)
    return _of_text(text, script.name)


def _of_commands(text: str, where: str, directory: Path, depth: int) -> Detected:
    text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)  # what is commented out is not run
    for module in re.findall(r"(?:\s-m|--module)[\s=]+([\w.]+)", text):
        if found := _of_module(module):
            return Detected(found.framework, f"{where}: {found.why}")
    found = _of_text(text, where)
    for words in lines_of(text) if depth and not found.is_sure else ():
        if (started := detect(words, directory, depth - 1)).is_sure:
            return Detected(started.framework, f"{where}: {started.why}")
    return found


def _of_shell_script(script: Path, text: str, directory: Path, depth: int) -> Detected:
    for at in dict.fromkeys((directory, script.parent)):  # many begin with a cd to where they lie
        found = _of_commands(text, script.name, at, depth)
        if found.is_sure:
            return found
    # RLinf's own scripts start `python ${SRC_FILE}`: the checkout they lie in tells.
    for parent in script.resolve().parents:
        if (parent / "rlinf" / "__init__.py").is_file():
            return Detected(RLINF, f"{script.name} lies in a checkout of RLinf")
    return found


def _of_text(text: str, where: str) -> Detected:
    names = "|".join(name for framework in FRAMEWORKS.values() for name in framework.modules)
    imported = re.findall(rf"(?:^|;)\s*(?:from|import)\s+({names})\b", text, re.MULTILINE)
    found = {framework.name: framework for framework in FRAMEWORKS.values() if set(framework.modules) & set(imported)}
    if len(found) == 1:
        name, framework = found.popitem()
        return Detected(framework, f"{where} imports {name}")
    if found:
        return _unknown(f"{where} imports {' and '.join(sorted(found))}")
    return _unknown(f"{where} imports no framework that is known")


def _unknown(why: str) -> Detected:
    return Detected(PLAIN, f"{why} (--framework {'|'.join(FRAMEWORKS)} names one)", is_sure=False)

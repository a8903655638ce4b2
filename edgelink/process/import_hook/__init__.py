"""The import hook of the Python programs that EdgeLink starts: a folder at the front of their PYTHONPATH (ADR 0045).

The folder is a copy in the runtime directory, one for each user. Our own files may lie where that user may not look,
and what Python compiles there must be that user's: the compiler takes four times as long to start as the hook to run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path

from edgelink.errors import NotRecordedError
from edgelink.files import private_directory, write_atomic

HOOK = "EDGELINK_IMPORT_HOOK"  # names the folder; empty: the program runs without it
_FILES = ("sitecustomize.py", "grpc_patience.py", "report_command.py")


def provide(base: Path, uid: int) -> Path | None:
    """Have the folder of the user ``uid`` below ``base``; None where it cannot be written.

    Only ``__pycache__`` is that user's own, and nothing of ours looks into it.
    """
    with suppress(NotRecordedError, OSError):
        directory = base / str(uid)
        private_directory(base, mode=0o755)
        private_directory(directory, mode=0o755)
        compiled = private_directory(directory / "__pycache__", mode=0o755)
        if os.geteuid() == 0:
            os.chown(compiled, uid, -1)
        for name in _FILES:
            source, path = resources.files(__name__).joinpath(name).read_bytes(), directory / name
            if not path.is_file() or path.read_bytes() != source:
                write_atomic(path, source, mode=0o644)
        return directory
    return None


def variables(directory: Path | None, python_path: str = "") -> dict[str, str]:
    """Return what a program gets with the hook in ``directory`` beside a PYTHONPATH of its own."""
    return {} if directory is None else {HOOK: str(directory), "PYTHONPATH": in_front(str(directory), python_path)}


def kept_in_front(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` with the folder of its hook, if it has one, as the first entry of PYTHONPATH."""
    hook, path = environment.get(HOOK), environment.get("PYTHONPATH", "")
    return {**environment, "PYTHONPATH": in_front(hook, path)} if hook else dict(environment)


def in_front(directory: str, python_path: str) -> str:
    """Return ``python_path`` with ``directory`` as its first entry, once. An empty entry is the present one."""
    own = [entry for entry in python_path.split(":") if entry != directory] if python_path else []
    return ":".join([directory, *own])

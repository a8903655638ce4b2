"""This package as something to ship: a bare copy of it, and a hash by which driver and workers agree on it."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

_NAMESPACE = ("edgelink", "training")
_INIT = '"""Part of EdgeLink: what its built-in trainer needs on a worker."""\n'


def content_hash(package: Path) -> str:
    """SHA-256 over names and contents of the package's modules."""
    digest = hashlib.sha256()
    for module in sorted(package.rglob("*.py")):
        content = module.read_bytes()
        digest.update(f"{module.relative_to(package)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def stage(package: Path, target: Path) -> Path:
    """Copy the modules of ``package`` to ``target``/edgelink/training/trainer; returns ``target``/edgelink.

    The parents are written anew, not copied: whatever EdgeLink's daemon needs stays out, and so does the rest of the
    ``site-packages`` it is installed in.
    """
    directory = target
    for name in _NAMESPACE:
        directory = directory / name
        directory.mkdir(parents=True)
        (directory / "__init__.py").write_text(_INIT)
    shutil.copytree(package, directory / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    return target / _NAMESPACE[0]

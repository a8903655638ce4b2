"""Users' own modules, with tasks and robots, on their way to the workers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from edgelink.training.trainer.failure import USAGE, TrainerError

_OURS = "edgelink"


def stage(paths: Sequence[str], target: Path) -> list[Path]:
    """Copies of ``paths`` below ``target``, each a package that can be shipped; of a file, a package of its name.

    Raises:
        TrainerError: one is not there, or not something that Python imports: nothing was copied then. Or one cannot be
            read.
    """
    sources = [Path(path).expanduser() for path in paths]
    for source in sources:
        is_module = source.suffix == ".py" and source.is_file()
        if not (is_module or (source / "__init__.py").is_file()) or not source.stem.isidentifier():
            what = "is neither a Python file nor a package with an __init__.py" if source.exists() else "is not there"
            raise TrainerError(f"env.modules: {source} {what}", "correct the path", exit_status=USAGE)
        if source.stem == _OURS:
            raise TrainerError(f"env.modules: {source} has the name of EdgeLink's own package", exit_status=USAGE)
    names = [source.stem for source in sources]
    if twice := next((source for source in sources if names.count(source.stem) > 1), None):
        raise TrainerError(f"env.modules: two have the name {twice.stem}", "rename one of them", exit_status=USAGE)
    staged = []
    for source in sources:
        package = target / source.stem
        try:
            _copy(source, package)
        except OSError as error:
            # shutil's own has a list: what could not be copied, to where, and why.
            why = error.args[0][0][-1] if isinstance(error, shutil.Error) else error
            what = f"env.modules: {source} cannot be copied: {why}"
            hint = "make everything in it readable, or take out what is no plain file"
            raise TrainerError(what, hint, exit_status=USAGE) from error
        staged.append(package)
    return staged


def _copy(source: Path, package: Path) -> None:
    if source.is_dir():
        # Links that lead nowhere stay behind: editors lock a file that is being written to by one of them.
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, package, ignore=ignored, ignore_dangling_symlinks=True)
    else:
        package.mkdir(parents=True)
        shutil.copyfile(source, package / "__init__.py")

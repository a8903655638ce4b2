"""Tells which packages an interpreter has; run by the *user's* interpreter, which imports none of them.

    installed.py PACKAGE…

The last line of stdout is ``{"rlinf": {"version": "0.4.0", "at": "/src/rlinf"}, "torch": null}``; null for what is not
there, "" for a version or a directory that nobody can tell. A checkout on the search path counts like what is
installed.
"""

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # the directory of this file must not shadow anybody's modules

import json
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path


def package(name: str) -> "dict[str, str] | None":
    """Return version and directory of a package: of the checkout that would be imported, else of the installed one."""
    at = number = None
    with suppress(ImportError, ValueError):
        if (spec := find_spec(name)) is not None:
            at = str(Path(spec.origin).resolve().parent) if spec.origin else ""
    with suppress(PackageNotFoundError):
        number = version(name)
    if at:
        with suppress(OSError):
            project = (Path(at).parent / "pyproject.toml").read_text()
            if found := re.search(r'^version\s*=\s*"([^"]+)"', project, re.MULTILINE):
                number = found.group(1)
    return None if at is None and number is None else {"version": number or "", "at": at or ""}


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: package(name) for name in sys.argv[1:]}) + "\n")

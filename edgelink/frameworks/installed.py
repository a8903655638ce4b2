"""Tells which RLinf and torch an interpreter has; run by the *user's* interpreter, which imports neither.

The last line of stdout is ``{"rlinf": "0.4.0", "torch": "2.8.0"}``; null for what is not there, "" for a version that
nobody can tell. A checkout on the search path counts like what is installed.
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


def version_of(name: str) -> "str | None":
    """Return the version of a package: of the checkout that would be imported, else of the installed one."""
    is_there = False
    with suppress(ImportError, OSError, ValueError):
        spec = find_spec(name)
        is_there = spec is not None
        if spec is not None and spec.origin is not None:
            project = (Path(spec.origin).parent.parent / "pyproject.toml").read_text()
            if found := re.search(r'^version\s*=\s*"([^"]+)"', project, re.MULTILINE):
                return found.group(1)
    with suppress(PackageNotFoundError):
        return version(name)
    return "" if is_there else None


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: version_of(name) for name in ("rlinf", "torch")}) + "\n")

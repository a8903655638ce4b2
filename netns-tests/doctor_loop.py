"""Stands in for somebody who types `edgelink doctor` again and again on a lab node, without an interpreter start each.

``doctor_loop.py FIFO``: each line of the FIFO is a JSON object with variables for the environment of one question; the
answer is one line on stdout, check to verdict, message, figure and remedy.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from edgelink.cli.doctor import look_around
from edgelink.doctor import CHECKS, examine


def main(fifo: Path) -> None:
    own = dict(os.environ)
    with fifo.open() as questions:
        for question in questions:
            os.environ.clear()
            os.environ.update(own | json.loads(question))
            found = examine(look_around(), CHECKS)
            sys.stdout.write(json.dumps({name: asdict(finding) for name, finding in found.items()}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Asks the installed RLinf how one of its programs places; run by the *user's* interpreter.

    rlinf_placement.py <question >answer

The question, JSON on stdin: ``class`` (of ``rlinf.utils.placement``), ``config`` (the whole configuration),
``ranks`` (the resource ranks of each component, as ``component_placement`` gives them) and ``accelerators`` (how many
the cluster has). The last line of stdout is ``{"packed": {component: [first, last, per_process, stride]}}``, for the
components that the program places in a way of its own, or ``{"error": …}``; exit status 3: RLinf is not there;
4: RLinf refuses the configuration.
"""

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # the directory of this file must not shadow anybody's modules

import json
from types import SimpleNamespace
from typing import Any

_NOT_THERE, _REFUSED = 3, 4


def answer(content: "dict[str, Any]") -> None:
    """Write the last line of stdout."""
    sys.stdout.write("\n" + json.dumps(content) + "\n")


def packed(question: "dict[str, Any]") -> "dict[str, list[int]]":
    """Return the packed placements that RLinf's class makes of ``question``.

    RLinf's base class asks a live cluster. Here a class between the two gives the ranks that are known already, so
    that the program's own class does the rest.
    """
    from omegaconf import OmegaConf
    from rlinf.scheduler import ComponentPlacement
    from rlinf.utils import placement

    class Given(ComponentPlacement):  # type: ignore[misc]
        def __init__(self, config: Any, cluster: Any) -> None:
            self._config = config
            self._placements: dict[str, Any] = {}
            self._component_rank_map = {name: {tuple(ranks): ()} for name, ranks in question["ranks"].items()}

    program = type("Program", (getattr(placement, question["class"]), Given), {})
    cluster = SimpleNamespace(num_accelerators=question["accelerators"])
    made = program(OmegaConf.create(question["config"]), cluster)._placements
    return {
        name: [each._start_hw_rank, each._end_hw_rank, each._num_hardware_per_process, each._stride]
        for name, each in made.items()
    }


def main() -> int:
    question = json.load(sys.stdin)
    try:
        answer({"packed": packed(question)})
    except ImportError as error:
        answer({"error": str(error)})
        return _NOT_THERE
    except (AssertionError, ValueError) as error:  # how RLinf refuses a placement
        answer({"error": str(error)})
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())

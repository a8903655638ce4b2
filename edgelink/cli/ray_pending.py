"""Watch, while a driver runs, which placement groups and actors of any framework wait in Ray for room.

The helper that asks Ray runs as Ray's user.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from itertools import groupby
from typing import Any

from edgelink.cli.as_ray import as_ray
from edgelink.errors import EdgelinkError
from edgelink.training.launch_check import named
from edgelink.training.resources import NodeResources
from edgelink.wording import printable

_NOT_SHOWN = ("node:", "bundle_group")  # resources of Ray's own making
_MOST_CHARACTERS = 300


class Pending:
    """Says each placement group or actor that waits in one sentence, once.

    Args:
        nodes: as the head granted them, for their names.
        say: each new sentence goes here.
        note: the sentences of all that waits now go here when they change.
    """

    def __init__(
        self, nodes: Sequence[Mapping[str, Any]], say: Callable[[str], None], note: Callable[[tuple[str, ...]], None]
    ) -> None:
        self._nodes = nodes
        self._say = say
        self._note = note
        self._sentences: dict[str, str] = {}  # by Ray's id

    def hear(self, answer: Mapping[str, Any]) -> None:
        """Take one line of the helper's."""
        has = named(answer["nodes"], self._nodes)
        for each in answer["waiting"]:
            if each["id"] not in self._sentences:
                self._sentences[each["id"]] = sentence = waits_for(each, has)
                self._say(sentence)
        self._note(tuple(self._sentences[each["id"]] for each in answer["waiting"]))


def waits_for(thing: Mapping[str, Any], nodes: Iterable[NodeResources]) -> str:
    """Return the sentence on one thing that waits: its name, its wishes, and what the nodes have; pure."""
    bundles = sorted(_in_words(bundle) for bundle in thing["bundles"])
    wanted = ", ".join(f"{len(list(same))} times {words}" for words, same in groupby(bundles))
    wanted = wanted.removeprefix("1 times ") if len(bundles) == 1 else wanted
    names = sorted({name for bundle in thing["bundles"] for name in bundle if _is_shown(name)})
    there = "; ".join(f"{node.name} {_has(node, names)}" for node in nodes)
    how = f" ({thing['strategy']})" if thing["strategy"] and len(bundles) > 1 else ""
    end = "no node ever has so much" if thing["never"] else "there is no room now"
    return printable(f"{thing['what']} waits for {wanted or 'nothing'}{how}, and {end}: {there}")[:_MOST_CHARACTERS]


def _in_words(bundle: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in sorted(bundle.items(), reverse=True))


def _has(node: NodeResources, names: Iterable[str]) -> str:
    return ", ".join(f"{node.free.get(name, 0.0):g} of {node.total.get(name, 0.0):g} {name}" for name in names)


def _is_shown(name: str) -> bool:
    return not name.startswith(_NOT_SHOWN)


@contextmanager
def pending_told(
    granted: Mapping[str, Any], say: Callable[[str], None], note: Callable[[tuple[str, ...]], None]
) -> Iterator[None]:
    """Say, meanwhile, what waits in Ray for room. Where Ray cannot be asked nothing is said.

    Args:
        granted: the head daemon's answer to the run.
        say, note: see :class:`Pending`.
    """
    program = resources.files("edgelink.launch").joinpath("ray_pending.py").read_text()
    try:
        address = granted["environment"]["RAY_ADDRESS"]
        helper = subprocess.Popen(
            **as_ray(granted, "-c", program, address),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            process_group=0,  # Ctrl+C is the driver's
        )
    except (OSError, KeyError, EdgelinkError):
        yield
        return
    thread = threading.Thread(target=_read, args=(helper, Pending(granted["nodes"], say, note)), daemon=True)
    thread.start()
    try:
        yield
    finally:
        helper.kill()
        helper.wait()
        thread.join()
        for pipe in (helper.stdin, helper.stdout):
            assert pipe is not None
            pipe.close()


def _read(helper: subprocess.Popen[str], pending: Pending) -> None:
    assert helper.stdout is not None
    for line in helper.stdout:
        with suppress(ValueError):  # the user's interpreter may print things of its own
            answer = json.loads(line)
            if isinstance(answer, dict):
                pending.hear(answer)

"""Watch Ray beside a run: what each node has, and which placement groups and actors of any framework wait for room.

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
from edgelink.training.resources import NodeResources
from edgelink.wording import printable

_NOT_SHOWN = ("node:", "bundle_group")  # resources of Ray's own making
_MOST_CHARACTERS = 300
_ANSWER_S = 60.0  # 2 s as a rule; an interpreter on a busy machine or a slow disk needs more


class RayWatch:
    """Ray's last answer. Says each placement group or actor that waits in one sentence, once.

    Args:
        nodes: as the head granted them, for their names.
        say: each new sentence goes here.
    """

    def __init__(self, nodes: Sequence[Mapping[str, Any]], say: Callable[[str], None]) -> None:
        self._names = {node.get("overlay_ip"): node.get("hostname") for node in nodes}
        self._say = say
        self._said: dict[str, str] = {}  # by Ray's id
        self._heard = threading.Condition()
        self._answer: Mapping[str, Any] | None = None

    def hear(self, answer: Mapping[str, Any]) -> None:
        """Take one line of the helper's."""
        with self._heard:
            self._answer = answer
            self._heard.notify_all()
        for each in answer["waiting"]:
            if each["id"] not in self._said:
                self._said[each["id"]] = sentence = waits_for(each, self._named(answer["nodes"]))
                self._say(sentence)

    def hear_nothing(self, why: str) -> None:
        """Take it that no line follows. What the last one said of the nodes holds."""
        nodes = self._answer["nodes"] if self._answer else None
        self.hear({"waiting": [], "nodes": nodes, "error": why})

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The sentences on all that waits now."""
        answer = self._answer
        return () if answer is None else tuple(self._said.get(each["id"], "") for each in answer["waiting"])

    def nodes(self) -> list[NodeResources]:
        """Return what each node has, by the names that people know. Waits for Ray's first answer.

        Raises:
            LookupError: Ray does not answer, with why.
        """
        with self._heard:
            self._heard.wait_for(lambda: self._answer is not None, _ANSWER_S)
            answer = self._answer or {"nodes": None, "error": f"no answer within {_ANSWER_S:g} s"}
        if answer["nodes"] is None:
            raise LookupError(answer.get("error"))
        return self._named(answer["nodes"])

    def _named(self, found: Iterable[Mapping[str, Any]]) -> list[NodeResources]:
        names = self._names
        nodes = [NodeResources(str(names.get(each["ip"]) or each["ip"]), each["total"], each["free"]) for each in found]
        return sorted(nodes, key=lambda each: each.name)


def waits_for(thing: Mapping[str, Any], nodes: Iterable[NodeResources]) -> str:
    """Return the sentence on one thing that waits for room. Pure."""
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
def ray_watched(granted: Mapping[str, Any], say: Callable[[str], None]) -> Iterator[RayWatch]:
    """Watch Ray, and say meanwhile what waits there for room.

    Args:
        granted: the head daemon's answer to the run.
        say: see :class:`RayWatch`.
    """
    watch = RayWatch(granted["nodes"], say)
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
    except KeyError:
        watch.hear_nothing("the head has not told where Ray is")
        yield watch
        return
    except (OSError, EdgelinkError) as error:
        watch.hear_nothing(str(error))
        yield watch
        return
    thread = threading.Thread(target=_read, args=(helper, watch), daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        helper.kill()
        helper.wait()
        thread.join()
        for pipe in (helper.stdin, helper.stdout):
            assert pipe is not None
            pipe.close()


def _read(helper: subprocess.Popen[str], watch: RayWatch) -> None:
    assert helper.stdout is not None
    for line in helper.stdout:
        with suppress(ValueError):  # the user's interpreter may print things of its own
            answer = json.loads(line)
            if isinstance(answer, dict):
                watch.hear(answer)
    watch.hear_nothing("Ray's interpreter cannot ask Ray")

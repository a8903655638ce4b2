"""The two little languages of a cluster file: ``node_ranks`` and placement strings. Pure; knows no cluster.

::

    node_ranks = "all" | range ("," range)*
    placement  = part ("," part)*
    part       = resources [":" range]        resources = range | "all"
    range      = n | n "-" n

Numbers follow Python's ``int()`` (blanks, leading zeros, ``1_0``), ``all`` is case-insensitive and empty pieces are
skipped, as in RLinf.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgelink.placement.problems import RuleBrokenError

_WRITE_RANGES = "write single numbers or ranges such as '0', '0-3' or '0-1,3'"
_QUOTE = "quote it: YAML reads an unquoted 1:0 as the number 60 and 010 as 8"


def parse_node_ranks(value: object, available: Sequence[int]) -> tuple[int, ...]:
    """Node ranks in ascending order, each once; empty for an empty string (RLinf then drops the group).

    Raises:
        RuleBrokenError: malformed, descending, or outside of ``available``.
    """
    text = str(value).strip()
    if text.lower() == "all":
        return tuple(available)
    ranks: set[int] = set()
    for piece in _pieces(text):
        first, last = _range(piece, "node_ranks malformed")
        if first > last:
            raise RuleBrokenError("node_ranks range descending", f"{piece!r}", f"write '{last}-{first}'")
        if not available:
            raise RuleBrokenError("node_ranks with no available ranks", "", "correct cluster.num_nodes first")
        if first < available[0] or last > available[-1]:
            raise RuleBrokenError(
                "node_ranks out of cluster range",
                f"{piece!r}, but the node ranks are {span(available)}",
                "lower the rank, or raise cluster.num_nodes",
            )
        ranks.update(range(first, last + 1))
    return tuple(sorted(ranks))


def parse_placement(value: object, resource_count: int, resource_name: str) -> list[tuple[int, ...]]:
    """For each process, in the order of process ranks, the resource ranks it gets.

    Args:
        value: the placement as YAML gave it; numbers are taken as their text.
        resource_name: what a number stands for ("node", "accelerator"), for messages.

    Raises:
        RuleBrokenError: the first rule that is broken.
    """
    parts = _pieces(str(value))
    if not parts:
        raise RuleBrokenError("placement string empty", "", _WRITE_RANGES)
    processes: list[tuple[int, ...]] = []
    last_resource = -1
    seen: set[int] = set()
    next_process: int | None = None
    known_processes: set[int] = set()
    for part in parts:
        resources, ranks = _parse_part(part, resource_count, resource_name, value, next_process)
        if repeated := seen.intersection(resources):
            raise RuleBrokenError(
                "resource rank repeated", f"{min(repeated)}", "name each resource once; to share it, write 0:0-3"
            )
        if resources[0] < last_resource:
            raise RuleBrokenError("resource ranks not ascending", f"{part!r}", "write the parts in ascending order")
        if repeated := known_processes.intersection(ranks):
            raise RuleBrokenError("process rank repeated", f"{min(repeated)}", "give each process to one part")
        if next_process is not None and ranks[0] != next_process:
            raise RuleBrokenError(
                "process ranks not contiguous",
                f"{part!r} starts with process {ranks[0]}",
                f"start it with {next_process}, right after the part before",
            )
        seen.update(resources)
        known_processes.update(ranks)
        last_resource = resources[-1]
        next_process = ranks[-1] + 1
        processes += _share(resources, len(ranks), part)
    return processes


def span(ranks: Sequence[int]) -> str:
    """``0-3`` for people; the ranks are contiguous."""
    return f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else f"{ranks[0]}" if ranks else "none"


def _pieces(text: str) -> list[str]:
    return [piece.strip() for piece in text.split(",") if piece.strip()]


def _parse_part(
    part: str, resource_count: int, resource_name: str, value: object, next_process: int | None
) -> tuple[range, range]:
    sides = part.split(":")
    if len(sides) > 2:
        raise RuleBrokenError("too many colons", f"{part!r}", "write resources:processes, for example 0-1:0-3")
    resources = _resources(sides[0].strip(), resource_count, resource_name, value)
    if len(sides) == 2:
        return resources, _processes(sides[1].strip())
    start = next_process or 0
    return resources, range(start, start + len(resources))


def _resources(text: str, count: int, name: str, value: object) -> range:
    if not text:
        raise RuleBrokenError("resource ranks empty", "nothing before the colon", _WRITE_RANGES)
    if text.lower() == "all":
        return range(count)
    first, last = _range(text, "placement string malformed")
    if first > last:
        raise RuleBrokenError("resource range descending", f"{text!r}", f"write '{last}-{first}'")
    if last >= count:
        there = f"{name} ranks are {span(range(count))}" if count else f"there is no {name}"
        fix = f"use ranks that exist, or bring more {name}s"
        if isinstance(value, int) and value >= 60:
            fix = _QUOTE
        raise RuleBrokenError("resource rank out of range", f"{last}, but {there}", fix)
    return range(first, last + 1)


def _processes(text: str) -> range:
    if not text:
        raise RuleBrokenError("process ranks empty", "nothing after the colon", "leave the colon out, or write 0:0-3")
    if text.lower() == "all":
        raise RuleBrokenError("process ranks cannot be all", "", "write the process ranks out, for example 0-3:0-7")
    first, last = _range(text, "placement string malformed")
    if first > last:
        raise RuleBrokenError("process range descending", f"{text!r}", f"write '{last}-{first}'")
    return range(first, last + 1)


def _range(text: str, rule: str) -> tuple[int, int]:
    try:
        numbers = [int(number) for number in text.split("-")]
    except ValueError:
        raise RuleBrokenError(rule, f"{text!r} is neither a number nor a range", _WRITE_RANGES) from None
    if len(numbers) > 2:
        raise RuleBrokenError(rule, f"{text!r} has more than two ends", _WRITE_RANGES)
    return numbers[0], numbers[-1]


def _share(resources: range, process_count: int, part: str) -> list[tuple[int, ...]]:
    """Consecutive processes share a resource, or each process gets a consecutive slice."""
    shares: list[tuple[int, ...]]
    if process_count >= len(resources):
        each, rest = divmod(process_count, len(resources))
        shares = [(resource,) for resource in resources for _ in range(each)]
    else:
        each, rest = divmod(len(resources), process_count)
        shares = [tuple(resources[i * each : (i + 1) * each]) for i in range(process_count)]
    if rest:
        raise RuleBrokenError(
            "process and resource counts not divisible",
            f"{part!r}: {process_count} processes on {len(resources)} resources",
            "make one count a multiple of the other",
        )
    return shares

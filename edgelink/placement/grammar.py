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
OUT_OF_RANGE = "resource rank out of range"
NOTHING_THERE = "no resources to index"
_MOST_PROCESSES = 100_000  # of one component: a slip of the finger must not fill the memory
_MOST_RESOURCES = 1_000_000  # where it is not known how many there are


def parse_node_ranks(value: object, available: Sequence[int] | None) -> tuple[int, ...]:
    """Node ranks in ascending order, each once; empty for an empty string (RLinf then drops the group).

    Args:
        available: the ranks that exist, ascending; None if that is not known: then nothing is returned.

    Raises:
        RuleBrokenError: malformed, descending, or outside of ``available``.
    """
    text = str(value)
    if text.lower() == "all":
        return tuple(available or ())
    ranks: set[int] = set()
    for piece in _pieces(text):
        first, last = _range(piece, "node_ranks malformed", _rank_list_fix(value))
        if first > last:
            raise RuleBrokenError("node_ranks range descending", f"{piece!r}", f"write '{last}-{first}'")
        if available is None:
            continue
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


def parse_placement(value: object, resource_count: int | None, resource_name: str) -> list[tuple[int, ...]]:
    """For each process, in the order of process ranks, the resource ranks it gets.

    Args:
        value: the placement as YAML gave it; numbers are taken as their text.
        resource_count: how many there are; None if that is not known: then only the grammar is checked.
        resource_name: what a number stands for ("node", "accelerator"), for messages.

    Raises:
        RuleBrokenError: the first rule that is broken.
    """
    parts = _pieces(str(value))
    if not parts:
        raise RuleBrokenError("placement string empty", "", _WRITE_RANGES)
    processes: list[tuple[int, ...]] = []
    seen: list[range] = []
    known: range | None = range(0)  # process ranks so far; None: "all" of an unknown count
    for part in parts:
        sides = part.split(":")
        if len(sides) > 2:
            raise RuleBrokenError("too many colons", f"{part!r}", "write resources:processes, for example 0-1:0-3")
        resources = _resources(sides[0].strip(), resource_count, resource_name, value)
        if seen and resources and resources[0] <= seen[-1][-1]:
            raise _not_ascending(part, resources, seen)
        start = known.stop if known else 0
        ranks = _processes(sides[1].strip()) if len(sides) == 2 else range(start, start + len(resources))
        if known is not None and ranks:
            known = _extended(known, ranks, part)
            if len(known) > _MOST_PROCESSES:
                raise _too_many_processes(part)
        if not resources:
            known = None
            continue
        seen.append(resources)
        _check_divisible(len(resources), len(ranks), part)
        if resource_count is not None:
            processes += _share(resources, len(ranks))
    return processes


def span(ranks: Sequence[int]) -> str:
    """``0-3`` for people, ``0-1,3`` where there are holes."""
    runs: list[tuple[int, int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs) or "none"


def first_process_rank(value: object) -> int:
    """The number that the string gives its first process; RLinf counts from 0 all the same."""
    sides = _pieces(str(value))[0].split(":")
    return int(sides[1].split("-")[0]) if len(sides) == 2 else 0


def _extended(known: range, ranks: range, part: str) -> range:
    """The process ranks with those of one more part."""
    if not known:
        return ranks
    repeated = range(max(ranks.start, known.start), min(ranks.stop, known.stop))
    if repeated:
        raise RuleBrokenError("process rank repeated", f"{repeated[0]}", "give each process to one part")
    if ranks.start != known.stop:
        raise RuleBrokenError(
            "process ranks not contiguous",
            f"{part!r} starts with process {ranks.start}",
            f"start it with {known.stop}, right after the part before",
        )
    return range(known.start, ranks.stop)


def _not_ascending(part: str, resources: range, seen: Sequence[range]) -> RuleBrokenError:
    for other in seen:
        repeated = range(max(resources[0], other[0]), min(resources[-1], other[-1]) + 1)
        if repeated:
            fix = "name each resource once; to share it, write 0:0-3"
            return RuleBrokenError("resource rank repeated", f"{repeated[0]}", fix)
    return RuleBrokenError("resource ranks not ascending", f"{part!r}", "write the parts in ascending order")


def _pieces(text: str) -> list[str]:
    return [piece.strip() for piece in text.split(",") if piece.strip()]


def _resources(text: str, count: int | None, name: str, value: object) -> range:
    if not text:
        raise RuleBrokenError("resource ranks empty", "nothing before the colon", _WRITE_RANGES)
    if text.lower() == "all":
        if count == 0:
            fix = f"name a group that has a {name}, or bring one"
            raise RuleBrokenError("resource ranks empty", f"there is no {name}", fix)
        return range(count or 0)
    first, last = _range(text, "placement string malformed", _placement_fix(value))
    if first > last:
        raise RuleBrokenError("resource range descending", f"{text!r}", f"write '{last}-{first}'")
    if count == 0:
        detail = f"{last}, but there is no {name} in the group"
        raise RuleBrokenError(NOTHING_THERE, detail, f"bring a {name}")
    if count is not None and last >= count:
        fix = (
            f"a placement counts the {name}s of its own group from 0: write {span(range(count))}, or bring more {name}s"
        )
        if isinstance(value, int) and value >= 60:
            fix = _QUOTE
        detail = f"{name} {last} is asked for, but {name} ranks are {span(range(count))}"
        raise RuleBrokenError(OUT_OF_RANGE, detail, fix)
    if count is None and last - first >= _MOST_RESOURCES:
        raise RuleBrokenError("more resources than a cluster can have", f"{text!r}", "write a smaller range")
    return range(first, last + 1)


def _processes(text: str) -> range:
    if not text:
        raise RuleBrokenError("process ranks empty", "nothing after the colon", "leave the colon out, or write 0:0-3")
    if text.lower() == "all":
        raise RuleBrokenError("process ranks cannot be all", "", "write the process ranks out, for example 0-3:0-7")
    first, last = _range(text, "placement string malformed", _WRITE_RANGES)
    if first > last:
        raise RuleBrokenError("process range descending", f"{text!r}", f"write '{last}-{first}'")
    if last - first >= _MOST_PROCESSES:
        raise _too_many_processes(text)
    return range(first, last + 1)


def _too_many_processes(text: str) -> RuleBrokenError:
    return RuleBrokenError("more processes than a cluster can have", f"{text!r}", "write a smaller range")


def _range(text: str, rule: str, fix: str) -> tuple[int, int]:
    try:
        numbers = [int(number) for number in text.split("-")]
    except ValueError:
        raise RuleBrokenError(rule, f"{text!r} is neither a number nor a range", fix) from None
    if len(numbers) > 2:
        raise RuleBrokenError(rule, f"{text!r} has more than two ends", fix)
    return numbers[0], numbers[-1]


def _rank_list_fix(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = ",".join(str(item) for item in value)
        return f"RLinf's guide shows a YAML list, but its code takes a string only: write '{items}'"
    return _WRITE_RANGES


def _placement_fix(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"write a string, not a YAML list: '{','.join(str(item) for item in value)}'"
    return _WRITE_RANGES


def _check_divisible(resource_count: int, process_count: int, part: str) -> None:
    more, fewer = max(resource_count, process_count), min(resource_count, process_count)
    if more % fewer:
        raise RuleBrokenError(
            "process and resource counts not divisible",
            f"{part!r}: {process_count} processes on {resource_count} resources",
            "make one count a multiple of the other",
        )


def _share(resources: range, process_count: int) -> list[tuple[int, ...]]:
    """Consecutive processes share a resource, or each process gets a consecutive slice."""
    if process_count >= len(resources):
        each = process_count // len(resources)
        return [(resource,) for resource in resources for _ in range(each)]
    each = len(resources) // process_count
    return [tuple(resources[i * each : (i + 1) * each]) for i in range(process_count)]

"""Which nodes a run asks for, by name or by label (`--nodes`); pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edgelink.errors import ConfigError, UsageError
from edgelink.registry.payloads import DirectoryEntry, Role

LabelsOf = Mapping[str, Mapping[str, str]]  # by node id, of those who have told them


@dataclass(frozen=True)
class Selection:
    """A node takes part that is named, or has one of the labels; the head always does."""

    names: frozenset[str]  # hostnames and node ids
    labels: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, selectors: Iterable[str]) -> Selection | None:
        """From ``edge-1`` and ``site=lab-a``; None without any: everybody takes part."""
        names, labels = set(), set()
        for selector in selectors:
            key, separator, value = selector.partition("=")
            if separator:
                labels.add((key, value))
            else:
                names.add(key)
        return cls(frozenset(names), frozenset(labels)) if names or labels else None

    def takes(self, entry: DirectoryEntry, known: LabelsOf) -> bool:
        """Whether it takes part, as far as that is known."""
        if entry.role is Role.HEAD or not self.names.isdisjoint((entry.hostname, entry.node_id)):
            return True
        return not self.labels.isdisjoint(known.get(entry.node_id, {}).items())

    def among(self, entries: Iterable[DirectoryEntry], known: LabelsOf) -> list[DirectoryEntry]:
        """Who takes part, as far as that is known."""
        return [entry for entry in entries if self.takes(entry, known)]

    def undecided(self, entries: Iterable[DirectoryEntry], known: LabelsOf) -> list[str]:
        """The hostnames of those whose labels would decide, and are not known."""
        if not self.labels:
            return []
        return [entry.hostname for entry in entries if entry.node_id not in known and not self.takes(entry, known)]

    def check(self, entries: Sequence[DirectoryEntry], known: LabelsOf, count: int) -> None:
        """Refuse what cannot come true, whoever starts; ``entries``: all who could take part, ``count``: as many nodes
        are asked for (0: no matter).

        Raises:
            UsageError: nobody has such a name, or nobody such a label.
            ConfigError: fewer are named than are asked for.
        """
        everybody = {name for entry in entries for name in (entry.hostname, entry.node_id)}
        if unknown := sorted(self.names - everybody):
            hosts = ", ".join(sorted(entry.hostname for entry in entries))
            raise UsageError(f"--nodes: no node {', '.join(unknown)} can take part in Ray", hint=f"there are: {hosts}")
        if self.undecided(entries, known):
            return
        for key, value in sorted(self.labels):
            if not any(labels.get(key) == value for labels in known.values()):
                values = ", ".join(sorted({f"{key}={labels[key]}" for labels in known.values() if key in labels}))
                raise UsageError(
                    f"--nodes: no node has the label {key}={value}",
                    hint=f"there are: {values}" if values else f"no node has a label {key}: `edgelink registry set`",
                )
        taken = [entry.hostname for entry in self.among(entries, known)]
        if count > len(taken):
            raise ConfigError(
                f"cluster.num_nodes is {count}, but --nodes takes {len(taken)}: {', '.join(taken)}",
                hint="name more nodes (the head counts, and need not be named), or lower cluster.num_nodes",
            )

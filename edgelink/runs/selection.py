"""Which nodes a run asks for, by name or by label (`--nodes`); pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edgelink.errors import ConfigError, UsageError
from edgelink.protocol.payloads import DirectoryEntry, Role
from edgelink.ray_cluster.no_ray import NO_RAY_IN_WORDS
from edgelink.wording import few

_WITHOUT_THEM = (
    "take these nodes out of the run, or take `ray: off` out of their configuration and start their daemons anew"
)

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
        if entry.role is Role.HEAD or self._names(entry):
            return True
        return not self.labels.isdisjoint(known.get(entry.node_id, {}).items())

    def _names(self, entry: DirectoryEntry) -> bool:
        return not self.names.isdisjoint((entry.hostname, entry.node_id))

    def among(self, entries: Iterable[DirectoryEntry], known: LabelsOf) -> list[DirectoryEntry]:
        """Who takes part, as far as that is known."""
        return [entry for entry in entries if self.takes(entry, known)]

    def undecided(self, entries: Iterable[DirectoryEntry], known: LabelsOf) -> list[str]:
        """The hostnames of those whose labels would decide, and are not known."""
        if not self.labels:
            return []
        return [entry.hostname for entry in entries if entry.node_id not in known and not self.takes(entry, known)]

    def check(
        self,
        entries: Sequence[DirectoryEntry],
        known: LabelsOf,
        count: int,
        without_ray: Sequence[DirectoryEntry] = (),
    ) -> None:
        """Refuse what cannot come true, whoever starts.

        Args:
            entries: all who could take part.
            count: how many nodes are asked for. 0: no matter.
            without_ray: those who could not, because they have no Ray by their own configuration.

        Raises:
            UsageError: nobody has such a name, or nobody such a label; or a node that is named has no Ray.
            ConfigError: fewer are named than are asked for.
        """
        if named := [entry.hostname for entry in without_ray if self._names(entry)]:
            raise UsageError(
                f"--nodes: {_with_no_ray(named)}, so a run cannot have a process of Ray there",
                hint=_WITHOUT_THEM,
            )
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


def require_ray_nodes(count: int, entries: Sequence[DirectoryEntry], without_ray: Sequence[DirectoryEntry]) -> None:
    """Refuse a run that counts nodes without Ray among its nodes; pure.

    Args:
        count: how many nodes the run asks for. 0: all that there are.
        entries: all who could take part.
        without_ray: those who could not, because they have no Ray by their own configuration.

    Raises:
        ConfigError: with them there would be enough.
    """
    if len(entries) < count <= len(entries) + len(without_ray):
        names = [entry.hostname for entry in without_ray]
        raise ConfigError(
            f"cluster.num_nodes is {count}, and only {len(entries)} of the nodes have Ray: {_with_no_ray(names)}",
            hint=f"lower cluster.num_nodes, or: {_WITHOUT_THEM}",
        )


def _with_no_ray(names: Sequence[str]) -> str:
    return f"{few(names)} {'has' if len(names) == 1 else 'have'} {NO_RAY_IN_WORDS}"

"""The board: the latest value of each fact of one daemon.

**Usage.** A daemon makes one board with a frozen dataclass of facts. A part claims the facts that it writes, and
declares the facts that it reads as a frozen dataclass of its own, its *inputs*: some of the fields, by name and type.

**Guarantees.** Each fact has one writer: a second claim raises. A reader never sees half a change: a write replaces all
facts at once, derived facts included. A durable fact is on disk before anybody sees it. A reader is woken when one of
its inputs has another *value*; two changes before its next look are one. What must not be merged ("lost and back")
carries an identity or a counter in its value.

**Concurrency.** Everything here runs on the event loop's thread, and nothing awaits. That holds for saving as well: a
durable fact is a small file that changes a few times a day, and a commit that awaits could be cancelled halfway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from edgelink.reconcile import Wakeup

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
Key = TypeVar("Key")
Change = TypeVar("Change")
Facts = TypeVar("Facts", bound="DataclassInstance")
Inputs = TypeVar("Inputs", bound="DataclassInstance")

OWN = "own"  # the field of inputs that holds what only the part itself knows


class WiringError(Exception):
    """The parts of a daemon do not fit together. A defect of EdgeLink, found when the daemon is put together."""


@dataclass(frozen=True)
class Fact(Generic[T]):
    """The typed name of a fact: its writer claims the fact with it.

    Declared where the writer is: ``DEVICE: Final[Fact[Device]] = Fact("device")``. A test compares names and types.
    """

    name: str


@dataclass(frozen=True)
class Table(Generic[Key, T]):
    """Many values that change often, such as a thousand statuses: compared by their revision only.

    ``rows`` is the writer's live mapping. Read it between two awaits and do not keep it.
    """

    rows: Mapping[Key, T] = field(compare=False)
    revision: int = 0


@dataclass(frozen=True)
class Wish:
    """Something that is to be done once, such as a restart. Who serves it knows by the count what it has served.

    Two wishes before that are served together. ``why`` is the reason of the last one.
    """

    count: int = 0
    why: str = ""

    def again(self, why: str) -> Wish:
        """The wish once more."""
        return Wish(self.count + 1, why)


@dataclass(frozen=True)
class Row:
    """One fact: its writer, its readers, and whether it is on disk before it is seen."""

    fact: str
    writer: str
    readers: tuple[str, ...]
    is_durable: bool


@dataclass(frozen=True)
class LastDecision:
    """The last decision of one part. ``count`` says how often the part has decided."""

    part: str
    decision: object
    at_s: float
    count: int


class _Derivation:
    def __init__(self, fact: str, inputs: type[Any], derive: Callable[[Any], object]) -> None:
        self.fact, self.inputs, self.derive = fact, inputs, derive


class Board(Generic[Facts]):
    """Holds the facts, knows who writes and who reads each, and wakes the readers."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._names = {field.name for field in fields(facts)}
        self._writers: dict[str, str] = {}
        self._durable: set[str] = set()
        self._readers: defaultdict[str, dict[str, Wakeup | None]] = defaultdict(dict)
        self._inputs: list[type[Any]] = []
        self._derivations: list[_Derivation] = []
        self._decisions: dict[str, LastDecision] = {}

    @property
    def facts(self) -> Facts:
        """All facts as of this moment. A write makes another value."""
        return self._facts

    def claim(self, fact: Fact[T], owner: str) -> Callable[[T], None]:
        """Return the only function that writes ``fact``. Raises WiringError when the fact has a writer already."""
        self._claim(fact.name, owner)

        def put(value: T) -> None:
            self._put(fact.name, value)

        return put

    def claim_durable(self, fact: Fact[T], owner: str, save: Callable[[Change], T]) -> Callable[[Change], T]:
        """Return the only function that changes ``fact``: it saves the change, then shows and returns what was saved.

        Args:
            save: applies a change to what is on disk and returns what is there then, with fsync. When it raises, nobody
                sees anything of the change.

        Raises:
            WiringError: the fact has a writer already.
        """
        put = self.claim(fact, owner)
        self._durable.add(fact.name)

        def commit(change: Change) -> T:
            value = save(change)
            put(value)
            return value

        return commit

    def derive(self, fact: Fact[T], owner: str, inputs: type[Inputs], derive: Callable[[Inputs], T]) -> None:
        """Have ``fact`` always be ``derive(inputs)``, a pure function. Raises WiringError as :meth:`claim` does.

        A fact that it reads and that is derived as well has to be derived before.
        """
        self._claim(fact.name, owner)
        self._read(inputs, owner, None)
        derivation = _Derivation(fact.name, inputs, derive)
        self._derivations.append(derivation)
        self._put(fact.name, derive(self.select(inputs)))

    def read(self, inputs: type[Inputs], reader: str, wakeup: Wakeup | None) -> None:
        """Wake ``reader`` whenever one of its inputs has another value. Raises WiringError for an unknown fact.

        Without a ``wakeup`` nobody is woken: these facts change all the time, and the reader looks anyway.
        """
        self._read(inputs, reader, wakeup)

    def select(self, inputs: type[Inputs], own: object = None) -> Inputs:
        """The inputs as of this moment. ``own`` fills the field of that name."""
        values = {name: own if name == OWN else getattr(self._facts, name) for name in _names(inputs)}
        return cast("Inputs", cast("Any", inputs)(**values))

    def require_writers(self, absent: Collection[str] = ()) -> None:
        """Refuse facts that somebody reads and nobody writes, but for those that this kind of daemon never has.

        Raises:
            WiringError: names the facts and their readers.
        """
        missing = {name: readers for name, readers in self._readers.items() if name not in {*self._writers, *absent}}
        if missing:
            told = "; ".join(f"{name}, which {', '.join(readers)} reads" for name, readers in missing.items())
            raise WiringError(f"nobody writes {told}")

    def rows(self) -> list[Row]:
        """The reference: each fact that somebody writes or reads, in the order of the facts."""
        return [
            Row(name, self._writers.get(name, ""), tuple(self._readers[name]), name in self._durable)
            for name in (field.name for field in fields(self._facts))
            if name in self._writers or name in self._readers
        ]

    def inputs(self) -> Iterable[type[Any]]:
        """The inputs of everybody who reads."""
        return self._inputs

    def decided(self, part: str, decision: object, at_s: float) -> None:
        """Note the last decision of a part, for who looks at the board."""
        before = self._decisions.get(part)
        self._decisions[part] = LastDecision(part, decision, at_s, 1 if before is None else before.count + 1)

    def decisions(self) -> list[LastDecision]:
        """The last decision of each part, at its moment on the monotonic clock."""
        return list(self._decisions.values())

    def _claim(self, name: str, owner: str) -> None:
        self._require_known([name], owner)
        if name in self._writers:
            raise WiringError(f"{name} is written by {self._writers[name]}; {owner} cannot write it as well")
        self._writers[name] = owner

    def _read(self, inputs: type[Any], reader: str, wakeup: Wakeup | None) -> None:
        self._inputs.append(inputs)
        names = [name for name in _names(inputs) if name != OWN]
        self._require_known(names, reader)
        for name in names:
            self._readers[name][reader] = wakeup

    def _require_known(self, names: Iterable[str], who: str) -> None:
        if unknown := [name for name in names if name not in self._names]:
            raise WiringError(f"{who} knows of facts that do not exist: {', '.join(unknown)}")

    def _put(self, name: str, value: object) -> None:
        before = self._facts
        present = getattr(before, name)
        if present is value or present == value:  # large documents are the very same, as a rule
            return
        change: dict[str, Any] = {name: value}
        self._facts = replace(before, **change)
        changed = [name]
        for derivation in self._derivations:
            if set(changed).isdisjoint(_names(derivation.inputs)):
                continue
            derived = derivation.derive(self.select(derivation.inputs))
            if derived != getattr(self._facts, derivation.fact):
                change = {derivation.fact: derived}
                self._facts = replace(self._facts, **change)
                changed.append(derivation.fact)
        for each in changed:
            for wakeup in self._readers[each].values():
                if wakeup is not None:
                    wakeup.set()


def _names(inputs: type[DataclassInstance]) -> Iterable[str]:
    return inputs.__dataclass_fields__

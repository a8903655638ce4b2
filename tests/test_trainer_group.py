"""Which way the learners' sums go. NCCL needs accelerators, which are pretended here; what it does is its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from telling import Words

from edgelink.training.trainer.learning.group import Group, Meeting, hindrance_to_nccl

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.timeout(240),  # on a loaded machine torch alone takes half a minute to be there
    pytest.mark.torch,
]


NVIDIA, AMD, OLDER, NEWER = 1, 2, 2_021_005, 2_030_007


@pytest.mark.parametrize(
    ("learners", "is_hindered"),
    [
        pytest.param([(7, NVIDIA, NEWER), (8, NVIDIA, NEWER)], False, id="one each"),
        pytest.param([(7, AMD, NEWER), (8, AMD, NEWER)], False, id="AMD's"),
        pytest.param([(8, NVIDIA, NEWER)] * 2, True, id="one for both"),
        pytest.param([(7, NVIDIA, NEWER), (0, 0, 0)], True, id="one has none"),
        pytest.param([(7, NVIDIA, NEWER), (8, NVIDIA, 0)], True, id="without NCCL"),
        pytest.param([(7, NVIDIA, NEWER), (8, NVIDIA, OLDER)], True, id="two versions"),
        pytest.param([(7, NVIDIA, NEWER), (8, AMD, NEWER)], True, id="two makes"),
    ],
)
def test_nccl_asks_for_an_accelerator_each(
    learners: list[tuple[int, int, int]], is_hindered: bool, words: Words
) -> None:
    """It refuses two learners on one, and another version of itself, and cannot sum what lies in memory."""
    assert bool(hindrance_to_nccl(learners)) is is_hindered
    words(hindrance_to_nccl(learners))


class Cards:
    """Accelerators that are pretended, and what goes by NCCL and by gloo."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch
        from torch import distributed

        self.nccl = object()
        self.asked_for: list[tuple[str, timedelta]] = []
        self.went: list[object] = []
        self.has_nccl = True
        self.properties: dict[str, Any] = {"uuid": "GPU-1"}
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _number: SimpleNamespace(**self.properties))
        monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 30, 7))
        monkeypatch.setattr(distributed, "is_nccl_available", lambda: self.has_nccl)
        monkeypatch.setattr(distributed, "new_group", self._new_group)
        self._monkeypatch = monkeypatch

    def _new_group(self, *, backend: str, timeout: timedelta) -> object:
        self.asked_for.append((backend, timeout))
        return self.nccl

    def _all_reduce(self, _tensor: Any, group: object = None) -> None:
        self.went.append(group)

    def group(self, kind: str = "cuda", told_by_others: Sequence[Any] = ()) -> Group:
        """One of a group whose others tell this."""
        import torch
        from torch import distributed

        class Told(Group):
            def gather(self, row: Any) -> list[Any]:
                return [*super().gather(row), *told_by_others]

        meeting = Meeting("127.0.0.1", 1)
        group = Told(torch, 0, 1, meeting.rendezvous, SimpleNamespace(type=kind), meeting)
        self._monkeypatch.setattr(distributed, "all_reduce", self._all_reduce)
        return group


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Cards:
    return Cards(monkeypatch)


@pytest.mark.parametrize(("kind", "asked_for"), [("cuda", [("nccl", timedelta(minutes=30))]), ("cpu", [])])
def test_sums_go_by_nccl_where_there_is_an_accelerator(cards: Cards, kind: str, asked_for: list[Any]) -> None:
    """A group of its own, by which all sums go from then on; gloo's else, and on CPUs nobody misses anything."""
    import torch

    group = cards.group(kind)
    try:
        group.add_up(torch.ones(1))
    finally:
        group.close()
    assert cards.asked_for == asked_for
    assert cards.went == [cards.nccl if asked_for else None]
    assert group.notice == ""


@pytest.mark.parametrize(
    ("has_nccl", "other"),
    [
        pytest.param(True, (5, NVIDIA, 0), id="the other has none"),
        pytest.param(False, (5, NVIDIA, NEWER), id="this one has none"),
        pytest.param(True, (0, 0, 0), id="the other is on a CPU"),
    ],
)
def test_nobody_makes_a_group_by_nccl_that_others_do_not(
    cards: Cards, has_nccl: bool, other: tuple[int, int, int], words: Words
) -> None:
    """Those would be waited for until the time is up, half an hour later. What it costs is said."""
    cards.has_nccl = has_nccl
    group = cards.group(told_by_others=[other])
    group.close()
    assert cards.asked_for == []
    words(group.notice)


def test_two_parts_of_one_card_are_one_to_nccl(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes by the place on the bus: those of MIG have names of their own, and it refuses them."""
    told: list[Any] = []
    gather = Group.gather
    monkeypatch.setattr(Group, "gather", lambda group, row: told.append(tuple(row)) or gather(group, row))
    for uuid, device in (("MIG-1", 0), ("MIG-2", 0), ("GPU-3", 1)):
        cards.properties = {"uuid": uuid, "pci_domain_id": 0, "pci_bus_id": 23, "pci_device_id": device}
        cards.group().close()
    one, same, another = told
    assert one == same != another


@pytest.mark.parametrize(("patience_s", "expected_s"), [(0.0, 1800), (900.0, 1800), (4200.0, 4200)])
def test_learners_wait_for_each_other_as_long_as_an_outage_lasts(
    monkeypatch: pytest.MonkeyPatch, patience_s: float, expected_s: float
) -> None:
    """At their store, by gloo and by NCCL, whose own time is the shortest."""
    import torch
    from torch import distributed

    timeouts = []
    init_process_group = distributed.init_process_group

    def init(*arguments: Any, timeout: timedelta, **named: Any) -> None:
        timeouts.append(timeout)
        init_process_group(*arguments, timeout=timeout, **named)

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _number: SimpleNamespace(uuid="GPU-1"))
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 30, 7))
    monkeypatch.setattr(distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(distributed, "new_group", lambda *, backend, timeout: timeouts.append(timeout))
    monkeypatch.setattr(distributed, "init_process_group", init)
    meeting = Meeting("127.0.0.1", 1, patience_s)
    Group(torch, 0, 1, meeting.rendezvous, SimpleNamespace(type="cuda"), meeting, patience_s).close()
    assert [*timeouts, meeting.store.timeout] == [timedelta(seconds=expected_s)] * 3

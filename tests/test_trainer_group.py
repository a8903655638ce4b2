"""Which way the learners' sums go. NCCL needs accelerators, which are pretended here; what it does is its own."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from edgelink.training.trainer.learning.group import Group, Meeting, each_has_its_own

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.timeout(240),  # on a loaded machine torch alone takes half a minute to be there
    pytest.mark.torch,
]


@pytest.mark.parametrize(
    ("accelerators", "expected"),
    [
        pytest.param([b"a", b"b"], True, id="one each"),
        pytest.param([b"a", b"a"], False, id="one for both"),
        pytest.param([b"a", b"\0"], False, id="one has none"),
        pytest.param([b"\0", b"\0"], False, id="none has one"),
    ],
)
def test_nccl_asks_for_an_accelerator_each(accelerators: list[bytes], expected: bool) -> None:
    """It refuses two learners on one, and cannot sum what lies in memory."""
    assert each_has_its_own(accelerators) is expected


@pytest.mark.parametrize(("kind", "asked_for"), [("cuda", [("nccl", timedelta(minutes=30))]), ("cpu", [])])
def test_sums_go_by_nccl_where_there_is_an_accelerator(
    monkeypatch: pytest.MonkeyPatch, kind: str, asked_for: list[str]
) -> None:
    """A group of its own, by which all sums go from then on; gloo's else."""
    import torch
    from torch import distributed

    made, went = [], []
    nccls = object()

    def new_group(*, backend: str, timeout: timedelta) -> object:
        made.append((backend, timeout))
        return nccls

    def all_reduce(_tensor: Any, group: object = None) -> None:
        went.append(group)

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _number: SimpleNamespace(uuid="GPU-1"))
    monkeypatch.setattr(distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(distributed, "new_group", new_group)
    meeting = Meeting("127.0.0.1", 1)
    group = Group(torch, 0, 1, meeting.rendezvous, SimpleNamespace(type=kind), meeting)
    try:
        monkeypatch.setattr(distributed, "all_reduce", all_reduce)
        group.add_up(torch.ones(1))
    finally:
        group.close()
    assert made == asked_for
    assert went == [nccls if asked_for else None]


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
    monkeypatch.setattr(distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(distributed, "new_group", lambda *, backend, timeout: timeouts.append(timeout))
    monkeypatch.setattr(distributed, "init_process_group", init)
    meeting = Meeting("127.0.0.1", 1, patience_s)
    Group(torch, 0, 1, meeting.rendezvous, SimpleNamespace(type="cuda"), meeting, patience_s).close()
    assert [*timeouts, meeting.store.timeout] == [timedelta(seconds=expected_s)] * 3

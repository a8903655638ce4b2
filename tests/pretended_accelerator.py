"""A device that is not the CPU, for torch on a machine without accelerators.

Its tensors keep their numbers in memory, where only this module gets at them: as on an accelerator, whatever mixes them
with tensors of the CPU fails, and so does reading them without a copy. To torch the device is called ``meta``, the one
besides the CPU that every torch knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

DEVICE = torch.device("meta")
_COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}


class _There(torch.Tensor):
    """A tensor on the pretended device."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor, requires_grad: bool = False) -> Any:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=DEVICE,
            requires_grad=requires_grad,
        )

    def __init__(self, numbers: torch.Tensor, requires_grad: bool = False) -> None:
        self.numbers = numbers

    def tolist(self) -> Any:  # which torch has for its own tensors only
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(func, args, kwargs or {})


def _called(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What ``func`` gives, computed by the CPU and on the device on which it belongs."""
    tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
    there = [each for each in tensors if isinstance(each, _There)]
    wanted = kwargs.get("device")
    if not there and wanted != DEVICE:
        return func(*args, **kwargs)
    here = [each for each in tensors if not isinstance(each, _There) and each.dim()]
    if there and here and func not in _COPIES:
        raise RuntimeError(
            f"{func}: expected all tensors to be on one device, but some are on {DEVICE}, some on the CPU"
        )
    known = {id(each.numbers): each for each in there}
    if wanted == DEVICE:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    args, kwargs = tree_map_only(_There, lambda each: each.numbers, (args, kwargs))
    found = func(*args, **kwargs)
    if func in _COPIES and (wanted is not None and wanted != DEVICE):
        return found.clone() if there and any(found is each.numbers for each in there) else found
    if func is torch.ops.aten.copy_.default and not isinstance(tensors[0], _There):
        return found
    return tree_map_only(torch.Tensor, lambda each: known[id(each)] if id(each) in known else _There(each), found)


class _Device(TorchDispatchMode):
    """Makes tensors there for whoever names the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(func, args, kwargs or {})


@contextmanager
def pretended() -> Iterator[torch.device]:
    with _Device():
        yield DEVICE

"""Steps of the optimiser, one a minibatch.

On an accelerator they are recorded: the networks are small, so that telling it what to do takes longer than the doing,
and a recording is told as a whole.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

from edgelink.training.trainer.learning.networks import Networks
from edgelink.training.trainer.learning.objective import FIGURES, Objective
from edgelink.training.trainer.learning.settings import Settings

_ADAM_EPSILON = 1e-5
_SIZES = 16  # of minibatches whose recordings are kept; one update has two, and updates are mostly alike

Act = Callable[[], None]


class Steps:
    """Steps of Adam.

    Attributes:
        figures: what ``Objective.loss`` adds up, on the learner's device; whoever reads them sets them to zero before.
    """

    def __init__(self, torch: Any, networks: Networks, objective: Objective, settings: Settings) -> None:
        self._torch = torch
        self._networks = networks
        self._objective = objective
        self._settings = settings
        self._flat = networks.flat
        self._share = torch.ones((), device=self._flat.device)
        self.figures = torch.zeros(FIGURES, device=self._flat.device)
        self._adam = self._optimiser()

    def _optimiser(self) -> Any:
        rate = self._settings.learning_rate
        return self._torch.optim.Adam([self._flat], lr=rate, eps=_ADAM_EPSILON, fused=True)

    def set_rate(self, rate: float) -> None:
        """Of learning, from the next step on."""
        for group in self._adam.param_groups:
            group["lr"] = rate

    def set_share(self, samples: float) -> None:
        """How many samples one step has from now on, all learners together."""
        self._share.fill_(samples)

    def take(self, part: Any, images: Any, add_up: Callable[[Any], None], *, is_watched: bool) -> None:
        """One step.

        Args:
            part: rows of ``Batch.table``.
            images: the observations, where they are not in ``part``.
            add_up: replaces a tensor by its sum over all learners.
            is_watched: whether ``figures`` are of interest.
        """
        self._derive(part, images, is_watched=is_watched)
        add_up(self._flat.grad)
        self._move()

    def _derive(self, part: Any, images: Any, *, is_watched: bool) -> None:
        self._flat.grad = None
        self._loss(part, images, is_watched=is_watched).backward()

    def _loss(self, part: Any, images: Any, *, is_watched: bool) -> Any:
        return self._objective.loss(self._networks, part, images, self.figures if is_watched else None) / self._share

    def _move(self) -> None:
        if bool(self._cut().isfinite()):  # else nothing can be learned of this step; Adam would never forget it
            self._follow()

    def _cut(self) -> Any:
        """Make the gradient as small as it has to be; its norm before."""
        return self._torch.nn.utils.clip_grad_norm_([self._flat], self._settings.max_gradient)

    def _follow(self) -> None:
        self._adam.step()
        self._networks.keep_wide(self._settings.least_log_std)

    def state(self) -> dict[str, Any]:
        """What Adam remembers, as arrays."""
        found = self._adam.state_dict()["state"].get(0, {})
        return {key: tensor.cpu().numpy().copy() for key, tensor in found.items()}

    def load_state(self, arrays: dict[str, Any]) -> None:
        """Go on from what ``state`` gave."""
        moments = {key: self._torch.from_numpy(array) for key, array in arrays.items()}
        groups = self._adam.state_dict()["param_groups"]
        self._adam.load_state_dict({"state": {0: moments} if moments else {}, "param_groups": groups})


class RecordedSteps(Steps):
    """The same, told to the device as recordings of what is done in between the learners' exchanges.

    Args:
        record: of something that is done over and over in the same memory; returns what does it again.
    """

    def __init__(
        self,
        torch: Any,
        networks: Networks,
        objective: Objective,
        settings: Settings,
        record: Callable[[Act], Act],
    ) -> None:
        super().__init__(torch, networks, objective, settings)
        self._record = record
        self._flat.grad = torch.zeros_like(self._flat)  # the recordings' own
        self._derivations: OrderedDict[tuple[int, bool], tuple[Any, Any, Recording]] = OrderedDict()
        self._movement = Recording(self._move_there, record)

    def _optimiser(self) -> Any:
        device = self._flat.device
        rate = self._torch.tensor(self._settings.learning_rate, device=device)  # a number would be recorded, too
        is_recorded = device.type == "cuda"
        return self._torch.optim.Adam([self._flat], lr=rate, eps=_ADAM_EPSILON, fused=True, capturable=is_recorded)

    def set_rate(self, rate: float) -> None:
        for group in self._adam.param_groups:
            group["lr"].fill_(rate)

    def _derive(self, part: Any, images: Any, *, is_watched: bool) -> None:
        if not len(part):  # of a learner that has no share: there is nothing to tell the device
            self._derive_there(part, images, is_watched=is_watched)
            return
        key = len(part), is_watched
        if key not in self._derivations:
            inputs = self._torch.empty_like(part), None if images is None else self._torch.empty_like(images)
            again = Recording(partial(self._derive_there, *inputs, is_watched=is_watched), self._record)
            self._derivations[key] = *inputs, again
            if len(self._derivations) > _SIZES:
                self._derivations.popitem(last=False)
        own_part, own_images, again = self._derivations[key]
        self._derivations.move_to_end(key)
        own_part.copy_(part)
        if images is not None:
            own_images.copy_(images)
        again()

    def _derive_there(self, part: Any, images: Any, *, is_watched: bool) -> None:
        (gradient,) = self._torch.autograd.grad(self._loss(part, images, is_watched=is_watched), [self._flat])
        self._flat.grad.copy_(gradient)

    def _move(self) -> None:
        self._movement()

    def _move_there(self) -> None:
        """Nothing waits for the device: as torch's scaling of gradients does, Adam is told there what to leave out."""
        self._adam.found_inf = self._cut().isfinite().logical_not_().float()
        self._follow()

    def load_state(self, arrays: dict[str, Any]) -> None:
        super().load_state(arrays)
        self._movement = Recording(self._move_there, self._record)  # Adam's memory is elsewhere now


class Recording:
    """Something that is done over and over: at first as it is, which makes all that it needs; from then on recorded."""

    def __init__(self, act: Act, record: Callable[[Act], Act]) -> None:
        self._act = act
        self._record = record
        self._again: Act | None = None
        self._was_done = False

    def __call__(self) -> None:
        if self._again is None and self._was_done:
            self._again = self._record(self._act)
        (self._again or self._act)()
        self._was_done = True


def recorder(torch: Any) -> Callable[[Act], Act]:
    """Records for an accelerator, as one of CUDA's graphs."""
    pool = torch.cuda.graph_pool_handle()  # one for all: none leaves anything in it that another one reads

    def record(act: Act) -> Act:
        graph = torch.cuda.CUDAGraph()
        # What other threads do with the device meanwhile, such as NCCL's watchdog, is no part of it.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            act()
        again: Act = graph.replay
        return again

    return record

"""The networks in torch, over one flat vector of parameters: one step of the optimiser and one exchange, not twenty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from edgelink.training.trainer.experience.fragment import Floats
from edgelink.training.trainer.learning.policy import LOG_STD, convolutions
from edgelink.training.trainer.learning.spaces import Spaces

VALUE = "value/"
_FLAT_WIDTHS = {2: 128, 3: 512}  # of the layer after the convolutions, by their number
_ROOT_TWO = 2.0**0.5


class Networks:
    """Policy and value networks. They share the convolutions where there are pixels, else nothing."""

    def __init__(
        self, torch: Any, spaces: Spaces, hidden: tuple[int, ...], seed: int, device: Any, log_std: float = 0.0
    ) -> None:
        """``log_std``: of a continuous policy, at first."""
        self._torch = torch
        self._spaces = spaces
        self._layers = 0 if spaces.is_pixels else len(hidden)
        self._strides = [layer.stride for layer in convolutions(spaces)] if spaces.is_pixels else []
        self.shapes = _shapes(spaces, hidden)
        self._sizes = [math.prod(shape) for shape in self.shapes.values()]
        flat = torch.zeros(sum(self._sizes))
        generator = torch.Generator().manual_seed(seed)
        for name, view in self._views(flat).items():
            if name.endswith("/weight"):
                gain = 0.01 if name == "policy/head/weight" else 1.0 if name == "value/head/weight" else _ROOT_TWO
                torch.nn.init.orthogonal_(view, gain=gain, generator=generator)  # nearly uniform policy at first
            elif name == LOG_STD:
                view.fill_(log_std)
        self.flat = torch.nn.Parameter(flat.to(device))

    def _views(self, flat: Any) -> dict[str, Any]:
        parts = flat.split(self._sizes)
        return {name: part.view(shape) for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)}

    def forward(self, observations: Any) -> tuple[Any, Any, Any]:
        """Outputs of the policy, values, and the logarithm of the deviations (None for discrete actions)."""
        linear, tanh = self._torch.nn.functional.linear, self._torch.tanh
        views = self._views(self.flat)
        policy = value = self._features(views, observations) if self._strides else observations
        for index in range(self._layers):
            policy = tanh(linear(policy, views[f"policy/layer{index}/weight"], views[f"policy/layer{index}/bias"]))
            value = tanh(linear(value, views[f"value/layer{index}/weight"], views[f"value/layer{index}/bias"]))
        scores = linear(policy, views["policy/head/weight"], views["policy/head/bias"])
        values = linear(value, views["value/head/weight"], views["value/head/bias"]).squeeze(1)
        return scores, values, views.get(LOG_STD)

    def log_std(self) -> Any:
        """As ``forward`` gives it."""
        return self._views(self.flat.detach()).get(LOG_STD)

    def keep_wide(self, least_log_std: float) -> None:
        """No narrower than so may the policy become: for experience a few versions old would say nothing then."""
        if (log_std := self.log_std()) is not None:
            log_std.clamp_(min=least_log_std)

    def _features(self, views: Mapping[str, Any], images: Any) -> Any:
        functional = self._torch.nn.functional
        hidden = images.permute(0, 3, 1, 2).float().mul(1 / 255)  # channels last in memory, as they came
        for index, stride in enumerate(self._strides):
            weight, bias = views[f"features/conv{index}/weight"], views[f"features/conv{index}/bias"]
            hidden = functional.relu(functional.conv2d(hidden, weight, bias, stride))
        flat = hidden.permute(0, 2, 3, 1).flatten(1)  # the order that inference has
        return functional.relu(functional.linear(flat, views["features/flat/weight"], views["features/flat/bias"]))

    def arrays(self) -> dict[str, Floats]:
        """Copies of everything, by name."""
        flat = self.flat.detach().cpu().clone()
        return {name: view.numpy() for name, view in self._views(flat).items()}

    def load(self, arrays: Mapping[str, Any]) -> None:
        ordered = [np.asarray(arrays[name], np.float32).reshape(-1) for name in self.shapes]
        with self._torch.no_grad():
            self.flat.copy_(self._torch.from_numpy(np.concatenate(ordered)))


def gradient_bytes(spaces: Spaces, hidden: tuple[int, ...]) -> int:
    """Of all parameters, as learners exchange them."""
    return np.dtype(np.float32).itemsize * sum(map(math.prod, _shapes(spaces, hidden).values()))


def _shapes(spaces: Spaces, hidden: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    if spaces.is_pixels:
        height, width, channels = spaces.observation_shape
        layers = convolutions(spaces)
        for index, layer in enumerate(layers):
            shapes[f"features/conv{index}/weight"] = (layer.channels, channels, layer.kernel, layer.kernel)
            shapes[f"features/conv{index}/bias"] = (layer.channels,)
            height, width = ((size - layer.kernel) // layer.stride + 1 for size in (height, width))
            channels = layer.channels
        features = _FLAT_WIDTHS[len(layers)]
        shapes["features/flat/weight"], shapes["features/flat/bias"] = (
            (features, height * width * channels),
            (features,),
        )
        hidden = ()
    else:
        features = spaces.features
    for net, outputs in (("policy", spaces.outputs), ("value", 1)):
        inputs = features
        for index, size in enumerate(hidden):
            shapes[f"{net}/layer{index}/weight"], shapes[f"{net}/layer{index}/bias"] = (size, inputs), (size,)
            inputs = size
        shapes[f"{net}/head/weight"], shapes[f"{net}/head/bias"] = (outputs, inputs), (outputs,)
    if not spaces.is_discrete:
        shapes[LOG_STD] = (spaces.outputs,)
    return shapes

"""The saved state: fp32 weights of a transformer, and Adam's two moments of each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

NOISE_ELEMENTS: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a transformer."""

    layers: int
    width: int
    vocabulary: int

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all weights by name: twelve for each layer, and four others."""
        d = self.width
        layer = {
            "norm_1.weight": (d,),
            "norm_1.bias": (d,),
            "attention.in.weight": (3 * d, d),
            "attention.in.bias": (3 * d,),
            "attention.out.weight": (d, d),
            "attention.out.bias": (d,),
            "norm_2.weight": (d,),
            "norm_2.bias": (d,),
            "up.weight": (4 * d, d),
            "up.bias": (4 * d,),
            "down.weight": (d, 4 * d),
            "down.bias": (d,),
        }
        return {
            "tokens.weight": (self.vocabulary, d),
            "positions.weight": (1024, d),
            **{f"layers.{i}.{name}": s for i in range(self.layers) for name, s in layer.items()},
            "norm.weight": (d,),
            "norm.bias": (d,),
        }


SHAPES: Final = {
    "tiny": Shape(layers=2, width=128, vocabulary=512),
    "0.5": Shape(layers=16, width=448, vocabulary=8192),
    "2": Shape(layers=32, width=640, vocabulary=16384),
}
"""By size in gigabytes; the first is for experiments."""


class Weights:
    """A model as seen by a checkpoint: restores values by copying, like `nn.Module`."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def state_dict(self) -> dict[str, Tensor]:
        """The live tensors."""
        return self.tensors

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copy restored values."""
        for name, tensor in self.tensors.items():
            tensor.copy_(state[name])


class Moments:
    """An optimizer as seen by a checkpoint: restores tensors by reference, like `Optimizer`."""

    def __init__(self, state: dict[int, dict[str, Tensor]]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        """The live tensors by parameter number."""
        return {"state": self.state, "param_groups": [{"lr": 1e-3, "params": [*self.state]}]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Use restored tensors."""
        places = {number: moments["exp_avg"].device for number, moments in self.state.items()}
        self.state = {
            number: {name: tensor.to(places[number]) for name, tensor in moments.items()}
            for number, moments in state["state"].items()
        }


class State:
    """The whole saved state."""

    def __init__(self, shape: Shape, device: str = "cpu") -> None:
        shapes = shape.parameters()
        noise = torch.randn(NOISE_ELEMENTS)

        def random_tensor(size: tuple[int, ...], seed: int) -> Tensor:
            count = math.prod(size)
            begin = seed * 7919 % max(1, len(noise) - count)
            return noise[begin : begin + count].reshape(size).clone().to(device)

        self.weights = Weights(
            {name: random_tensor(size, i) for i, (name, size) in enumerate(shapes.items())}
        )
        self.moments = Moments(
            {
                i: {
                    "exp_avg": random_tensor(size, 3 * i + 1),
                    "exp_avg_sq": random_tensor(size, 3 * i + 2),
                }
                for i, size in enumerate(shapes.values())
            }
        )

    def tensors(self) -> Iterator[Tensor]:
        """All tensors."""
        yield from self.weights.tensors.values()
        for pair in self.moments.state.values():
            yield from pair.values()

    def objects(self) -> dict[str, Any]:
        """The objects of a training script by name."""
        return {"model": self.weights, "optimizer": self.moments}

    def tree(self) -> dict[str, Any]:
        """The tree that `torch.save` and DCP save."""
        return {name: item.state_dict() for name, item in self.objects().items()}

    def load(self, tree: dict[str, Any]) -> None:
        """Load a restored tree."""
        for name, item in self.objects().items():
            item.load_state_dict(tree[name])

    @property
    def size_bytes(self) -> int:
        """Size of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors())

    def print(self) -> tuple[int, ...]:
        """A fingerprint of the state: a sum of the bits of each tensor."""
        return tuple(int(t.view(torch.int32).sum(dtype=torch.int64)) for t in self.tensors())

    def wipe(self) -> None:
        """Overwrite all values."""
        for tensor in self.tensors():
            tensor.zero_()

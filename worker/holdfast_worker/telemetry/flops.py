"""Model FLOPs utilization (MFU): operations of a model against the peak of its GPU.

A trained parameter costs 6 operations per token: 2 in the forward pass, 2 for the gradient of its input and 2 for its own gradient. A frozen one
costs 4. (Kaplan et al., Scaling Laws for Neural Language Models, 2020, section 2.1; Chowdhery et al., PaLM, 2022, appendix B.) As there,
embeddings that are only looked up do not count, and recomputed activations neither. Attention between tokens is left out,
which makes the value low for long sequences. For a mixture of experts it is too high, as not all parameters compute on each token.
"""

from __future__ import annotations

import re
from typing import Final

import torch
from torch import nn

TRAINED_FLOPS: Final = 6
FROZEN_FLOPS: Final = 4

PEAK_TFLOPS: Final[tuple[tuple[tuple[str, ...], float], ...]] = (
    (("B200",), 2250.0),
    (("GH200",), 989.4),
    (("H200", "NVL"), 835.5),
    (("H200",), 989.4),
    (("H100", "PCIE"), 756.0),
    (("H100", "NVL"), 835.5),
    (("H100",), 989.4),
    (("A100",), 312.0),
    (("L40S",), 362.0),
    (("L4",), 121.0),
    (("A10G",), 70.0),
    (("A10",), 125.0),
    (("V100", "PCIE"), 112.0),
    (("V100",), 125.0),
    (("T4",), 65.0),
)
"""Words of a device's name, and the peak of its tensor cores without sparsity, from NVIDIA's data sheets.

It is that of bfloat16, and of float16 on V100 and T4, which have no bfloat16. Parameters in float32 are usually computed in these types under
autocast; a run that computes in float32 or TF32 has a lower value, as much of the device is unused.
"""


def peak_flops(device_name: str) -> float | None:
    """Peak operations per second of a device; None if unknown, or for a part of one (MIG)."""
    words = set(re.split(r"[^A-Z0-9]+", device_name.upper()))
    if "MIG" in words:
        return None
    found = (tflops for name, tflops in PEAK_TFLOPS if words.issuperset(name))
    peak = next(found, None)
    return None if peak is None else peak * 1e12


def flops_per_token(model: nn.Module) -> float:
    """Operations of a training step per token."""
    parameters = {
        id(parameter): parameter
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    return float(
        sum(
            each.numel() * (TRAINED_FLOPS if each.requires_grad else FROZEN_FLOPS)
            for each in parameters.values()
        )
    )


class ModelFlops:
    """The utilization of a run's GPUs by one model; unknown for several models, and on CPUs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._models: list[nn.Module] = []
        self._ratio: float | None = None
        """Seconds of the device's peak per token; 0 if unknown, None before it is computed."""

    def watch(self, model: nn.Module) -> None:
        """Count the operations of this model."""
        if all(model is not each for each in self._models):
            self._models.append(model)
            self._ratio = None

    @property
    def has_model(self) -> bool:
        """Whether there is a model."""
        return bool(self._models)

    def utilization(self, tokens_per_s: float) -> float | None:
        """The share of a device's peak, at this rate of one device; None if unknown."""
        if self._ratio is None:
            self._ratio = self._seconds_per_token()
        return tokens_per_s * self._ratio if self._ratio else None

    def _seconds_per_token(self) -> float:
        if self._device.type != "cuda" or len(self._models) != 1:
            return 0.0
        peak = peak_flops(torch.cuda.get_device_name(self._device))
        return flops_per_token(self._models[0]) / peak if peak else 0.0

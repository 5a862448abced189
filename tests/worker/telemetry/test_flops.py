"""Model FLOPs utilization, from parameters, tokens and the peak of a device."""

from __future__ import annotations

import pytest
import torch
from holdfast_worker.telemetry.flops import ModelFlops, flops_per_token, peak_flops
from torch import nn


class Tied(nn.Module):
    """A model whose output layer uses the weights of its embedding."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 8)
        self.output = nn.Linear(8, 100, bias=False)
        if tied:
            self.output.weight = self.embedding.weight


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.4),
        ("NVIDIA A100-SXM4-40GB", 312.0),
        ("NVIDIA A10G", 70.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA L40S", 362.0),
        ("Tesla T4", 65.0),
        ("Tesla V100-SXM2-16GB", 125.0),
    ],
)
def test_peak_follows_from_the_name_of_a_device(name: str, tflops: float) -> None:
    assert peak_flops(name) == tflops * 1e12


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "Radeon VII", ""])
def test_peak_of_other_devices_is_unknown(name: str) -> None:
    assert peak_flops(name) is None


def test_parameters_cost_six_operations_per_token() -> None:
    layer = nn.Linear(8, 100, bias=False)

    assert flops_per_token(layer) == 6 * 800
    assert flops_per_token(layer.requires_grad_(requires_grad=False)) == 4 * 800


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_count_only_where_they_are_multiplied(*, tied: bool) -> None:
    assert flops_per_token(Tied(tied=tied)) == 6 * 800


def test_utilization_is_the_share_of_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100-SXM4-80GB")
    model_flops = ModelFlops(torch.device("cuda", 0))
    unknown = model_flops.utilization(1000)
    model_flops.watch(nn.Linear(1000, 1000, bias=False))

    assert unknown is None
    assert model_flops.utilization(26e6) == pytest.approx(26e6 * 6e6 / 312e12)


def test_several_models_and_cpus_have_no_utilization(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100-SXM4-80GB")
    several, cpu = ModelFlops(torch.device("cuda", 0)), ModelFlops(torch.device("cpu"))
    for _ in range(2):
        several.watch(nn.Linear(2, 2))
    cpu.watch(nn.Linear(2, 2))

    assert several.utilization(1000) is None
    assert cpu.utilization(1000) is None

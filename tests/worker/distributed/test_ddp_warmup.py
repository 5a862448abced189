"""The warm-up of DDP's first backward pass changes only the summation order of gradients.

`fault_injection/test_crash_points.py` checks with four real ranks that resumed weights equal those of an undisturbed run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from holdfast_worker import rng
from holdfast_worker.checkpoint.checksums import state_dict_digest
from holdfast_worker.distributed.ddp_warmup import run_warmup_pass, warmup_obstacle
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture(scope="module", autouse=True)
def _group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model() -> nn.Sequential:
    frozen = nn.Linear(3, 3)
    frozen.requires_grad_(False)
    return nn.Sequential(nn.BatchNorm1d(3), frozen, nn.Dropout(0.5), nn.Linear(3, 1))


def test_warmup_changes_no_weights_gradients_or_generators() -> None:
    ddp = DistributedDataParallel(model())
    ddp(torch.randn(4, 3)).sum().backward()
    inner, before = ddp.module, state_dict_digest(ddp.state_dict())
    gradients = [p.grad.clone() for p in ddp.parameters() if p.grad is not None]
    generators = state_dict_digest({"torch": rng.capture()["torch"]})

    run_warmup_pass(ddp)

    assert ddp.module is inner
    assert state_dict_digest(ddp.state_dict()) == before
    assert state_dict_digest({"torch": rng.capture()["torch"]}) == generators
    found = [p.grad for p in ddp.parameters() if p.grad is not None]
    assert [g.tolist() for g in found] == [g.tolist() for g in gradients]
    assert ddp.require_forward_param_sync


def test_warmup_supports_non_finite_weights() -> None:
    ddp = DistributedDataParallel(nn.Linear(2, 2))
    nn.init.constant_(ddp.module.weight, float("nan"))

    run_warmup_pass(ddp)

    assert all(p.grad is None for p in ddp.parameters())


def takes_each_gradient(ddp: DistributedDataParallel) -> None:
    ddp.module[3].weight.register_post_accumulate_grad_hook(lambda _: None)


def looks_at_each_gradient(ddp: DistributedDataParallel) -> None:
    ddp.module[3].weight.register_hook(lambda _: None)


def compresses(ddp: DistributedDataParallel) -> None:
    ddp.register_comm_hook(None, allreduce_hook)


def is_static(ddp: DistributedDataParallel) -> None:
    ddp._set_static_graph()


def is_sparse(ddp: DistributedDataParallel) -> None:
    ddp.module.append(nn.Embedding(2, 2, sparse=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (takes_each_gradient, "parameters have hooks"),
        (looks_at_each_gradient, "parameters have hooks"),
        (compresses, "communication hook"),
        (is_static, "static_graph=True"),
        (is_sparse, "sparse"),
    ],
)
def test_incompatible_ddp_features_prevent_the_warmup(
    change: Callable[[DistributedDataParallel], None], message: str
) -> None:
    ddp = DistributedDataParallel(model())
    assert warmup_obstacle(ddp) == ""

    change(ddp)

    assert message in warmup_obstacle(ddp)

"""A process group outlives the loss of ranks only with a backend whose collectives can be repeated."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from holdfast_worker.distributed import process_group
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.topology.identity import RankIdentity, RankSource
from worker.support.run_driver import free_port


@pytest.fixture(autouse=True)
def default_group() -> Iterator[None]:
    """Destroy the default group after each test."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def joined(device: str, monkeypatch: pytest.MonkeyPatch) -> ProcessGroup:
    """Join a gloo group of one rank on a device that this machine need not have."""
    monkeypatch.setattr(process_group, "device_for", lambda *_given: torch.device(device))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    address = f"tcp://127.0.0.1:{free_port()}"
    identity = RankIdentity(0, 0, 1, RankSource.TORCHRUN, address, backend="gloo")
    return ProcessGroup.join(identity, is_recoverable=True, timeout=timedelta(seconds=60))


@pytest.mark.parametrize(("device", "is_recoverable"), [("cpu", True), ("cuda", False)])
def test_gloo_group_is_recoverable_only_on_cpus(
    device: str, is_recoverable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = joined(device, monkeypatch)

    assert (ranks.recoverable is not None) is is_recoverable
    assert ranks.all_reduce_max([3.0]) == [3.0]

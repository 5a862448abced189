"""NCCL groups tell complete collectives from aborted ones, and end; with a fake of NCCL, as there is no GPU here.

`bench/gpu` has the same with GPUs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from holdfast_worker.distributed import connected_group
from holdfast_worker.distributed.connected_group import ConnectedGroup
from holdfast_worker.distributed.nccl_group import ERRORS_ARE_IGNORED, NcclGroup
from holdfast_worker.distributed.recovery_plan import NotRecoverable
from holdfast_worker.recovery import recovery
from torch._C._distributed_c10d import HashStore, PrefixStore

DEVICE = torch.device("cuda", 0)
TIMEOUT = timedelta(seconds=20)


class FakeNccl:
    """Collectives that end with `finish` or with `abort`, both in the same way for the GPU."""

    class Options:
        """Options of a group."""

    def __init__(self, *_given: Any) -> None:
        self.variables = {name: os.environ.get(name) for name in ERRORS_ARE_IGNORED}
        self.ends = threading.Event()
        self.connects = threading.Event()
        self.connects.set()
        self.is_aborted = False

    def eager_connect_single_device(self, _device: torch.device) -> None:
        self.connects.wait(30)

    def abort(self) -> None:
        self.is_aborted = True
        self.ends.set()


class FakeEvent:
    """An event on the stream, reached when the collective before it has ended."""

    def __init__(self, *, blocking: bool) -> None:
        assert blocking, "the thread would keep a core busy"

    def record(self) -> None:
        """Follow the work that the stream waits for."""

    def synchronize(self) -> None:
        FakeWork.newest.ends.wait(30)


class FakeWork:
    """The work of a collective."""

    newest: FakeNccl

    def __init__(self, nccl: FakeNccl, error: str = "") -> None:
        self._nccl, self._error = nccl, error

    def wait(self) -> None:
        FakeWork.newest = self._nccl
        if self._error:
            raise RuntimeError(self._error)


@contextmanager
def _nothing(*_given: Any) -> Iterator[None]:
    yield


@pytest.fixture
def _nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "ProcessGroupNCCL", FakeNccl, raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    for name in ("stream", "device"):
        monkeypatch.setattr(torch.cuda, name, _nothing)


def opened() -> NcclGroup:
    return NcclGroup(PrefixStore("nccl", HashStore()), 0, 2, TIMEOUT, DEVICE)


def watched(group: NcclGroup, error: str = "") -> SimpleQueue[bool]:
    ended: SimpleQueue[bool] = SimpleQueue()
    group.watch(FakeWork(group.collectives, error), ended.put)
    return ended


@pytest.mark.usefixtures("_nccl")
def test_finished_collective_is_complete() -> None:
    group = opened()
    ended = watched(group)
    assert ended.empty()

    group.collectives.ends.set()

    assert ended.get(timeout=30)
    group.close()


@pytest.mark.usefixtures("_nccl")
def test_aborted_collective_is_not_complete() -> None:
    group = opened()
    ended = watched(group)

    group.abort()

    assert not ended.get(timeout=30)


@pytest.mark.usefixtures("_nccl")
def test_collective_with_an_error_is_not_complete() -> None:
    group = opened()

    assert not watched(group, "remote process exited").get(timeout=30)

    group.close()


@pytest.mark.usefixtures("_nccl")
def test_closed_group_is_aborted_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    group = opened()
    assert set(threading.enumerate()) > before

    group.close()
    group.abort()

    assert group.collectives.is_aborted
    assert set(threading.enumerate()) <= before


@pytest.mark.usefixtures("_nccl")
def test_errors_of_this_group_alone_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    monkeypatch.setenv(name, "3")

    group = opened()

    assert group.collectives.variables == ERRORS_ARE_IGNORED
    assert os.environ[name] == "3"
    group.close()


@pytest.mark.usefixtures("_nccl")
def test_rank_missing_while_gpus_connect_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(FakeNccl, "eager_connect_single_device", lambda *_: released.wait(30))

    with pytest.raises(RuntimeError, match="NCCL has not connected all GPUs"):
        NcclGroup(PrefixStore("n", HashStore()), 0, 2, timedelta(seconds=0.05), DEVICE)

    released.set()


@pytest.mark.usefixtures("_nccl")
def test_error_while_gpus_connect_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_given: object) -> None:
        raise RuntimeError("no route")

    monkeypatch.setattr(FakeNccl, "eager_connect_single_device", fail)

    with pytest.raises(RuntimeError, match="no route"):
        opened()


def test_tensors_on_a_gpu_use_nccl_and_others_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = SimpleNamespace(collectives="nccl", watch=lambda _work, on_end: on_end(True))
    monkeypatch.setattr(connected_group, "NcclGroup", lambda *_given: nccl)
    group = ConnectedGroup(PrefixStore("1", HashStore()), 0, 1, TIMEOUT)
    group.connect_gpu(DEVICE)
    used: list[Any] = []
    on_gpu: Any = SimpleNamespace(is_cuda=True)
    ended = threading.Event()

    begun = group.begin(used.append, [on_gpu], lambda _: None)
    tensor = torch.ones(1)
    group.begin(
        lambda to: (used.append(type(to).__name__), to.allreduce([tensor]))[1],
        [tensor],
        lambda is_complete: ended.set() if is_complete else None,
    )

    assert used == ["nccl", "ProcessGroupGloo"]
    assert begun.has_ended
    assert ended.wait(30)


def test_gpu_that_waits_for_a_lost_rank_is_an_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: released.wait(30))
    monkeypatch.setattr(recovery, "CLOSE_TIMEOUT_S", 0.05)

    with pytest.raises(NotRecoverable, match="the GPU waits for a collective of the script"):
        recovery._wait_for_gpu(DEVICE)

    released.set()
    recovery._wait_for_gpu(DEVICE)

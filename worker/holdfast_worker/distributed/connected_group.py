"""The groups in which connected ranks communicate.

They use gloo for tensors on the CPU, and NCCL for those on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor
from torch._C._distributed_c10d import BarrierOptions, PrefixStore
from torch.futures import Future

from holdfast_worker.distributed.gloo_group import GlooGroup
from holdfast_worker.distributed.nccl_group import NcclGroup

Issue = Callable[[Any], Any]
"""Begins a collective in a process group of torch, and returns its work."""

TAG: Final = 0


@dataclass(slots=True)
class BegunCollective:
    """A collective in a connected group."""

    is_on_gpu: bool = False
    has_ended: bool = False
    """Whether it changes no tensors any more."""
    is_abandoned: bool = False
    """Whether nothing waits for its end."""


class ConnectedGroup:
    """The gloo group of all ranks and, once one is needed, their NCCL group."""

    def __init__(self, store: PrefixStore, rank: int, size: int, timeout: timedelta) -> None:
        """Connect to all other ranks.

        Raises:
            RuntimeError: a rank is missing after `timeout`.
        """
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._gloo = GlooGroup(PrefixStore("gloo", store), rank, size, timeout)
        self._nccl: NcclGroup | None = None

    def connect_gpu(self, device: torch.device) -> None:
        """Connect this rank's GPU to those of all other ranks.

        Raises:
            RuntimeError: a rank is missing.
        """
        store = PrefixStore("nccl", self._store)
        self._nccl = NcclGroup(store, self._rank, self._size, self._timeout, device)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later collectives on the CPU."""
        self._gloo.collectives._set_default_timeout(timeout)  # noqa: SLF001 - torch has no other name for it

    def begin(
        self, issue: Issue, tensors: Sequence[Tensor], on_end: Callable[[bool], None]
    ) -> BegunCollective:
        """Begin a collective of these tensors.

        `on_end` is called with whether it is complete, in any thread, also before this returns.

        Raises:
            RuntimeError: it cannot begin; `on_end` is not called.
        """
        begun = BegunCollective(is_on_gpu=any(tensor.is_cuda for tensor in tensors))

        # Without the group itself: gloo calls it in its thread, which must not drop the last reference to it.
        def end(is_complete: bool) -> None:
            begun.has_ended = True
            if not begun.is_abandoned:
                on_end(is_complete)

        if self._nccl and begun.is_on_gpu:
            self._nccl.watch(issue(self._nccl.collectives), end)
        else:
            work = issue(self._gloo.collectives)
            work.get_future().add_done_callback(lambda done: end(_is_complete(done)))
        return begun

    def barrier(self) -> None:
        """Wait for all ranks.

        Raises:
            RuntimeError: a rank is lost.
        """
        self._gloo.collectives.barrier(BarrierOptions()).wait()

    def send(self, tensors: Sequence[Tensor], rank: int) -> None:
        """Send tensors to a rank, through the memory of this host.

        Raises:
            RuntimeError: the rank is lost.
        """
        for tensor in tensors:
            if tensor.numel():
                self._gloo.collectives.send([tensor.detach().contiguous().cpu()], rank, TAG).wait()

    def receive(self, tensors: Sequence[Tensor], rank: int) -> None:
        """Fill CPU tensors with those that a rank sends.

        Raises:
            RuntimeError: the rank is lost.
        """
        for tensor in tensors:
            if tensor.numel():
                self._gloo.collectives.recv([tensor], rank, TAG).wait()

    def end(self) -> None:
        """End the connections to all other ranks: collectives in progress fail."""
        if self._nccl:
            self._nccl.abort()
        self._gloo.end_connections()

    def abandon_stopped(self, running: Sequence[BegunCollective]) -> bool:
        """Whether collectives that gloo does not end change no tensors any more.

        Then the group is never destroyed.
        """
        has_stopped = self._gloo.has_stopped() and not any(each.is_on_gpu for each in running)
        if has_stopped:
            for each in running:
                each.is_abandoned = True
            self._gloo.abandon()
        return has_stopped

    def disconnect_gpu(self) -> None:
        """Leave the NCCL group, after the last collective of all ranks."""
        if self._nccl:
            self._nccl.close()
            self._nccl = None


def _is_complete(done: Future[Any]) -> bool:
    try:
        done.value()
    except RuntimeError:  # Also the subclasses of torch.distributed.
        return False
    return True

"""Staging: copies a rank's part of the state into host memory, mostly during training.

Tensors that only optimizers change are stable until the next `optimizer.step()`. Their copy therefore overlaps with the next
forward and backward pass, and the step waits for it. On the CPU it waits for a thread; on a GPU for an event of another
stream, which does not block the host. Other tensors, such as model buffers, are copied before training continues.

A script can still change parameters elsewhere. The copy then mixes two states and must not become a checkpoint. Tensor
versions reveal this, as do samples of the values taken before and after the copy.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from holdfast_worker.checkpoint.host_memory import StagingBuffer

SAMPLES: Final = 128
"""Values of each piece compared before and after the copy: both ends, and a random one in
each of this many equal stretches. A change that covers two neighbouring stretches is always detected. A lower value
misses smaller changes; a higher value blocks training for longer."""
SAMPLED_ON_GPU: Final = 256
"""GPU pieces sampled per save, different ones each time. A higher value blocks training for
longer, by some kernels per piece."""
INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""Integer type by element size, for bitwise comparison of any dtype, including NaN and types
without arithmetic."""


class ConcurrentModification(Exception):
    """The state changed during the copy; it must be copied again while training is blocked."""


@dataclass(frozen=True, slots=True)
class CopyRange:
    """A range of tensor memory to copy."""

    owner: Tensor
    """The tensor whose version shows changes."""
    memory: Tensor
    """Contiguous, on any device: the owner itself if it is contiguous."""
    start: int
    """First element to copy, in row-major order."""
    count: int
    """Number of elements."""
    at: int
    """Byte offset of the destination in the buffer."""

    @classmethod
    def from_tensor(cls, owner: Tensor, start: int, count: int, at: int) -> Self:
        """The range of `count` elements of a tensor from `start`."""
        is_plain = owner.is_contiguous() and not owner.is_conj() and not owner.is_neg()
        memory = owner if is_plain else owner.detach().resolve_conj().resolve_neg().contiguous()
        return cls(owner, memory, start, count, at)

    @property
    def source(self) -> Tensor:
        """The elements as a flat tensor."""
        return self.memory.detach().reshape(-1)[self.start : self.start + self.count]

    @property
    def bits(self) -> Tensor:
        """The bits of the elements as a flat integer tensor."""
        memory = self.memory.detach()
        flat = memory.as_strided((self.count,), (1,), memory.storage_offset() + self.start)
        return flat.view(INTEGERS[memory.itemsize])

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return self.memory.data_ptr() + self.start * self.memory.itemsize

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.count * self.memory.itemsize


class CopySampler:
    """Samples the same values of some ranges before and after a copy."""

    def __init__(self, ranges: Sequence[CopyRange]) -> None:
        generator = torch.Generator()
        generator.seed()
        self._ranges = ranges
        self._fractions = torch.rand(SAMPLES, dtype=torch.float64, generator=generator)
        self._fractions = (self._fractions + torch.arange(SAMPLES)) / SAMPLES
        self._indices: dict[tuple[int, torch.device], Tensor] = {}

    def sample(self) -> list[Tensor]:
        """The current values; on a GPU, the values when the stream reaches this point."""
        bits = [copy_range.bits for copy_range in self._ranges]
        return [b.index_select(0, self._indices_for(b.numel(), b.device)) for b in bits]

    def _indices_for(self, count: int, device: torch.device) -> Tensor:
        """Sample indices, cached by size, because computing them costs more than sampling."""
        key = count, device
        if key not in self._indices:
            places = (self._fractions * count).long()
            places[0], places[-1] = 0, count - 1
            self._indices[key] = (places if count > SAMPLES else torch.arange(count)).to(device)
        return self._indices[key]


class StagingCopy:
    """A running copy; initially empty."""

    def __init__(self, buffer: StagingBuffer) -> None:
        self._buffer = buffer
        self._late: Sequence[CopyRange] = ()
        self._versions: list[int] = []
        self._thread: threading.Thread | None = None
        self._event: torch.cuda.Event | None = None
        self._sampling = CopySampler(())
        self._before: Sequence[Tensor] = ()
        """Samples of the late ranges, from before the copy."""
        self._is_same: Tensor | None = None
        """Whether the samples after the copy were equal, once the GPU has computed it."""
        self._guard = threading.Lock()
        self._is_consistent: bool | None = None
        self.waited_s = 0.0
        """How long optimizers waited for the copy."""

    def start(self, now: Sequence[CopyRange], late: Sequence[CopyRange]) -> None:
        """Copy `now` before returning, and `late` in the background until `synchronize`."""
        has_gpu = any(p.memory.is_cuda for p in (*now, *late))
        if has_gpu:
            # With a GPU, the optimizer step does not block the host, so it could change host tensors during the copy.
            now = [*now, *(p for p in late if not p.memory.is_cuda)]
            late = [p for p in late if p.memory.is_cuda]
        self._late = late
        self._sampling = CopySampler(_sampled_ranges(late) if has_gpu else late)
        self._before = self._sampling.sample()
        self._versions = _versions(late)
        self._copy_from_host([p for p in now if not p.memory.is_cuda])
        if has_gpu:
            self._event = self._copy_from_gpu([p for p in now if p.memory.is_cuda], late)
        if late or has_gpu:
            self._thread = threading.Thread(target=self._run, name="holdfast-copying", daemon=True)
            self._thread.start()

    def synchronize(self) -> None:
        """Prevent later work of this thread from changing what is still to be copied."""
        if self._thread is None:
            return
        began_s = time.monotonic()
        if self._event is None:
            self._thread.join()
        else:
            torch.cuda.current_stream().wait_event(self._event)
            self._decide()
        self.waited_s += time.monotonic() - began_s

    @property
    def is_inconsistent(self) -> bool:
        """Whether the copy is known to mix two states."""
        return self._is_consistent is False

    def wait(self) -> None:
        """Wait until the copy is complete.

        Raises:
            ConcurrentModification: it mixes two states.
        """
        if self._thread:
            self._thread.join()
        if self.is_inconsistent:
            raise ConcurrentModification(
                "parameters were changed outside of optimizer.step() while they were copied; "
                "later copies will block training"
            )

    def _run(self) -> None:
        if self._event is None:
            self._copy_from_host(self._late)
        else:
            self._event.synchronize()
        self._decide()
        if self._is_same is None:
            pairs = zip(self._before, self._sampling.sample(), strict=True)
            is_same = all(before.equal(after) for before, after in pairs)
        else:
            is_same = bool(self._is_same)
        if not is_same:
            self._is_consistent = False
        # The copy must not keep tensors alive that training has released.
        self._late, self._before, self._sampling = (), (), CopySampler(())

    def _decide(self) -> None:
        """Compare the versions before an optimizer changes them: after the copy or in `synchronize`."""
        with self._guard:
            if self._is_consistent is None:
                self._is_consistent = _versions(self._late) == self._versions

    def _copy_from_host(self, ranges: Sequence[CopyRange]) -> None:
        memory = np.frombuffer(self._buffer.memory(self._buffer.size), np.uint8)
        room, first = len(memory), memory.ctypes.data
        for copy_range in ranges:
            assert 0 <= copy_range.at <= room - copy_range.size, (
                "the buffer was reserved for all ranges"
            )
            # torch would split each tensor over all cores and wait for the slowest; creating arrays of thousands of
            # tensors takes as long as a tenth of the copy.
            ctypes.memmove(first + copy_range.at, copy_range.address, copy_range.size)

    def _copy_from_gpu(
        self, now: Sequence[CopyRange], late: Sequence[CopyRange]
    ) -> torch.cuda.Event:
        """Start the copy from the GPU; the returned event marks its end."""
        self._send(now)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._send(late)
            pairs = zip(self._before, self._sampling.sample(), strict=True)
            same = [(before == after).all() for before, after in pairs]
            if same:
                self._is_same = _copy_to_host(torch.stack(same).all())
            event.record(side)
        return event

    def _send(self, ranges: Sequence[CopyRange]) -> None:
        if ranges:
            targets = [self._buffer.view(p.at, p.source.dtype, p.source.numel()) for p in ranges]
            torch._foreach_copy_(targets, [p.source for p in ranges], non_blocking=True)


def _versions(ranges: Sequence[CopyRange]) -> list[int]:
    """Version counters, which increase with every in-place change."""
    return [copy_range.owner._version for copy_range in ranges]  # noqa: SLF001 - documented, for all its name


def _sampled_ranges(late: Sequence[CopyRange]) -> Sequence[CopyRange]:
    """The ranges sampled at this save."""
    stride = -(-len(late) // SAMPLED_ON_GPU) or 1
    return late[int(time.monotonic()) % stride :: stride]


def _copy_to_host(value: Tensor) -> Tensor:
    """The value in pinned host memory, valid once the stream is done."""
    here = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    return here.copy_(value, non_blocking=True)


class OptimizerBarrier:
    """Delays every `optimizer.step()` of this process until a running copy allows it.

    A step that bypasses the hook, such as one replayed by a CUDA graph, is not delayed. Copies therefore overlap with training
    only if the hook ran in the previous step.
    """

    def __init__(self) -> None:
        self._copying: StagingCopy | None = None
        self._is_passed = False
        self._is_honored = False
        self._is_trusted = True
        self.batches = 0
        """Finished batches of training."""
        self.stepped = 0
        """Batches in which an optimizer stepped."""
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    @property
    def is_open(self) -> bool:
        """Whether a copy may overlap with the next step."""
        return self._is_honored and self._is_trusted

    def guard(self, copying: StagingCopy) -> None:
        """Delay optimizers until this copy is done; it follows the previous one."""
        if self._copying and self._copying.is_inconsistent:
            # A script that changes parameters outside of optimizer.step() will do so again.
            self._is_trusted = False
        self._copying = copying

    def end_step(self) -> None:
        """Register the end of a training step."""
        self.batches += 1
        self.stepped += self._is_passed
        self._is_honored, self._is_passed = self._is_passed, False

    def close(self) -> None:
        """Remove the hook."""
        self._hook.remove()

    def _before_step(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._is_passed = True
        if self._copying:
            self._copying.synchronize()

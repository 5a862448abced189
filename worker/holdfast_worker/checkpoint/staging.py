"""Copying: a rank's share of the state on its way into the arena, beside the training as far as that leaves it alone.

What only optimizers change is at rest until one of them steps. So the copy goes on during the next forward and backward, and
the next `optimizer.step()` waits for its end: the processor for a thread, a GPU for an event of another stream, which costs
the host nothing. All else, such as the buffers of a model, is copied before the training goes on.

Nothing keeps a script from changing parameters elsewhere. Then the copy is a mix of two states, and must not become a
checkpoint; it shows by the tensors' versions, or by samples of their values, which are taken again after the copy.

The fence: optimizers do not change what is still being copied.
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
"""Values of each piece that are compared, before the copy and after it: both ends, and one at a random place of each of so many equal
stretches. A change of two neighbouring stretches is always seen; fewer samples miss smaller changes, more keep the training waiting."""
SAMPLED_ON_GPU: Final = 256
"""Pieces on a GPU that are sampled, others at each save. Each costs the host some kernels, for which the training waits."""
INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""By the size of an element: a type as which the bits of any tensor can be compared, NaN and types without arithmetic included."""


class ConcurrentModification(Exception):
    """The state was changed while it was copied; nothing is left but to copy it again while nothing else happens."""


@dataclass(frozen=True, slots=True)
class CopyRange:
    """Memory that is to be copied."""

    owner: Tensor
    """The tensor whose version tells whether it was changed."""
    memory: Tensor
    """Contiguous, on any device: the owner itself, if it is."""
    start: int
    """First element that is to be copied, counted row by row."""
    count: int
    """Of elements."""
    at: int
    """Where they go in the arena: the first byte."""

    @classmethod
    def of(cls, owner: Tensor, start: int, count: int, at: int) -> Self:
        """So many elements of a tensor."""
        is_plain = owner.is_contiguous() and not owner.is_conj() and not owner.is_neg()
        memory = owner if is_plain else owner.detach().resolve_conj().resolve_neg().contiguous()
        return cls(owner, memory, start, count, at)

    @property
    def source(self) -> Tensor:
        """The elements, flat."""
        return self.memory.detach().reshape(-1)[self.start : self.start + self.count]

    @property
    def bits(self) -> Tensor:
        """The elements, flat, as integers of their bits."""
        memory = self.memory.detach()
        flat = memory.as_strided((self.count,), (1,), memory.storage_offset() + self.start)
        return flat.view(INTEGERS[memory.itemsize])

    @property
    def address(self) -> int:
        """Of the first byte."""
        return self.memory.data_ptr() + self.start * self.memory.itemsize

    @property
    def size(self) -> int:
        """In bytes."""
        return self.count * self.memory.itemsize


class Sampling:
    """Which values of some pieces are compared."""

    def __init__(self, parcels: Sequence[CopyRange]) -> None:
        generator = torch.Generator()
        generator.seed()
        self._parcels = parcels
        self._shares = torch.rand(SAMPLES, dtype=torch.float64, generator=generator)
        self._shares = (self._shares + torch.arange(SAMPLES)) / SAMPLES
        self._places: dict[tuple[int, torch.device], Tensor] = {}

    def take(self) -> list[Tensor]:
        """The values as they are now, or as they are when the stream comes there."""
        bits = [parcel.bits for parcel in self._parcels]
        return [b.index_select(0, self._places_in(b.numel(), b.device)) for b in bits]

    def _places_in(self, count: int, device: torch.device) -> Tensor:
        """The same for all pieces of one size, as it costs more to find them than to take them."""
        key = count, device
        if key not in self._places:
            places = (self._shares * count).long()
            places[0], places[-1] = 0, count - 1
            self._places[key] = (places if count > SAMPLES else torch.arange(count)).to(device)
        return self._places[key]


class StagingCopy:
    """A copy under way; at first of nothing."""

    def __init__(self, arena: StagingBuffer) -> None:
        self._arena = arena
        self._late: Sequence[CopyRange] = ()
        self._versions: list[int] = []
        self._thread: threading.Thread | None = None
        self._event: torch.cuda.Event | None = None
        self._sampling = Sampling(())
        self._before: Sequence[Tensor] = ()
        """Samples of what is copied late, from before the copy."""
        self._is_same: Tensor | None = None
        """Whether they were the same after it, once a GPU has done it."""
        self._guard = threading.Lock()
        self._verdict: bool | None = None
        self.waited_s = 0.0
        """How long an optimizer waited for it."""

    def begin(self, now: Sequence[CopyRange], late: Sequence[CopyRange]) -> None:
        """Copy `now` at once, and `late` until the next `fence`."""
        is_far = any(p.memory.is_cuda for p in (*now, *late))
        if is_far:
            # An optimizer that the host need not wait for would change what lies on the host under our hands.
            now = [*now, *(p for p in late if not p.memory.is_cuda)]
            late = [p for p in late if p.memory.is_cuda]
        self._late = late
        self._sampling = Sampling(_some(late) if is_far else late)
        self._before = self._sampling.take()
        self._versions = _versions(late)
        self._copy_near([p for p in now if not p.memory.is_cuda])
        if is_far:
            self._event = self._copy_far([p for p in now if p.memory.is_cuda], late)
        if late or is_far:
            self._thread = threading.Thread(target=self._run, name="holdfast-copying", daemon=True)
            self._thread.start()

    def fence(self) -> None:
        """Let nothing that this thread does from now on change what is still to be copied."""
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
    def is_torn(self) -> bool:
        """Whether it is a mix of two states, as far as is known yet."""
        return self._verdict is False

    def wait(self) -> None:
        """Return once all is there.

        Raises:
            Torn: it is a mix of two states.
        """
        if self._thread:
            self._thread.join()
        if self.is_torn:
            raise ConcurrentModification(
                "parameters were changed outside of optimizer.step() while they were copied; "
                "from now on the training stands still for a copy"
            )

    def _run(self) -> None:
        if self._event is None:
            self._copy_near(self._late)
        else:
            self._event.synchronize()
        self._decide()
        if self._is_same is None:
            pairs = zip(self._before, self._sampling.take(), strict=True)
            is_same = all(before.equal(after) for before, after in pairs)
        else:
            is_same = bool(self._is_same)
        if not is_same:
            self._verdict = False
        # A snapshot must not keep alive what the training has let go of.
        self._late, self._before, self._sampling = (), (), Sampling(())

    def _decide(self) -> None:
        """Look at the versions, before an optimizer may change them: by whoever comes first, the copy or the fence."""
        with self._guard:
            if self._verdict is None:
                self._verdict = _versions(self._late) == self._versions

    def _copy_near(self, parcels: Sequence[CopyRange]) -> None:
        memory = np.frombuffer(self._arena.memory(self._arena.size), np.uint8)
        room, first = len(memory), memory.ctypes.data
        for parcel in parcels:
            assert 0 <= parcel.at <= room - parcel.size, "it was made large enough"
            # By hand: torch would cut each tensor into one share for each core, and have them all wait for the last; and of
            # thousands of tensors, arrays to copy from take as long to make as a tenth of the copy.
            ctypes.memmove(first + parcel.at, parcel.address, parcel.size)

    def _copy_far(self, now: Sequence[CopyRange], late: Sequence[CopyRange]) -> torch.cuda.Event:
        """Begin to copy what lies on the GPU; when that event is over, all of it is here."""
        self._send(now)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._send(late)
            pairs = zip(self._before, self._sampling.take(), strict=True)
            same = [(before == after).all() for before, after in pairs]
            if same:
                self._is_same = _sent(torch.stack(same).all())
            event.record(side)
        return event

    def _send(self, parcels: Sequence[CopyRange]) -> None:
        if parcels:
            targets = [self._arena.view(p.at, p.source.dtype, p.source.numel()) for p in parcels]
            torch._foreach_copy_(targets, [p.source for p in parcels], non_blocking=True)


def _versions(parcels: Sequence[CopyRange]) -> list[int]:
    """What counts up whenever one is changed in place."""
    return [parcel.owner._version for parcel in parcels]  # noqa: SLF001 - documented, for all its name


def _some(late: Sequence[CopyRange]) -> Sequence[CopyRange]:
    """Those that are sampled at this save."""
    stride = -(-len(late) // SAMPLED_ON_GPU) or 1
    return late[int(time.monotonic()) % stride :: stride]


def _sent(value: Tensor) -> Tensor:
    """The same on the host, once the stream is done."""
    here = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    return here.copy_(value, non_blocking=True)


class OptimizerBarrier:
    """Stands before every `optimizer.step()` of this process, from the moment on at which it is made.

    A step that never comes by here, such as one that a CUDA graph replays, is not held up. So nothing is copied beside the
    training that did not come by in the step before.
    """

    def __init__(self) -> None:
        self._copying: StagingCopy | None = None
        self._is_passed = False
        self._is_heeded = False
        self._is_trusted = True
        self.batches = 0
        """Batches of the training that are over."""
        self.stepped = 0
        """Those of them in which an optimizer stepped."""
        self._post = register_optimizer_step_pre_hook(self._before_step)

    @property
    def is_open(self) -> bool:
        """Whether a copy may go on beside the next step."""
        return self._is_heeded and self._is_trusted

    def guard(self, copying: StagingCopy) -> None:
        """Hold up optimizers until this is done, after the one before."""
        if self._copying and self._copying.is_torn:
            # Who changes the state by other means will do so again.
            self._is_trusted = False
        self._copying = copying

    def end_step(self) -> None:
        """A step of the training is over."""
        self.batches += 1
        self.stepped += self._is_passed
        self._is_heeded, self._is_passed = self._is_passed, False

    def close(self) -> None:
        """Hold up nobody any more."""
        self._post.remove()

    def _before_step(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._is_passed = True
        if self._copying:
            self._copying.fence()

"""Copying: a rank's share of the state on its way into the arena, beside the training as far as that leaves it alone.

What only optimizers change is at rest until one of them steps. So the copy goes on during the next forward and backward, and
the next `optimizer.step()` waits for its end: the processor for a thread, a GPU for an event of another stream, which costs
the host nothing. All else, such as the buffers of a model, is copied before the training goes on.

Nothing keeps a script from changing parameters elsewhere. Then the copy is a mix of two states, and must not become a
checkpoint; it shows by the tensors' versions, or by their first bytes, which are looked at again after the copy.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import torch
from torch import Tensor

from holdfast_worker.arena import Arena
from holdfast_worker.digest import raw

LOOKED_AT: Final = 256
"""Pieces of which the first bytes are compared, before the copy and after it. Who changes parameters changes most of them;
fewer could miss it, more is work for which the training stands still."""
LOOKED_AT_BYTES: Final = 64
"""Of each of these pieces. Fewer may be the same by chance."""


class Torn(Exception):
    """The state was changed while it was copied; nothing is left but to copy it again while nothing else happens."""


@dataclass(frozen=True, slots=True)
class Parcel:
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
    def address(self) -> int:
        """Of the first byte."""
        return self.memory.data_ptr() + self.start * self.memory.itemsize

    @property
    def size(self) -> int:
        """In bytes."""
        return self.count * self.memory.itemsize


class Copying:
    """A copy under way; at first of nothing."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._late: Sequence[Parcel] = ()
        self._versions: list[int] = []
        self._thread: threading.Thread | None = None
        self._event: torch.cuda.Event | None = None
        self._before: Sequence[Tensor] = ()
        self._after: Sequence[Tensor] = ()
        """How some of the pieces began that are copied late, and how they begin when they were copied."""
        self._guard = threading.Lock()
        self._verdict: bool | None = None
        self.waited_s = 0.0
        """How long an optimizer waited for it."""

    def begin(self, now: Sequence[Parcel], late: Sequence[Parcel]) -> None:
        """Copy `now` at once, and `late` until the next `fence`."""
        is_far = any(p.memory.is_cuda for p in (*now, *late))
        if is_far:
            # An optimizer that the host need not wait for would change what lies on the host under our hands.
            now = [*now, *(p for p in late if not p.memory.is_cuda)]
            late = [p for p in late if p.memory.is_cuda]
        self._late = late
        some = late[:: -(-len(late) // LOOKED_AT) or 1]
        self._after = [p.source[: LOOKED_AT_BYTES // p.source.itemsize] for p in some]
        self._before = [head.clone() for head in self._after]
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
            raise Torn(
                "parameters were changed outside of optimizer.step() while they were copied; "
                "from now on the training stands still for a copy"
            )

    def _run(self) -> None:
        if self._event is None:
            self._copy_near(self._late)
        else:
            self._event.synchronize()
        self._decide()
        pairs = zip(self._before, self._after, strict=True)
        if any(raw(before) != raw(after) for before, after in pairs):
            self._verdict = False
        # A snapshot must not keep alive what the training has let go of.
        self._late = self._before = self._after = ()

    def _decide(self) -> None:
        """Look at the versions, before an optimizer may change them: by whoever comes first, the copy or the fence."""
        with self._guard:
            if self._verdict is None:
                self._verdict = _versions(self._late) == self._versions

    def _copy_near(self, parcels: Sequence[Parcel]) -> None:
        memory = np.frombuffer(self._arena.memory(self._arena.size), np.uint8)
        room, first = len(memory), memory.ctypes.data
        for parcel in parcels:
            assert 0 <= parcel.at <= room - parcel.size, "it was made large enough"
            # By hand: torch would cut each tensor into one share for each core, and have them all wait for the last; and of
            # thousands of tensors, arrays to copy from take as long to make as a tenth of the copy.
            ctypes.memmove(first + parcel.at, parcel.address, parcel.size)

    def _copy_far(self, now: Sequence[Parcel], late: Sequence[Parcel]) -> torch.cuda.Event:
        """Begin to copy what lies on the GPU; when that event is over, all of it is here."""
        self._send(now)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._send(late)
            self._before = [_sent(head) for head in self._before]
            self._after = [_sent(head) for head in self._after]
            event.record(side)
        return event

    def _send(self, parcels: Sequence[Parcel]) -> None:
        if parcels:
            targets = [self._arena.view(p.at, p.source.dtype, p.source.numel()) for p in parcels]
            torch._foreach_copy_(targets, [p.source for p in parcels], non_blocking=True)


def _versions(parcels: Sequence[Parcel]) -> list[int]:
    """What counts up whenever one is changed in place."""
    return [parcel.owner._version for parcel in parcels]  # noqa: SLF001 - documented, for all its name


def _sent(head: Tensor) -> Tensor:
    """The same on the host, once the stream is done."""
    here = torch.empty(head.shape, dtype=head.dtype, pin_memory=True)
    return here.copy_(head, non_blocking=True)

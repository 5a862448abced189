"""Copies of the state that each rank has alone.

That is its data position, its generators and per-rank objects.

The ranks exchange it once in each step, before the first sum of gradients: the forward pass has drawn its random numbers by then. If
it has changed at the next step boundary, they exchange it again there. A new rank receives the copy of the rank that it replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from holdfast_worker.distributed.collectives import RecoverableWork
from holdfast_worker.distributed.recoverable_group import RecoverableGroup

LENGTH_BYTES: Final = 8
SLOT_STEP_BYTES: Final = 8192
"""Sizes are rounded up to a multiple of this, as they change a little with the numbers in them."""
MAX_OWN_BYTES: Final = 4 * 1024 * 1024
"""Size of the state of a rank that is exchanged in each step.
A lower value excludes models with many buffers; a higher value slows each step down."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The states of all ranks at one step boundary."""

    step: int
    """Number of completed steps at that boundary."""
    slots: Sequence[Tensor]
    work: RecoverableWork
    is_final: bool
    """Whether no state has changed between the exchange and the boundary."""

    def copy(self, rank: int) -> bytes:
        """The state of a rank; empty if it did not fit into its slot."""
        raw = self.slots[rank].numpy().tobytes()
        size = int.from_bytes(raw[:LENGTH_BYTES], "little")
        return raw[LENGTH_BYTES : LENGTH_BYTES + size]


class Replication:
    """Exchanges the states of the ranks, and keeps the copies of the last two boundaries."""

    def __init__(self, group: RecoverableGroup, capture: Callable[[], bytes]) -> None:
        """`capture` returns the state of this rank."""
        self._group = group
        self._capture = capture
        self._sent = b""
        self._slot_bytes = 0
        self._exchanges: list[Exchange] = []
        self._changes_late = False
        """Whether a state has ever changed after the exchange within a step."""

    def exchange(self, step: int) -> None:
        """Begin an exchange of states that are those at the boundary after `step` completed steps."""
        if not self._slot_bytes:
            return
        self._sent = self._capture()
        self._begin(step, is_final=False)

    def wait(self) -> None:
        """Wait for the last exchange.

        A rank must not change its parameters before. Otherwise it could reach the next boundary without the states that
        a new rank needs there.
        """
        if self._exchanges:
            self._exchanges[-1].work.wait()

    def check(self) -> tuple[int, bool, bool]:
        """The size of this rank's state, whether to exchange it again, and whether it is late.

        It is late if it has changed since the exchange in the step. It is also exchanged again without an exchange, or after a failed one.
        """
        state, sent = self._capture(), self._sent
        self._sent = state
        return len(state), state != sent, bool(sent) and state != sent

    def settle(self, step: int, size: int, *, has_changed: bool, is_late: bool = False) -> None:
        """Exchange the states again if one of them has changed; `size` is the largest of them.

        `is_late`: one has changed since the exchange in the step.
        """
        is_known = any(each.step == step for each in self._exchanges)
        self._changes_late = self._changes_late or (is_late and is_known)
        needed = LENGTH_BYTES + size
        if needed > self._slot_bytes:
            self._slot_bytes = -(-needed // SLOT_STEP_BYTES) * SLOT_STEP_BYTES
            has_changed = True
        if not has_changed:
            self._exchanges = [
                Exchange(each.step, each.slots, each.work, is_final=True)
                for each in self._exchanges
                if each.step == step
            ]
            return
        work = self._begin(step, is_final=True)
        self._sent, sent = b"", self._sent  # If the boundary begins again, so does the exchange.
        work.wait()
        self._sent = sent

    @property
    def settings(self) -> tuple[int, bool]:
        """What a new rank needs to take part in exchanges."""
        return self._slot_bytes, self._changes_late

    def adopt(self, slot_bytes: int, changes_late: bool) -> None:
        """Take part in the exchanges of other ranks."""
        self._slot_bytes, self._changes_late = slot_bytes, changes_late

    def copies(self, step: int, *, is_settled: bool) -> dict[int, bytes]:
        """The states of all ranks at a boundary; empty without them.

        `is_settled`: all ranks have completed that boundary.
        """
        for each in reversed(self._exchanges):
            is_known = each.is_final or not (is_settled or self._changes_late)
            if each.step == step and is_known and each.work.is_done:
                copies = {rank: each.copy(rank) for rank in range(len(each.slots))}
                return {rank: copy for rank, copy in copies.items() if copy}
        return {}

    def _begin(self, step: int, *, is_final: bool) -> RecoverableWork:
        fits = LENGTH_BYTES + len(self._sent) <= self._slot_bytes
        state = self._sent if fits else b""
        slot = torch.zeros(self._slot_bytes, dtype=torch.uint8)
        raw = memoryview(slot.numpy())  # type: ignore[arg-type]  # an array is a buffer, despite its stubs
        raw[:LENGTH_BYTES] = len(state).to_bytes(LENGTH_BYTES, "little")
        raw[LENGTH_BYTES : LENGTH_BYTES + len(state)] = state
        slots = [torch.empty_like(slot) for _ in range(self._group.size())]
        work = self._group.allgather([slots], [slot])
        last = [each for each in self._exchanges if each.step == step - 1]
        # An earlier exchange at this boundary holds until the next one is complete.
        same = [each for each in self._exchanges if each.step == step and each.work.is_done]
        self._exchanges = [*last[-1:], *same[-1:], Exchange(step, slots, work, is_final)]
        return work

"""The watch over one standing placement: it ends when the program does, or when somebody calls it back."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Collection
from datetime import timedelta
from typing import Final

from holdfast.adapters.local.folder import LaunchFolder
from holdfast.adapters.local.gang import Gang
from holdfast.adapters.local.verdict import Call
from holdfast.domain.weather import Fate
from holdfast.ports import Clock

TICK_S: Final = 0.1
"""Between two looks at tombstone and requests. Smaller: wakes the machine for nothing. Bigger: a cancel is felt late."""
CANCEL_NOTICE_S: Final = 30.0
"""What a cancelled program gets to save its work. Smaller: the last minutes may be lost. Bigger: a program that does
not listen keeps its nodes that much longer."""
LEAVE_S: Final = 30.0
"""What the other nodes get after one has left by itself. Smaller: cuts off ranks that still save. Bigger: nodes idle."""


class Watch:
    """One placement from its start until it is to end. Seconds are those of the monotonic clock."""

    def __init__(
        self, standing: Gang, folder: LaunchFolder, placement: int, fate: Fate, clock: Clock
    ) -> None:
        self.standing = standing
        self.folder = folder
        self.placement = placement
        self.clock = clock
        self.call: Call | None = None
        """Who called the placement back first; a cancel outdoes the market."""
        self.end_s = math.inf
        """When what still stands will be killed."""
        self.notice_s = fate.notice_s
        self.reclaim_s = math.inf
        """When the market takes a node by itself."""
        if fate.lifetime_s is not None:
            self.reclaim_s = time.monotonic() + fate.lifetime_s

    def see(self) -> Call | None:
        """Who called the placement back, once it has to end; None when it ended by itself."""
        while not self._over():
            self._hear()
            signal.sigtimedwait({signal.SIGCHLD}, self._pause_s())
        return self.call

    def _over(self) -> bool:
        self.standing.collect()
        exits = self.standing.exits
        if self.call is None and any(end.failed for end in exits):
            return True  # Nodes stand and fall together.
        if self.call is None and not all(end.done for end in exits):
            self.end_s = min(self.end_s, time.monotonic() + LEAVE_S)
        return self.standing.gone or time.monotonic() >= self.end_s

    def _hear(self) -> None:
        """Heed the tombstone, people's requests and the market."""
        everybody = range(len(self.standing.folders))
        if not (self.call and self.call.cancelled) and self.folder.entombed_at():
            self._call_back(Call(True, "cancelled on request"), CANCEL_NOTICE_S, everybody)
        for request in self.folder.take_preemptions(self.placement):
            self._reclaim(request.node, request.notice_s or 0)
        left_s = self.reclaim_s - time.monotonic()
        if left_s <= self.notice_s:
            self.reclaim_s = math.inf
            self._reclaim(self.placement % len(everybody), max(0, left_s))  # Nodes take turns.

    def _reclaim(self, node: int, notice_s: float) -> None:
        word = f"with {notice_s:.3g} s of notice" if notice_s else "without notice"
        self._call_back(Call(False, f"the market took node {node} {word}"), notice_s, [node])

    def _call_back(self, call: Call, notice_s: float, leaving: Collection[int]) -> None:
        """End the placement in `notice_s` seconds, or earlier if that was said before."""
        self.end_s = min(self.end_s, time.monotonic() + notice_s)
        if call.cancelled or self.call is None:
            self.call = call
        if notice_s:
            left = timedelta(seconds=self.end_s - time.monotonic())
            self.standing.tell(self.clock.now() + left, leaving)

    def _pause_s(self) -> float:
        return max(0, min(TICK_S, self.end_s - time.monotonic()))

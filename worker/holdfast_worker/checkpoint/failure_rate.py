"""Failure rate of a job over all its attempts, and the attempt history in its store.

    diary/000000000003          as of epoch 3, with how it ended once it has

Each attempt continues from the newest entry and keeps its own: written at its start, after each checkpoint, and at its exit. An
interrupted attempt counts as alive until its last checkpoint, because there is no later evidence. Only durations
that one process measured are added, so clocks are never compared. Only the worker uses this; it works without a service.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Final

from holdfast_worker.protocol.environment import Exit
from holdfast_worker.run_dir import ExitReason
from holdfast_worker.storage.base import ObjectNotFound, Store, StoreError
from holdfast_worker.storage.retry import retry_until

PRIOR_S: Final = 2 * 3600.0
"""Assumed mean time between losses of spot capacity, before enough are observed. A higher
value loses more work per preemption; a lower value stalls training more. The optimum is flat: off by a factor of four,
the interval is off by two and the waste by a quarter."""

WINDOW_LOSSES: Final = 5
"""Losses after which the assumption is dropped. With a lower value, one bad hour determines
the interval; with a higher value, the assumption determines it for days."""

REMEMBERED: Final = 10
"""Losses in the mean. A higher value follows a changed market only after days; with a lower
value, chance alone changes the interval."""

SHORTEST_S: Final = 60.0
"""Lower bound of the mean time between losses: lifetimes of attempts that end before their
first checkpoint are unknown."""

PEER_LOSS_PATTERNS: Final = ("gloo/transport", "torch.distributed.Dist")
"""Patterns in the error of a rank whose peer stopped responding: from gloo groups, and from
NCCL groups."""


@dataclass(frozen=True, slots=True)
class FailureRate:
    """Observed lifetimes of a job's attempts."""

    losses: int = 0
    """Attempts that were interrupted."""
    spans_s: tuple[float, ...] = ()
    """Time from one loss to the next, summed over the attempts in between, as far as there is
    evidence. Newest last, at most `REMEMBERED`."""
    since_s: float = 0.0
    """Time since the last loss."""

    def with_lifetime(self, lived_s: float) -> FailureRate:
        """Add the lifetime of an attempt."""
        return replace(self, since_s=self.since_s + lived_s)

    def with_loss(self) -> FailureRate:
        """Add an interruption."""
        spans_s = (*self.spans_s, self.since_s)[-REMEMBERED:]
        return FailureRate(self.losses + 1, spans_s, 0.0)

    @property
    def mtbf_s(self) -> float:
        """Estimated mean seconds between losses; `PRIOR_S` replaces each missing one."""
        missing = max(0, WINDOW_LOSSES - len(self.spans_s))
        lived_s = sum(self.spans_s) + self.since_s
        return max(SHORTEST_S, (lived_s + missing * PRIOR_S) / (len(self.spans_s) + missing))


def was_interrupted(exit_reason: ExitReason) -> bool:
    """Whether an attempt lost capacity, according to its exit reason.

    A termination notice is a loss, and so is a rank that vanished. A finished run is none, nor is one that ended because of
    its script, a wrong setting or a store.
    """
    if exit_reason.reason == "failed":
        return any(pattern in exit_reason.detail for pattern in PEER_LOSS_PATTERNS)
    return exit_reason.reason == "preempted"


ENTRIES: Final = "diary/"

CLOSE_TIMEOUT_S: Final = 5.0
"""Time limit for the final entry of an attempt. A higher value holds a node for one write;
with a lower value, a slow store makes the attempt count as interrupted."""


@dataclass
class AttemptHistory:
    """The history entry of one attempt."""

    store: Store
    epoch: int
    before: FailureRate
    """The rate at its start."""
    clock: Callable[[], float] = time.monotonic
    """A monotonic clock in seconds."""
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self._started_s = self.clock()

    @classmethod
    def open(
        cls,
        store: Store,
        epoch: int,
        until_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> AttemptHistory:
        """Open the history of a new attempt: read the previous entry and write the first own one.

        Raises:
            StoreError: the store is unusable.
        """
        keys = retry_until(lambda: store.list(ENTRIES), until_s)
        found = {int(match[1]): match[0] for match in map(_KEY.fullmatch, keys) if match}
        # A higher epoch belongs to a successor, which will fence this attempt out.
        newest = max((number for number in found if number <= epoch), default=None)
        before = FailureRate() if newest is None else _read(store, found[newest], until_s)
        history = cls(store, epoch, before, clock)
        history.record_alive(until_s)
        with suppress(StoreError):
            for number, key in found.items():
                if number < epoch:
                    retry_until(lambda key=key: store.delete(key), until_s)  # type: ignore[misc]
        return history

    @property
    def failure_rate(self) -> FailureRate:
        """The rate as of now."""
        return self.before.with_lifetime(self.clock() - self._started_s)

    def record_alive(self, until_s: float) -> None:
        """Record that the attempt is alive.

        Raises:
            StoreError: the store refuses the write.
        """
        if not self._is_closed:
            self._write(self.failure_rate, ended="", until_s=until_s)

    def close(self, exit_reason: ExitReason) -> None:
        """Record how the attempt ended, if the store responds in time."""
        if exit_reason.exit_code == Exit.FENCED:
            return  # The successor has already counted this attempt.
        self._is_closed = True
        survival = (
            self.failure_rate.with_loss() if was_interrupted(exit_reason) else self.failure_rate
        )

        def write() -> None:
            with suppress(StoreError):
                self._write(
                    survival, ended=exit_reason.reason, until_s=time.monotonic() + CLOSE_TIMEOUT_S
                )

        # In a thread that is abandoned after the limit, because one request to an unresponsive store may take a minute.
        thread = threading.Thread(target=write, name="holdfast-diary", daemon=True)
        thread.start()
        thread.join(CLOSE_TIMEOUT_S)

    def _write(self, survival: FailureRate, *, ended: str, until_s: float) -> None:
        data = json.dumps({**asdict(survival), "ended": ended}).encode()
        retry_until(lambda: self.store.put(f"{ENTRIES}{self.epoch:012d}", data), until_s)


_KEY: Final = re.compile(rf"{ENTRIES}(\d+)")


def _read(store: Store, key: str, until_s: float) -> FailureRate:
    """The rate in an entry; an entry without an end counts as an interruption."""
    try:
        body = json.loads(retry_until(lambda: store.get(key), until_s))
        spans_s = tuple(map(float, body["spans_s"]))
        survival = FailureRate(int(body["losses"]), spans_s, float(body["since_s"]))
        return survival if body["ended"] else survival.with_loss()
    except (ObjectNotFound, ValueError, KeyError, TypeError):
        # Only an estimate depends on the entry.
        return FailureRate()

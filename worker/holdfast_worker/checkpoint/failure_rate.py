"""Survival: how long a job has lived over all its attempts, how often it was cut short, and what follows for the next. Pure.

The diary of a job, in its store: how long its placements have lived, and how often they were cut short.

    diary/000000000003          as of epoch 3, which has not ended yet, or says how

Each placement goes on from the newest entry that it finds, and keeps one of its own: at its start, after each checkpoint, and
as it leaves. One that was cut short has lived until its last checkpoint, as there is no evidence of more. Only spans that one
process has measured are added up, so that no clocks are compared. Nobody but the worker needs this: it works without a
service.
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
from holdfast_worker.storage.base import Missing, Store, StoreError
from holdfast_worker.storage.retry import retry_until

PRIOR_S: Final = 2 * 3600.0
"""Between two losses of spot capacity, before enough were seen. Too long loses work at each preemption, too short stalls
training for nothing; the optimum is flat: off by four, the interval is off by two and the waste by a quarter."""

ENOUGH: Final = 5
"""Losses after which nothing is assumed any more. Fewer and one bad hour decides how often a job saves; more and it goes by
what was assumed for days."""

REMEMBERED: Final = 10
"""Losses of which the mean is taken. More and a market that has turned is believed to be the old one for days; fewer and chance
alone moves the interval from rung to rung."""

SHORTEST_S: Final = 60.0
"""Between two losses, in any case: of attempts that died before their first checkpoint nobody knows how long they lived."""

OTHER_RANK_GONE: Final = ("gloo/transport", "torch.distributed.Dist")
"""In the error of a rank to which another one does not answer any more: of the groups of gloo, and of those of NCCL."""


@dataclass(frozen=True, slots=True)
class FailureRate:
    """What is known of how long placements of a job last."""

    losses: int = 0
    """Attempts that were cut short."""
    spans_s: tuple[float, ...] = ()
    """How long the job lived from one loss to the next, over all attempts in between, as far as there is evidence; the newest
    last, and no more than `REMEMBERED` of them."""
    since_s: float = 0.0
    """How long it has lived since the last."""

    def after(self, lived_s: float) -> FailureRate:
        """The same after an attempt has lived so long."""
        return replace(self, since_s=self.since_s + lived_s)

    def lost(self) -> FailureRate:
        """The same after an attempt was cut short."""
        spans_s = (*self.spans_s, self.since_s)[-REMEMBERED:]
        return FailureRate(self.losses + 1, spans_s, 0.0)

    @property
    def mtbf_s(self) -> float:
        """Seconds from one loss to the next, as reckoned: the mean, in which `PRIOR_S` stands for each loss that is missing
        from `ENOUGH`."""
        missing = max(0, ENOUGH - len(self.spans_s))
        lived_s = sum(self.spans_s) + self.since_s
        return max(SHORTEST_S, (lived_s + missing * PRIOR_S) / (len(self.spans_s) + missing))


def was_cut_short(left: ExitReason) -> bool:
    """Whether an attempt that left so was taken away, as far as its own words tell.

    A notice is a loss, and so is a rank that vanished without a word. What has finished is none, nor what its own script, a
    wrong setting or a store has ended.
    """
    if left.reason == "failed":
        return any(words in left.detail for words in OTHER_RANK_GONE)
    return left.reason == "preempted"


ENTRIES: Final = "diary/"

LAST_WORDS_S: Final = 5.0
"""For the entry of a placement that leaves. Longer holds a node for a line; shorter and a store that is slow today has it count
as cut short."""


@dataclass
class AttemptHistory:
    """The entries of one placement."""

    store: Store
    epoch: int
    before: FailureRate
    """As of its start."""
    clock: Callable[[], float] = time.monotonic
    """Seconds since some moment."""
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    @classmethod
    def begin(
        cls,
        store: Store,
        epoch: int,
        until_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> AttemptHistory:
        """The diary of a placement that starts now: what went before is read, and that it has begun is written.

        Raises:
            StoreError: the store cannot be used.
        """
        keys = retry_until(lambda: store.list(ENTRIES), until_s)
        found = {int(match[1]): match[0] for match in map(_KEY.fullmatch, keys) if match}
        # A higher epoch is that of a successor, which will fence us.
        newest = max((number for number in found if number <= epoch), default=None)
        before = FailureRate() if newest is None else _read(store, found[newest], until_s)
        diary = cls(store, epoch, before, clock)
        diary.note(until_s)
        with suppress(StoreError):
            for number, key in found.items():
                if number < epoch:
                    retry_until(lambda key=key: store.delete(key), until_s)  # type: ignore[misc]
        return diary

    @property
    def survival(self) -> FailureRate:
        """What is known at this moment."""
        return self.before.after(self.clock() - self._began_s)

    def note(self, until_s: float) -> None:
        """Write that the placement is alive.

        Raises:
            StoreError: the store does not take it.
        """
        if not self._is_closed:
            self._write(self.survival, ended="", until_s=until_s)

    def close(self, left: ExitReason) -> None:
        """Write how the placement has ended, if the store takes it at once."""
        if left.exit_code == Exit.FENCED:
            return  # The successor has read it, and counted.
        self._is_closed = True
        survival = self.survival.lost() if was_cut_short(left) else self.survival

        def write() -> None:
            with suppress(StoreError):
                self._write(survival, ended=left.reason, until_s=time.monotonic() + LAST_WORDS_S)

        # In a thread that nobody waits for any longer, as one request to a store that is silent may take a minute.
        last_words = threading.Thread(target=write, name="holdfast-diary", daemon=True)
        last_words.start()
        last_words.join(LAST_WORDS_S)

    def _write(self, survival: FailureRate, *, ended: str, until_s: float) -> None:
        data = json.dumps({**asdict(survival), "ended": ended}).encode()
        retry_until(lambda: self.store.put(f"{ENTRIES}{self.epoch:012d}", data), until_s)


_KEY: Final = re.compile(rf"{ENTRIES}(\d+)")


def _read(store: Store, key: str, until_s: float) -> FailureRate:
    """What an entry says of all placements until then: one that has not said how it ended was cut short."""
    try:
        body = json.loads(retry_until(lambda: store.get(key), until_s))
        spans_s = tuple(map(float, body["spans_s"]))
        survival = FailureRate(int(body["losses"]), spans_s, float(body["since_s"]))
        return survival if body["ended"] else survival.lost()
    except (Missing, ValueError, KeyError, TypeError):
        # Nothing but an estimate hangs on it.
        return FailureRate()

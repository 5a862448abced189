"""The diary of a job, in its store: how long its placements have lived, and how often they were cut short.

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
from dataclasses import asdict, dataclass
from typing import Final

from holdfast_worker.patience import patiently
from holdfast_worker.rundir import Left
from holdfast_worker.stores import Missing, Store, StoreError
from holdfast_worker.survival import Survival, was_cut_short
from holdfast_worker.wire import Exit

ENTRIES: Final = "diary/"

LAST_WORDS_S: Final = 5.0
"""For the entry of a placement that leaves. Longer holds a node for a line; shorter and a store that is slow today has it count
as cut short."""


@dataclass
class Diary:
    """The entries of one placement."""

    store: Store
    epoch: int
    before: Survival
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
    ) -> Diary:
        """The diary of a placement that starts now: what went before is read, and that it has begun is written.

        Raises:
            StoreError: the store cannot be used.
        """
        keys = patiently(lambda: store.list(ENTRIES), until_s)
        found = {int(match[1]): match[0] for match in map(_KEY.fullmatch, keys) if match}
        # A higher epoch is that of a successor, which will fence us.
        newest = max((number for number in found if number <= epoch), default=None)
        before = Survival() if newest is None else _read(store, found[newest], until_s)
        diary = cls(store, epoch, before, clock)
        diary.note(until_s)
        with suppress(StoreError):
            for number, key in found.items():
                if number < epoch:
                    patiently(lambda key=key: store.delete(key), until_s)  # type: ignore[misc]
        return diary

    @property
    def survival(self) -> Survival:
        """What is known at this moment."""
        return self.before.after(self.clock() - self._began_s)

    def note(self, until_s: float) -> None:
        """Write that the placement is alive.

        Raises:
            StoreError: the store does not take it.
        """
        if not self._is_closed:
            self._write(self.survival, ended="", until_s=until_s)

    def close(self, left: Left) -> None:
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

    def _write(self, survival: Survival, *, ended: str, until_s: float) -> None:
        data = json.dumps({**asdict(survival), "ended": ended}).encode()
        patiently(lambda: self.store.put(f"{ENTRIES}{self.epoch:012d}", data), until_s)


_KEY: Final = re.compile(rf"{ENTRIES}(\d+)")


def _read(store: Store, key: str, until_s: float) -> Survival:
    """What an entry says of all placements until then: one that has not said how it ended was cut short."""
    try:
        body = json.loads(patiently(lambda: store.get(key), until_s))
        spans_s = tuple(map(float, body["spans_s"]))
        survival = Survival(int(body["losses"]), spans_s, float(body["since_s"]))
        return survival if body["ended"] else survival.lost()
    except (Missing, ValueError, KeyError, TypeError):
        # Nothing but an estimate hangs on it.
        return Survival()

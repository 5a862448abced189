"""The beat of a rank: where it is, in memory that its node's wrapper can read even when it is stopped or stuck.

Standard library only. Nothing of it is on a disk, as one that is full or slow must cost no step.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from holdfast_worker.console import log_info
from holdfast_worker.run_dir import RunDir

LAYOUT: Final = struct.Struct("<qqqqBBB")
"""Since when, step, steps made here, agreements, phase, whether it waits, whether it saves. A reader may catch it half written; what it
makes of that is put right at its next look, and who stands still does not write."""


class Phase(IntEnum):
    """What a rank does, in the order in which it comes to it between two agreements."""

    ABSENT = 0
    """There is no `Run` yet, and there may never be one. Nobody writes this: it is what no beat means."""
    STARTING = 1
    RESTORING = 2
    PREPARING = 3
    """In the script, before its loop."""
    SAVING = 4
    LOADING = 5
    """The next batch."""
    STEPPING = 6
    """In the script, within its loop."""
    OVER = 7
    """In the script, after its loop."""


BUSY: Final = frozenset({Phase.RESTORING, Phase.SAVING, Phase.LOADING, Phase.STEPPING})
"""Phases in which time counts. What a script does outside of its loop may take as long as it likes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Where one rank is."""

    rank: int
    phase: Phase = Phase.ABSENT
    is_waiting: bool = False
    """In an agreement, for all other ranks to come to it."""
    step: int = 0
    """Steps that are done, over all attempts."""
    steps_here: int = 0
    """Those of this attempt."""
    agreements: int = 0
    """Of all ranks, as many as this one has come to; all ranks come to the same ones, in the same order."""
    is_saving: bool = False
    """Whether a save is under way, beside whatever else it does; what other nodes report of their ranks does not contain it."""
    since_s: float = 0.0
    """The last change of any of this, or the last sign of life of the script, in the time of `time.monotonic`."""

    @property
    def is_busy(self) -> bool:
        """Whether the time counts that this rank takes."""
        return self.is_waiting or self.phase in BUSY

    @property
    def position(self) -> tuple[int, bool, Phase]:
        """What is smaller for a rank that is behind."""
        return self.agreements, not self.is_waiting, self.phase


class HeartbeatWriter:
    """The end at which a rank writes where it is. A microsecond each time; no GPU is waited for."""

    def __init__(self, memory: mmap.mmap | None = None) -> None:
        """Write to `memory`; None: nobody reads it."""
        self._memory = memory or bytearray(LAYOUT.size)
        self.is_seen = memory is not None
        """Whether anybody can read it."""
        self._phase = Phase.STARTING
        self._entered_ns = time.monotonic_ns()
        self.spent_ns: dict[Phase, int] = {}
        """In each phase that was left, by this process."""
        self._is_waiting = self._is_saving = False
        self._step = self._steps_here = self._agreements = 0
        self.live()

    @classmethod
    def begin(cls, run_dir: RunDir | None, rank: int) -> Self:
        """The beat of this process, to be found through `run_dir`; where that cannot be, one that nobody sees."""
        if run_dir is None or not hasattr(os, "memfd_create"):
            return cls()
        try:
            file = os.memfd_create("holdfast-beat")
            os.ftruncate(file, LAYOUT.size)
            beat = cls(mmap.mmap(file, LAYOUT.size))
            run_dir.show_beat(rank, f"/proc/{os.getpid()}/fd/{file}")
        except OSError as error:
            log_info(f"nobody will notice if rank {rank} hangs: {error}")
            return cls()
        return beat

    def live(self) -> None:
        """Say that the script is alive."""
        LAYOUT.pack_into(
            self._memory,
            0,
            time.monotonic_ns(),
            self._step,
            self._steps_here,
            self._agreements,
            self._phase,
            self._is_waiting,
            self._is_saving,
        )

    def show_save(self, *, is_under_way: bool) -> None:
        """Say that a save begins or is over. It is no sign of life of the script, and comes from another thread."""
        self._is_saving = is_under_way
        self._memory[LAYOUT.size - 1] = is_under_way

    def enter(self, phase: Phase) -> None:
        """From now on the rank does this."""
        now_ns = time.monotonic_ns()
        spent_ns = self.spent_ns.get(self._phase, 0) + now_ns - self._entered_ns
        self.spent_ns[self._phase], self._entered_ns = spent_ns, now_ns
        self._phase = phase
        self.live()

    def begin_at(self, step: int) -> None:
        """So many steps were done by earlier attempts."""
        self._step = step
        self.live()

    def step(self, step: int) -> None:
        """A step is done, and so many are by now."""
        self._step = step
        self._steps_here += 1
        self.live()

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Within it, the rank waits for all others."""
        self._agreements += 1
        self._is_waiting = True
        self.live()
        try:
            yield
        finally:
            self._is_waiting = False
            self.live()


class HeartbeatReader:
    """The beats of a node's ranks, as its wrapper reads them. They stay readable when a rank has died."""

    def __init__(self, run_dir: RunDir, ranks: Sequence[int]) -> None:
        self._run_dir = run_dir
        self._ranks = ranks
        self._memories: dict[int, mmap.mmap] = {}

    def read(self) -> list[Heartbeat]:
        """Where each rank is."""
        if len(self._memories) < len(self._ranks):
            self._find()
        return [self._pulse(rank) for rank in self._ranks]

    def _pulse(self, rank: int) -> Heartbeat:
        memory = self._memories.get(rank)
        if memory is None:
            return Heartbeat(rank=rank)
        since_ns, step, steps_here, agreements, phase, is_waiting, is_saving = LAYOUT.unpack_from(
            memory
        )
        return Heartbeat(
            rank=rank,
            phase=Phase(phase),
            is_waiting=bool(is_waiting),
            is_saving=bool(is_saving),
            step=step,
            steps_here=steps_here,
            agreements=agreements,
            since_s=since_ns / 1e9,
        )

    def _find(self) -> None:
        for rank, place in self._run_dir.beats().items():
            if rank in self._memories or rank not in self._ranks:
                continue
            try:
                file = os.open(place, os.O_RDONLY)
            except OSError:
                continue  # It has died meanwhile, or is not ours to read: then it is as if it had none.
            try:
                self._memories[rank] = mmap.mmap(file, LAYOUT.size, prot=mmap.PROT_READ)
            finally:
                os.close(file)

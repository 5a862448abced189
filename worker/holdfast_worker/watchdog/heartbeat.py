"""Heartbeat of a rank: its position, which the wrapper can read while the rank hangs.

Standard library only. It is in shared memory and not on a disk, as a full or slow disk must not delay a step.
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
"""Time of the last change, step, steps of this attempt, agreements, phase, is waiting,
is saving. A reader may see a partial write, which its next read corrects; a stalled rank does not write."""


class Phase(IntEnum):
    """Activity of a rank, in the order of phases between two agreements."""

    ABSENT = 0
    """There is no `Run`. It represents a missing heartbeat and is not written."""
    STARTING = 1
    RESTORING = 2
    PREPARING = 3
    """In the script, before its loop."""
    SAVING = 4
    LOADING = 5
    """Waiting for the next batch."""
    STEPPING = 6
    """In the script, within its loop."""
    FINISHED = 7
    """In the script, after its loop."""


BUSY: Final = frozenset({Phase.RESTORING, Phase.SAVING, Phase.LOADING, Phase.STEPPING})
"""Phases in which the stall limit applies. Work outside of the loop may take any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Position of one rank."""

    rank: int
    phase: Phase = Phase.ABSENT
    is_waiting: bool = False
    """Whether it waits in an agreement for other ranks."""
    step: int = 0
    """Number of completed steps, over all attempts."""
    steps_here: int = 0
    """Number of completed steps of this attempt."""
    agreements: int = 0
    """Number of collectives of Holdfast that it has reached.
    All ranks reach the same ones in the same order."""
    is_saving: bool = False
    """Whether a save is in progress in the background; known only on the rank's own node."""
    since_s: float = 0.0
    """Last change, or last sign of life of the script, by `time.monotonic`."""

    @property
    def is_busy(self) -> bool:
        """Whether the stall limit applies to this rank."""
        return self.is_waiting or self.phase in BUSY

    @property
    def position(self) -> tuple[int, bool, Phase]:
        """Sort key that is lower for a rank that is behind."""
        return self.agreements, not self.is_waiting, self.phase


class HeartbeatWriter:
    """Writes the heartbeat of a rank, in about a microsecond and without waiting for the GPU."""

    def __init__(self, memory: mmap.mmap | None = None) -> None:
        """Write to `memory`; None: there is no reader."""
        self._memory = memory or bytearray(LAYOUT.size)
        self.is_published = memory is not None
        """Whether a wrapper can read it."""
        self._phase = Phase.STARTING
        self._entered_ns = time.monotonic_ns()
        self.spent_ns: dict[Phase, int] = {}
        """Time that this process has spent in each completed phase."""
        self._is_waiting = self._is_saving = False
        self._step = self._steps_here = self._agreements = 0
        self.mark_alive()

    @classmethod
    def create(cls, run_dir: RunDir | None, rank: int) -> Self:
        """Create the heartbeat of this process and publish it in `run_dir`.

        Unpublished if that fails.
        """
        if run_dir is None or not hasattr(os, "memfd_create"):
            return cls()
        try:
            file = os.memfd_create("holdfast-beat")
            os.ftruncate(file, LAYOUT.size)
            writer = cls(mmap.mmap(file, LAYOUT.size))
            run_dir.publish_heartbeat(rank, f"/proc/{os.getpid()}/fd/{file}")
        except OSError as error:
            log_info(f"a hang of rank {rank} cannot be detected: {error}")
            return cls()
        return writer

    def mark_alive(self) -> None:
        """Record a sign of life of the script."""
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

    def mark_saving(self, *, is_under_way: bool) -> None:
        """Record that a save begins or ends.

        Called by a different thread, so it is no sign of life of the script.
        """
        self._is_saving = is_under_way
        self._memory[LAYOUT.size - 1] = is_under_way

    def enter(self, phase: Phase) -> None:
        """Enter a phase."""
        now_ns = time.monotonic_ns()
        spent_ns = self.spent_ns.get(self._phase, 0) + now_ns - self._entered_ns
        self.spent_ns[self._phase], self._entered_ns = spent_ns, now_ns
        self._phase = phase
        self.mark_alive()

    def spent_until_now(self) -> dict[Phase, int]:
        """Nanoseconds that this process has spent in each phase, including the current one."""
        now_ns = time.monotonic_ns()
        spent_ns = dict(self.spent_ns)
        spent_ns[self._phase] = spent_ns.get(self._phase, 0) + now_ns - self._entered_ns
        return spent_ns

    def start_at(self, step: int) -> None:
        """Set the number of steps that earlier attempts have completed."""
        self._step = step
        self.mark_alive()

    def complete_step(self, step: int) -> None:
        """Record the completion of a step."""
        self._step = step
        self._steps_here += 1
        self.mark_alive()

    @contextmanager
    def waiting_for_ranks(self) -> Iterator[None]:
        """Record that the rank waits for all others inside the context."""
        self._agreements += 1
        self._is_waiting = True
        self.mark_alive()
        try:
            yield
        finally:
            self._is_waiting = False
            self.mark_alive()


class HeartbeatReader:
    """Reads the heartbeats of a node's ranks in its wrapper, also after a rank has died."""

    def __init__(self, run_dir: RunDir, ranks: Sequence[int]) -> None:
        self._run_dir = run_dir
        self._ranks = ranks
        self._memories: dict[int, mmap.mmap] = {}

    def read(self) -> list[Heartbeat]:
        """The heartbeat of each rank."""
        if len(self._memories) < len(self._ranks):
            self._open_new()
        return [self._read_rank(rank) for rank in self._ranks]

    def _read_rank(self, rank: int) -> Heartbeat:
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

    def _open_new(self) -> None:
        for rank, path in self._run_dir.heartbeat_files().items():
            if rank in self._memories or rank not in self._ranks:
                continue
            try:
                file = os.open(path, os.O_RDONLY)
            except OSError:
                continue  # The process has ended or is unreadable, which counts as no heartbeat.
            try:
                self._memories[rank] = mmap.mmap(file, LAYOUT.size, prot=mmap.PROT_READ)
            finally:
                os.close(file)

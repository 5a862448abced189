"""Restore: all ranks load the newest checkpoint that all of them can read.

After a loss of ranks, snapshots may be left in the memory of the nodes (`memory_snapshots`). The newest one is loaded if the store has no
newer checkpoint, and if every shard is left. It counts by the same lineage, so that one of a start that was superseded is not used.

A job may continue from the checkpoints of a parent job that has ended. They count as older than the job's, so the search
reaches them only if none of its own is usable. The parent's store is read and never written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast_worker.checkpoint.collective import LoadedCheckpoint, fail_together, read_checkpoint
from holdfast_worker.checkpoint.metadata import (
    CorruptCheckpoint,
    IncompatibleCheckpoint,
    PartialLoadError,
    UnavailableObject,
)
from holdfast_worker.checkpoint.read_plan import DestinationTensors
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.stateful import StateMismatch, TrackedState
from holdfast_worker.console import log_info
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.lineage import Lineage
from holdfast_worker.protocol.store_usage import NO_USAGE, StoreUsage
from holdfast_worker.storage.base import StoreError
from holdfast_worker.telemetry.reporter import SkippedCheckpoint, TrainingOrigin

STORE_TIMEOUT_S: Final = 300.0
"""Time limit for a store that does not respond during a restore. A higher value pays for
idle nodes; a lower value abandons the restore, and with it the attempt, over a brief outage. An unresponsive store
never counts as an empty one."""


@dataclass(frozen=True, slots=True)
class ParentJob:
    """An ended job from whose checkpoints another job continues."""

    job: str
    repository: CheckpointRepository


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """Where a run continues."""

    name: CheckpointName | None
    """None: from the beginning."""
    parent_job: str
    """The parent job that saved the checkpoint; empty for the job's own or none."""
    world_size: int
    """Number of ranks that saved it."""
    owns: Mapping[int, Any]
    """Per-rank state by rank: of this rank, or of all saving ranks if the world size changed."""
    passed_over: list[SkippedCheckpoint]
    """Newer checkpoints that were unusable."""
    damaged: list[CheckpointName]
    """The job's own checkpoints among them, by name."""
    lineage: Lineage
    """Including this start; set only on rank 0."""
    durable_step: int = 0
    """Step of the newest checkpoint in the store that is loaded, or that is not newer than the loaded snapshot."""
    held_at: str | None = None
    """RFC 3339 time of the snapshot if it is one in the memory of the nodes; None: it is in the store."""
    store_usage: StoreUsage = NO_USAGE
    """Requests of all ranks to the store so far; set only on rank 0."""

    @property
    def checkpoint(self) -> str | None:
        """The label of the checkpoint in messages; None if there is none."""
        return _label(self.name, self.parent_job) if self.name else None

    @property
    def training_origin(self) -> TrainingOrigin:
        """What the report of the start says about it."""
        return TrainingOrigin(
            restored_from=self.checkpoint,
            held_at=self.held_at,
            passed_over=self.passed_over,
            store_usage=self.store_usage,
        )


def restore(
    repository: CheckpointRepository,
    ranks: ProcessGroup,
    tracked: TrackedState,
    epoch: int,
    until_s: float,
    *,
    parent_job: ParentJob | None = None,
    memory: CheckpointRepository | None = None,
) -> RestoreResult:
    """Load the newest checkpoint on the lineage that every rank could read and verify.

    If none of the job's own is usable, a checkpoint of the parent job is loaded. `memory`: snapshots in the memory of the nodes.
    `epoch` begins here.

    Raises:
        StateMismatch: the checkpoint holds different objects, or state of a different number of ranks.
        PartialLoadError: none could be read and the tracked state is partly overwritten; the next start begins fresh.
        StoreError: the store failed on any rank or refused the record of this start; raised on all ranks.
        IncompatibleCheckpoint: the newest intact checkpoint belongs to another job or format version.
    """
    own = _Source(repository)
    sources = [own, _Source(parent_job.repository, parent_job.job)] if parent_job else [own]
    search = _Search(sources, ranks, tracked.destinations(), until_s)
    held = search.find_in_memory(memory) if memory else None
    found, source = (held, own) if held else search.run()
    origin = found.name if found else None
    called = source.label(origin) if origin else None
    with fail_together(ranks):  # Before any rank takes a step.
        if ranks.rank == 0:
            step = origin.step if origin else 0
            own.lineage = repository.tokens.record_start(epoch, step, called, own.lineage, until_s)
    if found:
        _load(tracked, found, ranks)
    elif parent_job and ranks.rank == 0:
        log_info(f"no checkpoint of job {parent_job.job} is usable: training begins at step 0")
    passed_over = [
        SkippedCheckpoint(each.label(name), problem)
        for each in sources
        for name, problem in each.unusable.items()
        # An older checkpoint that was already quarantined would not have been tried.
        if each is not source or origin is None or name > origin or name not in each.marked
    ]
    world_size, owns = (found.world_size, found.owns) if found else (0, {})
    parent = source.job if found else ""
    durable_step = search.newest_step if held else origin.step if origin else 0
    return RestoreResult(
        origin,
        parent,
        world_size,
        owns,
        passed_over,
        list(own.unusable),
        own.lineage,
        durable_step,
        held.commit.snapshot_at if held else None,
    )


def _load(tracked: TrackedState, found: LoadedCheckpoint, ranks: ProcessGroup) -> None:
    """Load the tracked objects on all ranks or on none.

    Raises:
        StateMismatch: an object rejects its state on any rank; raised on all ranks.
    """
    problem = ""
    try:
        tracked.load(found.tracked)
    except StateMismatch as error:
        problem = str(error)
    problem = ranks.first_message(problem)
    if problem:
        raise StateMismatch(problem)


@dataclass(slots=True)
class _Source:
    """The checkpoints of one job, as far as the search has read them."""

    repository: CheckpointRepository
    job: str = ""
    """Empty for the job that is restored."""
    unusable: dict[CheckpointName, str] = field(default_factory=dict)
    """Reasons by unusable checkpoint."""
    marked: set[CheckpointName] = field(default_factory=set)
    """Unusable checkpoints that an earlier start quarantined."""
    unavailable: str = ""
    """Message about an object that the store did not return; empty if there is none. Without an
    older checkpoint the run ends: it must not restart from step 0 because of a store."""
    lineage: Lineage = field(default_factory=Lineage)
    """Set only on rank 0."""

    def label(self, name: CheckpointName) -> str:
        """The label of a checkpoint in messages."""
        return _label(name, self.job)


class _Search:
    """Searches for the newest checkpoint that every rank can read."""

    def __init__(
        self,
        sources: Sequence[_Source],
        ranks: ProcessGroup,
        destinations: DestinationTensors,
        until_s: float,
    ) -> None:
        """`sources`: the job's own first."""
        self._sources = sources
        self._quarantine = sources[0].repository.quarantine
        """Covers all sources. A checkpoint name contains a random nonce and is unique across stores."""
        self._ranks = ranks
        self._destinations = destinations
        self._until_s = until_s
        self._overwritten_by = ""
        """Message about a checkpoint that proved corrupt after parts of it were loaded; empty if
        there is none."""
        self.newest_step = 0
        """Step of the newest usable checkpoint of the job in its store, once `find_in_memory` has looked."""

    def find_in_memory(self, memory: CheckpointRepository) -> LoadedCheckpoint | None:
        """Load the newest snapshot in memory, unless the store has a newer checkpoint.

        None if there is none that all ranks can read.
        """
        own = self._sources[0]
        usable = [name for name in self._list(own) if name not in own.unusable]
        self.newest_step = max((name.step for name in usable), default=0)
        names: list[CheckpointName] = []
        with fail_together(self._ranks):
            if self._ranks.rank == 0:
                names = [
                    name
                    for name in memory.names(self._until_s)
                    if name.step >= self.newest_step and not own.lineage.superseding_start(name)
                ]
        listed = json.loads(self._ranks.broadcast(json.dumps([_to_tuple(name) for name in names])))
        for name in (CheckpointName(*plain) for plain in listed):
            try:
                return read_checkpoint(memory, self._ranks, self._destinations, name, self._until_s)
            except PartialLoadError as damage:
                self._overwritten_by = (
                    f"the snapshot of step {name.step} in memory is damaged ({damage})"
                )
                self._log(self._overwritten_by)
                with fail_together(self._ranks):
                    if self._ranks.rank == 0:
                        memory.withdraw(name, self._until_s)
            except (CorruptCheckpoint, StateMismatch) as damage:
                self._log(f"the snapshot of step {name.step} in memory is not complete: {damage}")
        if listed:
            self._log("all ranks continue from the newest checkpoint in the store")
        return None

    def _log(self, message: str) -> None:
        if self._ranks.rank == 0:
            log_info(message)

    def run(self) -> tuple[LoadedCheckpoint | None, _Source]:
        """The loaded checkpoint and its source; None if there is none.

        Raises:
            PartialLoadError: see `restore`.
        """
        for source in self._sources:
            try:
                found = self._search(source)
            except StoreError as error:
                if not source.job:
                    raise
                if isinstance(error, IncompatibleCheckpoint):
                    raise IncompatibleCheckpoint(f"parent job {source.job}: {error}") from error
                raise StoreError(f"checkpoints of job {source.job}: {error}") from error
            if found:
                return found, source
            if source.unavailable:
                raise StoreError(source.unavailable)
        self._raise_if_overwritten()
        return None, self._sources[0]

    def _search(self, source: _Source) -> LoadedCheckpoint | None:
        names = self._list(source)
        while fresh := [name for name in names if name not in source.unusable]:
            for name in fresh:
                found = self._try(source, name)
                if found:
                    return found
            # List again before all progress is lost: an attempt that this one replaced may have committed a newer
            # checkpoint and pruned the ones tried here.
            names = self._list(source)
        return None

    def _try(self, source: _Source, name: CheckpointName) -> LoadedCheckpoint | None:
        try:
            found = read_checkpoint(
                source.repository, self._ranks, self._destinations, name, self._until_s
            )
        except PartialLoadError as damage:
            self._skip(source, name, str(damage))
            self._overwritten_by = f"{source.label(name)} is damaged ({damage})"
            if isinstance(damage.__cause__, UnavailableObject):
                source.unavailable = self._overwritten_by
                return None
            with fail_together(self._ranks):
                if self._ranks.rank == 0:
                    self._quarantine.mark(name, str(damage), self._until_s)
        except CorruptCheckpoint as damage:
            self._skip(source, name, str(damage))
            if isinstance(damage, UnavailableObject):
                source.unavailable = f"{source.label(name)}: {damage}"
        else:
            leaves_some = not self._destinations.live.keys() <= found.names
            # Per-rank state may differ in which tensors it has.
            if self._overwritten_by and self._ranks.all_reduce_max([float(leaves_some)])[0]:
                self._raise_if_overwritten()
            return found
        return None

    def _skip(self, source: _Source, name: CheckpointName, problem: str) -> None:
        """Record a checkpoint as unusable; rank 0 logs it."""
        source.unusable[name] = problem
        if self._ranks.rank == 0:
            log_info(f"skipping checkpoint {source.label(name)}: {problem}")

    def _raise_if_overwritten(self) -> None:
        if self._overwritten_by:
            raise PartialLoadError(
                f"{self._overwritten_by}, no older checkpoint can replace it, "
                "and the state was partly overwritten: start again to train from step 0"
            )

    def _list(self, source: _Source) -> list[CheckpointName]:
        """The usable commits on the lineage, newest first, equal on all ranks.

        Rank 0 lists for all: two listings may differ if a process prunes or commits in between.
        """
        names: list[CheckpointName] = []
        known: dict[CheckpointName, str] = {}
        with fail_together(self._ranks):
            if self._ranks.rank == 0:
                # Commits first: the lineage then includes every start recorded before any listed commit.
                committed = source.repository.names(self._until_s)
                source.lineage = source.repository.tokens.lineage(self._until_s)
                names = [name for name in committed if not source.lineage.superseding_start(name)]
                known = source.repository.quarantine.reasons(self._until_s)
                if source.job:
                    known |= self._quarantine.reasons(self._until_s)
        received = self._ranks.broadcast(
            json.dumps([[*_to_tuple(name), known.get(name, "")] for name in names])
        )
        listed = {CheckpointName(*plain): problem for *plain, problem in json.loads(received)}
        fresh = {
            name: problem
            for name, problem in listed.items()
            if problem and name not in source.unusable
        }
        source.marked |= fresh.keys()
        for name, problem in fresh.items():
            self._skip(source, name, problem)
        return list(listed)


def _label(name: CheckpointName, job: str) -> str:
    """The label of a checkpoint in messages, prefixed with its job if that is another one."""
    return f"{job}/{name}" if job else str(name)


def _to_tuple(name: CheckpointName) -> tuple[int, int, str]:
    return name.step, name.epoch, name.nonce

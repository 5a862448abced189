"""Restoring: all ranks find the newest checkpoint that all of them can use.

A job may go on from the checkpoints of another one, its forebear, which has ended. They count as older than all of its own: the
search comes to them when none of its own can be used. The forebear's store is read and never written to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast_worker.checkpoint.collective import LoadedCheckpoint, fail_together, read
from holdfast_worker.checkpoint.metadata import (
    CorruptCheckpoint,
    Foreign,
    PartialLoadError,
    Withheld,
)
from holdfast_worker.checkpoint.read_plan import DestinationTensors
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.stateful import StateMismatch, TrackedState
from holdfast_worker.console import log_info
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.lineage import Lineage
from holdfast_worker.storage.base import StoreError
from holdfast_worker.telemetry.reporter import PassedOver

PATIENCE_S: Final = 300.0
"""With a store that does not answer while a checkpoint is read. Longer pays for idle nodes; shorter gives up a
restore, and then the whole placement, for a hiccup. Silence is never taken for "there is no checkpoint"."""


@dataclass(frozen=True, slots=True)
class ParentJob:
    """A job that has ended, and from whose checkpoints another one goes on."""

    job: str
    archive: CheckpointRepository


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """Where a run goes on."""

    name: CheckpointName | None
    """None: at the beginning."""
    forebear: str
    """The job whose checkpoint that is; empty where it is one of its own, or none."""
    world_size: int
    """Number of ranks that saved it."""
    owns: Mapping[int, Any]
    """State that belonged to one rank alone, by rank: to this one, or to all that saved if those were more or fewer."""
    passed_over: list[PassedOver]
    """Newer ones that could not be used."""
    damaged: list[CheckpointName]
    """Those of them that are the job's own, by name."""
    lineage: Lineage
    """With this start; on the first rank, as no other needs it."""

    @property
    def checkpoint(self) -> str | None:
        """How it is told of; None: there is none."""
        return _called(self.name, self.forebear) if self.name else None


def restore(
    archive: CheckpointRepository,
    ranks: ProcessGroup,
    tracked: TrackedState,
    epoch: int,
    until_s: float,
    *,
    forebear: ParentJob | None = None,
) -> RestoreResult:
    """Put what is tracked where the newest checkpoint on the lineage left it that every rank could read and verify.

    Where none of its own can be used, it is one of the forebear. From here on `epoch` has begun.

    Raises:
        Mismatch: the checkpoint holds other things, or those of another number of ranks.
        Spoilt: none could be read, and what is tracked is not any more what it was; a next start begins anew.
        StoreError: the store went silent to any rank, or does not take the record of this start; the same on all.
        Foreign: the newest that is not damaged is not for this version or this job.
    """
    own = _Shelf(archive)
    shelves = [own, _Shelf(forebear.archive, forebear.job)] if forebear else [own]
    search = _Search(shelves, ranks, tracked.homes(), until_s)
    found, shelf = search.run()
    origin = found.name if found else None
    called = shelf.called(origin) if origin else None
    with fail_together(ranks):  # Before any rank takes a step.
        if ranks.rank == 0:
            step = origin.step if origin else 0
            own.lineage = archive.claims.begin(epoch, step, called, own.lineage, until_s)
    if found:
        _load(tracked, found, ranks)
    elif forebear and ranks.rank == 0:
        log_info(f"no checkpoint of job {forebear.job} can be used: training begins at step 0")
    passed_over = [
        PassedOver(each.called(name), flaw)
        for each in shelves
        for name, flaw in each.flaws.items()
        # An older one of which it was known before would not have been looked at.
        if each is not shelf or origin is None or name > origin or name not in each.marked
    ]
    world_size, owns = (found.world_size, found.owns) if found else (0, {})
    whose = shelf.job if found else ""
    return RestoreResult(origin, whose, world_size, owns, passed_over, list(own.flaws), own.lineage)


def _load(tracked: TrackedState, found: LoadedCheckpoint, ranks: ProcessGroup) -> None:
    """Put what is tracked there, on all ranks or on none.

    Raises:
        Mismatch: an object of one rank does not take its state; the same on all ranks.
    """
    flaw = ""
    try:
        tracked.load(found.tracked)
    except StateMismatch as error:
        flaw = str(error)
    flaw = ranks.first_message(flaw)
    if flaw:
        raise StateMismatch(flaw)


@dataclass(slots=True)
class _Shelf:
    """The checkpoints of one job, as far as a search has come."""

    archive: CheckpointRepository
    job: str = ""
    """Empty for the job that is to go on."""
    flaws: dict[CheckpointName, str] = field(default_factory=dict)
    """What is wrong with those that cannot be used."""
    marked: set[CheckpointName] = field(default_factory=set)
    """Those of them that an earlier start has found damaged."""
    withheld: str = ""
    """An object of one of them that the store does not give, in words; empty where there is none. Without an older checkpoint
    the run ends: it must not begin again because of a store."""
    lineage: Lineage = field(default_factory=Lineage)
    """On the first rank."""

    def called(self, name: CheckpointName) -> str:
        """How one of them is told of."""
        return _called(name, self.job)


class _Search:
    """For the newest checkpoint that every rank can read."""

    def __init__(
        self,
        shelves: Sequence[_Shelf],
        ranks: ProcessGroup,
        homes: DestinationTensors,
        until_s: float,
    ) -> None:
        """`shelves`: the job's own first."""
        self._shelves = shelves
        self._marks = shelves[0].archive.flaws
        """Of all shelves. A name has a part that is drawn, so that it means one checkpoint wherever that lies."""
        self._ranks = ranks
        self._homes = homes
        self._until_s = until_s
        self._spoilt = ""
        """What was found damaged after some of it was in its place, in words; empty where nothing was."""

    def run(self) -> tuple[LoadedCheckpoint | None, _Shelf]:
        """What it holds, and where it was; None if there is none.

        Raises:
            Spoilt: see `restore`.
        """
        for shelf in self._shelves:
            try:
                found = self._look_through(shelf)
            except StoreError as error:
                if not shelf.job:
                    raise
                if isinstance(error, Foreign):
                    raise Foreign(f"of job {shelf.job}, {error}") from error
                raise StoreError(f"those of job {shelf.job}: {error}") from error
            if found:
                return found, shelf
            if shelf.withheld:
                raise StoreError(shelf.withheld)
        self._leave_if_spoilt()
        return None, self._shelves[0]

    def _look_through(self, shelf: _Shelf) -> LoadedCheckpoint | None:
        names = self._list(shelf)
        while fresh := [name for name in names if name not in shelf.flaws]:
            for name in fresh:
                found = self._try(shelf, name)
                if found:
                    return found
            # Before all work is given up: a placement that we replaced may have tidied away what we were reading,
            # after a commit that was not there yet when we looked.
            names = self._list(shelf)
        return None

    def _try(self, shelf: _Shelf, name: CheckpointName) -> LoadedCheckpoint | None:
        try:
            found = read(shelf.archive, self._ranks, self._homes, name, self._until_s)
        except PartialLoadError as damage:
            self._pass_over(shelf, name, str(damage))
            self._spoilt = f"{shelf.called(name)} is damaged ({damage})"
            if isinstance(damage.__cause__, Withheld):
                shelf.withheld = self._spoilt
                return None
            with fail_together(self._ranks):
                if self._ranks.rank == 0:
                    self._marks.mark(name, str(damage), self._until_s)
        except CorruptCheckpoint as damage:
            self._pass_over(shelf, name, str(damage))
            if isinstance(damage, Withheld):
                shelf.withheld = f"{shelf.called(name)}: {damage}"
        else:
            leaves_some = not self._homes.live.keys() <= found.names
            # Of its own state, one rank may have what another has not.
            if self._spoilt and self._ranks.all_reduce_max([float(leaves_some)])[0]:
                self._leave_if_spoilt()
            return found
        return None

    def _pass_over(self, shelf: _Shelf, name: CheckpointName, flaw: str) -> None:
        """Keep a checkpoint in mind as one that cannot be used; one rank logs it."""
        shelf.flaws[name] = flaw
        if self._ranks.rank == 0:
            log_info(f"checkpoint {shelf.called(name)} is passed over: {flaw}")

    def _leave_if_spoilt(self) -> None:
        if self._spoilt:
            raise PartialLoadError(
                f"{self._spoilt}, no older checkpoint can take its place, "
                "and the state was partly overwritten: start again, to begin at the beginning"
            )

    def _list(self, shelf: _Shelf) -> list[CheckpointName]:
        """The commits on the lineage of which nothing bad is known, newest first, the same on all ranks.

        Two ranks that list by themselves may see different stores: one may have pruned or committed in between.
        """
        names: list[CheckpointName] = []
        known: dict[CheckpointName, str] = {}
        with fail_together(self._ranks):
            if self._ranks.rank == 0:
                # The commits first: of those that are seen, every start is seen that was recorded before.
                committed = shelf.archive.names(self._until_s)
                shelf.lineage = shelf.archive.claims.lineage(self._until_s)
                names = [name for name in committed if not shelf.lineage.cut(name)]
                known = shelf.archive.flaws.known(self._until_s)
                if shelf.job:
                    known |= self._marks.known(self._until_s)
        told = self._ranks.broadcast(
            json.dumps([[*_plain(name), known.get(name, "")] for name in names])
        )
        listed = {CheckpointName(*plain): flaw for *plain, flaw in json.loads(told)}
        fresh = {name: flaw for name, flaw in listed.items() if flaw and name not in shelf.flaws}
        shelf.marked |= fresh.keys()
        for name, flaw in fresh.items():
            self._pass_over(shelf, name, flaw)
        return list(listed)


def _called(name: CheckpointName, job: str) -> str:
    """How a checkpoint is told of: where it lies below the store, for one of another job."""
    return f"{job}/{name}" if job else str(name)


def _plain(name: CheckpointName) -> tuple[int, int, str]:
    return name.step, name.epoch, name.nonce

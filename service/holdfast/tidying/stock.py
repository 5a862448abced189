"""What a checkpoint store holds of one job: looked through, and put beside what its workers told."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from holdfast_worker.lineage import STARTS, Lineage, Start
from holdfast_worker.names import (
    CLAIMS,
    COMMITS,
    DATA,
    DRAFT,
    FLAWED,
    PROBES,
    Name,
    claimed_by,
    flawed_by,
)
from holdfast_worker.summary import Summary

from holdfast.domain.keep import FEWEST, Keep
from holdfast.domain.retention import NEVER, Commit, Inventory, Score, Upload
from holdfast.domain.saves import Save, Saves
from holdfast.ports import Depot, Stored

MOST_COUNTED: Final = 32
"""Checkpoints of a job whose bytes are counted before they are taken for whole. Fewer: of many that lack some, the sound
ones before them count for less. More: a store of thousands is listed from end to end."""


@dataclass(slots=True)
class Known:
    """What was found out about checkpoints and cannot change; it saves asking again."""

    summaries: dict[Name, Summary | None] = field(default_factory=dict)
    """Of commits that nobody told of; None for one that cannot be read."""
    readable: set[Name] = field(default_factory=set)
    """Those of a format that this version reads, as far as it was looked at."""
    whole: set[Name] = field(default_factory=set)
    damaged: set[Name] = field(default_factory=set)
    """By the marks of workers; one that was mended loses its mark."""

    def forget_all_but(self, names: Collection[Name]) -> None:
        """Remember nothing of what is gone."""
        self.summaries = {name: said for name, said in self.summaries.items() if name in names}
        self.readable.intersection_update(names)
        self.whole.intersection_update(names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stock:
    """What was found."""

    inventory: Inventory
    sizes: Mapping[Name, int]
    """Bytes of each checkpoint that was committed; 0 where nobody knows."""
    data: Mapping[Name, Sequence[Stored]]
    """The objects of each upload."""
    strays: Sequence[Stored]
    """Probes, drafts that never became an object, and marks of damaged checkpoints that are gone."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What is known of a checkpoint besides that it was committed."""

    size_bytes: int | None
    """None: nobody knows."""
    score: Score | None


def take_stock(depot: Depot, saves: Saves, keep: Keep, known: Known) -> Stock:
    """What a store holds of a job.

    Raises:
        DepotUnreachable: it could not be found out.
        DepotRefused: the same, and it would be so again.
    """
    # Data before commits: of the data that is seen, every commit is seen that was made before. Commits before starts
    # for the same reason. Claims last: a placement that comes meanwhile is seen, and holds all up.
    directories = depot.directories(DATA)
    commits = depot.look(COMMITS)
    starts = depot.look(STARTS)
    claims = depot.look(CLAIMS)
    begun = {start: o.at for o in starts.objects if (start := Start.of_key(o.key))}
    written = {name: o.at for o in commits.objects if (name := Name.of_key(o.key))}
    known.forget_all_but(written)
    told = {name: _told(depot, name, saves, keep, known) for name in written}
    marks = {name: o for o in depot.look(FLAWED).objects if (name := flawed_by(o.key))}
    known.damaged = set(marks)
    lacking = _lacking(depot, told, Lineage(frozenset(begun)), keep, known)
    newest = max((start.epoch for start in begun), default=NEVER)
    data = dict(_uploads(depot, directories, written, newest))
    epochs = (claimed_by(o.key) or NEVER for o in claims.objects)
    inventory = Inventory(
        at=commits.at,
        commits=tuple(
            Commit(name=name, at=at, is_whole=name not in lacking, score=told[name].score)
            for name, at in written.items()
        ),
        uploads=tuple(Upload(name, max(o.at for o in parts)) for name, parts in data.items()),
        starts=begun,
        claimed=max(epochs, default=NEVER),
    )
    seen = (*commits.objects, *starts.objects, *claims.objects, *depot.look(PROBES).objects)
    # Where nothing was committed yet, a mark may be of a checkpoint of the job from which this one goes on.
    pointless = [mark for name, mark in marks.items() if written and name not in written]
    return Stock(
        inventory=inventory,
        sizes={name: found.size_bytes or 0 for name, found in told.items()},
        data=data,
        strays=(*filter(_is_stray, seen), *pointless),
    )


def _told(depot: Depot, name: Name, saves: Saves, keep: Keep, known: Known) -> _Told:
    """By what its worker reported; or by the commit itself, where the worker fell before it could."""
    said: Save | Summary | None = saves.find(str(name))
    if said is None:
        if name not in known.summaries:
            known.summaries[name] = _summary(depot, name)
        said = known.summaries[name]
    if said is None:
        return _Told(None, None)
    logged = said.metrics.get(keep.best.metric) if keep.best else None
    score = Score(logged.value, logged.step) if logged and logged.value is not None else None
    return _Told(said.size_bytes, score)


def _summary(depot: Depot, name: Name) -> Summary | None:
    try:
        return Summary.of_commit(depot.read(name.commit_key) or b"")
    except ValueError:
        return None


def _lacking(
    depot: Depot, told: Mapping[Name, _Told], lineage: Lineage, keep: Keep, known: Known
) -> set[Name]:
    """The newest checkpoints some of whose bytes are not there, as far as counting them tells; and those of the newest that
    a worker has found damaged."""
    lacking: set[Name] = set()
    wanted = max(keep.last, FEWEST)
    newest_first = sorted((name for name in told if not lineage.cut(name)), reverse=True)
    for name in newest_first[:MOST_COUNTED]:
        if not wanted:
            break
        is_sound = name not in known.damaged and (
            name in known.whole or _is_whole(depot, name, told[name].size_bytes)
        )
        if is_sound:
            known.whole.add(name)
            wanted -= 1
        else:
            lacking.add(name)
    return lacking


def _is_whole(depot: Depot, name: Name, size_bytes: int | None) -> bool:
    if size_bytes is None:
        return False  # Its commit cannot be read.
    return sum(o.size_bytes for o in depot.look(name.data_prefix).objects) == size_bytes


def _uploads(
    depot: Depot, directories: Sequence[str], written: Mapping[Name, datetime], newest: int
) -> Iterator[tuple[Name, Sequence[Stored]]]:
    """Data without a commit, of epochs that have begun."""
    for directory in directories:
        name = Name.of_key(directory)
        if name and name not in written and name.epoch <= newest:
            parts = depot.look(directory).objects
            if parts:  # Somebody else may have removed it by now.
                yield name, parts


def _is_stray(stored: Stored) -> bool:
    is_draft = stored.key.rpartition("/")[2].startswith(DRAFT)
    return is_draft or (stored.key.startswith(PROBES) and stored.key != PROBES)

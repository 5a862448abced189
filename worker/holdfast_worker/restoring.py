"""Restoring: all ranks find the newest checkpoint that all of them can use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast_worker.accord import together
from holdfast_worker.archive import Archive
from holdfast_worker.checkpoint import Damaged, Name
from holdfast_worker.lineage import Lineage
from holdfast_worker.ranks import Ranks
from holdfast_worker.reading_together import Contents, read
from holdfast_worker.reports import PassedOver
from holdfast_worker.tracked import Tracked

PATIENCE_S: Final = 300.0
"""With a store that does not answer while a checkpoint is read. Longer pays for idle nodes; shorter gives up a
restore, and then the whole placement, for a hiccup. Silence is never taken for "there is no checkpoint"."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Where a run goes on."""

    name: Name | None
    """None: at the beginning."""
    world_size: int
    """Number of ranks that saved it."""
    owns: Mapping[int, Any]
    """State that belonged to one rank alone, by rank: to this one, or to all that saved if those were more or fewer."""
    passed_over: list[PassedOver]
    """Newer ones that could not be used."""
    damaged: list[Name]
    """The same, by name."""
    lineage: Lineage
    """With this start; on the first rank, as no other needs it."""


def restore(
    archive: Archive, ranks: Ranks, tracked: Tracked, epoch: int, until_s: float
) -> Restored:
    """Put what is tracked where the newest checkpoint on the lineage left it that every rank could read and verify.

    From here on `epoch` has begun.

    Raises:
        Mismatch: the checkpoint holds other things.
        StoreError: the store went silent to any rank, or does not take the record of this start; the same on all.
    """
    flaws: dict[Name, str] = {}
    found: Contents | None = None
    lineage, names = _listed(archive, ranks, until_s)
    while found is None and (fresh := [name for name in names if name not in flaws]):
        for name in fresh:
            try:
                found = read(archive, ranks, tracked.shardings(), name, until_s)
                break
            except Damaged as damage:
                flaws[name] = str(damage)
        if found is None:
            # Before all work is given up: a placement that we replaced may have tidied away what we were reading,
            # after a commit that was not there yet when we looked.
            lineage, names = _listed(archive, ranks, until_s)
    origin = found.name if found else None
    lineage = _begin(archive, ranks, epoch, origin, lineage, until_s=until_s)
    if found:
        tracked.load(found.tracked)
    passed_over = [PassedOver(str(name), flaw) for name, flaw in flaws.items()]
    world_size, owns = (found.world_size, found.owns) if found else (0, {})
    return Restored(origin, world_size, owns, passed_over, list(flaws), lineage)


def _listed(archive: Archive, ranks: Ranks, until_s: float) -> tuple[Lineage, list[Name]]:
    """The lineage, which the first rank alone knows, and the commits on it, newest first, the same on all ranks.

    Two ranks that list by themselves may see different stores: one may have pruned or committed in between.
    """
    lineage = Lineage()
    names: list[Name] = []
    with together(ranks):
        if ranks.rank == 0:
            # The commits first: of those that are seen, every start is seen that was recorded before.
            committed = archive.names(until_s)
            lineage = archive.claims.lineage(until_s)
            names = [name for name in committed if not lineage.cut(name)]
    told = ranks.tell(json.dumps([_plain(name) for name in names]))
    return lineage, [Name(*plain) for plain in json.loads(told)]


def _begin(
    archive: Archive,
    ranks: Ranks,
    epoch: int,
    origin: Name | None,
    lineage: Lineage,
    *,
    until_s: float,
) -> Lineage:
    """The lineage after this start is recorded, before any rank takes a step."""
    with together(ranks):
        if ranks.rank == 0:
            lineage = archive.claims.begin(epoch, origin, lineage, until_s)
    return lineage


def _plain(name: Name) -> tuple[int, int, str]:
    return name.step, name.epoch, name.nonce

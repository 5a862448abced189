"""Restoring: all ranks find the newest checkpoint that all of them can use."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from holdfast_worker.accord import together
from holdfast_worker.archive import Archive, Contents, WorldChanged
from holdfast_worker.checkpoint import Damaged, Name
from holdfast_worker.lineage import Lineage
from holdfast_worker.ranks import Ranks
from holdfast_worker.reports import PassedOver

PATIENCE_S: Final = 300.0
"""With a store that does not answer while a checkpoint is read. Longer pays for idle nodes; shorter gives up a
restore, and then the whole placement, for a hiccup. Silence is never taken for "there is no checkpoint"."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Where a run goes on."""

    name: Name | None
    """None: at the beginning."""
    tracked: dict[str, Any]
    own: Any
    passed_over: list[PassedOver]
    """Newer ones that could not be used."""
    damaged: list[Name]
    """The same, by name."""
    lineage: Lineage
    """With this start; on the first rank, as no other needs it."""


def restore(archive: Archive, ranks: Ranks, epoch: int, until_s: float) -> Restored:
    """The newest checkpoint on the lineage that every rank could read and verify; from here on `epoch` has begun.

    Raises:
        WorldChanged: it was saved by another number of ranks.
        StoreError: the store went silent to any rank, or does not take the record of this start; the same on all.
    """
    flaws: dict[Name, str] = {}
    found: tuple[Name, Contents] | None = None
    lineage, names = _listed(archive, ranks, until_s)
    while found is None and (fresh := [name for name in names if name not in flaws]):
        found = _first_whole(archive, ranks, fresh, flaws, until_s)
        if found is None:
            # Before all work is given up: a placement that we replaced may have tidied away what we were reading,
            # after a commit that was not there yet when we looked.
            lineage, names = _listed(archive, ranks, until_s)
    name, contents = found or (None, Contents({}, None))
    lineage = _begin(archive, ranks, epoch, name, lineage, until_s=until_s)
    passed_over = [PassedOver(str(name), flaw) for name, flaw in flaws.items()]
    return Restored(name, contents.tracked, contents.own, passed_over, list(flaws), lineage)


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


def _first_whole(
    archive: Archive, ranks: Ranks, names: list[Name], flaws: dict[Name, str], until_s: float
) -> tuple[Name, Contents] | None:
    """The first of `names` that all ranks can use; what is wrong with those before it goes into `flaws`."""
    for name in names:
        flaw = misfit = ""
        with together(ranks):
            try:
                contents = archive.read(name, ranks.rank, ranks.world_size, until_s)
            except Damaged as damage:
                flaw = str(damage)
            except WorldChanged as change:
                misfit = str(change)
        if flaw := ranks.first_to_say(flaw):
            flaws[name] = flaw
        elif misfit := ranks.first_to_say(misfit):
            raise WorldChanged(misfit)
        else:
            return name, contents
    return None


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

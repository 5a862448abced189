"""Restoring: all ranks find the newest checkpoint that all of them can use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast_worker.accord import together
from holdfast_worker.archive import Archive
from holdfast_worker.checkpoint import Damaged, Spoilt
from holdfast_worker.homes import Homes
from holdfast_worker.lineage import Lineage
from holdfast_worker.names import Name
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
        Spoilt: none could be read, and what is tracked is not any more what it was; a next start begins anew.
        StoreError: the store went silent to any rank, or does not take the record of this start; the same on all.
    """
    search = _Search(archive, ranks, tracked.homes(), until_s)
    found = search.run()
    origin = found.name if found else None
    lineage = _begin(archive, ranks, epoch, origin, search.lineage, until_s=until_s)
    if found:
        tracked.load(found.tracked)
    passed_over = [
        PassedOver(str(name), flaw)
        for name, flaw in search.flaws.items()
        # An older one of which it was known before would not have been looked at.
        if origin is None or name > origin or name not in search.marked
    ]
    world_size, owns = (found.world_size, found.owns) if found else (0, {})
    return Restored(origin, world_size, owns, passed_over, list(search.flaws), lineage)


class _Search:
    """For the newest checkpoint that every rank can read."""

    def __init__(self, archive: Archive, ranks: Ranks, homes: Homes, until_s: float) -> None:
        self._archive = archive
        self._ranks = ranks
        self._homes = homes
        self._until_s = until_s
        self._is_spoilt = False
        self.flaws: dict[Name, str] = {}
        """What is wrong with others."""
        self.marked: set[Name] = set()
        """Those of them that an earlier start has found damaged."""
        self.lineage = Lineage()
        """On the first rank."""

    def run(self) -> Contents | None:
        """What it holds; None if there is none.

        Raises:
            Spoilt: see `restore`.
        """
        names = self._list()
        while fresh := [name for name in names if name not in self.flaws]:
            for name in fresh:
                found = self._try(name)
                if found:
                    return found
            # Before all work is given up: a placement that we replaced may have tidied away what we were reading,
            # after a commit that was not there yet when we looked.
            names = self._list()
        self._leave_if_spoilt()
        return None

    def _try(self, name: Name) -> Contents | None:
        try:
            found = read(self._archive, self._ranks, self._homes, name, self._until_s)
        except Spoilt as damage:
            self.flaws[name] = str(damage)
            self._is_spoilt = True
            with together(self._ranks):
                if self._ranks.rank == 0:
                    self._archive.flaws.mark(name, str(damage), self._until_s)
        except Damaged as damage:
            self.flaws[name] = str(damage)
        else:
            if not self._homes.live.keys() <= found.names:
                self._leave_if_spoilt()
            return found
        return None

    def _leave_if_spoilt(self) -> None:
        if self._is_spoilt:
            [*_, (name, flaw)] = self.flaws.items()
            raise Spoilt(
                f"{name} is damaged ({flaw}), no older checkpoint can take its place, "
                "and the state was partly overwritten: start again, to begin at the beginning"
            )

    def _list(self) -> list[Name]:
        """The commits on the lineage of which nothing bad is known, newest first, the same on all ranks.

        Two ranks that list by themselves may see different stores: one may have pruned or committed in between.
        """
        names: list[Name] = []
        known: dict[Name, str] = {}
        with together(self._ranks):
            if self._ranks.rank == 0:
                # The commits first: of those that are seen, every start is seen that was recorded before.
                committed = self._archive.names(self._until_s)
                self.lineage = self._archive.claims.lineage(self._until_s)
                names = [name for name in committed if not self.lineage.cut(name)]
                marked = self._archive.flaws.known(self._until_s)
                known = {name: flaw for name, flaw in marked.items() if name in names}
        told = self._ranks.tell(
            json.dumps([[*_plain(name), known.get(name, "")] for name in names])
        )
        listed = {Name(*plain): flaw for *plain, flaw in json.loads(told)}
        fresh = {name: flaw for name, flaw in listed.items() if flaw and name not in self.flaws}
        self.marked |= fresh.keys()
        self.flaws |= fresh
        return list(listed)


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

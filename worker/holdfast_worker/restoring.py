"""Restoring: all ranks find the newest checkpoint that all of them can use."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from holdfast_worker.archive import Archive
from holdfast_worker.checkpoint import Damaged, Name
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


def restore(archive: Archive, ranks: Ranks, until_s: float) -> Restored:
    """The newest checkpoint that every rank could read and verify.

    Raises:
        WorldChanged: it was saved by another number of ranks.
        Unreachable: the store went silent.
    """
    # Two ranks that list by themselves may see different stores: one may have pruned or committed in between.
    listed = archive.names(until_s) if ranks.rank == 0 else []
    names = [Name(*n) for n in json.loads(ranks.tell(json.dumps([_plain(n) for n in listed])))]
    passed_over: list[PassedOver] = []
    for position, name in enumerate(names):
        flaw = ""
        try:
            contents = archive.read(name, ranks.rank, ranks.world_size, until_s)
        except Damaged as damage:
            flaw = str(damage)
        complaint = ranks.first_to_say(flaw)
        if not complaint:
            return Restored(name, contents.tracked, contents.own, passed_over, names[:position])
        passed_over.append(PassedOver(str(name), complaint))
    return Restored(None, {}, None, passed_over, names)


def _plain(name: Name) -> tuple[int, int, str]:
    return name.step, name.epoch, name.nonce

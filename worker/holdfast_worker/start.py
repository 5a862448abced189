"""The start of a rank, up to the moment at which its script goes on."""

from __future__ import annotations

import atexit
import time
from typing import Final

from holdfast_worker.accord import together
from holdfast_worker.archive import Archive
from holdfast_worker.claims import Fenced
from holdfast_worker.config import BARE, Config
from holdfast_worker.console import tell
from holdfast_worker.courier import Courier
from holdfast_worker.doorstep import Doorstep
from holdfast_worker.ranks import Ranks
from holdfast_worker.reports import Reports
from holdfast_worker.restoring import Forebear
from holdfast_worker.spool import Spool
from holdfast_worker.stores import StoreError, open_store

FIRST_PATIENCE_S: Final = 20.0
"""With a store that does not answer the very first attempt: most likely the address is wrong, and money is burning."""

LATER_PATIENCE_S: Final = 300.0
"""With a store that worked for an earlier attempt, or may have: most likely it comes back."""


def open_reports(config: Config) -> Reports:
    """The reports of this rank: spooled on the first one, and delivered if nobody else does it."""
    if config.rank or not config.spool:
        return Reports(None)
    try:
        spool = Spool(config.spool, config.attempt)
    except (OSError, ValueError) as error:
        tell(f"reports are lost, as the spool cannot be used: {error}")
        return Reports(None)
    if config.url and not config.has_courier and config.is_numbered:
        doorstep = Doorstep(config.url, config.job, config.token)
        courier = Courier(doorstep, config.spool, config.attempt)
        courier.start()
        atexit.register(courier.close)
    return Reports(spool)


def open_archive(config: Config, ranks: Ranks, nonce: str) -> Archive | None:
    """The checkpoints of this job, in a store that takes objects and that all ranks see; None without a store.

    Raises:
        StoreError: the store cannot be used; the same on all ranks.
    """
    if not config.store:
        return None
    until_s = _until_s(config)
    with together(ranks):
        job = "" if config.job == BARE else config.job
        archive = Archive(open_store(config.store, config.job), job)
        if ranks.rank == 0:
            archive.check_newest(until_s)
            archive.guarantee = archive.probe(nonce, until_s)
            tell(f"the checkpoint store {archive.guarantee.words}")
    with together(ranks):
        if not archive.sees_probe(nonce, until_s):
            raise StoreError(
                f"rank {ranks.rank} does not see what rank 0 wrote; it must be shared by all nodes"
            )
    with together(ranks):
        if ranks.rank == 0:
            archive.remove_probe(nonce, until_s)
    return archive


def open_forebear(config: Config, ranks: Ranks) -> Forebear | None:
    """The checkpoints of the job from which this one goes on, to be read and never written; None where there is none.

    Raises:
        StoreError: the store cannot be used; the same on all ranks.
    """
    if not config.store or not config.forebear:
        return None
    with together(ranks):
        archive = Archive(open_store(config.store, config.forebear), config.forebear)
    return Forebear(config.forebear, archive)


def claim_epoch(config: Config, archive: Archive, ranks: Ranks, nonce: str) -> int:
    """The epoch of this start: the one that the launcher gave, or the next in the store. From here on older ones are
    fenced.

    Raises:
        Fenced: a newer placement is there already; the same on all ranks.
        StoreError: the store cannot be used; the same on all ranks.
    """
    epoch, fenced = config.epoch or 0, ""
    with together(ranks):
        if ranks.rank == 0:
            try:
                if config.epoch is None:
                    epoch = archive.claims.take_next(nonce, _until_s(config))
                else:
                    archive.claims.take(config.epoch, nonce, _until_s(config))
            except Fenced as answer:
                fenced = str(answer)
    fenced = ranks.first_to_say(fenced)
    if fenced:
        raise Fenced(fenced)
    return int(ranks.tell(str(epoch)))


def _until_s(config: Config) -> float:
    """When to give up on a store at the start."""
    return time.monotonic() + (FIRST_PATIENCE_S if config.attempt == 1 else LATER_PATIENCE_S)

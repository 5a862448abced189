"""The start of a rank, up to the moment at which its script goes on."""

from __future__ import annotations

import atexit
import time
from typing import Final

from holdfast_worker.checkpoint.collective import fail_together
from holdfast_worker.checkpoint.fencing import FencedOut
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.restore import ParentJob
from holdfast_worker.config import BARE, Config
from holdfast_worker.console import log_info
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.storage import open_store
from holdfast_worker.storage.base import StoreError
from holdfast_worker.telemetry.delivery import ReportSender
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.telemetry.service_client import ServiceClient
from holdfast_worker.telemetry.spool import Spool

FIRST_PATIENCE_S: Final = 20.0
"""With a store that does not answer the very first attempt: most likely the address is wrong, and money is burning."""

LATER_PATIENCE_S: Final = 300.0
"""With a store that worked for an earlier attempt, or may have: most likely it comes back."""


def open_reports(config: Config) -> Reporter:
    """The reports of this rank: spooled on the first one, and delivered if nobody else does it."""
    if config.rank or not config.spool:
        return Reporter(None)
    try:
        spool = Spool(config.spool, config.attempt)
    except (OSError, ValueError) as error:
        log_info(f"reports are lost, as the spool cannot be used: {error}")
        return Reporter(None)
    if config.url and not config.has_courier and config.is_numbered:
        doorstep = ServiceClient(config.url, config.job, config.token)
        courier = ReportSender(doorstep, config.spool, config.attempt)
        courier.start()
        atexit.register(courier.close)
    return Reporter(spool)


def open_archive(config: Config, ranks: ProcessGroup, nonce: str) -> CheckpointRepository | None:
    """The checkpoints of this job, in a store that takes objects and that all ranks see; None without a store.

    Raises:
        StoreError: the store cannot be used; the same on all ranks.
    """
    if not config.store:
        return None
    until_s = _until_s(config)
    with fail_together(ranks):
        job = "" if config.job == BARE else config.job
        archive = CheckpointRepository(open_store(config.store, config.job), job)
        if ranks.rank == 0:
            archive.check_newest(until_s)
            archive.guarantee = archive.probe(nonce, until_s)
            log_info(f"the checkpoint store {archive.guarantee.words}")
    with fail_together(ranks):
        if not archive.sees_probe(nonce, until_s):
            raise StoreError(
                f"rank {ranks.rank} does not see what rank 0 wrote; it must be shared by all nodes"
            )
    with fail_together(ranks):
        if ranks.rank == 0:
            archive.remove_probe(nonce, until_s)
    return archive


def open_forebear(config: Config, ranks: ProcessGroup) -> ParentJob | None:
    """The checkpoints of the job from which this one goes on, to be read and never written; None where there is none.

    Raises:
        StoreError: the store cannot be used; the same on all ranks.
    """
    if not config.store or not config.forebear:
        return None
    with fail_together(ranks):
        archive = CheckpointRepository(open_store(config.store, config.forebear), config.forebear)
    return ParentJob(config.forebear, archive)


def claim_epoch(
    config: Config, archive: CheckpointRepository, ranks: ProcessGroup, nonce: str
) -> int:
    """The epoch of this start: the one that the launcher gave, or the next in the store. From here on older ones are
    fenced.

    Raises:
        Fenced: a newer placement is there already; the same on all ranks.
        StoreError: the store cannot be used; the same on all ranks.
    """
    epoch, fenced = config.epoch or 0, ""
    with fail_together(ranks):
        if ranks.rank == 0:
            try:
                if config.epoch is None:
                    epoch = archive.claims.acquire_next(nonce, _until_s(config))
                else:
                    archive.claims.take(config.epoch, nonce, _until_s(config))
            except FencedOut as answer:
                fenced = str(answer)
    fenced = ranks.first_message(fenced)
    if fenced:
        raise FencedOut(fenced)
    return int(ranks.broadcast(str(epoch)))


def _until_s(config: Config) -> float:
    """When to give up on a store at the start."""
    return time.monotonic() + (FIRST_PATIENCE_S if config.attempt == 1 else LATER_PATIENCE_S)

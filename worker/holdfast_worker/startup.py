"""Steps of a rank's start: open reports and checkpoint stores, claim the epoch."""

from __future__ import annotations

import atexit
import time
from contextlib import suppress
from typing import Final

from holdfast_worker.checkpoint.collective import fail_together
from holdfast_worker.checkpoint.fencing import FencedOut
from holdfast_worker.checkpoint.memory_snapshots import MemorySnapshots, SnapshotRing
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.restore import ParentJob
from holdfast_worker.config import STANDALONE_JOB, Config, environment
from holdfast_worker.console import log_info
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.node_memory.wire import HolderAddress
from holdfast_worker.protocol.policies import ConsistencyGuarantee
from holdfast_worker.run_dir import RunDir
from holdfast_worker.storage import open_store
from holdfast_worker.storage.base import StoreError
from holdfast_worker.storage.metering import MeteredStore, StoreMeter
from holdfast_worker.telemetry.delivery import ReportSender
from holdfast_worker.telemetry.gpu_reports import GpuReports
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.telemetry.service_client import ServiceClient
from holdfast_worker.telemetry.spool import Spool

FIRST_STORE_TIMEOUT_S: Final = 20.0
"""Timeout for a store in the first attempt, where a failure usually means a wrong address.
A lower value fails on a slow store; a higher value pays longer for idle nodes."""

LATER_STORE_TIMEOUT_S: Final = 300.0
"""Timeout for a store in later attempts.
The store probably worked before, and an outage usually ends. A lower value fails in an outage; a higher value pays longer for
idle nodes."""


def open_reports(config: Config) -> Reporter:
    """The reporter of this rank: rank 0 spools, and delivers unless the wrapper does."""
    if config.rank or not config.spool:
        return Reporter(None)
    try:
        spool = Spool(config.spool, config.attempt)
    except (OSError, ValueError) as error:
        log_info(f"reports are dropped: the spool is unusable: {error}")
        return Reporter(None)
    reports = Reporter(spool)
    if config.run_dir and config.wrapper:
        GpuReports(RunDir(config.run_dir), reports).start()
    if config.url and not config.is_delivered_by_wrapper and config.is_numbered:
        client = ServiceClient(config.url, config.job, config.token)
        run_dir = RunDir(config.run_dir) if config.run_dir else None
        sender = ReportSender(client, config.spool, config.attempt, run_dir=run_dir)
        sender.start()
        atexit.register(sender.close)
    return reports


def open_repository(config: Config, ranks: ProcessGroup, nonce: str) -> CheckpointRepository | None:
    """Open the checkpoints of this job, and probe that all ranks share a writable store.

    None without a store.

    Raises:
        StoreError: the store is unusable; raised on all ranks.
    """
    if not config.store:
        return None
    until_s = _store_deadline_s(config)
    with fail_together(ranks):
        job = "" if config.job == STANDALONE_JOB else config.job
        repository, place = _open(config.store, config.job, job)
        if ranks.rank == 0:
            repository.place = place
            repository.check_newest(until_s)
            repository.guarantee = repository.probe(nonce, until_s)
            if repository.guarantee is ConsistencyGuarantee.OVERWRITES:
                log_info(f"the checkpoint store {repository.guarantee.description}")
    with fail_together(ranks):
        if not repository.sees_probe(nonce, until_s):
            raise StoreError(
                f"rank {ranks.rank} does not see an object that rank 0 wrote; the store must be shared by all nodes"
            )
    with fail_together(ranks):
        if ranks.rank == 0:
            repository.remove_probe(nonce, until_s)
    return repository


def reopen_repository(config: Config) -> CheckpointRepository | None:
    """Open the checkpoints of this job on a rank that replaces a lost one; None without a store.

    Raises:
        StoreError: the store is unusable.
    """
    if not config.store:
        return None
    job = "" if config.job == STANDALONE_JOB else config.job
    return _open(config.store, config.job, job)[0]


def _open(store: str, folder: str, job: str) -> tuple[CheckpointRepository, str]:
    """The checkpoints in a folder of a store, whose requests are counted, and its place."""
    meter = StoreMeter()
    opened = MeteredStore(open_store(store, folder, environment()), meter)
    return CheckpointRepository(opened, job, meter), opened.place


def open_parent_job(config: Config, ranks: ProcessGroup, meter: StoreMeter) -> ParentJob | None:
    """Open the checkpoints of the parent job, read-only; None without a parent job.

    `meter` counts the requests to them.

    Raises:
        StoreError: the store is unusable; raised on all ranks.
    """
    if not config.store or not config.parent_job:
        return None
    with fail_together(ranks):
        store = open_store(config.store, config.parent_job, environment())
        repository = CheckpointRepository(MeteredStore(store, meter), config.parent_job, meter)
    return ParentJob(config.parent_job, repository)


def open_snapshot_memory(
    config: Config, ranks: ProcessGroup, *, is_needed: bool
) -> MemorySnapshots | None:
    """Open the memory of all nodes for snapshots; None if that of some is not available.

    `is_needed`: this rank has no better way to recover.
    """
    address = config.holder.dump() if config.holder and config.memory and is_needed else ""
    addresses = ranks.gather_text(address)

    def announce(are_kept: bool) -> None:
        # An elastic run does not wait for the replacement of a node.
        with suppress(OSError):
            if config.run_dir and config.min_nodes is None:
                RunDir(config.run_dir).mark_snapshots(are_kept=are_kept)

    if not (all(addresses) and config.memory):
        announce(False)
        return None
    job = "" if config.job == STANDALONE_JOB else config.job
    ring = SnapshotRing(ranks.rank, [HolderAddress.parse(text) for text in addresses])
    return MemorySnapshots(ring, config.memory, job, announce=announce)


def claim_epoch(
    config: Config, repository: CheckpointRepository, ranks: ProcessGroup, nonce: str
) -> int:
    """Claim the epoch from the launcher, or the next one in the store.

    Older epochs are fenced out from here on.

    Raises:
        FencedOut: a newer attempt has claimed an epoch; raised on all ranks.
        StoreError: the store is unusable; raised on all ranks.
    """
    epoch, fenced = config.epoch or 0, ""
    with fail_together(ranks):
        if ranks.rank == 0:
            try:
                if config.epoch is None:
                    epoch = repository.tokens.acquire_next(nonce, _store_deadline_s(config))
                    if config.run_dir:
                        RunDir(config.run_dir).record_epoch(epoch)
                else:
                    repository.tokens.claim(config.epoch, nonce, _store_deadline_s(config))
            except FencedOut as error:
                fenced = str(error)
    fenced = ranks.first_message(fenced)
    if fenced:
        raise FencedOut(fenced)
    return int(ranks.broadcast(str(epoch)))


def _store_deadline_s(config: Config) -> float:
    """The deadline for store operations during the start."""
    return time.monotonic() + (
        FIRST_STORE_TIMEOUT_S if config.attempt == 1 else LATER_STORE_TIMEOUT_S
    )

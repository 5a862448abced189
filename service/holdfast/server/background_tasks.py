"""What goes on beside the reconciler, in its thread: stores are tidied, reports collected from them, prices followed, books kept, people told."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from holdfast.background.billing_rollup import run_rollups, warm_rollups
from holdfast.background.code_retention import keep_code
from holdfast.background.job_retention import JobEraser, JobRetention, remove_forever
from holdfast.background.launch_expiry import expire_forever
from holdfast.background.log_copies import LogKeeper
from holdfast.background.notifier import Notifier
from holdfast.background.price_watcher import PriceWatcher
from holdfast.background.report_import import ReportImporter
from holdfast.background.retention import CheckpointCollector, RetentionSettings
from holdfast.confinement import names_in
from holdfast.domain.checkpoints.retention import Grace
from holdfast.domain.jobfile.spec import Engine
from holdfast.host.allowed_folders import Folders
from holdfast.services import Services
from holdfast.settings import Settings, own_variable
from holdfast.storage import CheckpointBuckets, StorePolicy
from holdfast.store.outbox import Outbox

Errand: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Goes on until it is cancelled."""


def background_tasks(settings: Settings, services: Services) -> Sequence[Errand]:
    """All that goes on beside the reconciler of a service."""
    clock = services.clock
    repricer = PriceWatcher(
        journal=services.journal,
        reading=services.reading,
        catalog=services.prices,
        clock=clock,
    )
    notifier = Notifier(
        outbox=Outbox(services.engine, clock),
        channels=services.channels,
        messenger=services.messenger,
        clock=clock,
    )
    return (
        *_at_stores(settings, services),
        repricer.look_on,
        LogKeeper(reading=services.reading, launchers=services.launchers).look_on,
        partial(warm_rollups, services.ledgers, clock),
        partial(run_rollups, services.ledgers, services.series),
        notifier.go_on,
        partial(
            expire_forever,
            [(one, _kept(settings, engine)) for engine, one in services.launchers.items()],
            services.reading.ended_at,
            clock,
        ),
        *_of_code(services),
        _removals(settings, services),
    )


def _removals(settings: Settings, services: Services) -> Errand:
    eraser = JobEraser(
        removals=services.removals,
        journal=services.journal,
        launchers=tuple(services.launchers.values()),
        open_depot=_depots(settings, services).open if services.demo_seed is None else None,
        clock=services.clock,
    )
    retention = JobRetention(
        removals=services.removals,
        ledgers=services.ledgers,
        clock=services.clock,
        keep=_days(settings.keep_jobs_days),
        audit=services.audit,
        keep_audit=_days(settings.keep_audit_days),
    )
    return partial(remove_forever, eraser, retention)


def _kept(settings: Settings, engine: Engine) -> timedelta:
    """How long files of launches stay after the end of their job."""
    days = {
        Engine.LOCAL: settings.local_keep_days,
        Engine.SLURM: settings.slurm_keep_days,
        Engine.SKYPILOT: settings.skypilot_keep_days,
    }
    return timedelta(days=days[engine])


def _days(count: float | None) -> timedelta | None:
    return None if count is None else timedelta(days=count)


def _of_code(services: Services) -> Sequence[Errand]:
    if services.uploads is None:
        return ()
    return (partial(keep_code, services.uploads, services.reading, services.journal),)


def _at_stores(settings: Settings, services: Services) -> Sequence[Errand]:
    """What goes to the checkpoint stores of jobs. In a demonstration there are none: what has such a name is somebody else's."""
    if services.demo_seed is not None:
        return ()
    collector = ReportImporter(
        journal=services.journal,
        musters=services.musters,
        watches=services.watches,
        open_depot=_depots(settings, services).open,
        clock=services.clock,
        every_s=settings.inbox_every_s,
    )
    return _janitor(settings, services).tidy_on, collector.collect_on


def _janitor(settings: Settings, services: Services) -> CheckpointCollector:
    manners = RetentionSettings(
        every_s=settings.tidy_every_s,
        grace=Grace(
            commits=timedelta(seconds=settings.tidy_grace_s),
            uploads=timedelta(seconds=settings.tidy_uploads_s),
        ),
    )
    return CheckpointCollector(
        journal=services.journal,
        upkeep=services.upkeep,
        open_depot=_depots(settings, services).open,
        clock=services.clock,
        manners=manners,
    )


def _depots(settings: Settings, services: Services) -> CheckpointBuckets:
    rules = StorePolicy(
        own=own_variable("AWS_ENDPOINT_URL_S3") or own_variable("AWS_ENDPOINT_URL"),
        endpoints=names_in(settings.store_endpoints),
        profiles=services.confinement.profiles,
    )

    def folders_of(job_id: str) -> Folders:
        asked = services.journal.submission(job_id)
        return services.confinement.folders.of_job(asked.project, is_confined=asked.confined)

    return CheckpointBuckets(services.clock, rules, folders_of)

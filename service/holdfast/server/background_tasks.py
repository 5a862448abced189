"""Background tasks that run in the controller thread.

They cover checkpoint retention, report import, price updates, billing rollups, notifications, log copies and the
deletion of old files and jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from holdfast import tracing
from holdfast.background.billing_rollup import run_rollups, warm_rollups
from holdfast.background.code_retention import run_code_retention
from holdfast.background.job_retention import JobEraser, JobRetention, run_job_retention
from holdfast.background.launch_expiry import run_launch_expiry
from holdfast.background.log_copies import LogCopier
from holdfast.background.notifier import Notifier
from holdfast.background.price_watcher import PriceWatcher
from holdfast.background.report_import import ReportImporter
from holdfast.background.retention import CheckpointCollector, RetentionSettings
from holdfast.background.sign_in_checks import SignInChecks
from holdfast.background.store_requests import MeteredBuckets
from holdfast.background.sweep_stopper import SweepStopper
from holdfast.background.trace_export import TraceExport
from holdfast.domain.checkpoints.retention import GracePeriods
from holdfast.domain.jobfile.spec import Engine
from holdfast.ports import OpenBucket
from holdfast.server.launchers import LAUNCHERS
from holdfast.services import Services
from holdfast.settings import Settings
from holdfast.store.notifications.outbox import Outbox
from holdfast.store.trace_cursor import TraceCursor

BackgroundTask: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Runs until it is cancelled."""


def background_tasks(settings: Settings, services: Services) -> Sequence[BackgroundTask]:
    """All background tasks of a service."""
    clock = services.clock
    repricer = PriceWatcher(
        journal=services.journal,
        queries=services.queries,
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
        *_store_tasks(settings, services),
        repricer.run,
        LogCopier(queries=services.queries, launchers=services.launchers).run,
        partial(warm_rollups, services.bill_rollups, clock),
        partial(run_rollups, services.bill_rollups, services.series),
        notifier.run,
        SweepStopper(
            journal=services.journal, series=services.series, leases=services.leases, clock=clock
        ).run,
        partial(
            run_launch_expiry,
            [
                (launcher, _launch_retention(settings, engine))
                for engine, launcher in services.launchers.items()
            ],
            services.queries.ended_at,
            clock,
        ),
        *_code_tasks(services),
        *_identity_tasks(services),
        *_trace_tasks(settings, services),
        _job_retention(settings, services),
    )


def _job_retention(settings: Settings, services: Services) -> BackgroundTask:
    eraser = JobEraser(
        removals=services.removals,
        journal=services.journal,
        launchers=tuple(services.launchers.values()),
        open_bucket=services.open_bucket,
        clock=services.clock,
    )
    retention = JobRetention(
        removals=services.removals,
        bill_rollups=services.bill_rollups,
        clock=services.clock,
        keep_jobs_for=_days(settings.keep_jobs_days),
        audit=services.audit,
        keep_audit_for=_days(settings.keep_audit_days),
    )
    return partial(run_job_retention, eraser, retention)


def _launch_retention(settings: Settings, engine: Engine) -> timedelta:
    """How long launch files are kept after the end of their job."""
    return timedelta(days=LAUNCHERS[engine].keep_days(settings))


def _days(count: float | None) -> timedelta | None:
    return None if count is None else timedelta(days=count)


def _code_tasks(services: Services) -> Sequence[BackgroundTask]:
    if services.uploads is None:
        return ()
    return (partial(run_code_retention, services.uploads, services.queries, services.journal),)


def _identity_tasks(services: Services) -> Sequence[BackgroundTask]:
    if services.single_sign_on is None:
        return ()
    return (SignInChecks(services.single_sign_on).run,)


def _trace_tasks(settings: Settings, services: Services) -> Sequence[BackgroundTask]:
    if settings.otlp_endpoint is None:
        return ()
    exporter = tracing.export_to(settings.otlp_endpoint)
    return (TraceExport(TraceCursor(services.engine), exporter).run,)


def _store_tasks(settings: Settings, services: Services) -> Sequence[BackgroundTask]:
    """The tasks that use checkpoint stores.

    None in a demonstration, whose store names may belong to others.
    """
    if services.open_bucket is None:
        return ()
    # The bills of jobs contain these requests.
    open_bucket = MeteredBuckets(
        services.open_bucket, services.retention_queue, services.clock
    ).open
    importer = ReportImporter(
        journal=services.journal,
        incarnations=services.incarnations,
        leases=services.leases,
        open_bucket=open_bucket,
        clock=services.clock,
        every_s=settings.inbox_every_s,
    )
    collector = _checkpoint_collector(settings, services, open_bucket)
    return collector.run, importer.run


def _checkpoint_collector(
    settings: Settings, services: Services, open_bucket: OpenBucket
) -> CheckpointCollector:
    retention = RetentionSettings(
        every_s=settings.tidy_every_s,
        grace=GracePeriods(
            commits=timedelta(seconds=settings.tidy_grace_s),
            uploads=timedelta(seconds=settings.tidy_uploads_s),
        ),
    )
    return CheckpointCollector(
        journal=services.journal,
        queue=services.retention_queue,
        open_bucket=open_bucket,
        clock=services.clock,
        settings=retention,
    )

"""What goes on beside the reconciler, in its thread: stores are tidied, reports collected from them, prices followed, books kept, people told."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from holdfast.adapters.depots import Depots, Rules
from holdfast.api.services import Services
from holdfast.bookkeeping import keep_books, open_books
from holdfast.codekeeping import keep_code
from holdfast.collecting import Collector
from holdfast.confinement import names_in
from holdfast.domain.retention import Grace
from holdfast.domain.spec import Engine
from holdfast.expiry import expire_forever
from holdfast.folders import Folders
from holdfast.log_keeping import LogKeeper
from holdfast.notifying import Notifier
from holdfast.removing import Eraser, Retention, remove_forever
from holdfast.repricing import Repricer
from holdfast.settings import Settings, own_variable
from holdfast.store.outbox import Outbox
from holdfast.tidying import Janitor, Manners

Errand: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Goes on until it is cancelled."""


def errands(settings: Settings, services: Services) -> Sequence[Errand]:
    """All that goes on beside the reconciler of a service."""
    clock = services.clock
    repricer = Repricer(
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
        partial(open_books, services.ledgers, clock),
        partial(keep_books, services.ledgers, services.series),
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
    eraser = Eraser(
        removals=services.removals,
        journal=services.journal,
        launchers=tuple(services.launchers.values()),
        open_depot=_depots(settings, services).open if services.demo_seed is None else None,
        clock=services.clock,
    )
    retention = Retention(
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
    collector = Collector(
        journal=services.journal,
        musters=services.musters,
        watches=services.watches,
        open_depot=_depots(settings, services).open,
        clock=services.clock,
        every_s=settings.inbox_every_s,
    )
    return _janitor(settings, services).tidy_on, collector.collect_on


def _janitor(settings: Settings, services: Services) -> Janitor:
    manners = Manners(
        every_s=settings.tidy_every_s,
        grace=Grace(
            commits=timedelta(seconds=settings.tidy_grace_s),
            uploads=timedelta(seconds=settings.tidy_uploads_s),
        ),
    )
    return Janitor(
        journal=services.journal,
        upkeep=services.upkeep,
        open_depot=_depots(settings, services).open,
        clock=services.clock,
        manners=manners,
    )


def _depots(settings: Settings, services: Services) -> Depots:
    rules = Rules(
        own=own_variable("AWS_ENDPOINT_URL_S3") or own_variable("AWS_ENDPOINT_URL"),
        endpoints=names_in(settings.store_endpoints),
        profiles=services.confinement.profiles,
    )

    def folders_of(job_id: str) -> Folders:
        asked = services.journal.submission(job_id)
        return services.confinement.folders.of_job(asked.project, is_confined=asked.confined)

    return Depots(services.clock, rules, folders_of)

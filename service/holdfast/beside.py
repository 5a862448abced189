"""What goes on beside the reconciler, in its thread: stores are tidied, reports collected from them, prices followed, books kept, people told."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from holdfast.adapters.depots import Depots
from holdfast.api.services import Services
from holdfast.bookkeeping import keep_books, open_books
from holdfast.collecting import Collector
from holdfast.domain.retention import Grace
from holdfast.notifying import Notifier
from holdfast.repricing import Repricer
from holdfast.settings import Settings
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
        partial(open_books, services.ledgers, clock),
        partial(keep_books, services.ledgers, services.series),
        notifier.go_on,
    )


def _at_stores(settings: Settings, services: Services) -> Sequence[Errand]:
    """What goes to the checkpoint stores of jobs. In a demonstration there are none: what has such a name is somebody else's."""
    if services.demo_seed is not None:
        return ()
    collector = Collector(
        journal=services.journal,
        musters=services.musters,
        watches=services.watches,
        open_depot=Depots(services.clock).open,
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
        open_depot=Depots(services.clock).open,
        clock=services.clock,
        manners=manners,
    )

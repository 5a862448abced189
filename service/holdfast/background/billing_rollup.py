"""Precomputes bills of closed jobs as rows, and packs metric points into blocks.

Queries then take less time.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from holdfast.errors import StoreUnavailable
from holdfast.gc_tuning import freeze_startup_objects
from holdfast.ports import Clock
from holdfast.store.billing.bills import BillRollups

log = logging.getLogger(__name__)

EVERY_S: Final = 5.0
"""Seconds between two rounds. A lower value adds empty rounds; a higher value makes queries
compute more themselves."""
BATCH_SIZE: Final = 1000
"""Jobs or blocks per round, after an upgrade. A round ends in a few seconds, so that the
service can stop."""


class Rollup(Protocol):
    """A table of precomputed values: `BillRollups`, `MetricSeries`."""

    def roll_up(self, limit: int) -> int:
        """Precompute at most `limit` items and return their number."""
        ...


async def warm_rollups(rollups: BillRollups, clock: Clock) -> None:
    """Compute the bills of live jobs once after a start.

    Otherwise the first query reads all their events.
    """
    try:
        await asyncio.to_thread(lambda: rollups.live_jobs(clock.now()))
    except StoreUnavailable as error:
        log.warning("bills of live jobs are not precomputed: %s", error.detail)
    freeze_startup_objects()


async def run_rollups(*rollups: Rollup) -> None:
    """Update the rollups until cancelled.

    An unexpected error in one round does not stop the others.
    """
    while True:
        for rollup in rollups:
            round_ = asyncio.create_task(asyncio.to_thread(rollup.roll_up, BATCH_SIZE))
            await asyncio.wait([round_])
            if isinstance(error := round_.exception(), StoreUnavailable):
                log.warning("rollups are not updated: %s", error.detail)
            elif error:
                log.error(
                    "unexpected error in a rollup; next round in %g s", EVERY_S, exc_info=error
                )
        await asyncio.sleep(EVERY_S)

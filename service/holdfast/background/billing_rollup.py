"""The bookkeeper: puts the bills of jobs that have ended into rows, and points of curves into blocks, so that whoever asks
for sums or curves waits for none of it.
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
"""Between two looks. Smaller: more looks that find nothing; bigger: who asks for sums reckons more of them himself."""
AT_ONCE: Final = 1000
"""Jobs, or blocks, in one look, after an upgrade. It ends in a few seconds, so that the service can."""


class Rollup(Protocol):
    """Something that is written up behind what happens: `Ledgers`, `Series`."""

    def settle(self, limit: int) -> int:
        """How much was written up, at most `limit`."""
        ...


async def warm_rollups(ledgers: BillRollups, clock: Clock) -> None:
    """Reckon once, after a start, what jobs that live have come to: else whoever asks first waits until all their logs are read."""
    try:
        await asyncio.to_thread(lambda: ledgers.live(clock.now()))
    except StoreUnavailable as error:
        log.warning("jobs that live are not reckoned yet: %s", error.detail)
    freeze_startup_objects()


async def run_rollups(*books: Rollup) -> None:
    """Write all up until cancelled. A bug that one look brings to light stops none of the others."""
    while True:
        for book in books:
            look = asyncio.create_task(asyncio.to_thread(book.settle, AT_ONCE))
            await asyncio.wait([look])
            if isinstance(error := look.exception(), StoreUnavailable):
                log.warning("books are not kept: %s", error.detail)
            elif error:
                log.error("a bug in the books; the next look is in %g s", EVERY_S, exc_info=error)
        await asyncio.sleep(EVERY_S)

"""The bookkeeper: puts the bills of jobs that have ended into rows, so that whoever asks for sums waits for none of it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from holdfast.errors import StoreUnavailable
from holdfast.store.ledgers import Ledgers

log = logging.getLogger(__name__)

EVERY_S: Final = 5.0
"""Between two looks. Smaller: more looks that find nothing; bigger: who asks for sums reckons more of them himself."""
AT_ONCE: Final = 1000
"""Jobs in one look, after an upgrade. It ends in a few seconds, so that the service can."""


async def keep_books(ledgers: Ledgers) -> None:
    """Put what has ended into rows until cancelled. A bug that one look brings to light stops none of the later ones."""
    while True:
        look = asyncio.create_task(asyncio.to_thread(ledgers.settle, AT_ONCE))
        await asyncio.wait([look])
        if isinstance(error := look.exception(), StoreUnavailable):
            log.warning("books are not kept: %s", error.detail)
        elif error:
            log.error("a bug in the books; the next look is in %g s", EVERY_S, exc_info=error)
        await asyncio.sleep(EVERY_S)

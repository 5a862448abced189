"""Garbage collector tuning of a long-running service.

Every request waits during a collection.
"""

from __future__ import annotations

import gc
from typing import Final

COLLECT_AFTER: Final = 20_000
"""New objects between two collections. A lower value scans more objects that are about to be
freed anyway; a higher value keeps reference cycles, as of exceptions, for longer."""
COLLECT_ALL_AFTER: Final = 100
"""Tens of such collections between two full ones, each of which delays all requests by a
quarter of a second at 500 live jobs. A lower value delays more often; a higher value
keeps garbage longer."""


def freeze_startup_objects() -> None:
    """Freeze all current objects so that garbage collections skip them."""
    gc.collect()  # Otherwise current garbage would be frozen, too.
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 10, COLLECT_ALL_AFTER)

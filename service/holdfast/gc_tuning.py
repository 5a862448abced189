"""The garbage collector of a service that stays: every request waits while it walks over what there is."""

from __future__ import annotations

import gc
from typing import Final

COLLECT_AFTER: Final = 20_000
"""New objects after which the garbage collector looks at them. Fewer: more looks at objects that are soon gone by themselves;
more: rings of objects, such as exceptions leave, stay for longer."""
COLLECT_ALL_AFTER: Final = 100
"""Tens of such looks after which it looks at all there are, for which every request waits a quarter of a second once there are
500 live jobs. As above."""


def freeze_startup_objects() -> None:
    """Keep the garbage collector from all that is there now, for good: it would walk over it again and again."""
    gc.collect()  # What is garbage by now would stay, too.
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 10, COLLECT_ALL_AFTER)

"""How often tests repeat what they draw: a bounded number of times in `make test`, more often in `make test-all`."""

from __future__ import annotations

import os
from typing import Final

FULL: Final = "HOLDFAST_TEST_FULL" in os.environ
"""Whether everything is repeated in full."""
FAULT_SEEDS: Final = int(
    os.environ.get("FAULT_SEEDS") or os.environ.get("STORM_SEEDS") or (100 if FULL else 20)
)
"""The number of seeds of each fault injection test, or the number from which a test derives its own. `STORM_SEEDS` is an older name."""


def repeat_count(usual: int, full: int) -> int:
    """The number of repetitions in this run."""
    return full if FULL else usual

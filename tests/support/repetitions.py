"""Repetitions of randomized tests: few in `make test`, more in `make test-all`."""

from __future__ import annotations

import os
from typing import Final

FULL: Final = "HOLDFAST_TEST_FULL" in os.environ
"""Whether all repetitions run."""
FAULT_SEEDS: Final = int(
    os.environ.get("FAULT_SEEDS") or os.environ.get("STORM_SEEDS") or (100 if FULL else 8)
)
"""Number of seeds of each fault injection test, or the base of its number.

`STORM_SEEDS` is an older name.
"""


def repeat_count(usual: int, full: int) -> int:
    """Return the number of repetitions in this run."""
    return full if FULL else usual

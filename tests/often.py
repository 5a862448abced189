"""How often tests repeat what they draw: a bounded number of times in `make test`, more often in `make test-all`."""

from __future__ import annotations

import os
from typing import Final

FULL: Final = "HOLDFAST_TEST_FULL" in os.environ
"""Whether everything is repeated in full."""
STORM_SEEDS: Final = int(os.environ.get("STORM_SEEDS", "100" if FULL else "20"))
"""The seeds of each storm, or the number from which a storm derives how many it has."""


def often(usual: int, full: int) -> int:
    """The number of repetitions in this run."""
    return full if FULL else usual

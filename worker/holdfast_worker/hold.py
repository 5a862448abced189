"""How long a wrapper stays that left on notice, or was replaced, where its end would be taken for that of the job. Pure.

A launcher that recovers by itself tells a node that was taken from a program that failed by looking whether the node is
still there. So whoever left early waits for the node to go. Whoever was replaced would be started again, and fence its
successor in turn.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

GRACE_S: Final = 180.0
"""Beyond the deadline of the notice. Longer pays for a node that was not taken after all, shorter ends before the launcher
has seen that it is gone."""

UNKNOWN_S: Final = 300.0
"""After a notice without a deadline; most clouds give two minutes or less. The same prices."""


def hold_s(deadline: datetime | None, at: datetime) -> float:
    """Seconds to stay from `at` on. `deadline` is when the node goes, None if nobody said."""
    if deadline is None:
        return UNKNOWN_S
    return max(0.0, (deadline - at).total_seconds()) + GRACE_S

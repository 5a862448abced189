"""Drills of node groups: nodes end as if their machines had gone, because a user asked for it.

SkyPilot cannot take the nodes of one managed job. Its worker ends by itself, without a message to the other nodes: they find the node lost,
as after a loss of the machine. With `Exit.PREEMPTED`, SkyPilot recovers the managed job. Standard library only.
"""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta

from holdfast_worker.clock import now
from holdfast_worker.console import log_info
from holdfast_worker.protocol.environment import Exit


class Drill:
    """The end of this node, if a user has requested it."""

    def __init__(self) -> None:
        self._is_notice_new = False
        self.end_s: float | None = None
        """When this node ends, by `time.monotonic`; None without a drill."""

    def begin(self, end_s: float) -> None:
        """End this node then; an earlier request stands."""
        if self.end_s is not None:
            return
        self.end_s = end_s
        self._is_notice_new = end_s > time.monotonic()

    def deadline(self) -> datetime | None:
        """The end of this node, as its termination notice; None if there is no new one."""
        if not self._is_notice_new or self.end_s is None:
            return None
        self._is_notice_new = False
        left_s = max(0.0, self.end_s - time.monotonic())
        log_info(f"drill: this node ends in {left_s:.0f} s, as if its machine were preempted")
        return now() + timedelta(seconds=left_s)

    def end_if_due(self) -> None:
        """End this process if it is time; its ranks and agents die with it."""
        if self.end_s is not None and time.monotonic() >= self.end_s:
            log_info("drill: this node ends now, as if its machine were gone")
            # An orderly exit would send the other nodes messages that a lost machine does not send.
            os._exit(Exit.PREEMPTED)

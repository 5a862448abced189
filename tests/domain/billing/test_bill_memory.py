"""Restarts from snapshots in the memory of nodes in the bill; prices as in `test_bill`."""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.events import LeftReason
from support.bills import billed, s
from support.events import (
    at,
    finished,
    left,
    lost,
    ready,
    restarted,
    restoring,
    saved,
    training,
)

# 35 trains | 60 checkpoint | 66 snapshot in memory at step 56 | 70 rank killed at step 60 | 73 trains at step 56
RESTARTED = (
    ready(10),
    restoring(30),
    training(35, step=0),
    saved(60, step=50),
    restarted(70, step=60),
    restoring(72),
    replace(training(73, step=56), held_at=at(66)),
)


def test_restart_from_memory_loses_the_work_after_its_snapshot() -> None:
    account = billed(
        *RESTARTED,
        left(80, step=130, reason=LeftReason.FINISHED, exit_code=0),
        finished(80),
    )

    [attempt] = account.attempts
    assert attempt.lost_steps == 4
    assert attempt.starts_ms == (
        s(setup=20, restore=5, useful=31, lost=4),
        s(setup=2, restore=1, useful=7),
    )


def test_work_from_memory_is_lost_with_the_nodes() -> None:
    # As above, but all nodes are lost at 90, and the next attempt has the checkpoint of step 50.
    account = billed(
        *RESTARTED,
        lost(90),
        ready(90, attempt=2),
        restoring(90, attempt=2),
        training(90, attempt=2, step=50),
        reached={1: (65, 89)},
    )

    first = account.attempts[0]
    assert first.starts_ms == (
        s(setup=20, restore=5, useful=25, lost=10),
        s(setup=2, restore=1, lost=17),
    )

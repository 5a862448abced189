"""Termination notices, and the phase of the worker until its nodes are lost."""

from __future__ import annotations

import pytest
from holdfast.domain.events import Event, LeftReason
from holdfast.domain.preemptions.termination_notice import NoticePhase, notice_of
from support.events import (
    finished,
    launched,
    left,
    lost,
    node_lost,
    noticed,
    ready,
    saved,
    submitted,
    training,
)

TRAINING = [submitted(), launched(0), ready(10), training(20), saved(30, step=90)]
UNDER_NOTICE = [*TRAINING, noticed(40, step=112, left_s=30)]
LEFT = left(50, step=112, reason=LeftReason.PREEMPTED)


@pytest.mark.parametrize(
    ("more", "phase"),
    [
        ([], NoticePhase.SAVING),
        ([saved(42, step=110)], NoticePhase.SAVING),
        ([saved(45, step=112)], NoticePhase.LEAVING),
        ([LEFT], NoticePhase.LEAVING),
        ([LEFT, noticed(51, step=112)], NoticePhase.LEAVING),
    ],
)
def test_notice_reports_the_phase_of_the_worker(more: list[Event], phase: NoticePhase) -> None:
    notice = notice_of([*UNDER_NOTICE, *more], saves=True)

    assert notice is not None
    assert (notice.step, notice.left_s, notice.phase) == (112, 30, phase)


def test_job_without_a_store_saves_nothing() -> None:
    notice = notice_of(UNDER_NOTICE, saves=False)

    assert notice is not None
    assert notice.phase is NoticePhase.NOTICED


@pytest.mark.parametrize(
    "events",
    [
        TRAINING,
        [*UNDER_NOTICE, lost(70)],
        [*UNDER_NOTICE, finished(70)],
        [*UNDER_NOTICE, node_lost(70)],
        [*UNDER_NOTICE, lost(70), ready(80, attempt=2), noticed(81, attempt=1)],
    ],
)
def test_no_notice_without_nodes_about_to_go(events: list[Event]) -> None:
    assert notice_of(events, saves=True) is None


def test_notice_after_the_loss_of_a_node_is_current() -> None:
    notice = notice_of([*UNDER_NOTICE, node_lost(70), noticed(80, step=200)], saves=True)

    assert notice is not None
    assert notice.step == 200

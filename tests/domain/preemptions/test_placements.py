"""The outcome of each attempt and the phases of its recovery, computed by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest
from holdfast.domain.billing.bill import LatestPoint, compute_bill
from holdfast.domain.diagnostics.timeline import timeline
from holdfast.domain.events import Cause, Event, LeftReason, Outcome
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.preemptions.placements import PlacementRecord, placement_records
from support.events import (
    SPOT,
    at,
    finished,
    launched,
    left,
    lost,
    node_lost,
    node_replaced,
    noticed,
    paused,
    pausing,
    ready,
    relimited,
    replaced,
    restoring,
    resumed,
    saved,
    submitted,
    training,
)

HOUR_S = 3600


def placements(
    *events: Event,
    reached: dict[int, LatestPoint] | None = None,
    known: dict[int, datetime] | None = None,
) -> list[PlacementRecord]:
    history = [submitted(), launched(0), *events]
    account = compute_bill(history, reached or {}, at(9000))
    return placement_records(history, known or {}, reached or {}, account)


PREEMPTED = [
    ready(10),
    restoring(20),
    training(25, step=0),
    saved(60, step=30),
    lost(100),
    ready(160, attempt=2),
    restoring(175, attempt=2),
    training(180, attempt=2, step=30),
    saved(200, attempt=2, step=50),
    saved(230, attempt=2, step=90),
    finished(300),
]


def test_recovery_is_split_into_five_phases() -> None:
    # The last report is of 95; the loss is recorded at 104. 40 steps (30 to 70) are repeated:
    # step 50 is done at 200, step 90 at 230, so that step 70 lies half way between, 35 s after
    # training began.
    reached = {1: LatestPoint(step=70, at=at(95))}

    first, second = placements(*PREEMPTED, reached=reached, known={1: at(104)})

    assert (first.detect_ms, first.wait_ms, first.setup_ms, first.restore_ms, first.redo_ms) == (
        *(9_000, 60_000, 15_000, 5_000, 35_000),
    )
    assert (first.lost_steps, first.cause, first.is_preempted) == (40, Cause.PREEMPTED, True)
    assert (second.wait_ms, second.redo_ms, second.cause, second.is_preempted) == (
        None,
        None,
        None,
        False,
    )


def test_replacement_of_ranks_reports_repeated_steps() -> None:
    # As above, and training waits from 200 to 210 with step 50 done. Step 70 lies 10 s after that.
    reached = {1: LatestPoint(step=70, at=at(95))}
    again = [
        replaced(210, attempt=2, step=50, paused_ms=10_000),
        saved(230, attempt=2, step=90),
    ]

    [first, _] = placements(*PREEMPTED[:8], *again, reached=reached)

    assert first.redo_ms == 40_000


def test_unreported_phase_durations_are_none() -> None:
    first, second = placements(ready(10), lost(100), ready(160, attempt=2))

    assert (first.detect_ms, first.setup_ms, first.restore_ms) == (None, None, None)
    assert (first.wait_ms, second.is_running) == (60_000, True)


def test_notice_counts_as_used_if_saved_between_notice_and_loss() -> None:
    saves = saved(60, step=30, durable_s=61)
    before, after = noticed(62, step=31), noticed(55, step=28, left_s=12.5)

    [unused] = placements(ready(10), training(25), saves, before, lost(100))
    [used] = placements(ready(10), training(25), saves, after, lost(100))

    assert (unused.is_noticed, unused.is_notice_used) == (True, False)
    assert (used.is_noticed, used.is_notice_used, used.notice_ms) == (True, True, 12_500)


def test_node_hours_are_per_clock_hour_and_node() -> None:
    [only] = placements(ready(HOUR_S - 10), finished(2 * HOUR_S + 5))

    assert [(zone, hour % 24, ms) for zone, hour, ms in only.hours] == [
        ("a", 12, 10_000),
        ("a", 13, 3_600_000),
        ("a", 14, 5_000),
    ]


TWO_NODES = replace(ready(0, micros=2 * SPOT), nodes=2)
REPLACED = [
    TWO_NODES,
    training(10),
    noticed(90, step=80, left_s=5),
    saved(92, step=82),
    node_lost(100),
    node_replaced(103.2),
]


def test_lost_node_has_a_record_and_divides_its_placement() -> None:
    node, end = placements(*REPLACED, lost(HOUR_S), ready(HOUR_S + 60, attempt=2))[:2]

    assert (node.part, node.node, node.cause, node.wait_ms) == (1, 1, Cause.PREEMPTED, 3_200)
    assert (node.is_noticed, node.notice_ms, node.is_notice_used) == (True, 5_000, True)
    assert (node.lost_steps, node.lost_micros, node.detect_ms, node.redo_ms) == (0, 0, None, None)
    assert (end.part, end.node, end.is_noticed, end.wait_ms) == (0, None, False, 60_000)
    assert (node.end_ms, end.begin_ms) == (node.begin_ms + 100_000, node.end_ms)
    assert end.end_ms - node.begin_ms == 1000 * HOUR_S


def test_node_time_excludes_lost_nodes() -> None:
    node, end = placements(*REPLACED, finished(HOUR_S - 10))

    assert node.hours == ()
    assert end.hours == (("a", at(0).timestamp() // HOUR_S, 2 * 1000 * (HOUR_S - 10) - 3_200),)


def test_unreplaced_node_waits_until_its_placement_ends() -> None:
    waiting = placements(*REPLACED[:5])
    [failed, _] = placements(*REPLACED[:5], lost(130, cause=Cause.USER_ERROR))

    assert [(item.node, item.wait_ms, item.is_running) for item in waiting] == [
        (1, None, False),
        (None, None, True),
    ]
    assert (failed.node, failed.wait_ms) == (1, 30_000)


def test_placement_preempted_with_a_missing_node_is_one_record() -> None:
    [only, _] = placements(*REPLACED[:5], lost(130), ready(190, attempt=2))

    assert (only.part, only.node, only.is_preempted, only.wait_ms) == (0, 1, True, 60_000)
    assert (only.is_noticed, only.begin_ms) == (True, 1000 * at(0).timestamp())


def test_timeline_describes_loss_and_replacement_of_a_node() -> None:
    result = timeline_sentences(*REPLACED, node_lost(200, cause=Cause.NODE_FAILED))

    assert result[0] == (
        "Waiting in a: node 1 was lost; the others wait for its replacement. 2 preemptions."
    )
    assert result[4:] == [
        "Training started at step 0 without a checkpoint; startup cost $0.0200.",
        "Termination notice (5 s) at step 80.",
        "Checkpoint committed at step 82 within the notice.",
        "Node 1 was preempted; the others wait for its replacement.",
        "Node 1 was replaced after 3.2 s.",
        "Node 1 was lost without notice; the others wait for its replacement.",
    ]


def test_attempt_lost_after_training_continued_has_two_records() -> None:
    hosted = replaced(104, step=85, hosted=(1,))
    node, end = placements(*REPLACED[:5], hosted, lost(130), ready(190, attempt=2))[:2]

    assert (node.node, node.is_preempted, node.wait_ms) == (1, True, 30_000)
    assert (end.node, end.is_preempted, end.wait_ms) == (None, True, 60_000)


def test_timeline_describes_training_on_fewer_nodes() -> None:
    events = [
        submitted(nodes=(1, 3)),
        launched(),
        ready(10, nodes=3),
        training(20, total=9000),
        node_lost(100, nodes=2),
        replaced(103.1, step=1014, paused_ms=3100, hosted=(1,)),
        node_lost(120, node=2),
        replaced(125, step=1020, paused_ms=2000, hosted=(1, 2)),
        node_replaced(300, nodes=2),
        replaced(310, step=1200, paused_ms=1500, hosted=(2,)),
        replaced(330, step=1210, paused_ms=900, ranks=(0,), hosted=(2,)),
        node_replaced(800, node=2, nodes=3),
        replaced(845, step=1700, paused_ms=1600),
    ]

    assert sentences(*events[:5])[0] == (
        "Waiting in a: node 1 was lost; its ranks move to another node. 1 preemption."
    )
    assert sentences(*events[:6])[0] == (
        "Training in a at step 1,014 of 9,000 on 2 of 3 nodes: the ranks of node 1 run on another node. 1 preemption."
    )
    assert sentences(*events)[5:] == [
        "Node 1 was preempted.",
        "Training continues on 2 of 3 nodes after 3.1 s, at step 1,014: the ranks of node 1 run on another node. No step lost.",
        "Node 2 was preempted.",
        "Training continues on 1 of 3 nodes after 2.0 s, at step 1,020: the ranks of node 2 run on another node. No step lost.",
        "Node 1 was replaced after 3 min.",
        "The ranks of node 1 moved to its replacement after 3 min, while the others waited 1.5 s. No step lost.",
        "Rank 0 was replaced after step 1,210 while the others waited 0.9 s: rank 1 was killed. No step lost.",
        "Node 2 was replaced after 11 min.",
        "The ranks of node 2 moved to its replacement after 12 min, while the others waited 1.6 s. No step lost.",
    ]


def test_timeline_names_ranks_that_move_in_both_directions() -> None:
    events = (
        replaced(30, paused_ms=1000, hosted=(1, 2)),
        replaced(90, step=7, paused_ms=2000, hosted=(3,)),
    )

    result = sentences(
        submitted(nodes=(1, 4)), launched(), ready(10, nodes=4), training(20), *events
    )

    assert result[-1] == (
        "The ranks of nodes 1 and 2 moved to their replacements after 1 min, while the others waited 2.0 s. "
        "Training continues on 3 of 4 nodes after 2.0 s, at step 7: the ranks of node 3 run on another node. No step lost."
    )


def timeline_sentences(*events: Event) -> list[str]:
    return sentences(submitted(), launched(0), *events)


def sentences(*history: Event) -> list[str]:
    return [
        s.text
        for s in timeline(fold("job-1", history), history, compute_bill(history, {}, at(400)))
    ]


def test_timeline_begins_with_state_and_cost() -> None:
    result = timeline_sentences(*PREEMPTED)

    assert result[0] == "Succeeded at step 90. 1 preemption."
    assert result[1].startswith("Cost: $0.2300 for 4 min with nodes; 1 min waiting for nodes")
    assert "job-1" not in result[1]
    assert "Attempt 1 ended: preempted. Work lost: 40 s, $0.0400." in result
    assert "Training started at step 30 without a checkpoint; startup cost $0.0200." in result


def test_timeline_of_failed_job_starts_with_failed() -> None:
    bad = left(40, step=9, reason=LeftReason.FAILED, exit_code=1)
    ends = finished(50, Outcome.FAILED, exit_code=1)

    result = timeline_sentences(ready(10), training(20), bad, ends)

    assert result[0] == "Failed."
    assert result[-1] == "Job failed with exit code 1."


def test_timeline_of_waiting_job_states_time_without_nodes() -> None:
    result = timeline_sentences(ready(10), training(20), saved(80, step=60), lost(100))

    assert result[0].startswith("Without nodes for 5 min")
    assert "No work lost." not in result[-1]


def test_timeline_of_training_job_states_zone_and_step() -> None:
    result = timeline_sentences(ready(10), training(20, step=0))

    assert result[0] == "Training in a at step 0 of 1,000. No preemptions."


def test_timeline_names_the_termination_notice() -> None:
    result = timeline_sentences(ready(10), training(20, step=0), noticed(30, step=9, left_s=25.0))

    assert "Termination notice (25 s) at step 9." in result


@pytest.mark.parametrize(
    ("ranks", "paused_ms", "sentence"),
    [
        ((1,), 800, "Rank 1 was replaced after step 1,200 while the others waited 0.8 s"),
        (
            (1, 3),
            59_000,
            "Ranks 1, 3 were replaced after step 1,200 while the others waited 59.0 s",
        ),
        (
            tuple(range(8, 17)),
            120_000,
            "Ranks 8, 9, 10, 11, 12, 13, 14, 15 and 1 other were replaced after step 1,200 while the others waited 2 min",
        ),
        ((), 800, "All ranks waited 0.8 s after step 1,200 and continued"),
    ],
)
def test_timeline_names_replaced_ranks_and_the_wait(
    ranks: tuple[int, ...], paused_ms: int, sentence: str
) -> None:
    event = replaced(300, step=1200, ranks=ranks, paused_ms=paused_ms)

    result = timeline_sentences(ready(10), training(20, step=0), event)

    assert f"{sentence}: rank 1 was killed. No step lost." in result


def test_timeline_has_the_newest_reported_step() -> None:
    history = [submitted(), launched(0), ready(10), training(20, step=0), saved(30, step=9_990)]
    account = compute_bill(history, {1: LatestPoint(step=10_035, at=at(40))}, at(400))

    recorded = timeline(fold("job-1", history), history, account)

    assert "at step 10,035 of" in recorded[0].text


def test_timeline_shows_pause_and_limits_changed_before_resume() -> None:
    history = [
        *(ready(10), training(20)),
        *(pausing(50), lost(55, cause=Cause.PAUSED), paused(55)),
    ]

    resting = timeline_sentences(*history)
    again = timeline_sentences(*history, relimited(80, max_cost_usd=800), resumed(90))

    assert resting[0] == "Paused, without cost: a long weekend; resume it."
    assert "Pause requested: a long weekend." in resting
    assert any("nodes released for a pause" in sentence for sentence in resting)
    assert again[-2:] == [
        "Limits changed: max_cost_usd is now 800.",
        "Resume requested: resumed on request.",
    ]

"""Bills computed by hand.

The price is one micro-dollar per millisecond, so that a second costs a thousandth of a dollar.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.billing.bill import Phase, compute_bill
from holdfast.domain.billing.incremental_bill import extend_bill
from holdfast.domain.billing.phases import Span, cost_by_phase
from holdfast.domain.billing.rate import RateSchedule
from holdfast.domain.events import (
    CancelRequested,
    Cause,
    Event,
    LeftReason,
    Outcome,
    TrainingStarted,
)
from holdfast.domain.events.values import PassedOver
from support.bills import NOW_S, billed, s
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
    replaced,
    restarted,
    restoring,
    resumed,
    saved,
    submitted,
    training,
)


def test_bill_of_an_uninterrupted_job() -> None:
    # 0 submitted | 10 nodes | 30 program starts | 35 trains | 60 snapshot, stalls 2 s | 100 exit
    # | 101 ended
    account = billed(
        ready(10),
        restoring(30),
        training(35, step=0),
        saved(60, step=50, stall_ms=2000),
        left(100, step=130, reason=LeftReason.FINISHED, exit_code=0),
        finished(101),
    )

    assert account.waiting_ms == 10_000
    assert account.ms == s(setup=20, restore=5, useful=65 - 2, stalled=2 + 1)
    assert account.paid_micros == 91_000
    assert account.wasted_micros == 20_000 + 5_000 + 3_000
    assert account.on_demand_micros == 3 * (63_000 + 20_000)  # Useful time, and one setup.
    assert account.saved_micros == 249_000 - 91_000
    assert account.lost_steps == 0


def test_restart_of_ranks_divides_an_attempt() -> None:
    # 0 submitted | 10 nodes | 30 program starts | 35 trains | 60 snapshot | 70 rank killed at step 60
    # | 72 program starts | 73 trains at step 50 | 90 preempted at step 65
    account = billed(
        ready(10),
        restoring(30),
        training(35, step=0),
        saved(60, step=50),
        restarted(70, step=60),
        restoring(72),
        training(73, step=50),
        lost(90),
        ready(90, attempt=2),
        restoring(90, attempt=2),
        training(90, attempt=2, step=50),
        reached={1: (65, 89)},
    )

    [first, _] = account.attempts
    assert first.ms == s(setup=20 + 2, restore=5 + 1, useful=25, lost=10 + 17)
    assert (first.first_step, first.last_step) == (0, 65)
    assert (first.lost_steps, first.final_lost_steps) == (10 + 15, 15)
    assert first.restarted_at == (at(70),)
    assert first.final_loss() == (17_000, 17_000)
    assert first.starts_ms == (
        s(setup=20, restore=5, useful=25, lost=10),
        s(setup=2, restore=1, lost=17),
    )


def test_wait_for_replaced_ranks_is_stalled_and_loses_no_steps() -> None:
    # 0 submitted | 10 nodes, trains | 40-45 ranks wait | 60 snapshot | 70-73 ranks wait | 100 ended
    account = billed(
        ready(10),
        restoring(10),
        training(10, step=0),
        replaced(45, step=30, paused_ms=5000),
        saved(60, step=40, stall_ms=1000),
        replaced(73, step=50, paused_ms=3000),
        left(100, step=80, reason=LeftReason.FINISHED, exit_code=0),
        finished(100),
    )

    assert account.ms == s(useful=90 - 9, stalled=5 + 1 + 3)
    assert (account.lost_steps, len(account.attempts)) == (0, 1)


def test_hour_with_a_missing_node_is_useful_and_costs_less() -> None:
    # 10 three nodes, train | 100 node 1 lost | 100-104 ranks wait | 3700 replaced | 3702-3706 ranks wait, moved | 4000 ended
    account = compute_bill(
        [
            submitted(0, nodes=(2, 3)),
            launched(0),
            ready(10, micros=3 * SPOT, nodes=3),
            training(10, step=0),
            node_lost(100, nodes=2, micros=2 * SPOT),
            replaced(104, step=30, paused_ms=4000, hosted=(1,)),
            node_replaced(3700, nodes=3, micros=3 * SPOT),
            replaced(3706, step=500, paused_ms=4000),
            left(4000, step=600, reason=LeftReason.FINISHED, exit_code=0),
            finished(4000),
        ],
        {},
        at(NOW_S),
    )
    [item] = account.attempts
    [group] = item.groups

    assert account.ms == s(useful=3990 - 8, stalled=8)
    assert item.degraded_ms == 1000 * (3702 - 104)
    useful = 90 * 3 + (3700 - 104) * 2 + 2 * 3 + (4000 - 3706) * 3
    assert account.micros == s(useful=useful, stalled=4 * 2 + 4 * 3)
    assert group.node_ms(item.begin_ms, item.end_ms) == 1000 * (3990 * 3 - 3600)


def test_degraded_time_ends_with_the_attempt() -> None:
    gone = (
        ready(10, nodes=2),
        training(10),
        node_lost(20),
        replaced(24, paused_ms=4000, hosted=(1,)),
    )
    again = replaced(30, paused_ms=1000, ranks=(0,), hosted=(1,))
    ends = (left(90, step=9, reason=LeftReason.FINISHED, exit_code=0), finished(100))

    assert billed(*gone, again, *ends).attempts[0].degraded_ms == 66_000 - 1000
    assert billed(*gone, again).attempts[0].degraded_ms == 1000 * (NOW_S - 24) - 1000
    assert billed(ready(10), training(10), *ends).attempts[0].degraded_ms == 0


def test_wait_for_replaced_ranks_overlaps_a_snapshot_only_once() -> None:
    account = billed(
        ready(10),
        restoring(10),
        training(10, step=0),
        saved(40, step=30, stall_ms=4000),
        replaced(46, step=30, paused_ms=5000),
        left(100, step=80, reason=LeftReason.FINISHED, exit_code=0),
        finished(100),
    )

    assert account.ms == s(useful=90 - 6, stalled=6)


def test_replaced_ranks_count_the_step_before_a_loss() -> None:
    # The steps after the checkpoint are lost with the nodes, and so is the wait in them.
    account = billed(
        ready(10),
        restoring(10),
        training(10, step=0),
        saved(40, step=30),
        replaced(60, step=45, paused_ms=5000),
        lost(70),
        ready(70, attempt=2),
        restoring(70, attempt=2),
        training(70, attempt=2, step=30),
    )

    [first, _] = account.attempts
    assert first.ms == s(useful=30, lost=30)
    assert (first.last_step, first.lost_steps) == (45, 15)


def test_preemption_with_notice_loses_no_saved_work() -> None:
    # 0-10 waiting | 10-20 setup | 20-60 trains, of which it stalls 1 s | 60 exits with step 40
    # saved | 70 nodes lost | 70-75 waiting | 75-85 setup | 85-88 restore | 88-148 trains from step
    # 40 | ended
    account = billed(
        ready(10),
        training(20, step=0),
        noticed(58, step=40, left_s=12),
        saved(58, step=40, stall_ms=1000),
        left(60, step=40),
        lost(70),
        ready(75, attempt=2),
        restoring(85, attempt=2),
        training(88, attempt=2, step=40),
        left(148, attempt=2, step=100, reason=LeftReason.FINISHED, exit_code=0),
        finished(148),
    )

    first, second = account.attempts
    assert first.ms == s(setup=10, useful=39, stalled=1 + 10)
    assert (first.lost_steps, first.notice_s, first.cause) == (0, 12, Cause.PREEMPTED)
    assert second.ms == s(setup=10, restore=3, useful=60)
    assert (second.waiting_ms, second.notice_s, second.cause) == (5_000, None, None)
    assert (account.waiting_ms, account.paid_micros) == (15_000, 60_000 + 73_000)


def test_kill_without_notice_loses_work_since_the_checkpoint() -> None:
    # Trains 20-90. The state of 50 (step 30, stalls 2 s) is the newest durable one: 52-90 is
    # lost, with 25 reported steps.
    account = billed(
        ready(10),
        training(20, step=0),
        saved(50, step=30, stall_ms=2000),
        lost(90),
        ready(100, attempt=2),
        training(110, attempt=2, step=30),
        reached={1: (55, 85)},
    )

    first, second = account.attempts
    assert first.ms == s(setup=10, useful=30, stalled=2, lost=38)
    assert first.lost_steps == 25
    assert first.micros.lost == 38_000
    assert second.ms == s(setup=10, useful=NOW_S - 110)
    assert account.lost_steps == 25


def test_kill_before_the_first_step_loses_all_since_the_restore() -> None:
    account = billed(
        ready(10), training(20, step=0), lost(90), ready(100, attempt=2), training(110, attempt=2)
    )

    assert account.attempts[0].ms == s(setup=10, lost=70)


def test_silence_after_a_checkpoint_is_lost_on_a_kill() -> None:
    account = billed(
        ready(10),
        training(20, step=0),
        saved(50, step=30),
        lost(90),
        ready(100, attempt=2),
        training(110, attempt=2, step=30),
    )

    assert account.attempts[0].ms == s(setup=10, useful=30, lost=40)


def test_fallback_to_an_older_checkpoint_loses_earlier_work() -> None:
    # Attempt 1 saves step 20 at 40 and step 60 at 80. Attempt 2 finds step 60 corrupt, and
    # continues from 20.
    damaged = PassedOver(checkpoint="step-60-epoch-1", reason="shard 0: digest differs")
    account = billed(
        ready(10),
        training(20, step=0),
        saved(40, step=20),
        saved(80, step=60),
        left(90, step=70),
        lost(90),
        ready(100, attempt=2),
        TrainingStarted(at=at(110), attempt=2, step=20, passed_over=(damaged,)),
    )

    first = account.attempts[0]
    assert first.ms == s(setup=10, useful=20, lost=50)
    assert first.lost_steps == 50


def test_damaged_checkpoint_does_not_make_later_work_safe() -> None:
    # As above, but attempt 2 is killed at step 50 without a checkpoint: the corrupt step 60 does
    # not make that durable.
    damaged = PassedOver(checkpoint="step-60-epoch-1", reason="shard 0: digest differs")
    account = billed(
        ready(10),
        training(20, step=0),
        saved(40, step=20),
        saved(80, step=60),
        lost(90),
        ready(100, attempt=2),
        TrainingStarted(at=at(110), attempt=2, step=20, passed_over=(damaged,)),
        left(140, attempt=2, step=50),
        lost(140, attempt=2),
    )

    assert account.attempts[1].ms == s(setup=10, lost=30)
    assert account.attempts[1].lost_steps == 30


def test_an_attempt_that_never_trained_is_setup_and_restore() -> None:
    # It started at 30 and searched for a checkpoint until it was preempted; the next attempt
    # trains.
    account = billed(
        ready(10),
        restoring(30),
        lost(45),
        ready(50, attempt=2),
        training(60, attempt=2),
    )

    assert account.attempts[0].ms == s(setup=20, restore=15)
    assert account.attempts[0].last_step is None


def test_unreported_time_is_unmeasured_until_nodes_are_lost() -> None:
    account = billed(ready(10), lost(40), ready(50, attempt=2), finished(110))

    first, second = account.attempts
    assert (first.ms, second.ms) == (s(lost=30), s(unmeasured=60))
    assert account.ms.total == 90_000
    assert account.goodput == 0


@pytest.mark.parametrize("end", [(), (finished(40, Outcome.FAILED, exit_code=1),)])
def test_program_without_reports_neither_saves_nor_wastes(end: tuple[Event, ...]) -> None:
    """The program may still be starting, or have crashed before its first step.

    Neither is useful work.
    """
    account = billed(ready(10), *end)

    assert account.paid_micros > 0
    assert account.ms.useful == account.wasted_micros == account.saved_micros == 0
    assert account.on_demand_micros == account.micros.unmeasured == account.paid_micros
    assert account.goodput is None
    assert [account.on_demand_share(item) for item in account.attempts] == [account.paid_micros]


def test_unmeasured_time_becomes_setup_once_the_program_reports() -> None:
    assert billed(ready(10)).ms == s(unmeasured=NOW_S - 10)
    assert billed(ready(10), restoring(NOW_S - 5)).ms == s(setup=NOW_S - 15, restore=5)


def test_paused_time_is_separate_from_waiting_for_nodes() -> None:
    first = (ready(10), training(20), pausing(30), lost(40, cause=Cause.PAUSED), paused(40))

    account = billed(*first, resumed(100), launched(100, launch=2), ready(130, attempt=2))

    second = account.attempts[1]
    assert (second.waiting_ms, second.paused_ms) == (90_000, 60_000)
    assert (account.waiting_ms, account.paused_ms) == (100_000, 60_000)
    assert not account.is_paused


def test_open_pause_is_counted_until_now() -> None:
    facts = (submitted(), launched(), pausing(20), paused(30))

    account = compute_bill(facts, {}, at(100))
    grown = extend_bill(account, at(160))

    assert (account.waiting_ms, account.paused_ms, account.is_paused) == (100_000, 70_000, True)
    assert grown == compute_bill(facts, {}, at(160))


def test_a_pause_ends_with_the_job() -> None:
    facts = (submitted(), launched(), pausing(20), paused(30), CancelRequested(at=at(50)))

    account = compute_bill([*facts, finished(60, Outcome.CANCELLED)], {}, at(NOW_S))

    assert (account.waiting_ms, account.paused_ms, account.is_paused) == (60_000, 20_000, False)


def test_a_running_job_is_billed_until_now_and_has_lost_nothing() -> None:
    account = billed(ready(10), training(20), reached={1: (500, 900)})

    assert account.until == at(NOW_S)
    assert account.attempts[0].ended_at is None
    assert account.ms == s(setup=10, useful=NOW_S - 20)
    assert account.waiting_ms == 10_000


def test_recovering_job_waits_and_keeps_its_newest_checkpoint() -> None:
    account = billed(ready(10), training(20), saved(50, step=30), lost(80))

    assert account.ms == s(setup=10, useful=30, lost=30)
    assert account.waiting_ms == 10_000 + (NOW_S - 80) * 1000


def test_unrestored_nodes_do_not_recover_lost_work() -> None:
    account = billed(
        ready(10), training(20), saved(50, step=30), lost(80), ready(NOW_S - 5, attempt=2)
    )

    assert account.attempts[0].ms == s(setup=10, useful=30, lost=30)
    assert account.attempts[1].ms == s(setup=5)


def test_cancelled_job_loses_unsaved_work() -> None:
    account = billed(
        ready(10),
        training(20),
        saved(50, step=30),
        left(80, step=60),
        finished(85, Outcome.CANCELLED, exit_code=None),
    )

    assert account.ms == s(setup=10, useful=30, lost=30, stalled=5)
    assert account.lost_steps == 30


def test_a_job_that_was_never_placed_costs_nothing() -> None:
    account = billed(finished(60, Outcome.FAILED, exit_code=None))

    assert (account.paid_micros, account.waiting_ms, account.attempts) == (0, 60_000, ())


def test_worker_clock_cannot_extend_time_of_its_nodes() -> None:
    account = billed(
        ready(10),
        restoring(5),
        training(7),
        left(500, step=9, reason=LeftReason.FINISHED, exit_code=0),
        finished(40),
    )

    assert account.ms == s(useful=30)


def test_a_placement_without_duration_costs_nothing() -> None:
    account = billed(
        ready(10), lost(30), ready(30, attempt=2, zone="b"), lost(30, attempt=2), ready(30, attempt=3)
    )  # fmt: skip

    assert [item.micros.total for item in account.attempts] == [20_000, 0, 970_000]


def test_micro_dollars_are_rounded_once_for_the_whole() -> None:
    # 7 micro-dollars an hour: 3 x 20 minutes cost 7, though each third alone rounds down to 2.
    third_ms = 1_200_000

    thirds = [
        Span(phase, n * third_ms, (n + 1) * third_ms)
        for n, phase in enumerate((Phase.SETUP, Phase.RESTORE, Phase.USEFUL))
    ]

    micros = cost_by_phase(thirds, RateSchedule(((0, 7),)), 0)

    assert (micros.setup, micros.restore, micros.useful, micros.total) == (2, 2, 3, 7)


def test_one_simulated_price_marks_the_whole_bill() -> None:
    real = billed(ready(10), lost(20), ready(30, attempt=2))
    mixed = billed(ready(10), lost(20), replace(ready(30, attempt=2), simulated=True))

    assert (real.simulated, mixed.simulated) == (False, True)

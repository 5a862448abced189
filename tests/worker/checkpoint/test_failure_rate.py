"""The failure rate of nodes, computed from the store alone, determines the save interval."""

from __future__ import annotations

import json

import pytest
from holdfast_worker.checkpoint import schedule
from holdfast_worker.checkpoint.checkpointer import upload_rate
from holdfast_worker.checkpoint.failure_rate import (
    REMEMBERED,
    SHORTEST_S,
    WINDOW_LOSSES,
    AttemptHistory,
    FailureRate,
    was_interrupted,
)
from holdfast_worker.checkpoint.schedule import (
    CheckpointSchedule,
    SaveCost,
    SaveCostEstimate,
    quantile,
)
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.policies import Cadence, Interval
from holdfast_worker.run_dir import ExitReason
from holdfast_worker.storage.base import Store
from hypothesis import given
from hypothesis import strategies as st
from worker.support.stores import LATER_S, Crash, CrashingStore, MemoryStore

HOUR_S = 3600.0
FINISHED = ExitReason("finished", Exit.DONE, 40)
PREEMPTED = ExitReason("preempted", Exit.PREEMPTED, 17)
BROKEN = ExitReason("failed", Exit.FAILED, 17, "ValueError: this lesson ends at step 17")
WITHOUT_A_WORD = None
AUTO = Cadence.parse("auto")


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def run_attempt(
    store: Store,
    epoch: int,
    hours: float,
    end: ExitReason | None,
    *,
    unsaved_hours: float = 0.0,
) -> FailureRate:
    """Run an attempt with saves until its end or some hours before; return the rate it read."""
    clock = Clock()
    history = AttemptHistory.open(store, epoch, LATER_S, clock)
    clock.now_s += hours * HOUR_S
    if hours:
        history.record_alive(LATER_S)
    clock.now_s += unsaved_hours * HOUR_S
    if end:
        history.close(end)
    return history.before


def uptime_s(known: FailureRate) -> float:
    """Uptime of all attempts together."""
    return sum(known.spans_s) + known.since_s


@pytest.mark.parametrize(
    ("spans_h", "since_h", "between_h"),
    [
        ([], 0, 2),  # No data.
        ([], 20, 6),  # No loss in 20 hours: (20 h + 5 * 2 h) / 5
        ([1], 0, 1.8),  # (1 h + 4 * 2 h) / 5
        ([0.5] * 4, 0, 0.8),
        ([0.4] * 5, 0, 0.4),  # From here on, observations only.
        ([0.4] * 5, 1, 0.6),  # The time since the last loss also counts.
        ([0] * 7, 0, SHORTEST_S / HOUR_S),  # Lifetimes are unknown.
    ],
)
def test_prior_mtbf_counts_until_enough_losses_are_observed(
    spans_h: list[float], since_h: float, between_h: float
) -> None:
    known = FailureRate()

    for span_h in spans_h:
        known = known.with_lifetime(span_h * HOUR_S).with_loss()
    known = known.with_lifetime(since_h * HOUR_S)

    assert known.mtbf_s == pytest.approx(between_h * HOUR_S)


@given(st.lists(st.floats(0, 1e6), max_size=30), st.floats(0, 1e6), st.floats(0, 1e6))
def test_uptime_raises_the_mtbf_and_a_loss_never_does(
    spans_s: list[float], since_s: float, more_s: float
) -> None:
    known = FailureRate()
    for span_s in spans_s:
        known = known.with_lifetime(span_s).with_loss()
    known = known.with_lifetime(since_s)

    assert known.losses == len(spans_s)
    assert len(known.spans_s) <= REMEMBERED
    assert known.with_lifetime(more_s).mtbf_s >= known.mtbf_s >= SHORTEST_S
    if known.losses >= WINDOW_LOSSES:
        assert known.with_loss().mtbf_s <= known.mtbf_s


@pytest.mark.parametrize(
    ("left", "is_lost"),
    [
        (FINISHED, False),
        (PREEMPTED, True),
        (BROKEN, False),
        (ExitReason("failed", 130, 5, "KeyboardInterrupt"), False),
        (ExitReason("failed", Exit.UNSAVED, 5, "3 consecutive checkpoints failed"), False),
        (
            ExitReason("failed", 1, 5, "RuntimeError: [/p/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed"),
            True,
        ),
        (ExitReason("failed", 1, 5, "torch.distributed.DistBackendError: NCCL error: remote process exited"), True),
    ],
)  # fmt: skip
def test_only_capacity_loss_counts_as_an_interruption(left: ExitReason, is_lost: bool) -> None:
    assert was_interrupted(left) is is_lost


def test_attempt_history_spans_all_attempts_of_a_job() -> None:
    store = MemoryStore()

    found = [
        run_attempt(store, 1, 3.0, WITHOUT_A_WORD, unsaved_hours=1.0),
        run_attempt(store, 2, 2.0, PREEMPTED, unsaved_hours=0.5),
        run_attempt(store, 4, 1.0, BROKEN),
        run_attempt(store, 7, 0.0, WITHOUT_A_WORD),
        run_attempt(store, 8, 1.0, FINISHED),
        run_attempt(store, 9, 0.0, FINISHED),
    ]

    assert [(known.losses, uptime_s(known) / HOUR_S) for known in found] == [
        (0, 0.0),
        (1, 3.0),  # Until its last checkpoint, without evidence of later steps.
        (2, 5.5),  # Until its recorded end.
        (2, 6.5),
        (3, 6.5),
        (3, 7.5),
    ]
    assert store.list("diary/") == ["diary/000000000009"]


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([FINISHED, PREEMPTED, BROKEN, None]))))
def test_each_attempt_is_counted_once(attempts: list[tuple[int, ExitReason | None]]) -> None:
    store = MemoryStore()

    for epoch, (hours, end) in enumerate(attempts, start=1):
        run_attempt(store, epoch, hours, end)
    known = run_attempt(store, len(attempts) + 1, 0, None)

    spans, span = [], 0.0
    for hours, end in attempts:
        span += hours * HOUR_S
        if end in {PREEMPTED, None}:
            spans.append(span)
            span = 0.0
    assert known.losses == len(spans)
    assert known.spans_s == pytest.approx(tuple(spans[-REMEMBERED:]))
    assert known.since_s == pytest.approx(span)


def test_restart_under_the_same_epoch_counts_as_interrupted() -> None:
    store = MemoryStore()
    run_attempt(store, 3, 1.0, WITHOUT_A_WORD)

    assert run_attempt(store, 3, 0.0, None).losses == 1


def test_start_killed_between_read_and_write_loses_nothing() -> None:
    store = MemoryStore()
    run_attempt(store, 1, 2.0, PREEMPTED)

    with pytest.raises(Crash):
        run_attempt(CrashingStore(store, 2), 2, 0.0, None)

    assert run_attempt(store, 3, 0.0, None) == FailureRate(1, (2 * HOUR_S,))


def test_late_records_of_a_fenced_attempt_are_ignored() -> None:
    store = MemoryStore()
    clock = Clock()
    fenced = AttemptHistory.open(store, 1, LATER_S, clock)
    run_attempt(store, 2, 2.0, FINISHED)

    clock.now_s += 99 * HOUR_S
    fenced.record_alive(LATER_S)
    fenced.close(ExitReason("failed", Exit.FENCED, 5, "a newer attempt has taken over"))

    # The fenced attempt ended before its first save.
    assert run_attempt(store, 3, 0.0, None) == FailureRate(1, (0.0,), 2 * HOUR_S)
    assert store.list("diary/") == ["diary/000000000003"]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"losses": 3}', b'{"losses": 1, "spans_s": ["x"], "since_s": 0}', b"\xff"],
)
def test_unreadable_history_entry_is_ignored(body: bytes) -> None:
    assert run_attempt(MemoryStore({"diary/000000000001": body}), 2, 0.0, None) == FailureRate()


def test_closed_history_records_nothing_more() -> None:
    store = MemoryStore()
    history = AttemptHistory.open(store, 1, LATER_S)

    history.close(FINISHED)
    history.record_alive(LATER_S)

    assert json.loads(store.get("diary/000000000001"))["ended"] == "finished"


def test_expected_save_time_is_the_ninth_decile() -> None:
    costs = SaveCostEstimate()
    for seconds in (40, 3, 1, 2, 9, 5, 8, 6, 4, 7):
        costs.add(SaveCost(stall_s=seconds / 10, durable_s=seconds))

    assert costs.durable_s == 9
    assert costs.stall_s == pytest.approx(0.55)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.sampled_from([0.1, 0.5, 0.9, 1.0]))
def test_quantile_is_a_sample_with_enough_smaller_ones(numbers: list[float], share: float) -> None:
    found = quantile(numbers, share)

    assert found in numbers
    assert sum(number <= found for number in numbers) >= share * len(numbers)
    assert sum(number < found for number in numbers) < share * len(numbers)


def test_throttled_upload_counts_only_if_much_slower() -> None:
    costs = SaveCostEstimate()
    costs.add(SaveCost(0.1, 8.0))

    costs.add(SaveCost(0.1, 150.0, throttled_s=148.0))
    held_back = costs.durable_s
    costs.add(SaveCost(0.1, 400.0, throttled_s=148.0))

    assert (held_back, costs.durable_s) == (8.0, 400.0)


@pytest.mark.parametrize(
    ("since_s", "durable_s", "saves", "failures", "spread_s"),
    [
        (600, 8.0, 1, 0, 150),  # A quarter of the interval.
        (600, 8.0, 4, 0, 150),
        (600, 8.0, 5, 0, 0),  # One save of five measures the full speed,
        (600, None, 1, 0, 0),  # as the first save does,
        (600, 8.0, 1, 1, 0),  # and a save after a failure is not delayed.
        (600, 150.0, 1, 0, 0),  # No time to spare.
    ],
)
def test_most_uploads_are_throttled(
    since_s: float, durable_s: float | None, saves: int, failures: int, spread_s: float
) -> None:
    pace = upload_rate(1 << 30, since_s, durable_s, saves=saves, failures=failures)

    assert pace.spread_s(1 << 30) == pytest.approx(spread_s)


def test_old_save_costs_are_forgotten() -> None:
    costs = SaveCostEstimate()
    costs.add(SaveCost(20.0, 500.0))

    for _ in range(schedule.REMEMBERED):
        costs.add(SaveCost(1.0, 5.0))

    assert (costs.stall_s, costs.durable_s) == (1.0, 5.0)


def test_interval_description_states_its_reasons() -> None:
    schedule = CheckpointSchedule(AUTO)
    known = FailureRate(3, (HOUR_S, HOUR_S, 2 * HOUR_S), HOUR_S)

    changes = [
        schedule.observe(SaveCost(1.0, 5.0), known),
        schedule.observe(SaveCost(1.1, 5.0), known),
        schedule.observe(SaveCost(30.0, 400.0), known),
        schedule.observe(SaveCost(30.0, 400.0), known),
    ]

    assert changes == [True, False, True, False]
    assert schedule.interval
    assert schedule.interval == Interval(420, 15550, 400_000, 6480, 3)
    assert schedule.interval.description == (
        "every 7 min: a checkpoint stalls training for 15.6 s and is durable after 6.67 min; the estimated time between "
        "failures is 108 min, after 3 interrupted attempts so far"
    )


def test_fixed_interval_is_kept_and_save_time_is_learnt() -> None:
    schedule = CheckpointSchedule(Cadence.parse("15m"))

    is_changed = schedule.observe(SaveCost(30.0, 400.0), FailureRate())

    assert not is_changed
    assert schedule.interval is None
    assert schedule.durable_s == 400.0
    assert [schedule.is_due(5, seconds, 0) for seconds in (899, 900)] == [False, True]


def test_first_checkpoint_comes_early_without_measurements() -> None:
    schedule = CheckpointSchedule(AUTO)

    assert [schedule.is_due(5, seconds, 0) for seconds in (29, 30)] == [False, True]
    schedule.observe(SaveCost(5.0, 30.0), FailureRate())
    assert [schedule.is_due(5, seconds, 0) for seconds in (299, 300)] == [False, True]


def test_frequent_interruptions_shorten_the_interval() -> None:
    """A day without losses, then many, read from the store."""
    store = MemoryStore()
    chosen: list[int] = []

    for epoch, hours in enumerate([48.0, *[0.2] * 12], start=1):
        known = run_attempt(store, epoch, hours, WITHOUT_A_WORD)
        schedule = CheckpointSchedule(AUTO)
        schedule.observe(SaveCost(5.0, 20.0), known)
        assert schedule.interval
        chosen.append(schedule.interval.interval_s // 60)

    interruptions = chosen[1:]
    assert (chosen[0], interruptions[0], interruptions[-1]) == (5, 10, 1)
    assert interruptions == sorted(interruptions, reverse=True)

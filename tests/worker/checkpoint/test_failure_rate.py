"""How long nodes last is known from the store alone, and how often to save follows from it."""

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
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def live(
    store: Store,
    epoch: int,
    hours: float,
    end: ExitReason | None,
    *,
    unsaved_hours: float = 0.0,
) -> FailureRate:
    """A placement: what it found, after it saved until its end, or until some hours before."""
    clock = Clock()
    diary = AttemptHistory.open(store, epoch, LATER_S, clock)
    clock.now_s += hours * HOUR_S
    if hours:
        diary.record_alive(LATER_S)
    clock.now_s += unsaved_hours * HOUR_S
    if end:
        diary.close(end)
    return diary.before


def lived_s(known: FailureRate) -> float:
    """Of all attempts together."""
    return sum(known.spans_s) + known.since_s


@pytest.mark.parametrize(
    ("spans_h", "since_h", "between_h"),
    [
        ([], 0, 2),  # Nothing is known.
        ([], 20, 6),  # Nothing has happened for long: (20 h + 5 * 2 h) / 5
        ([1], 0, 1.8),  # (1 h + 4 * 2 h) / 5
        ([0.5] * 4, 0, 0.8),
        ([0.4] * 5, 0, 0.4),  # From here on it is what was seen.
        ([0.4] * 5, 1, 0.6),  # The time since then counts, too.
        ([0] * 7, 0, SHORTEST_S / HOUR_S),  # Their lifetime is unknown.
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


def test_the_diary_of_a_job_goes_on_over_all_its_placements() -> None:
    store = MemoryStore()

    found = [
        live(store, 1, 3.0, WITHOUT_A_WORD, unsaved_hours=1.0),
        live(store, 2, 2.0, PREEMPTED, unsaved_hours=0.5),
        live(store, 4, 1.0, BROKEN),
        live(store, 7, 0.0, WITHOUT_A_WORD),
        live(store, 8, 1.0, FINISHED),
        live(store, 9, 0.0, FINISHED),
    ]

    assert [(known.losses, lived_s(known) / HOUR_S) for known in found] == [
        (0, 0.0),
        (1, 3.0),  # Until its last checkpoint: there is no evidence of more.
        (2, 5.5),  # It told its end.
        (2, 6.5),
        (3, 6.5),
        (3, 7.5),
    ]
    assert store.list("diary/") == ["diary/000000000009"]


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([FINISHED, PREEMPTED, BROKEN, None]))))
def test_no_placement_is_counted_twice_or_never(lives: list[tuple[int, ExitReason | None]]) -> None:
    store = MemoryStore()

    for epoch, (hours, end) in enumerate(lives, start=1):
        live(store, epoch, hours, end)
    known = live(store, len(lives) + 1, 0, None)

    spans, span = [], 0.0
    for hours, end in lives:
        span += hours * HOUR_S
        if end in {PREEMPTED, None}:
            spans.append(span)
            span = 0.0
    assert known.losses == len(spans)
    assert known.spans_s == pytest.approx(tuple(spans[-REMEMBERED:]))
    assert known.since_s == pytest.approx(span)


def test_restart_under_the_same_epoch_counts_as_interrupted() -> None:
    store = MemoryStore()
    live(store, 3, 1.0, WITHOUT_A_WORD)

    assert live(store, 3, 0.0, None).losses == 1


def test_start_killed_between_read_and_write_loses_nothing() -> None:
    store = MemoryStore()
    live(store, 1, 2.0, PREEMPTED)

    with pytest.raises(Crash):
        live(CrashingStore(store, 2), 2, 0.0, None)

    assert live(store, 3, 0.0, None) == FailureRate(1, (2 * HOUR_S,))


def test_late_records_of_a_fenced_attempt_are_ignored() -> None:
    store = MemoryStore()
    clock = Clock()
    zombie = AttemptHistory.open(store, 1, LATER_S, clock)
    live(store, 2, 2.0, FINISHED)

    clock.now_s += 99 * HOUR_S
    zombie.record_alive(LATER_S)
    zombie.close(ExitReason("failed", Exit.FENCED, 5, "a newer attempt has taken over"))

    # The zombie was cut short, before it had saved anything.
    assert live(store, 3, 0.0, None) == FailureRate(1, (0.0,), 2 * HOUR_S)
    assert store.list("diary/") == ["diary/000000000003"]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"losses": 3}', b'{"losses": 1, "spans_s": ["x"], "since_s": 0}', b"\xff"],
)
def test_unreadable_history_entry_is_ignored(body: bytes) -> None:
    assert live(MemoryStore({"diary/000000000001": body}), 2, 0.0, None) == FailureRate()


def test_closed_history_records_nothing_more() -> None:
    store = MemoryStore()
    diary = AttemptHistory.open(store, 1, LATER_S)

    diary.close(FINISHED)
    diary.record_alive(LATER_S)

    assert json.loads(store.get("diary/000000000001"))["ended"] == "finished"


def test_nine_checkpoints_of_ten_take_no_longer_than_is_expected() -> None:
    costs = SaveCostEstimate()
    for seconds in (40, 3, 1, 2, 9, 5, 8, 6, 4, 7):
        costs.add(SaveCost(stall_s=seconds / 10, durable_s=seconds))

    assert costs.durable_s == 9
    assert costs.stall_s == pytest.approx(0.55)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.sampled_from([0.1, 0.5, 0.9, 1.0]))
def test_a_quantile_is_one_of_the_numbers_with_enough_below_it(
    numbers: list[float], share: float
) -> None:
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
        (600, 8.0, 1, 0, 150),  # A quarter of the time between two.
        (600, 8.0, 4, 0, 150),
        (600, 8.0, 5, 0, 0),  # One of five shows how fast it can be,
        (600, None, 1, 0, 0),  # as the first one does,
        (600, 8.0, 1, 1, 0),  # and after one that failed there is no time to lose.
        (600, 150.0, 1, 0, 0),  # There is nothing to spare.
    ],
)
def test_most_uploads_are_spread_out(
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
    tempo = CheckpointSchedule(AUTO)
    known = FailureRate(3, (HOUR_S, HOUR_S, 2 * HOUR_S), HOUR_S)

    changes = [
        tempo.observe(SaveCost(1.0, 5.0), known),
        tempo.observe(SaveCost(1.1, 5.0), known),
        tempo.observe(SaveCost(30.0, 400.0), known),
        tempo.observe(SaveCost(30.0, 400.0), known),
    ]

    assert changes == [True, False, True, False]
    assert tempo.interval
    assert tempo.interval == Interval(420, 15550, 400_000, 6480, 3)
    assert tempo.interval.description == (
        "every 7 min: a checkpoint stalls training for 15.6 s and is durable after 6.67 min; the estimated time between "
        "failures is 108 min, after 3 interrupted attempts so far"
    )


def test_fixed_interval_is_kept_and_save_time_is_learnt() -> None:
    tempo = CheckpointSchedule(Cadence.parse("15m"))

    is_changed = tempo.observe(SaveCost(30.0, 400.0), FailureRate())

    assert not is_changed
    assert tempo.interval is None
    assert tempo.durable_s == 400.0
    assert [tempo.is_due(5, seconds, 0) for seconds in (899, 900)] == [False, True]


def test_first_checkpoint_comes_early_without_measurements() -> None:
    tempo = CheckpointSchedule(AUTO)

    assert [tempo.is_due(5, seconds, 0) for seconds in (29, 30)] == [False, True]
    tempo.observe(SaveCost(5.0, 30.0), FailureRate())
    assert [tempo.is_due(5, seconds, 0) for seconds in (299, 300)] == [False, True]


def test_frequent_interruptions_shorten_the_interval() -> None:
    """A day without losses, then many, known from the store alone."""
    store = MemoryStore()
    chosen: list[int] = []

    for epoch, hours in enumerate([48.0, *[0.2] * 12], start=1):
        known = live(store, epoch, hours, WITHOUT_A_WORD)
        tempo = CheckpointSchedule(AUTO)
        tempo.observe(SaveCost(5.0, 20.0), known)
        assert tempo.interval
        chosen.append(tempo.interval.interval_s // 60)

    storm = chosen[1:]
    assert (chosen[0], storm[0], storm[-1]) == (5, 10, 1)
    assert storm == sorted(storm, reverse=True)

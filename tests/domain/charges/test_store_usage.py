"""What a job used of its store, from its events: an integral over time, and sums of counters."""

from __future__ import annotations

import itertools
import random

import pytest
from holdfast.domain.billing.rate import to_ms
from holdfast.domain.charges.store_usage import JobStoreUsage
from holdfast.domain.events import CheckpointsRemoved, Event, Removal
from holdfast.domain.events.values import StoreCounts
from support.events import at, replaced, restarted, saved, training


def _removed(seconds: float, *names: str) -> CheckpointsRemoved:
    return CheckpointsRemoved(
        at=at(seconds), checkpoints=names, removal=Removal.SUPERSEDED, size_bytes=0
    )


def _byte_ms(events: list[Event], until_s: float) -> int:
    return JobStoreUsage.from_events(events).byte_ms(to_ms(at(until_s)))


def test_checkpoint_is_stored_until_its_removal() -> None:
    events: list[Event] = [saved(10, step=1, name="a", size_bytes=100), _removed(30, "a")]

    assert _byte_ms(events, 20) == 100 * 10_000
    assert _byte_ms(events, 30) == _byte_ms(events, 1000) == 100 * 20_000


def test_checkpoint_that_is_kept_costs_after_the_end() -> None:
    assert _byte_ms([saved(10, step=1, size_bytes=7)], 1_000_000) == 7 * 999_990_000


def test_removal_that_was_recorded_first_stores_nothing() -> None:
    events: list[Event] = [_removed(5, "a"), saved(10, step=1, name="a", size_bytes=100)]

    assert _byte_ms(events, 100) == 0


def test_second_report_and_second_removal_change_nothing() -> None:
    once: list[Event] = [saved(10, step=1, name="a", size_bytes=100), _removed(30, "a")]
    twice = [*once, saved(20, step=1, name="a", size_bytes=100), _removed(90, "a")]

    assert _byte_ms(twice, 100) == _byte_ms(once, 100)


@pytest.mark.parametrize("seed", range(20))
def test_storage_equals_a_sum_over_every_second(seed: int) -> None:
    chance = random.Random(seed)
    until_s = chance.randrange(50, 200)
    events, spans = list[Event](), list[tuple[int, int, int]]()
    for number in range(chance.randrange(1, 30)):
        begin, size = chance.randrange(200), chance.randrange(10**12)
        end = chance.choice([None, chance.randrange(200)])
        events.append(saved(begin, step=number, name=f"c{number}", size_bytes=size))
        if end is not None:
            events.append(_removed(end, f"c{number}"))
        spans.append((begin, 10**9 if end is None else end, size))
    chance.shuffle(events)

    every_second = sum(
        size for second in range(until_s) for begin, end, size in spans if begin <= second < end
    )
    assert _byte_ms(events, until_s) == 1000 * every_second


@pytest.mark.parametrize("seed", range(5))
def test_storage_adds_up_over_adjacent_times(seed: int) -> None:
    chance = random.Random(seed)
    events: list[Event] = [
        saved(chance.random() * 100, step=n, name=f"c{n}", size_bytes=chance.randrange(10**9))
        for n in range(10)
    ]
    usage = JobStoreUsage.from_events(events)
    moments = [to_ms(at(second)) for second in range(0, 200, 7)]

    parts = [usage.byte_ms(b) - usage.byte_ms(a) for a, b in itertools.pairwise(moments)]

    assert min(parts) >= 0
    assert sum(parts) == usage.byte_ms(moments[-1]) - usage.byte_ms(moments[0])


def _counted(seconds: float, puts: int, *, attempt: int = 1) -> Event:
    usage = StoreCounts(puts=puts, uploaded_bytes=10 * puts)
    return saved(seconds, attempt=attempt, step=int(seconds), store_usage=usage)


def test_newest_counter_of_an_attempt_counts() -> None:
    events = [training(0), _counted(1, 3), _counted(2, 8), _counted(3, 4, attempt=2)]

    used = JobStoreUsage.from_events(events).by_attempt

    assert {attempt: usage.puts for attempt, usage in used.items()} == {1: 8, 2: 4}
    assert used[1].uploaded_bytes == 80


def test_counters_begin_again_with_new_processes() -> None:
    events = [_counted(1, 3), restarted(2, step=1), _counted(3, 5), _counted(4, 6)]

    assert JobStoreUsage.from_events(events).by_attempt[1].puts == 3 + 6


@pytest.mark.parametrize(("ranks", "puts"), [((0, 1), 3 + 5), ((1,), 5)])
def test_counters_begin_again_if_rank_0_is_replaced(ranks: tuple[int, ...], puts: int) -> None:
    events = [_counted(1, 3), replaced(2, step=1, ranks=ranks), _counted(3, 5)]

    assert JobStoreUsage.from_events(events).by_attempt[1].puts == puts


def test_lower_counter_is_of_a_new_process() -> None:
    assert JobStoreUsage.from_events([_counted(1, 9), _counted(2, 4)]).by_attempt[1].puts == 13


def test_old_workers_report_no_counters() -> None:
    events = [training(0), saved(1, step=1)]

    assert JobStoreUsage.from_events(events).by_attempt == {}

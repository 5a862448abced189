"""Which running jobs are paused for waiting ones of a higher priority."""

from __future__ import annotations

from datetime import timedelta

from holdfast.domain.events.values import Demand
from holdfast.domain.queue.admission import evaluate
from holdfast.domain.queue.priority_pauses import (
    MIN_RUN,
    PauseCandidate,
    choose_pauses,
    pausable,
)
from holdfast.domain.queue.queue_state import QueueEntry, QueueState
from holdfast.domain.queue.quotas import Quota, QuotaScope
from hypothesis import given
from hypothesis import strategies as st
from support.events import at
from support.queue_simulation import service_quota

NOW_S = 7200.0
ALLOWED = Quota(scope=QuotaScope.PROJECT, name="nlp", may_pause_for_priority=True)


def entry(
    job_id: str,
    priority: int = 0,
    *,
    gpus: int = 8,
    project: str = "nlp",
    owner: str = "ada",
    held: float | None = None,
    leaving: str = "",
) -> QueueEntry:
    return QueueEntry(
        job_id=job_id,
        project=project,
        owner=owner,
        priority=priority,
        queued_at=at(0),
        demand=Demand(nodes=1, gpus=gpus),
        admitted_at=None if held is None else at(held),
        is_leaving=bool(leaving),
        paused_for=leaving,
    )


def state_of(*entries: QueueEntry, gpus: int = 16, quotas: tuple[Quota, ...] = ()) -> QueueState:
    return QueueState(
        at=at(NOW_S),
        quotas=(service_quota(gpus), ALLOWED, *quotas),
        waiting=tuple(each for each in entries if each.admitted_at is None),
        holding=tuple(each for each in entries if each.admitted_at is not None),
    )


def chosen(state: QueueState, pauses: int = 0, without: str = "") -> dict[str, str]:
    """The paused jobs, each with the one for which it is paused."""
    positions = evaluate(state)
    candidates = {
        each.job_id: PauseCandidate(entry=each, pauses=pauses)
        for each in pausable(state, positions)
        if each.job_id != without
    }
    return {p.job_id: p.for_job for p in choose_pauses(state, positions, candidates)}


def test_lowest_priority_is_paused_and_of_these_the_youngest() -> None:
    running = (entry("low", -1, held=10), entry("old", held=10), entry("young", held=99))

    one = state_of(*running, entry("w", 5), gpus=24)
    two = state_of(*running, entry("w", 5, gpus=16), gpus=24)

    assert chosen(one) == {"low": "w"}
    assert chosen(two) == {"low": "w", "young": "w"}


def test_same_and_higher_priorities_are_never_paused() -> None:
    state = state_of(entry("same", 5, held=10), entry("higher", 6, held=10), entry("w", 5))

    assert chosen(state) == {}


def test_no_more_are_paused_than_needed() -> None:
    running = (entry("small", -1, gpus=2, held=50), entry("large", gpus=14, held=10))

    assert chosen(state_of(*running, entry("w", 5, gpus=14))) == {"large": "w"}
    assert chosen(state_of(*running, entry("w", 5, gpus=16))) == {"small": "w", "large": "w"}


def test_nothing_is_paused_where_it_would_not_suffice() -> None:
    state = state_of(entry("a", held=10), entry("b", 7, held=10), entry("w", 5, gpus=16))

    assert chosen(state) == {}


def test_only_projects_that_allow_it_have_jobs_paused() -> None:
    other = state_of(entry("a", held=1, gpus=16, project="cv"), entry("w", 5, project="cv"))
    across = state_of(entry("a", held=1, gpus=16, project="cv"), entry("w", 5))

    assert chosen(other) == {}
    assert chosen(across) == {}


def test_room_that_is_about_to_be_free_is_counted() -> None:
    state = state_of(entry("leaves", held=1, leaving="w"), entry("stays", held=1), entry("w", 5))

    assert chosen(state) == {}


def test_room_of_paused_jobs_is_kept_for_the_waiting_one() -> None:
    state = state_of(
        entry("leaves", held=1, leaving="w"), entry("w", 5, gpus=16), entry("small", gpus=4)
    )

    places = {place.entry.job_id: place for place in evaluate(state)}

    assert "jobs of a lower priority are pausing for it" in places["w"].reason
    assert not places["small"].is_admitted


def test_only_the_first_that_waits_for_a_quota_gets_room() -> None:
    running = entry("a", held=1, gpus=16)
    first, second = entry("cv", 9, project="cv"), entry("w", 5)

    assert chosen(state_of(running, first, second)) == {}
    assert chosen(state_of(running, second)) == {"a": "w"}


def test_job_that_was_paused_before_runs_for_a_while() -> None:
    start = NOW_S - MIN_RUN / timedelta(seconds=1)
    early = state_of(entry("a", held=start + 1, gpus=16), entry("w", 5))
    late = state_of(entry("a", held=start, gpus=16), entry("w", 5))

    assert chosen(early, pauses=1) == {}
    assert chosen(early, pauses=0) == {"a": "w"}
    assert chosen(late, pauses=1) == {"a": "w"}


def test_quota_of_a_user_is_made_free_by_jobs_of_the_user() -> None:
    ada = Quota(scope=QuotaScope.USER, name="ada", gpus=8)
    running = (entry("bob", -5, owner="bob", held=99), entry("ada", held=1))

    assert chosen(state_of(*running, entry("w", 5), gpus=99, quotas=(ada,))) == {"ada": "w"}


def test_job_that_may_not_be_paused_is_left_alone() -> None:
    state = state_of(entry("a", -1, held=1), entry("b", held=1), entry("w", 5))

    assert chosen(state, without="a") == {"b": "w"}


@given(
    running=st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 8)), max_size=8),
    waiting=st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 16)), min_size=1, max_size=5),
)
def test_each_pause_serves_a_higher_priority_and_makes_room(
    running: list[tuple[int, int]], waiting: list[tuple[int, int]]
) -> None:
    held = [entry(f"r{n}", p, gpus=g, held=n) for n, (p, g) in enumerate(running)]
    queued = [entry(f"w{n}", p, gpus=g) for n, (p, g) in enumerate(waiting)]
    state = state_of(*held, *queued, gpus=max(16, sum(g for _, g in running)))
    by_id = {each.job_id: each for each in (*held, *queued)}

    pauses = chosen(state)

    assert all(by_id[a].priority < by_id[b].priority for a, b in pauses.items())
    left = [each for each in held if each.job_id not in pauses]
    after = state_of(*left, *queued, gpus=state.quotas[0].gpus or 0)
    admitted = {place.entry.job_id for place in evaluate(after) if place.is_admitted}
    assert {*pauses.values()} <= admitted

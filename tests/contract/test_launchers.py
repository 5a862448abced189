"""The contract of all launchers."""

from __future__ import annotations

import asyncio

import pytest
from contract.conftest import WITH_DENIALS
from contract.launcher_backends import (
    NewBackend,
    NewMarket,
    PreemptibleBackend,
    ProgramKind,
    do,
    is_ended,
    is_up,
)
from holdfast.domain.events import Cause, Event, Outcome
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.domain.jobs.reconcile import Effect, decide
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import NotPossibleNow
from support.events import submitted


def test_unknown_key_is_observed_as_absent(new_backend: NewBackend) -> None:
    seen = do(new_backend().launcher.observe("job-1"))

    assert seen.status is LaunchStatus.ABSENT
    assert seen.placements == 0


def test_launch_is_observed_waiting_then_up_then_ended(new_backend: NewBackend) -> None:
    backend = new_backend(ProgramKind.SUCCEEDS)

    do(backend.launcher.submit(backend.launch("job-1")))
    first = do(backend.launcher.observe("job-1"))
    last = backend.until("job-1", is_ended)

    assert first.status in {LaunchStatus.WAITING, LaunchStatus.UP, LaunchStatus.ENDED}
    assert last.result
    assert (last.result.outcome, last.result.exit_code) == (Outcome.SUCCEEDED, 0)
    assert last.since == last.result.at
    assert last.recent_placements[-1].lost_at is None, "it ended with its launch; nobody took it"


def test_repeated_and_parallel_submits_start_one_launch(new_backend: NewBackend) -> None:
    backend = new_backend(ProgramKind.SUCCEEDS)
    launch = backend.launch("job-1")

    async def everybody_submits() -> None:
        await asyncio.gather(*(backend.launcher.submit(launch) for _ in range(5)))

    do(everybody_submits())
    do(backend.launcher.submit(launch))
    backend.until("job-1", is_ended)

    assert backend.runs("job-1") == 1


def test_submit_of_an_ended_key_starts_nothing(new_backend: NewBackend) -> None:
    backend = new_backend(ProgramKind.SUCCEEDS)
    do(backend.launcher.submit(backend.launch("job-1")))
    ended = backend.until("job-1", is_ended)

    do(backend.launcher.submit(backend.launch("job-1")))

    assert do(backend.launcher.observe("job-1")) == ended
    assert backend.runs("job-1") == 1


def test_later_observations_only_append_placements(new_backend: NewBackend) -> None:
    backend = new_backend(
        market=MarketParameters(seed=1, provision_s=0.02, mtbf_s=0.2, no_notice_rate=1)
    )
    do(backend.launcher.submit(backend.launch("job-1")))
    before = do(backend.launcher.observe("job-1"))

    while before.placements < 4:
        known = before
        seen = backend.until("job-1", lambda seen, known=known: seen != known)

        assert seen.placements >= before.placements
        assert seen.denials[: len(before.denials)] == before.denials
        gone = [each for each in before.recent_placements if each.lost_at]
        assert list(seen.recent_placements[: len(gone)]) == gone
        before = seen


@pytest.mark.parametrize("notice_s", [None, 1.0])
def test_preempted_placement_records_its_cause_and_is_replaced(
    new_market: NewMarket, notice_s: float | None
) -> None:
    backend = new_market()
    do(backend.launcher.submit(backend.launch("job-1", nodes=2)))
    backend.until("job-1", is_up)

    do(backend.launcher.preempt("job-1", node=1, notice_s=notice_s))
    seen = backend.until("job-1", lambda seen: seen.placements == 2)

    first, second = seen.recent_placements
    assert first.cause is Cause.PREEMPTED
    assert "node 1" in first.detail
    assert ("1 s of notice" if notice_s else "without notice") in first.detail
    assert first.lost_at
    assert first.ready_at < first.lost_at < second.ready_at
    assert second.lost_at is None


def test_preempting_an_absent_node_is_refused(new_market: NewMarket) -> None:
    backend = new_market()

    with pytest.raises(NotPossibleNow):
        do(backend.launcher.preempt("job-1", node=None, notice_s=None))
    do(backend.launcher.submit(backend.launch("job-1", nodes=2)))
    backend.until("job-1", is_up)

    with pytest.raises(NotPossibleNow, match="0 to 1"):
        do(backend.launcher.preempt("job-1", node=2, notice_s=None))


def test_cancel_is_final_and_repeatable(new_backend: NewBackend) -> None:
    backend = new_backend()
    do(backend.launcher.submit(backend.launch("job-1")))
    backend.until("job-1", lambda _: backend.runs("job-1") == 1)

    do(backend.launcher.cancel("job-1"))
    do(backend.launcher.cancel("job-1"))
    ended = backend.until("job-1", is_ended)
    do(backend.launcher.cancel("job-1"))
    do(backend.launcher.submit(backend.launch("job-1")))

    assert ended.result
    assert ended.result.outcome is Outcome.CANCELLED
    assert do(backend.launcher.observe("job-1")) == ended
    assert backend.runs("job-1") == 1


def test_cancel_before_the_submit_prevents_the_start(new_backend: NewBackend) -> None:
    backend = new_backend()

    do(backend.launcher.cancel("job-1"))
    before = do(backend.launcher.observe("job-1"))
    do(backend.launcher.submit(backend.launch("job-1")))
    after = do(backend.launcher.observe("job-1"))

    assert before == after
    assert after.result
    assert (after.result.outcome, after.placements) == (Outcome.CANCELLED, 0)


def test_a_cancel_ends_the_wait_for_capacity(new_backend: NewBackend) -> None:
    backend = new_backend(market=MarketParameters(provision_s=100_000))
    do(backend.launcher.submit(backend.launch("job-1")))

    do(backend.launcher.cancel("job-1"))
    seen = backend.until("job-1", is_ended)

    assert seen.result
    assert (seen.result.outcome, seen.placements) == (Outcome.CANCELLED, 0)


def test_failure_before_training_is_not_retried(
    new_market: NewMarket,
) -> None:
    backend = new_market(ProgramKind.FAILS_UNTRAINED)

    do(backend.launcher.submit(backend.launch("job-1", max_failures=3)))
    seen = backend.until("job-1", is_ended)

    assert seen.result
    assert (seen.result.outcome, seen.result.exit_code) == (Outcome.FAILED, 3)
    assert seen.result.detail.startswith("node 0 exited with 3: ")
    assert seen.placements == 1


def test_trained_program_restarts_up_to_its_failure_limit(
    new_backend: NewBackend,
) -> None:
    backend = new_backend(ProgramKind.FAILS_TRAINED)

    do(backend.launcher.submit(backend.launch("job-1", max_failures=3)))
    seen = backend.until("job-1", is_ended)

    assert seen.result
    assert (seen.result.outcome, seen.result.exit_code) == (Outcome.FAILED, 3)
    assert [each.cause for each in seen.recent_placements] == [
        Cause.USER_ERROR,
        Cause.USER_ERROR,
        None,
    ]


@pytest.mark.parametrize("new_backend", WITH_DENIALS, indirect=True)
def test_capacity_denials_name_their_zones(new_backend: NewBackend) -> None:
    market = MarketParameters(seed=7, provision_s=0.01, denial_rate=0.8)
    backend = new_backend(ProgramKind.SUCCEEDS, market)

    do(backend.launcher.submit(backend.launch("job-1")))
    seen = backend.until("job-1", is_ended)

    assert seen.denials
    assert {denial.zone.removeprefix("aws/") for denial in seen.denials} <= set(market.zones)
    assert [denial.at for denial in seen.denials] == sorted(denial.at for denial in seen.denials)
    assert seen.denials[-1].at <= seen.recent_placements[0].ready_at


def test_all_nodes_are_priced_as_simulated(new_market: NewMarket) -> None:
    market = MarketParameters(provision_s=0.01, spot_micros=1_000_000, on_demand_micros=3_000_000)
    backend = new_market(ProgramKind.SUCCEEDS, market)

    do(backend.launcher.submit(backend.launch("job-1", nodes=3)))
    placed = backend.until("job-1", is_ended).recent_placements[0]

    assert placed.nodes == 3
    assert 2_400_000 <= placed.micros_per_hour <= 3_600_000
    assert placed.on_demand_micros_per_hour == 9_000_000
    assert placed.simulated


def test_every_observation_can_be_recorded(new_market: NewMarket) -> None:
    """For a job that is denied, preempted and cancelled, every observation yields valid events."""
    backend = new_market(market=MarketParameters(seed=5, provision_s=0.02, denial_rate=0.5))
    result = _Reconciler(backend)

    backend.until("job-1", lambda _: result.step().state is State.STARTING)
    do(backend.launcher.preempt("job-1", node=None, notice_s=None))
    backend.until("job-1", lambda _: result.step().attempt == 2)
    do(backend.launcher.cancel("job-1"))
    backend.until("job-1", lambda _: result.step().state is State.ENDED)

    assert result.step().outcome is Outcome.CANCELLED
    assert result.step().preemptions == 1


class _Reconciler:
    """The control loop of the service, without its store."""

    def __init__(self, backend: PreemptibleBackend) -> None:
        self.world = backend
        self.log: list[Event] = [submitted()]

    def step(self) -> Job:
        job = fold("job", self.log)
        seen: Observation | None = None
        if job.launch:
            seen = do(self.world.launcher.observe(job.launch_key))
        plan = decide(job, seen, self.log[0].at)
        self.log += plan.record
        job = fold("job", self.log)
        if plan.effect is Effect.SUBMIT:
            do(self.world.launcher.submit(self.world.launch(job.launch_key)))
        return job

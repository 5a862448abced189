"""What all launchers have in common."""

from __future__ import annotations

import asyncio

import pytest
from contract.conftest import DENYING
from contract.launcher_backends import (
    NewMarket,
    NewWorld,
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


def test_unknown_key_is_observed_as_absent(new_backend: NewWorld) -> None:
    seen = do(new_backend().launcher.observe("job-1"))

    assert seen.status is LaunchStatus.ABSENT
    assert seen.placements == 0


def test_a_launch_goes_from_waiting_to_up_to_ended(new_backend: NewWorld) -> None:
    world = new_backend(ProgramKind.ENDS)

    do(world.launcher.submit(world.launch("job-1")))
    first = do(world.launcher.observe("job-1"))
    last = world.until("job-1", is_ended)

    assert first.status in {LaunchStatus.WAITING, LaunchStatus.UP, LaunchStatus.ENDED}
    assert last.result
    assert (last.result.outcome, last.result.exit_code) == (Outcome.SUCCEEDED, 0)
    assert last.since == last.result.at
    assert last.recent_placements[-1].lost_at is None, "it ended with its launch; nobody took it"


def test_submitting_again_and_at_once_starts_one_launch(new_backend: NewWorld) -> None:
    world = new_backend(ProgramKind.ENDS)
    launch = world.launch("job-1")

    async def everybody_submits() -> None:
        await asyncio.gather(*(world.launcher.submit(launch) for _ in range(5)))

    do(everybody_submits())
    do(world.launcher.submit(launch))
    world.until("job-1", is_ended)

    assert world.runs("job-1") == 1


def test_a_key_that_has_ended_starts_nothing_again(new_backend: NewWorld) -> None:
    world = new_backend(ProgramKind.ENDS)
    do(world.launcher.submit(world.launch("job-1")))
    ended = world.until("job-1", is_ended)

    do(world.launcher.submit(world.launch("job-1")))

    assert do(world.launcher.observe("job-1")) == ended
    assert world.runs("job-1") == 1


def test_placements_never_decrease_and_the_past_never_changes(new_backend: NewWorld) -> None:
    world = new_backend(
        climate=MarketParameters(seed=1, provision_s=0.02, mtbf_s=0.2, no_notice_rate=1)
    )
    do(world.launcher.submit(world.launch("job-1")))
    before = do(world.launcher.observe("job-1"))

    while before.placements < 4:
        known = before
        seen = world.until("job-1", lambda seen, known=known: seen != known)

        assert seen.placements >= before.placements
        assert seen.denials[: len(before.denials)] == before.denials
        gone = [each for each in before.recent_placements if each.lost_at]
        assert list(seen.recent_placements[: len(gone)]) == gone
        before = seen


@pytest.mark.parametrize("notice_s", [None, 1.0])
def test_preempted_placement_records_its_cause_and_is_replaced(
    new_market: NewMarket, notice_s: float | None
) -> None:
    world = new_market()
    do(world.launcher.submit(world.launch("job-1", nodes=2)))
    world.until("job-1", is_up)

    do(world.launcher.preempt("job-1", node=1, notice_s=notice_s))
    seen = world.until("job-1", lambda seen: seen.placements == 2)

    first, second = seen.recent_placements
    assert first.cause is Cause.PREEMPTED
    assert "node 1" in first.detail
    assert ("1 s of notice" if notice_s else "without notice") in first.detail
    assert first.lost_at
    assert first.ready_at < first.lost_at < second.ready_at
    assert second.lost_at is None


def test_preempting_an_absent_node_is_refused(new_market: NewMarket) -> None:
    world = new_market()

    with pytest.raises(NotPossibleNow):
        do(world.launcher.preempt("job-1", node=None, notice_s=None))
    do(world.launcher.submit(world.launch("job-1", nodes=2)))
    world.until("job-1", is_up)

    with pytest.raises(NotPossibleNow, match="0 to 1"):
        do(world.launcher.preempt("job-1", node=2, notice_s=None))


def test_a_cancel_is_seen_once_repeated_harmlessly_and_final(new_backend: NewWorld) -> None:
    world = new_backend()
    do(world.launcher.submit(world.launch("job-1")))
    world.until("job-1", lambda _: world.runs("job-1") == 1)

    do(world.launcher.cancel("job-1"))
    do(world.launcher.cancel("job-1"))
    ended = world.until("job-1", is_ended)
    do(world.launcher.cancel("job-1"))
    do(world.launcher.submit(world.launch("job-1")))

    assert ended.result
    assert ended.result.outcome is Outcome.CANCELLED
    assert do(world.launcher.observe("job-1")) == ended
    assert world.runs("job-1") == 1


def test_a_cancel_before_the_submit_wins(new_backend: NewWorld) -> None:
    world = new_backend()

    do(world.launcher.cancel("job-1"))
    before = do(world.launcher.observe("job-1"))
    do(world.launcher.submit(world.launch("job-1")))
    after = do(world.launcher.observe("job-1"))

    assert before == after
    assert after.result
    assert (after.result.outcome, after.placements) == (Outcome.CANCELLED, 0)


def test_a_cancel_ends_the_wait_for_capacity(new_backend: NewWorld) -> None:
    world = new_backend(climate=MarketParameters(provision_s=100_000))
    do(world.launcher.submit(world.launch("job-1")))

    do(world.launcher.cancel("job-1"))
    seen = world.until("job-1", is_ended)

    assert seen.result
    assert (seen.result.outcome, seen.placements) == (Outcome.CANCELLED, 0)


def test_failure_before_training_is_not_retried(
    new_market: NewMarket,
) -> None:
    world = new_market(ProgramKind.BREAKS)

    do(world.launcher.submit(world.launch("job-1", max_failures=3)))
    seen = world.until("job-1", is_ended)

    assert seen.result
    assert (seen.result.outcome, seen.result.exit_code) == (Outcome.FAILED, 3)
    assert seen.result.detail.startswith("node 0 exited with 3: ")
    assert seen.placements == 1


def test_trained_program_restarts_up_to_its_failure_limit(
    new_backend: NewWorld,
) -> None:
    world = new_backend(ProgramKind.STUMBLES)

    do(world.launcher.submit(world.launch("job-1", max_failures=3)))
    seen = world.until("job-1", is_ended)

    assert seen.result
    assert (seen.result.outcome, seen.result.exit_code) == (Outcome.FAILED, 3)
    assert [each.cause for each in seen.recent_placements] == [
        Cause.USER_ERROR,
        Cause.USER_ERROR,
        None,
    ]


@pytest.mark.parametrize("new_backend", DENYING, indirect=True)
def test_capacity_denials_name_their_zones(new_backend: NewWorld) -> None:
    climate = MarketParameters(seed=7, provision_s=0.01, denial_rate=0.8)
    world = new_backend(ProgramKind.ENDS, climate)

    do(world.launcher.submit(world.launch("job-1")))
    seen = world.until("job-1", is_ended)

    assert seen.denials
    assert {denial.zone.removeprefix("aws/") for denial in seen.denials} <= set(climate.zones)
    assert [denial.at for denial in seen.denials] == sorted(denial.at for denial in seen.denials)
    assert seen.denials[-1].at <= seen.recent_placements[0].ready_at


def test_all_nodes_are_priced_as_simulated(new_market: NewMarket) -> None:
    climate = MarketParameters(provision_s=0.01, spot_micros=1_000_000, on_demand_micros=3_000_000)
    world = new_market(ProgramKind.ENDS, climate)

    do(world.launcher.submit(world.launch("job-1", nodes=3)))
    placed = world.until("job-1", is_ended).recent_placements[0]

    assert placed.nodes == 3
    assert 2_400_000 <= placed.micros_per_hour <= 3_600_000
    assert placed.on_demand_micros_per_hour == 9_000_000
    assert placed.simulated


def test_every_observation_can_be_recorded(new_market: NewMarket) -> None:
    """A job that is denied, preempted and cancelled: every look becomes facts that follow one another."""
    world = new_market(climate=MarketParameters(seed=5, provision_s=0.02, denial_rate=0.5))
    result = _Reconciler(world)

    world.until("job-1", lambda _: result.step().state is State.STARTING)
    do(world.launcher.preempt("job-1", node=None, notice_s=None))
    world.until("job-1", lambda _: result.step().attempt == 2)
    do(world.launcher.cancel("job-1"))
    world.until("job-1", lambda _: result.step().state is State.ENDED)

    assert result.step().outcome is Outcome.CANCELLED
    assert result.step().preemptions == 1


class _Reconciler:
    """The loop of the service, without its store."""

    def __init__(self, world: PreemptibleBackend) -> None:
        self.world = world
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

"""SkyPilot's events become an observation that later events never contradict."""

from __future__ import annotations

from datetime import timedelta

import pytest
from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobs.launch_admission import EngineEvent
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.launchers.skypilot.models import ManagedJob, ManagedJobStatus
from holdfast.launchers.skypilot.observe import PlacementPrice, exit_code_in, observe, strip_ansi
from hypothesis import given, settings
from hypothesis import strategies as st
from support.events import DAWN, at
from support.repetitions import repeat_count

PRICE = PlacementPrice(6_000_000, 20_000_000)


def event(seconds: float, status: str, reason: str, code: str | None = None) -> EngineEvent:
    return EngineEvent(at=at(seconds), status=status, code=code, reason=reason)


def row(**fields: object) -> ManagedJob:
    facts = {
        "engine_id": 2,
        "name": "hf-job-1",
        "status": ManagedJobStatus.RUNNING,
        "schedule_state": "ALIVE",
        "location": "aws/us-east-1/us-east-1b",
        "region": "aws/us-east-1",
        "resources": "2x(gpus=A100:8)",
        "nodes": 2,
        "started_at": None,
        "up_since": None,
        "controller_started_at": None,
    }
    return ManagedJob(**{**facts, **fields})  # type: ignore[arg-type]


def observed(*events: EngineEvent, job: ManagedJob | None = None) -> Observation:
    return observe(events, job, 2, PRICE, at(9999))


UP = (
    event(0, "PENDING", "Job submitted to queue"),
    event(5, "STARTING", "Job is starting"),
    event(6, "STARTING", "Provisioning on aws in us-east-1"),
    event(20, "STARTING", "Instances launched on aws in us-east-1"),
    event(40, "RUNNING", "Job has started"),
)


def test_nodes_are_ready_when_their_machines_are_up() -> None:
    seen = observed(*UP)

    assert (seen.status, seen.placements, seen.since) == (LaunchStatus.UP, 1, at(40))
    [placed] = seen.recent_placements
    assert (placed.ready_at, placed.zone, placed.nodes) == (at(20), "aws/us-east-1", 2)
    assert placed.micros_per_hour == PRICE.micros
    assert placed.lost_at is None


def test_zone_is_read_from_listing_if_its_region_matches_events() -> None:
    assert observed(*UP, job=row()).recent_placements[0].zone == "aws/us-east-1/us-east-1b"
    other_zone = row(location="aws/eu-north-1/eu-north-1a", region="aws/eu-north-1")
    assert observed(*UP, job=other_zone).recent_placements[0].zone == "aws/us-east-1"


@pytest.mark.parametrize(
    ("code", "reason", "cause"),
    [
        (None, "Cluster preempted or failed, recovering", Cause.NODE_FAILED),
        (None, "Unexpected controller error (emergency recovery attempt 1/10): X", Cause.LAUNCHER_RESTARTED),
        ("USER_JOB_FAILURE", "Job exited with exit code 33. Restarting the job (x)", Cause.USER_ERROR),
        ("USER_JOB_FAILURE", "Job exited with exit codes [0, 75]. Restarting", Cause.NODE_FAILED),
        ("USER_JOB_FAILURE", "no number in here", Cause.USER_ERROR),
        ("GPU_UNHEALTHY", "xid 79", Cause.NODE_FAILED),
    ],
)  # fmt: skip
def test_loss_cause_is_derived_from_skypilot_event(
    code: str | None, reason: str, cause: Cause
) -> None:
    seen = observed(*UP, event(100, "RECOVERING", reason, code))

    assert (seen.status, seen.recent_placements[0].lost_at, seen.recent_placements[0].cause) == (LaunchStatus.WAITING, at(100), cause)  # fmt: skip


@pytest.mark.parametrize(
    ("started_s", "cause"),
    [(99, Cause.LAUNCHER_RESTARTED), (101, Cause.NODE_FAILED), (-100, Cause.NODE_FAILED)],
)
def test_loss_just_after_controller_start_is_launcher_restart(
    started_s: float, cause: Cause
) -> None:
    job = row(controller_started_at=at(started_s))

    seen = observed(
        *UP, event(100, "RECOVERING", "Cluster preempted or failed, recovering"), job=job
    )

    assert seen.recent_placements[0].cause is cause


def test_restarted_program_keeps_its_nodes() -> None:
    seen = observed(
        *UP,
        event(100, "RECOVERING", "Job exited with exit code 1.", "USER_JOB_FAILURE"),
        event(110, "RUNNING", "Job has recovered"),
    )

    assert [(p.ready_at, p.lost_at) for p in seen.recent_placements] == [
        (at(20), at(100)),
        (at(100), None),
    ]


def test_failed_provisions_are_denials_in_order() -> None:
    seen = observed(
        event(6, "STARTING", "Provisioning on aws in us-east-1"),
        event(10, "STARTING", "Provision failed: Reasons for x"),
        event(11, "STARTING", "Provisioning on aws in us-east-2"),
        event(15, "PENDING", "Job is in backoff"),
        event(75, "STARTING", "Job is restarting"),
        event(76, "STARTING", "Provisioning on aws in us-east-1"),
        event(77, "STARTING", "Provisioning on GCP in us-central1"),
        event(90, "STARTING", "Instances launched on aws in us-east-1"),
    )

    assert [(d.zone, d.at) for d in seen.denials] == [
        ("aws/us-east-1", at(6)),
        ("aws/us-east-2", at(11)),
        ("gcp/us-central1", at(77)),
    ]
    assert (seen.status, seen.placements) == (LaunchStatus.UP, 1)


def test_machines_are_a_placement_before_the_job_starts() -> None:
    seen = observed(*UP[:-1], job=row(status=ManagedJobStatus.STARTING))

    [placed] = seen.recent_placements
    assert (seen.status, seen.since) == (LaunchStatus.UP, at(20))
    assert (placed.ready_at, placed.zone) == (at(20), "aws/us-east-1/us-east-1b")
    assert placed.micros_per_hour == PRICE.micros


@pytest.mark.parametrize(
    "last_event",
    [
        event(600, "STARTING", "Provision failed: no ssh"),
        event(600, "STARTING", "Provisioning on aws in us-east-2"),
        event(600, "PENDING", "Job is in backoff"),
    ],
)
def test_machines_released_before_the_job_ran_are_lost(last_event: EngineEvent) -> None:
    seen = observed(*UP[:-1], last_event)

    [placed] = seen.recent_placements
    assert (seen.status, seen.since) == (LaunchStatus.WAITING, at(600))
    assert (placed.ready_at, placed.lost_at, placed.cause) == (at(20), at(600), Cause.NODE_FAILED)
    assert placed.detail == "SkyPilot released the nodes before the job ran on them"


def test_replacement_machines_are_another_placement() -> None:
    seen = observed(*UP[:-1], event(90, "STARTING", "Instances launched on aws in us-east-2"))

    assert [(p.ready_at, p.lost_at) for p in seen.recent_placements] == [
        (at(20), at(90)),
        (at(90), None),
    ]
    assert [p.zone for p in seen.recent_placements] == ["aws/us-east-1", "aws/us-east-2"]


def test_cancelled_job_keeps_its_unused_placement() -> None:
    seen = observed(*UP[:-1], event(560, "CANCELLED", "Job is cancelled"))

    assert seen.result
    assert (seen.placements, seen.result.at) == (1, at(560))


def test_machines_after_the_end_do_not_undo_it() -> None:
    late = event(90, "STARTING", "Instances launched on aws in us-east-1")

    seen = observed(*UP[:3], event(60, "CANCELLED", "Job is cancelled"), late)

    assert (seen.status, seen.placements) == (LaunchStatus.ENDED, 0)


@pytest.mark.parametrize(
    ("status", "reason", "outcome", "code"),
    [
        ("SUCCEEDED", "Job has succeeded", Outcome.SUCCEEDED, 0),
        ("CANCELLED", "Job is cancelled", Outcome.CANCELLED, None),
        ("FAILED", "Job failed: exit code 3", Outcome.FAILED, 3),
        ("FAILED_SETUP", "exit codes [0, 7]", Outcome.FAILED, 7),
        ("FAILED_NO_RESOURCE", "nothing in the catalog", Outcome.FAILED, None),
        ("FAILED_CONTROLLER", "boom", Outcome.FAILED, None),
    ],
)
def test_outcome_follows_from_the_final_status(
    status: str, reason: str, outcome: Outcome, code: int | None
) -> None:
    seen = observed(*UP, event(100, status, reason))

    assert (seen.status, seen.since) == (LaunchStatus.ENDED, at(100))
    assert seen.result
    assert (seen.result.at, seen.result.outcome, seen.result.exit_code) == (at(100), outcome, code)


def test_cancelled_event_before_running_does_not_end_the_launch() -> None:
    """SkyPilot records CANCELLED for a job in back-off before it knows whether that is possible."""
    seen = observed(event(3, "CANCELLED", "Job has been cancelled"), *UP)

    assert seen.status is LaunchStatus.UP
    assert seen.result is None


def test_job_without_events_waits_since_now() -> None:
    assert observed() == Observation(status=LaunchStatus.WAITING, since=at(9999))


def test_exit_codes_are_parsed_from_event_reasons() -> None:
    assert exit_code_in("exit code 33. Restarting") == 33
    assert exit_code_in("exit codes [0, 0, 137]") == 137
    assert exit_code_in("exit codes [0, 0]") == 0
    assert exit_code_in("exit codes [, ]") is None
    assert exit_code_in("nothing") is None
    assert exit_code_in("exit code " + "9" * 5000) == 999_999_999


def test_ansi_codes_and_policy_secret_are_stripped() -> None:
    text = f"\x1b[31mrejected by\n http://h/v1/skypilot/policy/{'a1' * 16}\x1b[0m: no"

    assert strip_ansi(text) == "rejected by http://h/v1/skypilot/policy/...: no"


PLACES = st.sampled_from(["us-east-1", "us-east-2"])
PROVISION = PLACES.map(lambda p: ("STARTING", f"Provisioning on aws in {p}", None))
LAUNCHED = PLACES.map(lambda p: ("STARTING", f"Instances launched on aws in {p}", None))
EVENTS = st.one_of(
    PROVISION,
    LAUNCHED,
    st.sampled_from(
        [
            ("STARTING", "Provision failed: Reasons", None),
            ("PENDING", "Job is in backoff", None),
            ("STARTING", "Job is restarting", None),
            ("RECOVERING", "Job is restarting", None),
            ("RUNNING", "Job has started", None),
            ("RECOVERING", "Cluster preempted or failed, recovering", None),
            ("RECOVERING", "Job exited with exit code 3.", "USER_JOB_FAILURE"),
            ("CANCELLED", "Job has been cancelled", None),
            ("CANCELLING", "Job is cancelling", None),
            ("SUCCEEDED", "Job has succeeded", None),
        ]
    ),
)
STEPS = st.lists(st.tuples(st.sampled_from([0, 0, 0.4, 1, 30]), EVENTS), max_size=25)


@settings(max_examples=repeat_count(40, 500))
@given(STEPS)
def test_observation_stays_consistent_as_events_are_added(steps: list[tuple[float, tuple[str, str, str | None]]]) -> None:  # fmt: skip
    """Placements and denials only grow, and a loss never changes, also with equal times."""
    events, now = [], DAWN
    for pause_s, (status, reason, code) in steps:
        now += timedelta(seconds=pause_s)
        # Cluster events have whole seconds, and may seem to precede their cause.
        stamp = now.replace(microsecond=0) if reason.startswith(("Prov", "Inst")) else now
        events.append(EngineEvent(at=stamp, status=status, code=code, reason=reason))

    before = observe([], None, 1, PRICE, now)
    for count in range(1, len(events) + 1):
        seen = observe(events[:count], None, 1, PRICE, now)

        assert seen == observe(events[:count], None, 1, PRICE, now)
        assert seen.placements == len(seen.recent_placements) >= before.placements
        assert seen.denials[: len(before.denials)] == before.denials
        gone = [placed for placed in before.recent_placements if placed.lost_at]
        assert list(seen.recent_placements[: len(gone)]) == gone
        assert [p.ready_at for p in seen.recent_placements][: before.placements] == [p.ready_at for p in before.recent_placements]  # fmt: skip
        assert all(p.lost_at is None or p.lost_at >= p.ready_at for p in seen.recent_placements)
        assert all(p.lost_at for p in seen.recent_placements[:-1])
        assert (seen.status is LaunchStatus.ENDED) is (seen.result is not None)
        before = seen

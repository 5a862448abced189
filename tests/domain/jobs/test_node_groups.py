"""Attempts with node groups: absent and lost groups, prices, waits, drills and what people read."""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.attempts import LatestPoint, collect_attempts
from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.billing.group_bill import group_stays
from holdfast.domain.diagnostics.timeline import timeline
from holdfast.domain.events import (
    CapacityLost,
    Cause,
    DrillRequested,
    Event,
    Guard,
    NodeLost,
    NodeReplaced,
    NodesReady,
    PriceChanged,
)
from holdfast.domain.events.values import NodeGroup
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobs.drills import (
    MAX_DELIVERY,
    group_drill_refusal,
    group_drills,
    group_of_drill,
    keeps_state,
    ms_until_drill,
    with_drill_mark,
)
from holdfast.domain.jobs.guards import trip
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.jobs.observation import LaunchStatus, NodeChange, Observation, Placement
from holdfast.domain.jobs.reconcile import Effect, decide
from holdfast.domain.notifications.events import notification_for
from holdfast.domain.preemptions.placements import PlacementRecord, placement_records
from holdfast.domain.pricing.price_history import price_query
from support.events import SPOT, at, drill_requested, launched, lost, ready, submitted, training

HEAD = NodeGroup(
    name="head",
    nodes=1,
    zone="aws/us-east-1/a",
    is_spot=False,
    micros_per_hour=SPOT,
    on_demand_micros_per_hour=SPOT,
    cloud="aws",
    instance_type="m6i.large",
)
WORKERS = NodeGroup(
    name="workers",
    nodes=2,
    zone="aws/us-east-2/b",
    is_spot=True,
    micros_per_hour=10 * SPOT,
    on_demand_micros_per_hour=30 * SPOT,
    cloud="aws",
    instance_type="p4d.24xlarge",
)
NOBODY = replace(WORKERS, zone="", is_spot=False, micros_per_hour=0, on_demand_micros_per_hour=0)
ALL = replace(ready(10, nodes=3, micros=11 * SPOT), groups=(HEAD, WORKERS), cloud="", instance_type="")  # fmt: skip
ALONE = replace(
    ALL, micros_per_hour=SPOT, groups=(HEAD, NOBODY), absent_nodes=(1, 2), zone=HEAD.zone
)
START = (submitted(infra="aws", nodes=(None, 3)), launched())


def gone(seconds: float, *, attempt: int = 1, cause: Cause = Cause.NODE_FAILED) -> list[NodeLost]:
    """The loss of both workers."""
    return [
        NodeLost(
            at=at(seconds),
            group=1,
            attempt=attempt,
            node=1 + n,
            with_node=1 if n else None,
            nodes=1 - n,
            micros_per_hour=(1 - n) * 5 * SPOT,
            on_demand_micros_per_hour=0,
            cause=cause,
        )
        for n in range(2)
    ]


def back(seconds: float, *, attempt: int = 1, zone: str = "aws/us-west-2/c") -> list[NodeReplaced]:
    """The workers in another zone, for twice the price."""
    placed = replace(WORKERS, zone=zone, micros_per_hour=20 * SPOT)
    return [
        NodeReplaced(
            at=at(seconds),
            group=1,
            attempt=attempt,
            node=1 + n,
            nodes=1 + n,
            micros_per_hour=(1 + n) * 10 * SPOT,
            on_demand_micros_per_hour=(1 + n) * 15 * SPOT,
            placed=placed,
        )
        for n in range(2)
    ]


def job(*events: Event) -> Job:
    return fold("job-1", (*START, *events))


def test_absent_group_is_awaited_and_costs_nothing() -> None:
    alone = job(ALONE)
    whole = job(ALONE, *back(60))

    assert alone.detail == "waiting for nodes 1 and 2 (workers)"
    assert (alone.state, alone.micros_per_hour, alone.account.micros_per_hour) == (
        State.STARTING,
        SPOT,
        SPOT,
    )
    assert (whole.detail, whole.absent_nodes, whole.missing_since) == ("", (), None)
    assert whole.micros_per_hour == whole.account.micros_per_hour == 21 * SPOT


def test_lost_group_is_one_preemption() -> None:
    gone_job = job(ALL, training(20), *gone(40))

    assert gone_job.preemptions == 1
    assert gone_job.detail == "nodes 1 and 2 (workers) were lost; the others wait for their replacement"  # fmt: skip
    assert gone_job.account.micros_per_hour == SPOT
    assert gone_job.micros_per_hour == 11 * SPOT, "what the next nodes cost"


def test_losses_of_different_groups_count_separately() -> None:
    both = job(ALL, training(20), *gone(40), lost(45, cause=Cause.NODE_FAILED))

    assert both.preemptions == 2


def test_end_of_the_program_on_a_group_is_no_loss() -> None:
    ended = job(ALL, training(20), *gone(40, cause=Cause.ENDED))

    assert (ended.preemptions, ended.awaited_nodes, ended.detail) == (0, (), "")
    assert ended.account.micros_per_hour == SPOT


def test_all_groups_of_a_drill_are_marked() -> None:
    request = replace(drill_requested(30, notice_s=60), through_worker=True)
    before = job(ALL, training(20), request)
    groups = replace(ALL, groups=(HEAD, WORKERS))
    seen = _observation(groups, [*gone(50)], lost_at=55)

    record = decide(before, seen, at(60)).record

    assert [event.drill for event in record if isinstance(event, NodeLost | CapacityLost)] == [True] * 3  # fmt: skip


def drill(seconds: float, group: str, notice_s: float | None = None) -> DrillRequested:
    """A request for a node group of the first attempt."""
    asked = drill_requested(seconds, notice_s=notice_s)
    return replace(asked, through_worker=True, group=group)


def recorded(before: Job, losses: list[NodeLost], lost_at: float | None = None) -> list[bool]:
    """Whether each recorded loss is marked as a drill."""
    record = decide(before, _observation(ALL, losses, lost_at), at(100)).record
    return [event.drill for event in record if isinstance(event, NodeLost | CapacityLost)]


def test_only_the_group_of_a_drill_is_marked() -> None:
    before = job(ALL, training(20), drill(30, "workers"))

    assert recorded(before, gone(50)) == [True, True]
    assert recorded(before, [], lost_at=50) == [False], "the first group was not asked to leave"
    assert recorded(before, gone(50), lost_at=55) == [True, True, False]


def test_drill_of_the_first_group_marks_the_end_of_the_attempt() -> None:
    before = job(ALL, training(20), drill(30, "head", 60))

    assert recorded(before, gone(50), lost_at=55) == [False, False, True]


def test_drill_explains_one_loss_of_its_group() -> None:
    marked = [replace(loss, drill=True) for loss in gone(50)]
    once = job(ALL, training(20), drill(30, "workers"), *marked)
    after = job(ALL, training(20), drill(30, "workers"), *marked, *back(60))

    assert once.pending_drills == ()
    assert (once.preemptions, once.drills, once.drilled_nodes) == (1, 1, (1, 2))
    assert [with_drill_mark(after, loss) for loss in gone(70)] == gone(70)


def test_group_of_a_drill_may_outlive_the_attempt() -> None:
    """It ends when its notice is over, although another node 0 leads it by then."""
    second = replace(ALL, at=at(45), attempt=2)
    before = job(ALL, training(20), drill(30, "workers", 30), lost(45), second)

    [pending] = before.pending_drills
    assert (pending.nodes, group_drills(before, 2, at(46))) == ((1, 2), [])


def test_drill_of_the_first_group_ends_with_the_attempt() -> None:
    before = job(ALL, training(20), drill(30, "head", 30), lost(45), replace(ALL, at=at(46), attempt=2))  # fmt: skip

    assert before.pending_drills == ()


def test_worker_is_asked_within_the_notice() -> None:
    before = job(ALL, training(20), drill(30, "workers", 60))

    [asked] = group_drills(before, 1, at(50))
    assert (asked.requested_at, asked.nodes, asked.within_s) == (at(30), (1, 2), 40)
    assert group_drills(before, 2, at(50)) == [], "its nodes are others"
    assert group_drills(before, 1, at(90)) == [], "there is no time left to save"
    assert ms_until_drill(before, 1, at(50)) is None, "the other groups stay"


def test_worker_is_asked_to_end_at_once_without_notice() -> None:
    before = job(ALL, training(20), drill(30, "workers"))

    assert [asked.within_s for asked in group_drills(before, 1, at(50))] == [0]
    assert group_drills(before, 1, at(30) + MAX_DELIVERY) == []


def test_drill_takes_the_group_of_a_node_or_the_last_one() -> None:
    standing = job(ALL)

    def group(job: Job, node: int | None = None, name: str | None = None) -> str:
        return group_of_drill(job, node=node, group=name)

    assert [group(standing, node) for node in (0, 2, None)] == ["head", "workers", "workers"]
    assert group(standing, name="head") == "head"
    single = job(replace(ALL, groups=(WORKERS,), nodes=2))
    assert group(single, 1) == group(single, name="workers") == "", "all nodes leave together"


def test_drill_is_refused_with_a_reason() -> None:
    standing = job(ALL, training(20))
    missing = job(ALL, training(20), *gone(50))
    asked = job(ALL, training(20), drill(30, "workers"))

    def reason(job: Job, group: str = "workers", notice_s: float | None = None) -> str:
        return group_drill_refusal(job, group, at(60), notice_s=notice_s) or ""

    assert reason(standing) == reason(standing, notice_s=30) == reason(missing, "head") == ""
    assert "give it at least as much, or none with --no-notice" in reason(standing, notice_s=29)
    assert "has not reported training" in reason(job(ALL))
    assert reason(missing).startswith("nodes 1 and 2 (workers) are already missing; wait until")
    assert reason(asked) == "group workers is being preempted already"
    assert reason(asked, "head") == ""


def test_state_is_kept_as_the_newest_start_reports() -> None:
    starts = [replace(training(20), keeps_state=True), training(30)]

    assert [keeps_state(starts[:n], 1) for n in range(3)] == [False, True, False]
    assert not keeps_state(starts[:1], 2)


def test_history_names_the_group_of_a_drill() -> None:
    facts = [*START, ALL, training(20), drill(30, "workers", 30)]
    texts = [s.text for s in timeline(fold("job-1", facts), facts, compute_bill(facts, {}, at(99)))]

    assert "Drill requested: preempt node group workers with 30 s of notice." in texts


def _observation(groups: NodesReady, losses: list[NodeLost], lost_at: float | None) -> Observation:
    changes = [
        NodeChange(
            at=loss.at,
            node=loss.node,
            group=loss.group,
            with_node=loss.with_node,
            nodes=loss.nodes,
            micros_per_hour=loss.micros_per_hour,
            on_demand_micros_per_hour=0,
            cause=loss.cause,
        )
        for loss in losses
    ]
    only = Placement(
        ready_at=groups.at,
        zone=groups.zone,
        nodes=3,
        micros_per_hour=groups.micros_per_hour,
        on_demand_micros_per_hour=0,
        simulated=False,
        groups=groups.groups,
        node_changes=tuple(changes),
        lost_at=None if lost_at is None else at(lost_at),
        cause=None if lost_at is None else Cause.NODE_FAILED,
    )
    status = LaunchStatus.UP if lost_at is None else LaunchStatus.WAITING
    return Observation(status=status, since=at(60), placements=1, recent_placements=(only,))


def test_partial_launch_is_submitted_again() -> None:
    seen = replace(_observation(ALL, [], None), is_partial=True)

    assert decide(job(ALL), seen, at(60)).effect is Effect.SUBMIT
    assert decide(job(ALL), replace(seen, is_partial=False), at(60)).effect is None


def test_group_that_kept_running_has_its_current_price() -> None:
    change = PriceChanged(at=at(30), attempt=1, group=1, micros_per_hour=7, on_demand_micros_per_hour=9)  # fmt: skip
    before = job(ALL, training(20), change)
    absent = replace(HEAD, zone="", micros_per_hour=0, on_demand_micros_per_hour=0)
    first = _observation(ALL, [], 50).recent_placements[0]
    second = replace(first, ready_at=at(50), groups=(absent, WORKERS), absent_nodes=(0,), lost_at=None)  # fmt: skip
    seen = Observation(status=LaunchStatus.UP, since=at(50), placements=2, recent_placements=(first, second))  # fmt: skip

    [_, event] = decide(before, seen, at(60)).record

    assert isinstance(event, NodesReady)
    assert (event.micros_per_hour, event.groups[1].micros_per_hour) == (7, 7)


def test_wait_for_missing_nodes_trips_max_wait() -> None:
    limits = Limits(max_wait="10m")
    absent, late = job(ALONE), job(ALL, training(20), *gone(1000))

    assert trip(absent, limits, at(599)) is None
    first, second = trip(absent, limits, at(600)), trip(late, limits, at(1600))
    assert first
    assert first.guard is Guard.MAX_WAIT
    assert first.detail == "nodes 1 and 2 (workers) not there within max_wait 10m"
    assert trip(late, limits, at(1599)) is None
    assert second
    assert trip(job(ALL, training(20), *gone(100), *back(200)), limits, at(9999)) is None


def test_wait_continues_over_attempts_of_the_first_group() -> None:
    again = replace(ALONE, at=at(500), attempt=2)

    waits = job(ALONE, lost(500), again)

    assert waits.missing_since == at(500)
    assert job(ALONE).missing_since == at(0), "from the submission"


# Statistics and prices


def records(*events: Event, end_s: float = 100) -> list[PlacementRecord]:
    facts = (*START, *events)
    bill = compute_bill(facts, {}, at(end_s))
    points: dict[int, LatestPoint] = {}
    return placement_records(facts, {}, points, bill)


def test_each_stay_of_a_group_has_a_record() -> None:
    found = records(ALL, *gone(40), *back(60), lost(90))

    rows = [
        (r.part, r.node, r.zone, r.instance_type, r.nodes, r.cause, (r.end_ms - r.begin_ms) // 1000)
        for r in found
    ]
    assert rows == [
        (1, 1, WORKERS.zone, WORKERS.instance_type, 2, Cause.NODE_FAILED, 30),
        (2, None, "aws/us-west-2/c", WORKERS.instance_type, 2, None, 30),
        (0, None, HEAD.zone, HEAD.instance_type, 1, Cause.PREEMPTED, 80),
    ]
    assert found[0].wait_ms == 20_000
    hours = {zone: ms for zone, _, ms in found[-1].hours}
    assert hours == {HEAD.zone: 80_000, WORKERS.zone: 60_000, "aws/us-west-2/c": 60_000}


def test_prices_are_asked_for_where_a_group_stands() -> None:
    [attempt] = collect_attempts((*START, ALL, *gone(40), *back(60)), {})

    stays = [(stay.placed.zone, stay.since, stay.until) for stay in group_stays(attempt, 1)]
    assert stays == [(WORKERS.zone, at(10), at(40)), ("aws/us-west-2/c", at(60), None)]
    query = price_query(ALL, WORKERS)
    assert query
    assert (query.region, query.zone, query.instance_type) == ("us-east-2", "b", "p4d.24xlarge")
    assert price_query(ALL, HEAD) is None, "on demand"


# What people read


def test_timeline_names_groups() -> None:
    facts = [*START, ALONE, *back(30), *gone(60), *back(80)]
    texts = [s.text for s in timeline(fold("job-1", facts), facts, compute_bill(facts, {}, at(99)))]

    assert "Attempt 1: head (1 × m6i.large in aws/us-east-1/a) provisioned, without workers, after 10 s, $3.60/h." in texts  # noqa: RUF001  # fmt: skip
    assert "Group workers is there after 20.0 s: 2 × p4d.24xlarge in aws/us-west-2/c, $72.00/h." in texts  # noqa: RUF001  # fmt: skip
    assert "Group workers was lost without notice." in texts
    assert any(text.startswith("Group workers was replaced after 20.0 s: ") for text in texts)


def test_group_causes_one_notification() -> None:
    def texts(events: list[NodeLost] | list[NodeReplaced]) -> list[str]:
        found = (notification_for("job-1", "gpt", 1, event) for event in events)
        return [note.text for note in found if note]

    assert texts(gone(40)) == ["gpt (job-1) lost node 1 in attempt 1 (node failed); the launcher replaces it"]  # fmt: skip
    assert texts(back(60)) == ["gpt (job-1) has the nodes of group workers in attempt 1"]
    assert texts(gone(40, cause=Cause.ENDED)) == []

"""Observations of places follow from the events of jobs, in the same transaction."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from holdfast.domain.events import Cause, Event, LaunchRequested, NodeLost, NodeReplaced, NodesReady
from holdfast.domain.events.planning import (
    CapacityType,
    LaunchPlacement,
    Moved,
    MoveRequested,
)
from holdfast.domain.events.values import NodeGroup
from holdfast.errors import StaleWrite
from holdfast.store.journal import Journal
from holdfast.store.market.projection import Projection
from holdfast.store.tables.jobs import jobs
from holdfast.store.tables.market import launch_starts, place_observations
from sqlalchemy import Engine, delete, insert, select, update
from support.events import (
    at,
    denied,
    finished,
    launched,
    lost,
    node_lost,
    node_replaced,
    ready,
    saved,
    submitted,
    training,
)

ZONE = "aws/us-east-1/us-east-1a"


def spot(seconds: float, zone: str = ZONE, *, attempt: int = 1, nodes: int = 1) -> NodesReady:
    return replace(ready(seconds, zone=zone, attempt=attempt, nodes=nodes), is_spot=True)


def asking(seconds: float, capacity: CapacityType, *places: str, launch: int = 1) -> Event:
    placement = LaunchPlacement(capacity=capacity, places=places)
    return LaunchRequested(at=at(seconds), launch=launch, placement=placement)


def run(journal: Journal, *events: Event, resources: dict[str, Any] | None = None) -> None:
    """Record a job with `events`, one transaction for each."""
    first = submitted(infra="")
    spec = {**first.spec, "resources": resources or {"accelerators": "A100:8"}}
    job = journal.submit("job-1", replace(first, spec=spec))
    for event in events:
        job = journal.append(job, [event])


Row = tuple[str, float, float | None, bool]


def seen(engine: Engine) -> list[Row]:
    """Place, begin and end in seconds, and availability of all observations."""
    table = place_observations.c
    query = select(table.place, table.at, table.until, table.is_available).order_by(table.number)
    with engine.connect() as connection:
        return [
            (place, _s(begin), None if end is None else _s(end), bool(there))
            for place, begin, end, there in connection.execute(query)
        ]


def _s(moment: datetime) -> float:
    return (moment - at(0)).total_seconds()


def test_denial_shows_that_there_were_none(journal: Journal, engine: Engine) -> None:
    run(journal, launched(1), denied(2, zone="AWS/us-east-1"))

    assert seen(engine) == [("aws/us-east-1", 2, 2, False)]
    with engine.connect() as connection:
        row = connection.execute(select(place_observations)).mappings().one()
    assert (row["hardware"], row["job_id"], row["source"]) == ("a100:8", "job-1", "own")


def test_nodes_are_available_until_they_are_lost(journal: Journal, engine: Engine) -> None:
    run(journal, launched(1), spot(10))

    assert seen(engine) == [(ZONE, 10, None, True)]

    journal.append(journal.read("job-1"), [lost(100)])

    assert seen(engine) == [(ZONE, 10, 100, True), (ZONE, 100, 100, False)]


@pytest.mark.parametrize(
    "end",
    [
        lost(100, cause=Cause.PAUSED),
        lost(100, cause=Cause.USER_ERROR),
        lost(100, cause=Cause.ENDED),
        lost(100, cause=Cause.LAUNCHER_RESTARTED),
        lost(100, drill=True),
        finished(100),
    ],
    ids=lambda event: f"{type(event).__name__}-{getattr(event, 'cause', '')}",
)
def test_released_nodes_were_available_until_then(
    journal: Journal, engine: Engine, end: Event
) -> None:
    run(journal, launched(1), spot(10), end)

    assert seen(engine) == [(ZONE, 10, 100, True), (ZONE, 100, 100, True)]


def test_lost_node_and_its_replacement(journal: Journal, engine: Engine) -> None:
    run(journal, launched(1), spot(10, nodes=2), node_lost(50), node_replaced(80))

    assert seen(engine) == [(ZONE, 10, 50, True), (ZONE, 50, 50, False), (ZONE, 80, None, True)]


def test_drilled_node_was_available(journal: Journal, engine: Engine) -> None:
    run(journal, launched(1), spot(10, nodes=2), node_lost(50, drill=True))

    assert seen(engine) == [(ZONE, 10, 50, True), (ZONE, 50, 50, True)]


def test_node_released_with_a_lost_one_is_no_loss(journal: Journal, engine: Engine) -> None:
    gone = node_lost(50, node=1)
    run(journal, launched(1), spot(10, nodes=3), gone, replace(gone, node=2, nodes=1, with_node=1))

    assert seen(engine) == [(ZONE, 10, 50, True), (ZONE, 50, 50, False)]


def group(name: str, zone: str, *, is_spot: bool) -> NodeGroup:
    return NodeGroup(
        nodes=1,
        zone=zone,
        is_spot=is_spot,
        micros_per_hour=1,
        on_demand_micros_per_hour=1,
        name=name,
    )


def test_node_groups_are_seen_apart(journal: Journal, engine: Engine) -> None:
    head = group("head", "aws/us-east-1", is_spot=False)
    workers = group("workers", "aws/us-west-2", is_spot=True)
    placed = replace(ready(10, nodes=2), groups=(head, workers))
    moved = replace(workers, zone="aws/us-west-1")
    values = {"attempt": 1, "node": 1, "group": 1, "on_demand_micros_per_hour": 1}
    gone = NodeLost(at=at(50), nodes=0, micros_per_hour=0, cause=Cause.PREEMPTED, **values)
    back = NodeReplaced(at=at(80), nodes=1, micros_per_hour=1, placed=moved, **values)
    run(journal, launched(1), placed, gone, back, lost(90))

    assert seen(engine) == [
        ("aws/us-west-2", 10, 50, True),
        ("aws/us-west-2", 50, 50, False),
        ("aws/us-west-1", 80, 90, True),
        ("aws/us-west-1", 90, 90, True),
    ]


def test_on_demand_nodes_show_nothing(journal: Journal, engine: Engine) -> None:
    on_demand = asking(1, CapacityType.ON_DEMAND, "any")
    placed = replace(ready(10, zone=ZONE), is_spot=False)
    run(journal, on_demand, denied(2, zone="aws/us-east-1"), placed, lost(20))

    assert seen(engine) == []


def test_denied_region_denies_the_zones_asked_for(journal: Journal, engine: Engine) -> None:
    zones = [{"infra": f"aws/us-east-1/us-east-1{letter}"} for letter in "abc"]
    asked = asking(1, CapacityType.SPOT, ZONE, "aws/us-east-1/us-east-1c")
    run(journal, asked, denied(2, zone="aws/us-east-1"), resources={"any_of": zones})

    assert seen(engine) == [(ZONE, 2, 2, False), ("aws/us-east-1/us-east-1c", 2, 2, False)]


def test_simulated_places_are_local(journal: Journal, engine: Engine) -> None:
    run(journal, launched(1), replace(spot(10, zone="us-east-1a"), simulated=True))

    assert seen(engine) == [("local/us-east-1a", 10, None, True)]


def test_unknown_zone_shows_nothing(journal: Journal, engine: Engine) -> None:
    run(journal, launched(1), denied(2, zone="unknown"), spot(3, zone="unknown"))

    assert seen(engine) == []


def test_end_before_its_begin_by_another_clock(journal: Journal, engine: Engine) -> None:
    run(journal, launched(1), spot(10), lost(5))

    assert seen(engine) == [(ZONE, 10, 10, True), (ZONE, 10, 10, False)]


def starts(engine: Engine) -> list[tuple[int, str | None, bool, bool, bool]]:
    table = launch_starts.c
    names = table.launch, table.capacity, table.is_denied, table.ready_at, table.trained_at
    with engine.connect() as connection:
        return [
            (launch, capacity, bool(is_denied), at_ready is not None, trained is not None)
            for launch, capacity, is_denied, at_ready, trained in connection.execute(
                select(*names).order_by(table.launch)
            )
        ]


def test_first_nodes_and_training_of_a_launch_count(journal: Journal, engine: Engine) -> None:
    run(journal, launched(1), spot(10), training(70), lost(90), spot(200, attempt=2))
    again = training(260, attempt=2)
    journal.append(journal.read("job-1"), [again])

    assert starts(engine) == [(1, "spot", False, True, True)]
    with engine.connect() as connection:
        row = connection.execute(select(launch_starts)).mappings().one()
    assert (_s(row["requested_at"]), _s(row["ready_at"]), _s(row["trained_at"])) == (1, 10, 70)
    assert row["engine"] == "skypilot"


def test_denied_launch_is_marked(journal: Journal, engine: Engine) -> None:
    asked = asking(1, CapacityType.ON_DEMAND, "any")
    placed = replace(ready(10, zone=ZONE), is_spot=False)
    run(journal, asked, denied(2, zone="aws/us-east-1"), placed)

    assert starts(engine) == [(1, "on_demand", True, True, False)]


STORY = [
    launched(1),
    denied(2, zone="aws/us-east-1"),
    spot(10),
    training(70),
    saved(80, step=5),
    lost(90),
    denied(95, zone="aws/us-west-2"),
    spot(200, zone="aws/us-west-2", attempt=2),
    training(230, attempt=2),
    finished(300),
]


def everything(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        rows = [*connection.execute(select(place_observations).order_by("number"))]
        return [tuple(row)[1:] for row in rows] + [
            *map(tuple, connection.execute(select(launch_starts)))
        ]


def test_rebuilt_observations_equal_incremental_ones(journal: Journal, engine: Engine) -> None:
    run(journal, *STORY)
    before = everything(engine)

    Projection(engine).rebuild("job-1")

    assert everything(engine) == before
    assert len(before) == 7


def test_placement_is_read_with_its_launch(journal: Journal, engine: Engine) -> None:
    run(
        journal,
        launched(1),
        spot(10),
        training(20),
        lost(30),
        spot(40, attempt=2),
        MoveRequested(at=at(50), reason="behind schedule"),
        Moved(at=at(60), launch=1),
        asking(65, CapacityType.ON_DEMAND, "aws", launch=2),
        denied(70, zone="aws/us-east-1"),
        replace(ready(80, zone=ZONE, attempt=3), is_spot=None),
        training(90, attempt=3),
        finished(100),
    )
    before = everything(engine)

    Projection(engine).rebuild("job-1")

    assert everything(engine) == before
    assert [row[3] for row in seen(engine)] == [True, False, True, True], "released by the next"
    assert starts(engine)[1] == (2, "on_demand", True, True, True)


def test_events_that_show_nothing_are_not_missing(journal: Journal, engine: Engine) -> None:
    run(journal, *STORY[:4], saved(80, step=5), saved(85, step=6))

    assert Projection(engine).catch_up() == 0


@pytest.mark.parametrize("known", [1, 2, 4, 7, 9])
def test_missing_events_are_caught_up(journal: Journal, engine: Engine, known: int) -> None:
    """As after an upgrade, or writes by a replica of an older version."""
    run(journal, *STORY[: known - 1])
    tables = place_observations, launch_starts
    with engine.connect() as connection:
        before = [[*connection.execute(select(table)).mappings()] for table in tables]
    for event in STORY[known - 1 :]:
        journal.append(journal.read("job-1"), [event])
    whole = everything(engine)
    with engine.begin() as connection:
        for table, rows in zip(tables, before, strict=True):
            connection.execute(delete(table))
            if rows:
                connection.execute(insert(table), [*map(dict, rows)])
        connection.execute(update(jobs).values(observed_seq=known))

    assert Projection(engine).catch_up() == 1

    assert everything(engine) == whole
    assert Projection(engine).catch_up() == 0


def test_write_of_an_older_version_is_made_up_for(journal: Journal, engine: Engine) -> None:
    run(journal, *STORY[:6])
    with engine.begin() as connection:  # It knows neither the table nor the column.
        connection.execute(place_observations.delete())
        connection.execute(launch_starts.delete())
        connection.execute(update(jobs).values(observed_seq=1))
    journal.append(journal.read("job-1"), [saved(99, step=9)])
    assert everything(engine) == []

    assert Projection(engine).catch_up() == 1

    assert seen(engine)[-1] == (ZONE, 90, 90, False)
    assert Projection(engine).catch_up() == 0


def test_unreadable_job_file_stops_no_event(
    journal: Journal, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    job = journal.submit("job-1", replace(submitted(), spec={}))

    after = journal.append(job, [launched(1), spot(2)])

    assert (after.seq, seen(engine)) == (3, [])
    assert "its file cannot be read" in caplog.text
    assert Projection(engine).catch_up() == 0


def test_failed_write_leaves_no_observation(journal: Journal, engine: Engine) -> None:
    run(journal, launched(1))
    stale = journal.read("job-1")
    journal.append(stale, [denied(2, zone="aws/us-east-1")])

    with pytest.raises(StaleWrite):
        journal.append(stale, [denied(3, zone="aws/us-east-1")])

    assert len(seen(engine)) == 1

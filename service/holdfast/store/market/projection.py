"""Observations of places and starts of launches, from the events of jobs.

They are written in the transaction of the events. `jobs.observed_seq` is the last event that they contain, and later ones show nothing. Where this is
not so, as after a write by a replica of an older version, the missing events follow with the next one that shows something, or at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pydantic import ValidationError
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Integer,
    RowMapping,
    ScalarSelect,
    Select,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from holdfast.domain.events import (
    CapacityDenied,
    Event,
    NodesReady,
    Resized,
    Submitted,
    TrainingStarted,
    decode,
)
from holdfast.domain.events.service import LaunchRequested
from holdfast.domain.jobfile.spec import Engine as LauncherType
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.planning.observations import (
    OBSERVED_KINDS,
    OWN,
    NodesGone,
    PlaceObservation,
    PlaceObserver,
    StartStep,
)
from holdfast.store.database import reading, writing
from holdfast.store.tables.jobs import job_events, jobs
from holdfast.store.tables.market import launch_starts, place_observations

log = logging.getLogger(__name__)

_KINDS: Final = [kind.__name__ for kind in OBSERVED_KINDS]


def project(connection: Connection, job_id: str, events: Sequence[Event]) -> None:
    """Store what new events of a job show, and what older ones have shown that is missing."""
    if not any(isinstance(event, OBSERVED_KINDS) for event in events):
        return
    row = connection.execute(select(jobs.c.seq, jobs.c.observed_seq).where(jobs.c.id == job_id))
    seq, observed = row.one()
    _project_after(connection, job_id, observed or 0)
    _set_observed(connection, job_id, seq)


class Projection:
    """The observations of all jobs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def catch_up(self) -> int:
        """Store what is missing of all jobs, and return their number."""
        observed = func.coalesce(jobs.c.observed_seq, 0)
        is_missing = exists().where(
            job_events.c.job_id == jobs.c.id,
            job_events.c.seq > observed,
            job_events.c.kind.in_(_KINDS),
        )
        query = select(jobs.c.id).where(observed != jobs.c.seq, is_missing)
        with reading(self._engine) as connection:
            found = list(connection.execute(query).scalars())
        for job_id in found:
            with writing(self._engine) as connection:
                query = select(jobs.c.seq, jobs.c.observed_seq).where(jobs.c.id == job_id)
                if row := connection.execute(query).first():
                    _project_after(connection, job_id, row.observed_seq or 0)
                    _set_observed(connection, job_id, row.seq)
        return len(found)

    def rebuild(self, job_id: str) -> None:
        """Store the observations of a job again, from all its events."""
        with writing(self._engine) as connection:
            for table in (place_observations, launch_starts):
                connection.execute(delete(table).where(table.c.job_id == job_id))
            query = select(jobs.c.seq).where(jobs.c.id == job_id)
            if (seq := connection.execute(query).scalar()) is not None:
                _project_after(connection, job_id, 0)
                _set_observed(connection, job_id, seq)


def next_number(connection: Connection) -> int:
    """The number of the next row of observations."""
    newest = select(func.coalesce(func.max(place_observations.c.number), 0))
    number: int = connection.execute(newest).scalar_one()
    return number + 1


def _set_observed(connection: Connection, job_id: str, seq: int) -> None:
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(observed_seq=seq))


def _project_after(connection: Connection, job_id: str, observed: int) -> None:
    """Store what the events after number `observed` show."""
    first, *rows = _events(connection, job_id, observed)
    submitted = decode(first["kind"], first["at"], first["body"])
    assert isinstance(submitted, Submitted), "a job begins with its submission"
    try:
        spec = JobSpec.from_stored(submitted.spec)
    except ValidationError:
        # Events must be recorded even of a job whose file cannot be read any more.
        log.exception("job %s shows nothing about places: its file cannot be read", job_id)
        return
    observer = PlaceObserver(spec)
    for row in rows:
        shown = list(observer.see(decode(row["kind"], row["at"], row["body"])))
        if row["seq"] > observed:
            _store(connection, job_id, observer.engine, shown)


def _events(connection: Connection, job_id: str, observed: int) -> Sequence[RowMapping]:
    """The first event, those that show something, and what these need of earlier ones."""
    values = {"job": job_id, "observed": observed}
    return connection.execute(_NEEDED_EVENTS, values).mappings().all()


def _needed_events() -> Select[Any]:
    """Of earlier events, these are the newest placement, its launch, and what followed.

    Denials are not: they change nothing of what later events show.
    """
    known = [kind for kind in _KINDS if kind != CapacityDenied.__name__]
    seq, kind, observed = job_events.c.seq, job_events.c.kind, bindparam("observed", type_=Integer)
    placed = func.coalesce(_newest(NodesReady, until=observed), 0)
    wanted = or_(
        seq == 1,
        kind == Resized.__name__,
        seq == _newest(LaunchRequested, until=placed),
        (seq >= placed) & (kind.in_(known) | (kind.in_(_KINDS) & (seq > observed))),
    )
    return select(job_events).where(job_events.c.job_id == bindparam("job"), wanted).order_by(seq)


def _newest(
    event: type[Event], *, until: ColumnElement[int] | ColumnElement[int | None]
) -> ScalarSelect[int | None]:
    """The number of the newest event of a kind up to a number."""
    table = job_events.alias().c
    same = (table.job_id == bindparam("job"), table.kind == event.__name__, table.seq <= until)
    return select(func.max(table.seq)).where(*same).scalar_subquery()


_NEEDED_EVENTS: Final = _needed_events()
"""Built once, as that takes longer than the database does."""


def _store(
    connection: Connection,
    job_id: str,
    engine: LauncherType,
    shown: Iterable[PlaceObservation | NodesGone | StartStep],
) -> None:
    for item in shown:
        match item:
            case PlaceObservation():
                row = {
                    "number": next_number(connection),
                    "place": item.place,
                    "hardware": item.hardware,
                    "at": item.at,
                    "until": item.until,
                    "is_available": item.is_available,
                    "job_id": job_id,
                    "node_group": item.node_group,
                    "source": OWN,
                }
                connection.execute(insert(place_observations).values(**row))
            case NodesGone():
                mine = (
                    place_observations.c.job_id == job_id,
                    place_observations.c.node_group == item.node_group,
                    place_observations.c.until.is_(None),
                )
                connection.execute(update(place_observations).where(*mine).values(until=item.until))
            case StartStep():
                _store_step(connection, job_id, engine, item)


def _store_step(connection: Connection, job_id: str, engine: LauncherType, step: StartStep) -> None:
    """Store a step of a launch; only its first nodes and its first training count."""
    key = {"job_id": job_id, "launch": step.launch}
    capacity = step.capacity and step.capacity.value
    if step.event is LaunchRequested:
        row = {"engine": engine.value, "capacity": capacity, "requested_at": step.at}
        connection.execute(insert(launch_starts).values(**key, **row, is_denied=False))
        return
    table = launch_starts.c
    mine = update(launch_starts).where(table.job_id == job_id, table.launch == step.launch)
    if step.event is CapacityDenied:
        connection.execute(mine.where(table.ready_at.is_(None)).values(is_denied=True))
    elif step.event is NodesReady:
        new = {"capacity": capacity} if capacity else {}
        connection.execute(mine.where(table.ready_at.is_(None)).values(ready_at=step.at, **new))
    elif step.event is TrainingStarted:
        is_first = table.ready_at.is_not(None) & table.trained_at.is_(None)
        connection.execute(mine.where(is_first).values(trained_at=step.at))

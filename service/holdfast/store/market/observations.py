"""Reads observations of places and starts of launches, and stores imported recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, Engine, insert, or_, select

from holdfast.domain.access.audit import AuditAction
from holdfast.domain.events.planning import CapacityType
from holdfast.domain.jobfile.places import is_within
from holdfast.domain.jobfile.spec import Engine as LauncherType
from holdfast.domain.planning.observations import OWN, PlaceObservation
from holdfast.domain.planning.places import matches_hardware
from holdfast.errors import Conflict
from holdfast.store import audit_log
from holdfast.store.database import reading, writing
from holdfast.store.market.projection import next_number
from holdfast.store.tables.market import launch_starts, place_observations, trace_imports

MAX_ROWS: Final = 50_000
"""Observations that are read at once, the newest ones.
A lower value forgets the history of places with many jobs; a higher value takes seconds and memory."""
MAX_STARTS: Final = 2000
"""Starts of launches that are read at once, the newest ones. A higher value measures no better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedPlace:
    """A place with observations from one source."""

    place: str
    hardware: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchStart:
    """How a launch began."""

    capacity: CapacityType | None
    """None if unknown."""
    requested_at: datetime
    is_denied: bool
    """Whether nodes were denied before it had any."""
    ready_at: datetime | None
    trained_at: datetime | None


class PlaceObservations:
    """Observations of places, by the service's own jobs and from imports."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def newest(self) -> int:
        """The number of the newest observation; it changes with each one."""
        with reading(self._engine) as connection:
            return next_number(connection) - 1

    def list_places(self) -> list[ObservedPlace]:
        """All places with observations, by source, place and hardware."""
        table = place_observations.c
        query = select(table.source, table.place, table.hardware).distinct()
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(table.source, table.place, table.hardware))
            return [ObservedPlace(**row) for row in rows.mappings()]

    def of_place(self, place: str, hardware: str, since: datetime) -> list[PlaceObservation]:
        """Observations of nodes at a place, and of all places that it includes, since a time."""
        found = [
            (each.source, each.place, each.hardware)
            for each in self.list_places()
            if is_within(each.place, place) and matches_hardware(hardware, each.hardware)
        ]
        table = place_observations.c
        return self._read(
            since,
            table.source.in_({source for source, _, _ in found}),
            table.place.in_({name for _, name, _ in found}),
            table.hardware.in_({kind for _, _, kind in found}),
        )

    def of_source(self, wanted: ObservedPlace, since: datetime | None) -> list[PlaceObservation]:
        """Observations of one place from one source; of all times without `since`."""
        table = place_observations.c
        return self._read(
            since,
            table.source == wanted.source,
            table.place == wanted.place,
            table.hardware == wanted.hardware,
        )

    def _read(self, since: datetime | None, *which: ColumnElement[bool]) -> list[PlaceObservation]:
        table = place_observations.c
        recent = [] if since is None else [or_(table.until.is_(None), table.until >= since)]
        query = select(place_observations).where(*which, *recent)
        newest_first = query.order_by(table.at.desc(), table.number.desc()).limit(MAX_ROWS)
        with reading(self._engine) as connection:
            rows = connection.execute(newest_first).mappings().all()
        return [
            PlaceObservation(
                place=row["place"],
                hardware=row["hardware"],
                at=row["at"],
                until=row["until"],
                is_available=row["is_available"],
                node_group=row["node_group"],
            )
            for row in reversed(rows)
        ]

    def add_import(
        self,
        action: AuditAction,
        sha256: str,
        observations: Sequence[PlaceObservation],
        now: datetime,
    ) -> bool:
        """Store a recording under the name that `action` has; False if it is stored already.

        Raises:
            Conflict: another recording has this name.
        """
        name = action.target
        with writing(self._engine) as connection:
            known = select(trace_imports.c.name, trace_imports.c.sha256)
            either = or_(trace_imports.c.name == name, trace_imports.c.sha256 == sha256)
            earlier = connection.execute(known.where(either)).all()
            if any(row.sha256 == sha256 for row in earlier):
                return False
            if earlier or name == OWN:
                raise Conflict(f"{name}: another recording has this name; rename the file")
            row = {"name": name, "sha256": sha256, "imported_at": now}
            connection.execute(insert(trace_imports).values(**row))
            first = next_number(connection)
            rows = [
                {
                    "number": first + index,
                    "place": each.place,
                    "hardware": each.hardware,
                    "at": each.at,
                    "until": each.until,
                    "is_available": each.is_available,
                    "job_id": "",
                    "node_group": None,
                    "source": name,
                }
                for index, each in enumerate(observations)
            ]
            connection.execute(insert(place_observations), rows)
            audit_log.append(connection, action, now)
        return True

    def starts(self, engine: LauncherType, since: datetime) -> list[LaunchStart]:
        """Launches that were requested since a time and have had nodes, the newest first."""
        table = launch_starts.c
        query = select(
            table.capacity, table.requested_at, table.is_denied, table.ready_at, table.trained_at
        ).where(
            table.engine == engine.value, table.requested_at >= since, table.ready_at.is_not(None)
        )
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(table.requested_at.desc()).limit(MAX_STARTS))
            return [
                LaunchStart(
                    capacity=CapacityType(row["capacity"]) if row["capacity"] else None,
                    requested_at=row["requested_at"],
                    is_denied=row["is_denied"],
                    ready_at=row["ready_at"],
                    trained_at=row["trained_at"],
                )
                for row in rows.mappings()
            ]

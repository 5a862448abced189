"""Schemas of recorded availability of places; shared with the client."""

from __future__ import annotations

from datetime import datetime

from pydantic import AwareDatetime, Field

from holdfast.api.schemas.base import Schema
from holdfast.domain.planning.observations import MAX_RUNS


class ObservedPlaceOut(Schema):
    """What is known of spot nodes at a place, from one source."""

    place: str = Field(description="As `infra` of a job file: aws/us-east-1/us-east-1a.")
    hardware: str = Field(description="Accelerators or instance type; empty if unknown.")
    source: str = Field(description="`own` jobs, or the name of an imported recording.")
    since: datetime
    until: datetime
    ticks: int = Field(description="Ticks of ten minutes of which something is known.")
    availability: float = Field(description="Share of them in which nodes were available.")


class ObservedPlacesOut(Schema):
    """All places with observations."""

    places: list[ObservedPlaceOut]


class RecordingIn(Schema):
    """A recording of one place."""

    name: str = Field(max_length=200)
    place: str = Field(max_length=200)
    hardware: str = Field(default="", max_length=200)
    start: AwareDatetime | None = Field(
        default=None,
        description="Begin of the first tick; null: it ended a day before the import.",
    )
    gap_seconds: float = Field(gt=0, description="Length of a tick.")
    runs: list[tuple[bool | None, int]] = Field(
        max_length=MAX_RUNS,
        description="Whether nodes were available (null: unknown), and for how many ticks.",
    )


class RecordingOut(RecordingIn):
    """A recording of one place by jobs of this service."""


class RecordingsOut(Schema):
    """Recordings that cover the same time."""

    recordings: list[RecordingOut]


class ImportedOut(Schema):
    """The result of an import."""

    name: str
    place: str
    hardware: str
    is_new: bool = Field(description="False if the same recording was imported before.")

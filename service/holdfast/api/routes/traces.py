"""Observed availability of places: list, export, import."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime, timedelta
from typing import Final

from holdfast.api.auth.authentication import TheActor
from holdfast.api.dependencies import TheServices
from holdfast.api.routing import Router
from holdfast.api.schemas.traces import (
    ImportedOut,
    ObservedPlaceOut,
    ObservedPlacesOut,
    RecordingIn,
    RecordingOut,
    RecordingsOut,
)
from holdfast.api.time_ranges import TheTimeRange
from holdfast.domain.planning.observations import OWN
from holdfast.domain.planning.place_history import TICK_S, observed_trace, tick_start
from holdfast.domain.planning.recordings import Recording, check_recording, runs_in
from holdfast.errors import BadRequest
from holdfast.services import Services
from holdfast.store.market.observations import ObservedPlace

router = Router(prefix="/v1/traces", tags=["planning"])

DEFAULT_PERIOD: Final = timedelta(days=90)
"""Default period of an export."""
MAX_PERIOD: Final = timedelta(days=3660)
"""Longest period of an export. A higher value lets one request use much memory."""
_OTHER: Final = re.compile(r"[^a-z0-9.-]+")


@router.get("", response_model=ObservedPlacesOut)
def list_traces(services: TheServices) -> ObservedPlacesOut:
    """List the places of which jobs or imported recordings have shown something."""
    now = services.clock.now()
    places = services.place_observations.list_places()
    return ObservedPlacesOut(places=[_summary(services, place, now) for place in places])


@router.get("/export", response_model=RecordingsOut)
def export_traces(services: TheServices, window: TheTimeRange) -> RecordingsOut:
    """Export what jobs of this service have shown, by default in the last ninety days.

    All recordings cover the same time, in ticks of ten minutes. Places without observations in it are left out.
    """
    now = services.clock.now()
    until = min(window.ends_at or now, now)
    since = tick_start(window.begins_at or until - DEFAULT_PERIOD)
    if not timedelta() < until - since <= MAX_PERIOD:
        raise BadRequest(
            f"since: {since:%Y-%m-%d} is not a day of the last ten years before until; write one such as 30d"
        )
    found = [place for place in services.place_observations.list_places() if place.source == OWN]
    recordings = [_recording(services, place, since, until) for place in found]
    known = [each for each in recordings if any(up is not None for up, _ in each.runs)]
    return RecordingsOut(recordings=_with_unique_names(known))


@router.post("", status_code=201, response_model=ImportedOut)
def import_trace(body: RecordingIn, services: TheServices, actor: TheActor) -> ImportedOut:
    """Import a recording of a place, on which plans rest as on observations of jobs.

    The same recording is stored once.
    """
    recording = Recording(
        name=body.name,
        place=body.place,
        hardware=body.hardware,
        start=body.start,
        gap_s=body.gap_seconds,
        runs=_valid_runs(body),
    )
    check_recording(recording)
    after = {"place": recording.place, "hardware": recording.hardware, "ticks": recording.ticks}
    now = services.clock.now()
    is_new = services.place_observations.add_import(
        actor.audit_action("trace.import", recording.name, after=after),
        recording.sha256,
        recording.observations(now),
        now,
    )
    return ImportedOut(
        name=recording.name,
        place=recording.place,
        hardware=recording.hardware,
        is_new=is_new,
    )


def _valid_runs(body: RecordingIn) -> list[tuple[bool | None, int]]:
    if any(ticks < 1 for _, ticks in body.runs):
        raise BadRequest("runs: each run has at least one tick; leave out those without")
    return body.runs


def _summary(services: Services, place: ObservedPlace, now: datetime) -> ObservedPlaceOut:
    rows = services.place_observations.of_source(place, None)
    since = min(row.at for row in rows)
    until = max(now if row.until is None else row.until for row in rows)
    trace = observed_trace("", rows, since, until)
    return ObservedPlaceOut(
        place=place.place,
        hardware=place.hardware,
        source=place.source,
        since=since,
        until=until,
        ticks=int(trace.known.sum()),
        availability=trace.availability or 0.0,
    )


def _recording(
    services: Services, place: ObservedPlace, since: datetime, until: datetime
) -> RecordingOut:
    rows = services.place_observations.of_source(place, since)
    past = [row for row in rows if row.at < until]
    trace = observed_trace("", past, since, until)
    kind = _OTHER.sub("-", place.hardware)
    zone = _OTHER.sub("-", place.place.rpartition("/")[2])
    return RecordingOut(
        name=f"{zone}_{kind}" if kind else zone,
        place=place.place,
        hardware=place.hardware,
        start=since,
        gap_seconds=TICK_S,
        runs=runs_in(trace),
    )


def _with_unique_names(recordings: list[RecordingOut]) -> list[RecordingOut]:
    """Number names of zones that two clouds or clusters share."""
    seen = Counter[str]()
    for recording in recordings:
        seen[recording.name] += 1
        if (number := seen[recording.name]) > 1:
            recording.name = f"{recording.name}-{number}"
    return recordings

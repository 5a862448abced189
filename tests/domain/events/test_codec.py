"""Stored events are read back unchanged, including events of a later version."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from holdfast.domain.events import (
    KINDS,
    WORKER_KINDS,
    Event,
    MarketState,
    PlaceState,
    Source,
    UnknownEvent,
    decode,
    encode,
)
from holdfast.domain.events.values import Demand, Interval, Metric
from holdfast_worker.protocol.gpu_health import GpuFault
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.events import DAWN, saved

TIMES = st.datetimes(
    min_value=datetime(1970, 1, 1),  # noqa: DTZ001 - hypothesis adds the zone
    max_value=datetime(2999, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45))]),
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
COUNTS = st.integers(0, 2**63 - 1)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
PLACES = st.builds(
    PlaceState,
    name=st.text(),
    region=st.text(),
    spot_usd_per_hour=st.none() | NUMBERS,
    priced_at=st.none() | TIMES,
    seen_at=st.none() | TIMES,
    loss=NUMBERS,
    hint_at=st.none() | TIMES,
)
REQUESTS = {"CancelRequested", "PauseRequested", "ResumeRequested"}
"""Requests with default values."""
WORDS: dict[str, st.SearchStrategy[Any]] = {
    "at": TIMES,
    "attempt": st.integers(0, 2**31 - 1),
    "step": COUNTS,
    "total_steps": st.none() | COUNTS,
    "world_size": COUNTS,
    "size_bytes": COUNTS,
    "stall_ms": COUNTS,
    "upload_ms": COUNTS,
    "paused_ms": COUNTS,
    "ranks": st.lists(COUNTS, max_size=3).map(tuple),
    "hosted_nodes": st.lists(COUNTS, max_size=3).map(tuple),
    "failures": COUNTS,
    "safe_step": COUNTS,
    "interval": st.none() | st.builds(Interval, *[COUNTS] * 5),
    "snapshot_at": TIMES,
    "node": st.integers(0, 2**31 - 1),
    "until": TIMES,
    "gpu": st.integers(0, 2**31 - 1),
    "faults": st.lists(st.sampled_from(GpuFault), max_size=3).map(tuple),
    "notice_s": st.none() | st.floats(0, 3600),
    "drill": st.booleans(),
    "through_worker": st.booleans(),
    "left_s": st.none() | st.floats(-1e12, 1e12),
    "spec": st.dictionaries(st.text(), JSON, max_size=3),
    "limits": st.dictionaries(st.text(), JSON, max_size=3),
    "manifest": st.dictionaries(st.text(), JSON, max_size=3),
    "metrics": st.dictionaries(
        st.text(),
        st.builds(
            Metric, value=st.none() | st.floats(allow_nan=False, allow_infinity=False), step=COUNTS
        ),
        max_size=3,
    ),
    "steps": COUNTS,
    "preemptions": COUNTS,
    "batches": COUNTS,
    "values": COUNTS,
    "versions": st.dictionaries(st.text(), st.text(), max_size=3),
    "checkpoints": st.lists(st.text(), max_size=3).map(tuple),
    "market": st.builds(
        MarketState,
        at=TIMES,
        places=st.lists(PLACES, max_size=2).map(tuple),
        tick_s=NUMBERS,
        changeover_s=NUMBERS,
        changeover_samples=COUNTS,
    ),
    "net_at": st.none() | TIMES,
    "slack_s": st.none() | NUMBERS,
    "remaining_s": NUMBERS,
    "changeover_s": NUMBERS,
    "policy_version": COUNTS,
    "forecast": st.none(),
    "priority": st.integers(-100, 100),
    "demand": st.builds(Demand, nodes=COUNTS, gpus=COUNTS, micros_per_hour=COUNTS),
    "waited_s": COUNTS,
}


def events(kind: str) -> st.SearchStrategy[Event]:
    cls = KINDS[kind]
    names = {item.name for item in fields(cls)}
    return st.builds(cls, **{name: WORDS[name] for name in WORDS if name in names})


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_every_event_kind_is_read_back_unchanged(kind: str, data: st.DataObject) -> None:
    event = data.draw(events(kind))

    stored = json.loads(json.dumps(encode(event)))

    assert "at" not in stored
    assert decode(kind, event.at, stored) == event


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_unknown_fields_of_a_later_version_are_ignored(kind: str, data: st.DataObject) -> None:
    event = data.draw(events(kind))
    stored = json.loads(json.dumps(encode(event)))

    later = {**stored, "weather": "stormy", "source": "elsewhere"}

    assert decode(kind, event.at, later) == event


def test_event_time_is_read_from_its_column() -> None:
    event = saved(5, step=1)

    assert decode("CheckpointCommitted", DAWN, {**encode(event), "at": "1999-01-01"}).at == DAWN


def test_unknown_kind_is_kept_as_it_was_stored() -> None:
    event = decode("NodesVanished", DAWN, {"zone": "a"})

    assert event == UnknownEvent(at=DAWN, kind="NodesVanished", body={"zone": "a"})
    assert encode(event) == {"zone": "a"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in REQUESTS])
def test_body_without_a_required_field_is_refused(kind: str) -> None:
    with pytest.raises(ValidationError):
        decode(kind, DAWN, {})


@pytest.mark.parametrize(
    ("word", "nonsense"),
    [
        ("step", -1),
        ("step", 2**63),
        ("stall_ms", -5),
        ("attempt", 2**31),
        ("snapshot_at", "2026-03-01T12:00:00"),
        ("snapshot_at", "yesterday"),
    ],
)
def test_out_of_range_numbers_and_times_are_refused(word: str, nonsense: object) -> None:
    body = encode(saved(5, step=1))

    with pytest.raises(ValidationError, match=word):
        decode("CheckpointCommitted", DAWN, {**body, word: nonsense})


def test_worker_and_user_events_have_their_sources() -> None:
    sources = {kind: event.source for kind, event in KINDS.items()}

    assert {kind for kind, source in sources.items() if source is Source.WORKER} == WORKER_KINDS
    assert {kind for kind, source in sources.items() if source is Source.USER} == {
        "Submitted",
        "DrillRequested",
        "LimitsChanged",
        "TagsChanged",
        "PriorityChanged",
        "Resized",
        "RunsCompared",
        *REQUESTS,
    }

"""Output of the command line: money, durations and sizes in suitable units."""

from __future__ import annotations

import pytest
from holdfast.api.schemas.jobs import EventOut
from holdfast.cli.logs import event_line
from holdfast.cli.output import GLYPHS, STATES, money, saved, size, span, steps
from holdfast.domain.events import Outcome
from holdfast.domain.jobs.job import State
from support.events import at


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "$0.0000"),
        (16_900, "$0.0169"),
        (1_500_000, "$1.50"),
        (1_234_567_890, "$1,234.57"),
        (-50_000, "-$0.0500"),
    ],
)
def test_money(micros: int, text: str) -> None:
    assert money(micros) == text
    assert money(micros, simulated=True) == f"~{text}"


def test_negative_savings_are_named_overpaid() -> None:
    assert saved(66_640_000, simulated=True) == "saved ~$66.64"
    assert saved(-66_640_000, simulated=True) == "overpaid ~$66.64"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0.0 s"),
        (59_900, "59.9 s"),
        (61_000, "1 m 01 s"),
        (3_600_000, "1 h 00 m"),
        (90_061_000, "25 h 01 m"),
    ],
)
def test_durations(ms: int, text: str) -> None:
    assert span(ms) == text


@pytest.mark.parametrize(
    ("count", "text"), [(999, "999 B"), (1_500, "1.5 kB"), (2 * 10**12, "2.0 TB")]
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_steps_with_and_without_an_end() -> None:
    assert (steps(1200, 5000), steps(1200, None)) == ("1,200/5,000", "1,200")


def recorded(source: str, kind: str, body: dict[str, object]) -> EventOut:
    return EventOut(
        cursor=1,
        job_id="j",
        seq=3,
        at=at(1),
        recorded_at=at(2),
        source=source,
        kind=kind,
        body=body,
    )


def test_event_is_one_line_with_date_and_without_nested_values() -> None:
    body = {
        "attempt": 2,
        "detail": "exit code 1:\n  no GPU",
        "seeds": {"torch": 7, "numpy": 8},
        "packages": {f"package-{n}": "1.0" for n in range(400)},
        "ranks": [{"rank": n} for n in range(8)],
        "task": "run: true",
        "restored_from": None,
    }
    event = recorded("worker", "RunDescribed", body)

    assert event_line(event) == (
        "2026-03-01 12:00:01Z worker     RunDescribed         attempt=2 detail=exit code 1: no GPU "
        "seeds={torch=7 numpy=8} packages=(400 values) ranks=(8 items)"
    )


def test_long_value_of_an_event_is_cut() -> None:
    event = recorded("launcher", "Finished", {"detail": "x" * 5000})

    assert len(event_line(event)) < 300
    assert event_line(event).endswith("x...")


def test_every_state_has_its_name_and_symbol() -> None:
    shown = {str(state) for state in State if state is not State.ENDED} | set(Outcome)

    assert set(STATES) == shown
    assert shown <= GLYPHS.keys()

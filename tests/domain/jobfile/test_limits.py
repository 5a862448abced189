"""Limits are parsed with their units and counted in whole micro-dollars and seconds."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import yaml
from holdfast.domain.jobfile.limits import MAX_SPAN_S, Limits, format_usd, parse_seconds
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.errors import BadJobFile
from holdfast_worker.protocol.policies import MaxStall
from hypothesis import given
from hypothesis import strategies as st
from support.events import DAWN, at


def limits(written: str) -> Limits:
    return parse_job_file(f"{{run: x, holdfast: {{limits: {{{written}}}}}}}").spec.holdfast.limits


@pytest.mark.parametrize(
    ("written", "expected_s"),
    [("90s", 90), ("15m", 900), ("48h", 172_800), ("7d", 604_800), ("2w", 1_209_600), ("1h 30m", 5400), (" 2H ", 7200), ("366d", MAX_SPAN_S)],
)  # fmt: skip
def test_durations_are_written_with_their_units(written: str, expected_s: int) -> None:
    assert parse_seconds(written) == expected_s


@pytest.mark.parametrize(
    ("micros", "text"),
    [(0, "$0.00"), (10_000, "$0.01"), (1_500, "$0.0015"), (1, "$0.000001"), (999_999, "$0.999999"), (1_234_567_890, "$1,234.57")],
)  # fmt: skip
def test_amounts_below_a_dollar_are_not_hidden_by_cents(micros: int, text: str) -> None:
    assert format_usd(micros) == text


@given(st.integers(1, MAX_SPAN_S))
def test_every_number_of_seconds_can_be_formatted(number: int) -> None:
    minutes, rest = divmod(number, 60)

    assert parse_seconds(f"{number}s") == number
    assert not rest or not minutes or parse_seconds(f"{minutes}m{rest}s") == number


@pytest.mark.parametrize(
    ("written", "micros"),
    [("600", 600_000_000), ("12.50", 12_500_000), ("0.1", 100_000), ("'0.000001'", 1), ("1e3", 1_000_000_000), ("20", 20_000_000)],
)  # fmt: skip
def test_sums_are_exact(written: str, micros: int) -> None:
    found = limits(f"max_cost_usd: {written}, max_hourly_cost_usd: {written}")

    assert (found.max_cost_micros, found.max_hourly_cost_micros) == (micros, micros)


def test_only_wait_and_failures_are_limited_by_default() -> None:
    found = Limits()

    assert (found.max_cost_micros, found.max_hourly_cost_micros) == (None, None)
    assert (found.max_duration_s, found.deadline_at(DAWN)) == (None, None)
    assert (found.max_wait_s, found.max_failures) == (86_400, 3)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("48h", at(172_800)),
        ("2026-12-01T18:00:00Z", datetime(2026, 12, 1, 18, tzinfo=UTC)),
        ("'2026-12-01T18:00:00+02:00'", datetime(2026, 12, 1, 16, tzinfo=UTC)),
        ("2026-12-01 18:00:00 +02:00", datetime(2026, 12, 1, 16, tzinfo=UTC)),
    ],
)
def test_a_deadline_is_a_span_from_the_submission_or_a_time(
    written: str, expected: datetime
) -> None:
    assert limits(f"deadline: {written}").deadline_at(DAWN) == expected


@pytest.mark.parametrize(
    "written",
    ["max_cost_usd: 12.50, deadline: 48h, max_duration: 1d, max_wait: 2h, max_failures: 5", "max_stall: off", "max_stall: 20m", "deadline: 2026-12-01T18:00:00Z", ""],
)  # fmt: skip
def test_limits_are_read_back_unchanged_from_the_journal(written: str) -> None:
    spec = parse_job_file(f"{{run: x, holdfast: {{limits: {{{written}}}}}}}").spec

    stored = JobSpec.model_validate(spec.model_dump(mode="json"))

    assert stored == spec
    assert stored.holdfast.limits.max_cost_micros == spec.holdfast.limits.max_cost_micros


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("max_cost_usd: lots", "'lots' is not an amount in US dollars; write a number such as 600 or 12.50"),
        ("max_cost_usd: true", "True is not an amount in US dollars; write a number"),
        ("max_cost_usd: [1]", "[1] is not an amount in US dollars; write a number"),
        ("max_cost_usd: 0", "0 is not above 0 and at most 10,000,000 US dollars; write an amount in this range"),
        ("max_cost_usd: -5", "-5 is not above 0"),
        ("max_cost_usd: 1e15", "'1e15' is not above 0 and at most 10,000,000"),
        ("max_cost_usd: 'NaN'", "'NaN' is not above 0"),
        ("max_hourly_cost_usd: 0.0000001", "1e-07 is finer than a millionth of a dollar; round it"),
        ("max_duration: 72", "72 has no unit; write a duration such as 90s, 30m, 48h or 7d"),
        ("max_duration: 3 fortnights", "'3 fortnights' is not a duration; write a number with its unit"),
        ("max_duration: 0s", "'0s' is not between one second and 366 days; write a duration in this range"),
        ("max_wait: 367d", "'367d' is not between one second and 366 days"),
        ("max_wait: ", "None has no unit; write a duration"),
        ("deadline: tomorrow", "'tomorrow' is not a deadline; write a duration such as 48h, or a time such as 2026-12-01T18:00:00Z"),
        ("deadline: 2026-12-01", "'2026-12-01' is not a deadline; write a duration such as 48h"),
        ("deadline: 2026-12-01 18:00:00", "'2026-12-01T18:00:00' has no time zone; write 2026-12-01T18:00:00Z if it is UTC"),
        ("deadline: 48", "48 is not a deadline; write a duration such as 48h"),
        ("max_failures: 0", "0: input should be greater than or equal to 1"),
        ("max_stall: often", "'often' is not a stall limit; write auto, off, or a duration such as 20m or 2h"),
        ("max_stall: 20", "20 is not a stall limit; write auto, off, or a duration"),
        ("max_stall: true", "True is not a stall limit; write auto, off, or a duration"),
        ("max_stall: ", "None is not a stall limit; write auto, off, or a duration"),
        ("max_stall: 59s", "'59s' is less than a minute, and a step may take that long; write a longer time"),
        ("max_stall: 367d", "'367d' is not between one second and 366 days"),
    ],
)  # fmt: skip
def test_invalid_limit_is_named_with_a_remedy(written: str, message: str) -> None:
    with pytest.raises(BadJobFile) as refusal:
        limits(written)

    (flaw,) = refusal.value.issues
    word = next(iter(yaml.safe_load(written)))
    assert flaw.pointer == f"#/holdfast/limits/{word}"
    assert flaw.message.startswith(message)


@pytest.mark.parametrize(
    ("written", "word"),
    [("", "auto"), ("max_stall: auto", "auto"), ("max_stall: Auto", "auto"), ("max_stall: off", "off"), ("max_stall: 'off'", "off"), ("max_stall: no", "off"), ("max_stall: 20m", "1200s"), ("max_stall: 1h 30m", "5400s"), ("max_stall: 60s", "60s")],
)  # fmt: skip
def test_max_stall_is_converted_to_a_worker_argument(written: str, word: str) -> None:
    """`off` is written without quotes, and YAML parses it as false."""
    found = limits(written)

    assert found.max_stall_argument == word
    assert MaxStall.parse(word)

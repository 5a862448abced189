"""Parsing of recorded availability and prices, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from holdfast.domain.planning import traces
from holdfast.domain.planning.traces import (
    Trace,
    check_together,
    parse_csv,
    parse_json,
    parse_prices,
)
from holdfast.errors import BadRequest
from support.spot_traces import AWS_2022, AWS_2023, DATA, recorded, trace_of

COUNTS = "time,us-east-1a,us-east-1b\n"


def body(data: Any, gap: Any = 600) -> str:
    return json.dumps({"metadata": {"gap_seconds": gap}, "data": data})


def test_counts_of_a_gang_are_available_and_null_is_unknown() -> None:
    trace = parse_json("zone", body([0, 1, 4, None, 8]), gang=4)

    assert trace.available.tolist() == [False, False, True, False, True]
    assert trace.known.tolist() == [True, True, True, False, True]
    assert trace.gap_s == 600
    assert trace.availability == 0.5


def test_availability_is_none_if_nothing_is_known() -> None:
    assert parse_json("zone", body([None, None])).availability is None


@pytest.mark.parametrize(
    ("name", "region"),
    [
        ("us-west-2a_v100_1", "us-west-2"),
        ("us-gov-east-1b_x", "us-gov-east-1"),
        ("us-central1-a_a100", "us-central1"),
        ("somewhere", "somewhere"),
    ],
)
def test_region_of_a_zone(name: str, region: str) -> None:
    assert trace_of("1", name=name).region == region


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"data": [1]}', "metadata.gap_seconds is missing"),
        ('{"metadata": {}, "data": [1]}', "metadata.gap_seconds is missing"),
        ('{"metadata": [], "data": [1]}', "metadata.gap_seconds is missing"),
        (body([1], 0), "metadata.gap_seconds is 0; write a number of seconds above 0"),
        (body([1], -5), "metadata.gap_seconds is -5"),
        (body([1], "600"), "metadata.gap_seconds is '600'"),
        (body([1], True), "metadata.gap_seconds is True"),
        (body([1], float("nan")), "metadata.gap_seconds is 'NaN'"),
        (body([1], 10**400), "metadata.gap_seconds is"),
        (body([]), "data is empty"),
        (body(None), "data is empty"),
        (body({"0": 1}), "data is empty"),
        (body([1, -1]), "data must be counts"),
        (body([1, 0.5]), "data must be counts"),
        (body([1, float("inf")]), "data must be counts"),
        (body([1, float("nan")]), "data must be counts"),
        (body([1, "1"]), "data must be counts"),
        (body([1, [1]]), "data must be counts"),
        (body([[1], [0]]), "data must be counts"),
        (body([1, {}]), "data must be counts"),
        (body([1, 10**400]), "data must be counts"),
    ],
)
def test_bad_trace_is_refused_with_its_field(text: str, message: str) -> None:
    with pytest.raises(BadRequest, match=r"^zone: ") as refused:
        parse_json("zone", text)

    assert message in str(refused.value)


def test_deep_json_is_refused() -> None:
    with pytest.raises(BadRequest, match="not JSON"):
        parse_json("zone", "[" * 200_000)


def test_too_many_ticks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_TICKS", 3)

    with pytest.raises(BadRequest, match="4 ticks are too many"):
        parse_json("zone", body([1, 1, 1, 1]))


def test_csv_has_one_trace_for_each_zone_and_gaps_are_unknown() -> None:
    times = ("00:00:00Z", "00:10:02Z", "00:20:00Z", "00:40:01Z", "00:50:00", "02:00:00+01:00")
    counts = ("1,0", "0,", "2,1", "1,1", "1,0", "0,1")
    lines = (f"2026-03-01T{time},{pair}" for time, pair in zip(times, counts, strict=True))

    first, second = parse_csv("counts.csv", COUNTS + "\n".join(lines))

    assert (first.name, second.name) == ("us-east-1a", "us-east-1b")
    assert first.gap_s == 600
    assert first.available.tolist() == [True, False, True, False, True, True, False]
    assert first.known.tolist() == [True, True, True, False, True, True, True]
    assert second.known.tolist() == [True, False, True, False, True, True, True]


def test_csv_of_seconds() -> None:
    first, second = parse_csv("counts.csv", COUNTS + "0,1,0\n60,0,\n120,2,1\n240,1,1\n")

    assert first.gap_s == 60
    assert first.available.tolist() == [True, False, True, False, True]
    assert first.known.tolist() == [True, True, True, False, True]
    assert second.known.tolist() == [True, False, True, False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "write a header"),
        (COUNTS + "0,1,1\n", "write a header, and at least two lines"),
        ("time\n0\n1\n", "write a header"),
        (COUNTS + "0,1,1\n60,1\n", "line 3 has 2 values; the header has 3"),
        (COUNTS + "0,1,1\nnoon,1,1\n", "line 3: 'noon' is not a time"),
        (COUNTS + "60,1,1\n0,1,1\n", "line 3 is not later than the one before; sort by time"),
        (COUNTS + "0,1,1\n0,1,1\n60,1,1\n", "line 3 is not later"),
        (COUNTS + "0,1,1\nnan,1,1\n60,1,1\n", "line 3"),
        (COUNTS + "0,1,1\ninf,1,1\n", "line 3"),
        (COUNTS + "0,many,1\n60,1,1\n", "us-east-1a: 'many' is not a count"),
        (COUNTS + "0,nan,1\n60,1,1\n", "us-east-1a"),
        (COUNTS + "0,-1,1\n60,1,1\n", "us-east-1a: data must be counts"),
        (COUNTS + "0,0.5,1\n60,1,1\n", "us-east-1a: data must be counts"),
        (COUNTS + "0,1,1\n60,1,1\n120,1,1\n210,1,1\n", "not at regular distances of 60 s"),
        (COUNTS + "0,1,1\n1,1,1\n2,1,1\n9e15,1,1\n", "the times cover more than"),
    ],
)
def test_bad_csv_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_csv("counts.csv", text)

    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ({}, "no prices for zone; it has none"),
        ({"other": [1, 1]}, "no prices for zone; it has other"),
        ({"zone": [1]}, "zone has 1 prices; its trace has 2 ticks"),
        ({"zone": [1, 1, 1]}, "zone has 3 prices"),
        ({"zone": [1, 0]}, "each price must be a number of USD above 0"),
        ({"zone": [1, -2]}, "each price must be"),
        ({"zone": [1, float("nan")]}, "each price must be"),
        ({"zone": [1, float("inf")]}, "each price must be"),
        ({"zone": [1, None]}, "each price must be"),
        ({"zone": ["1", 1]}, "each price must be"),
        ({"zone": [True, 1]}, "each price must be"),
        ({"zone": [[1], [1]]}, "each price must be"),
        ({"zone": 1}, "each price must be"),
        ({"zone": {}}, "each price must be"),
    ],
)
def test_bad_prices_are_refused(prices: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=r"^prices\.json: ") as refused:
        parse_prices(json.dumps(prices), [trace_of("10")], "prices.json")

    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("found", "together", "message"),
    [
        ([], False, "no trace was found"),
        ([trace_of("1"), trace_of("1")], False, "zone: 2 traces have this name"),
        ([trace_of("1", name="use1-az1_v100")], False, "is the id of a zone; name the zone"),
        ([trace_of("1"), trace_of("1", 60, "b")], False, "zone has ticks of 600 s, b of 60 s"),
        ([trace_of("1"), trace_of("11", name="b")], True, "zone has 1 ticks, b has 2"),
    ],
)
def test_traces_that_do_not_fit_are_refused(
    found: list[Trace], together: bool, message: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        check_together(found, together=together)

    assert message in str(refused.value)


def test_traces_of_other_lengths_can_be_replayed_apart() -> None:
    check_together([trace_of("1"), trace_of("11", name="b")], together=False)


def test_recordings_have_the_published_polarity_and_gaps() -> None:
    first = {trace.name: trace for trace in recorded(AWS_2022)}["us-west-2b_v100_1"]
    second = {trace.name: trace for trace in recorded(AWS_2023)}["us-west-2b_v100_1"]

    assert (first.gap_s, round(first.availability or 0, 3)) == (600, 0.716)
    assert (second.gap_s, round(second.availability or 0, 3)) == (195, 0.879)


def test_recorded_counts_have_one_gap_of_eleven_ticks() -> None:
    zones = parse_csv("counts.csv", (DATA / "gcp_h100" / "counts.csv").read_text(), gang=16)

    assert len(zones) == 10
    assert {zone.gap_s for zone in zones} == {600}
    assert {int((~zone.known).sum()) for zone in zones} == {10}


def test_recorded_prices_fit_their_traces() -> None:
    found = recorded(AWS_2023)

    prices = parse_prices((DATA / "aws_2023_02_15_prices.json").read_text(), found, "prices")

    assert {name: len(values) for name, values in prices.items()} == {
        trace.name: len(trace.available) for trace in found
    }

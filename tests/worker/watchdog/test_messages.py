"""Messages between wrappers survive a round trip, and other data is rejected."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from holdfast_worker.protocol.gpu_health import GpuReading, NodeGpus
from holdfast_worker.watchdog import messages
from holdfast_worker.watchdog.failure_cause import FailureCause
from holdfast_worker.watchdog.group_files import GroupAnswer, GroupRequest
from holdfast_worker.watchdog.hang_attribution import RankInspection
from holdfast_worker.watchdog.heartbeat import Heartbeat, Phase
from holdfast_worker.watchdog.hosting import Host
from holdfast_worker.watchdog.messages import (
    CauseReported,
    EndNodes,
    GroupDecision,
    GroupRequests,
    HostingDecision,
    InspectReply,
    InspectRequest,
    Message,
    NodeExited,
    RankPositions,
    RanksBegin,
    RanksReady,
    StopAll,
)
from hypothesis import given
from hypothesis import strategies as st

COUNTS = st.integers(0, 2**53 - 1)
NOW_S, ELSEWHERE_S = 5000.0, 90_000.0
CAUSES = st.builds(
    FailureCause,
    COUNTS,
    COUNTS,
    st.text(max_size=1000),
    *(st.booleans(), st.booleans(), st.booleans()),
)
HEARTBEATS = st.builds(
    Heartbeat,
    rank=COUNTS,
    phase=st.sampled_from(Phase),
    is_waiting=st.booleans(),
    step=COUNTS,
    steps_here=COUNTS,
    agreements=COUNTS,
    since_s=st.floats(0, NOW_S).map(lambda since_s: round(since_s, 3)),
)
GPUS = st.builds(
    NodeGpus,
    st.integers(0, 1000),
    st.just("hpc07"),
    st.just("2026-11-27T04:00:00Z"),
    st.lists(st.builds(GpuReading, gpu=st.integers(0, 7), temperature_c=COUNTS), max_size=3),
)
FINDINGS = st.builds(
    RankInspection,
    rank=COUNTS,
    is_stopped=st.booleans(),
    location=st.text(max_size=1000),
    is_in_torch=st.booleans(),
    collectives=st.dictionaries(st.text(max_size=20), COUNTS, max_size=3),
)
REQUESTS = st.builds(
    GroupRequest,
    rank=COUNTS,
    generation=COUNTS,
    address=st.text(max_size=100),
    is_new=st.booleans(),
    moves=st.booleans(),
)
ANSWERS = st.builds(
    GroupAnswer,
    generation=COUNTS,
    address=st.text(max_size=100),
    cause=st.text(max_size=1000),
    hosted=st.lists(COUNTS, max_size=3).map(tuple),
)
HOSTS = st.dictionaries(COUNTS, st.builds(Host, COUNTS, COUNTS), max_size=3)
MESSAGES = st.one_of(
    st.builds(RankPositions, st.lists(HEARTBEATS, max_size=4).map(tuple), st.none() | GPUS),
    st.builds(CauseReported, CAUSES),
    st.just(InspectRequest()),
    st.builds(InspectReply, st.lists(FINDINGS, max_size=4).map(tuple)),
    st.builds(StopAll, CAUSES),
    st.builds(NodeExited, COUNTS),
    st.builds(GroupRequests, st.lists(REQUESTS, max_size=4).map(tuple)),
    st.builds(GroupDecision, ANSWERS),
    st.just(RanksReady()),
    st.builds(RanksBegin, st.dictionaries(COUNTS, COUNTS, max_size=3)),
    st.builds(HostingDecision, HOSTS),
    st.builds(EndNodes, st.dictionaries(COUNTS, COUNTS, max_size=3), st.floats(NOW_S, 9e6)),
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(), inner, max_size=4),
)
KEYS = st.sampled_from(
    [
        *("pulses", "told", "ask", "found", "end", "bye", "waiting", "group"),
        *("ready", "hosts", "begin", "drill", "left"),
    ]
)


@given(MESSAGES)
def test_message_survives_a_round_trip(message: Message) -> None:
    sent = json.loads(json.dumps(messages.encode(message, NOW_S)))

    assert messages.decode(sent, NOW_S) == _rounded(message)


def test_times_are_sent_as_ages_because_clocks_differ() -> None:
    pulse = Heartbeat(rank=1, phase=Phase.STEPPING, since_s=NOW_S - 7)

    there = messages.decode(messages.encode(RankPositions((pulse,)), NOW_S), ELSEWHERE_S)

    assert there == RankPositions((replace(pulse, since_s=ELSEWHERE_S - 7),))


@given(st.dictionaries(KEYS | st.text(), JSON, max_size=2))
def test_arbitrary_input_is_refused_or_survives_a_round_trip(data: dict[str, Any]) -> None:
    try:
        read = messages.decode(data, NOW_S)
    except ValueError:
        return

    assert messages.decode(messages.encode(read, NOW_S), NOW_S) == _rounded(read)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"bye": -1},
        {"bye": "0"},
        {"ask": 1},
        {"told": [1, 2, "why"]},
        {"pulses": [[0, 1, 1, 1, 99, False, 0.0]]},
        {"pulses": [[0, 1, 1, 1, 5, False, float("nan")]]},
        {"pulses": [[0, 1, 1, 1, 5, False, float("inf")]]},
        {"pulses": [], "gpus": [{"gpu": 0}]},
        {"waiting": [[0, 1, "host:1"]]},
        {"begin": [[1, -1]]},
        {"begin": [[1]]},
        {"drill": [[1, 0]], "left": -1},
        {"drill": [[1, 0]]},
        {"found": [[0, True, "there", False, {"gloo 0": 1.5}]]},
    ],
)
def test_invalid_message_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"not a|no number|not readings"):
        messages.decode(data, NOW_S)


def _rounded(message: Message) -> Message:
    """A message with times rounded as by the conversion to ages and back."""
    if isinstance(message, EndNodes):
        return replace(message, end_s=NOW_S + round(message.end_s - NOW_S, 3))
    if not isinstance(message, RankPositions):
        return message
    positions = (
        replace(pulse, since_s=NOW_S - round(NOW_S - pulse.since_s, 3))
        for pulse in message.heartbeats
    )
    return RankPositions(tuple(positions), message.gpus)


def test_cause_of_the_previous_version_is_read() -> None:
    cause = FailureCause(1, 5, "a reason", has_rank_died=False)

    assert messages.decode({"told": [1, 5, "a reason", False, False]}, NOW_S) == CauseReported(
        cause
    )

"""Worker reports are parsed as a whole or rejected with a reason."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from holdfast.domain.events import (
    CheckpointCommitted,
    CheckpointFailed,
    GpuUnhealthy,
    LeftReason,
    NodesKept,
    PreemptionNoticed,
    RanksReplaced,
    RanksRestarted,
    RestoreStarted,
    RunDescribed,
    SavingFailed,
    TrainingStarted,
    WorkerFact,
    WorkerLeft,
)
from holdfast.domain.events.values import Interval, PassedOver
from holdfast.domain.jobs.reports import GpuReadings, Point, parse_report
from holdfast.errors import BadReport
from holdfast_worker.protocol.gpu_health import GpuFault, GpuReading, NodeGpus
from holdfast_worker.protocol.policies import ConsistencyGuarantee, OnFailure
from holdfast_worker.protocol.reports import Json, Report, ReportKind
from hypothesis import given
from hypothesis import strategies as st

REPORTED_AT = "2026-03-01T13:00:07+01:00"
AT = datetime(2026, 3, 1, 12, 0, 7, tzinfo=UTC)
SNAPSHOT = "2026-03-01T12:00:05Z"
CHECKPOINT: dict[str, Json] = {
    "step": 7,
    "checkpoint": "step-7",
    "size_bytes": 10,
    "stall_ms": 3,
    "upload_ms": 4,
    "snapshot_at": SNAPSHOT,
    "weights_sha256": "ab",
}
INTERVAL: dict[str, int] = {
    "interval_s": 600,
    "stall_ms": 300,
    "durable_ms": 8000,
    "between_failures_s": 6480,
    "losses": 1,
}
UNDERSTOOD: dict[ReportKind, tuple[dict[str, Json], WorkerFact | Point]] = {
    ReportKind.RESTORE_STARTED: (
        {"guarantee": "overwrites"},
        RestoreStarted(at=AT, attempt=2, guarantee=ConsistencyGuarantee.OVERWRITES),
    ),
    ReportKind.RUN_DESCRIBED: (
        {"manifest": {"world_size": 16, "config": {"lr": 0.0003}, "lock": ["torch==2.13.0"]}},
        RunDescribed(
            at=AT,
            attempt=2,
            manifest={"world_size": 16, "config": {"lr": 0.0003}, "lock": ["torch==2.13.0"]},
        ),
    ),
    ReportKind.TRAINING_STARTED: (
        {
            "step": 5,
            "total_steps": None,
            "world_size": 4,
            "restored_from": "step-5",
            "passed_over": [{"checkpoint": "step-7", "reason": "digest"}],
        },
        TrainingStarted(
            at=AT,
            attempt=2,
            step=5,
            total_steps=None,
            world_size=4,
            restored_from="step-5",
            passed_over=(PassedOver(checkpoint="step-7", reason="digest"),),
        ),
    ),
    ReportKind.PROGRESS: (
        {"step": 7, "values": {"loss": 0.5, "grad": math.inf}},
        Point(attempt=2, n=3, at=AT, step=7, values={"loss": 0.5, "grad": None}),
    ),
    ReportKind.CHECKPOINT_COMMITTED: (
        {**CHECKPOINT, "interval": INTERVAL},
        CheckpointCommitted(
            at=AT,
            attempt=2,
            step=7,
            checkpoint="step-7",
            size_bytes=10,
            stall_ms=3,
            upload_ms=4,
            snapshot_at=datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC),
            weights_sha256="ab",
            interval=Interval(**INTERVAL),
        ),
    ),
    ReportKind.CHECKPOINT_FAILED: (
        {"step": 7, "detail": "403"},
        CheckpointFailed(at=AT, attempt=2, step=7, detail="403"),
    ),
    ReportKind.SAVING_FAILED: (
        {"step": 7, "failures": 3, "safe_step": 4, "policy": "stop", "detail": "403"},
        SavingFailed(
            at=AT,
            attempt=2,
            step=7,
            failures=3,
            safe_step=4,
            policy=OnFailure.STOP,
            detail="403",
        ),
    ),
    ReportKind.PREEMPTION_NOTICED: (
        {"step": 7, "left_s": 110.5},
        PreemptionNoticed(at=AT, attempt=2, step=7, left_s=110.5),
    ),
    ReportKind.RANKS_RESTARTED: (
        {"step": 7, "exit_code": 137, "detail": "rank 1 was killed by signal 9"},
        RanksRestarted(
            at=AT, attempt=2, step=7, exit_code=137, detail="rank 1 was killed by signal 9"
        ),
    ),
    ReportKind.RANKS_REPLACED: (
        {"step": 7, "ranks": [1, 3], "cause": "rank 1 was killed by signal 9", "paused_ms": 800},
        RanksReplaced(
            at=AT,
            attempt=2,
            step=7,
            ranks=(1, 3),
            cause="rank 1 was killed by signal 9",
            paused_ms=800,
        ),
    ),
    ReportKind.GPUS_READ: (
        {"nodes": [{"node": 1, "host": "hpc07", "at": SNAPSHOT, "gpus": [{"gpu": 0}]}]},
        GpuReadings(attempt=2, at=AT, nodes=(NodeGpus(1, "hpc07", SNAPSHOT, [GpuReading(gpu=0)]),)),
    ),
    ReportKind.GPU_UNHEALTHY: (
        {
            "node": 1,
            "host": "hpc07",
            "gpu": 3,
            "name": "H100",
            "faults": ["off_bus"],
            "detail": "Xid 79",
            "since": SNAPSHOT,
        },
        GpuUnhealthy(
            at=AT,
            attempt=2,
            node=1,
            host="hpc07",
            gpu=3,
            name="H100",
            faults=(GpuFault.OFF_BUS,),
            detail="Xid 79",
            since=datetime.fromisoformat(SNAPSHOT),
        ),
    ),
    ReportKind.NODES_KEPT: (
        {"step": 7, "until": SNAPSHOT},
        NodesKept(at=AT, attempt=2, step=7, until=datetime.fromisoformat(SNAPSHOT)),
    ),
    ReportKind.WORKER_LEFT: (
        {"step": 7, "reason": "preempted", "exit_code": 75, "detail": ""},
        WorkerLeft(at=AT, attempt=2, step=7, reason=LeftReason.PREEMPTED, exit_code=75),
    ),
}


def report(
    kind: ReportKind, body: dict[str, Json], *, at: str = REPORTED_AT, attempt: int = 2
) -> Report:
    return Report(attempt, 3, at, kind, body)


@pytest.mark.parametrize("kind", ReportKind)
def test_every_report_kind_is_parsed(kind: ReportKind) -> None:
    body, meaning = UNDERSTOOD[kind]

    assert parse_report(report(kind, body)) == meaning


def test_report_names_missing_nodes_whose_ranks_are_hosted() -> None:
    body, meaning = UNDERSTOOD[ReportKind.RANKS_REPLACED]
    assert isinstance(meaning, RanksReplaced)

    hosted = parse_report(report(ReportKind.RANKS_REPLACED, {**body, "hosted_nodes": [2, 1]}))

    assert hosted == replace(meaning, hosted_nodes=(2, 1))
    assert meaning.hosted_nodes == (), "as in reports and events without the field"


def test_report_states_when_a_snapshot_in_memory_was_taken() -> None:
    body, meaning = UNDERSTOOD[ReportKind.TRAINING_STARTED]
    assert isinstance(meaning, TrainingStarted)

    resumed = parse_report(report(ReportKind.TRAINING_STARTED, {**body, "held_at": SNAPSHOT}))

    assert resumed == replace(meaning, held_at=datetime.fromisoformat(SNAPSHOT))
    assert meaning.held_at is None, "as in reports and events without the field"


def test_report_states_that_ranks_restarted_with_a_new_node() -> None:
    body, meaning = UNDERSTOOD[ReportKind.RANKS_RESTARTED]
    assert isinstance(meaning, RanksRestarted)

    restarted = parse_report(report(ReportKind.RANKS_RESTARTED, {**body, "node_lost": True}))

    assert restarted == replace(meaning, node_lost=True)
    assert not meaning.node_lost, "as in reports and events without the field"


@pytest.mark.parametrize("kind", ReportKind)
def test_report_is_read_back_unchanged_from_a_spool(kind: ReportKind) -> None:
    reported = report(kind, UNDERSTOOD[kind][0])

    assert Report.parse(reported.line()) == reported


@pytest.mark.parametrize(
    ("kind", "spoilt", "named"),
    [
        (ReportKind.CHECKPOINT_COMMITTED, {"step": None}, "step"),
        (ReportKind.CHECKPOINT_COMMITTED, {"size_bytes": -1}, "size_bytes"),
        (ReportKind.CHECKPOINT_COMMITTED, {"snapshot_at": "2026-03-01T12:00:05"}, "snapshot_at"),
        (ReportKind.CHECKPOINT_COMMITTED, {"interval": {"losses": 1}}, "interval"),
        (ReportKind.CHECKPOINT_COMMITTED, {"interval": {**INTERVAL, "losses": -1}}, "losses"),
        (ReportKind.CHECKPOINT_COMMITTED, {"interval": {**INTERVAL, "stall_ms": 2**70}}, "stall"),
        (ReportKind.PREEMPTION_NOTICED, {"left_s": math.nan}, "left_s"),
        (ReportKind.PREEMPTION_NOTICED, {"left_s": 1e300}, "left_s"),
        (ReportKind.TRAINING_STARTED, {"passed_over": [{"checkpoint": "x"}]}, "passed_over"),
        (ReportKind.TRAINING_STARTED, {"held_at": "2026-03-01T12:00:05"}, "held_at"),
        (ReportKind.RANKS_RESTARTED, {"node_lost": "perhaps"}, "node_lost"),
        (ReportKind.RANKS_REPLACED, {"step": -1}, "step: .*greater than or equal to 0"),
        (ReportKind.RANKS_REPLACED, {"ranks": None}, "ranks: .*valid tuple"),
        (ReportKind.RANKS_REPLACED, {"ranks": "1, 3"}, "ranks: .*valid tuple"),
        (ReportKind.RANKS_REPLACED, {"hosted_nodes": [-1]}, "hosted_nodes.0: .*greater than"),
        (ReportKind.RANKS_REPLACED, {"hosted_nodes": [1] * 1001}, "hosted_nodes: .*at most 1000"),
        (ReportKind.RANKS_REPLACED, {"ranks": [1, -3]}, "ranks.1: .*greater than or equal to 0"),
        (ReportKind.RANKS_REPLACED, {"ranks": [2**70]}, "ranks.0: "),
        (ReportKind.RANKS_REPLACED, {"ranks": [*range(4097)]}, "ranks: .*at most 4096 items"),
        (ReportKind.RANKS_REPLACED, {"cause": None}, "cause: .*valid string"),
        (ReportKind.RANKS_REPLACED, {"paused_ms": -1}, "paused_ms: "),
        (ReportKind.RANKS_REPLACED, {"paused_ms": math.inf}, "paused_ms: "),
        (ReportKind.GPUS_READ, {"nodes": None}, "nodes must list at most 1000 nodes"),
        (ReportKind.GPUS_READ, {"nodes": [{"node": 1}]}, "it needs node, host, at and gpus"),
        (
            ReportKind.GPUS_READ,
            {"nodes": [{"node": 0, "host": "", "at": "2026-03-01T12:00:05", "gpus": []}]},
            "timezone",
        ),
        (ReportKind.GPU_UNHEALTHY, {"gpu": -1}, "gpu: "),
        (ReportKind.GPU_UNHEALTHY, {"node": 2**31}, "node: "),
        (ReportKind.GPU_UNHEALTHY, {"faults": ["heat"] * 11}, "faults: .*at most 10 items"),
        (ReportKind.GPU_UNHEALTHY, {"faults": None}, "faults: "),
        (ReportKind.PROGRESS, {"step": "many"}, "valid integer"),
        (ReportKind.PROGRESS, {"step": 2**70}, "less than"),
        (ReportKind.PROGRESS, {"values": [1, 2]}, "names to numbers"),
    ],
)
def test_malformed_report_is_refused_with_a_reason(
    kind: ReportKind, spoilt: dict[str, Json], named: str
) -> None:
    body = UNDERSTOOD[kind][0]

    with pytest.raises(BadReport, match=f"report 3.*{named}"):
        parse_report(report(kind, {**body, **spoilt}))


@pytest.mark.parametrize("count", [0, 4096])
def test_report_of_few_or_many_replaced_ranks_is_accepted(count: int) -> None:
    body = UNDERSTOOD[ReportKind.RANKS_REPLACED][0]

    event = parse_report(report(ReportKind.RANKS_REPLACED, {**body, "ranks": [*range(count)]}))

    assert isinstance(event, RanksReplaced)
    assert event.ranks == tuple(range(count))


@pytest.mark.parametrize(
    ("kind", "later"),
    [
        (ReportKind.RESTORE_STARTED, {"guarantee": "eternal"}),
        (ReportKind.SAVING_FAILED, {"policy": "pray"}),
        (ReportKind.WORKER_LEFT, {"reason": "bored"}),
    ],
)
def test_value_of_a_newer_worker_is_skipped(kind: ReportKind, later: dict[str, Json]) -> None:
    assert parse_report(report(kind, {**UNDERSTOOD[kind][0], **later})) is None


@pytest.mark.parametrize("kind", ["node_measured", "cancel_requested", "submitted", ""])
def test_report_kind_of_a_newer_worker_is_skipped(kind: str) -> None:
    line = (
        f'{{"attempt":2,"n":3,"at":"{REPORTED_AT}","kind":"{kind}","body":{{"later":1}},"later":2}}'
    )

    assert parse_report(Report.parse(line)) is None


@pytest.mark.parametrize(
    "time", ["2026-03-01T12:00:00", "soon", "", "0001-01-01T00:00:00+14:00", "2026-13-01T00:00:00Z"]
)
def test_invalid_report_time_is_refused(time: str) -> None:
    with pytest.raises(BadReport, match="report 3"):
        parse_report(report(ReportKind.RESTORE_STARTED, {}, at=time))


@pytest.mark.parametrize("attempt", [-1, 2**31])
def test_invalid_attempt_number_is_refused(attempt: int) -> None:
    for kind in (ReportKind.RESTORE_STARTED, ReportKind.PROGRESS):
        with pytest.raises(BadReport, match="report 3"):
            parse_report(report(kind, {"step": 1}, attempt=attempt))


def test_body_cannot_override_attempt_or_time() -> None:
    reported = parse_report(report(ReportKind.RESTORE_STARTED, {"attempt": 9, "at": "1999-01-01"}))

    assert reported == RestoreStarted(at=AT, attempt=2)


@pytest.mark.parametrize("value", [10**400, -math.inf, math.nan, "0.5", None, [1]])
def test_non_finite_or_non_numeric_metric_leaves_a_gap(value: Json) -> None:
    point = parse_report(report(ReportKind.PROGRESS, {"step": 1, "values": {"loss": value}}))

    assert isinstance(point, Point)
    assert point.values == {"loss": None}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.sampled_from(ReportKind),
    st.dictionaries(
        st.sampled_from([*CHECKPOINT, "values", "reason", "exit_code", "left_s", "passed_over"])
        | st.sampled_from(["ranks", "cause", "paused_ms"])
        | st.text(),
        JSON,
    ),
    st.just(REPORTED_AT) | st.text() | st.datetimes().map(datetime.isoformat),
    st.integers(),
)
def test_arbitrary_report_is_parsed_or_rejected(
    kind: ReportKind, body: dict[str, Json], time: str, attempt: int
) -> None:
    result = report(kind, {**UNDERSTOOD[kind][0], **body}, at=time, attempt=attempt)

    with suppress(BadReport):
        reported = parse_report(result)
        if reported is None:
            return

        assert reported.attempt == attempt
        assert reported.at.utcoffset() == timedelta()


@pytest.mark.parametrize(
    "line",
    [
        *("", "{", '{"n": 1}', "[]", "null", "[" * 100_000),
        '{"attempt":1e999,"n":1,"at":"x","kind":"progress","body":{}}',
    ],
)
def test_a_torn_line_of_a_spool_is_no_report(line: str) -> None:
    with pytest.raises(ValueError, match="report"):
        Report.parse(line)


@given(st.integers(0, 200))
def test_a_report_cut_anywhere_is_no_report(kept: int) -> None:
    line = report(ReportKind.CHECKPOINT_COMMITTED, CHECKPOINT).line()
    torn = line[: min(kept, len(line) - 1)]

    with pytest.raises(ValueError, match="not a report"):
        Report.parse(torn)


def test_the_wire_is_plain_json_on_one_line() -> None:
    line = report(ReportKind.WORKER_LEFT, {"detail": "Traceback:\n  boom\u2028"}).line()

    assert len(line.splitlines()) == 1
    assert json.loads(line)["body"] == {"detail": "Traceback:\n  boom\u2028"}

"""Logs of simulated programs, derived from their reports so that both agree. Pure.

Printed lines stay, and new ones are appended, as in any log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from holdfast_worker.protocol.reports import Report, ReportKind

from holdfast.domain.jobs.observation import Placement

_UNPACKED: Final = (
    (1.0, "INFO holdfast: node {node} of {nodes}: {instance} in {zone}"),
    (3.5, "INFO holdfast: unpacking the working directory, 214 files"),
    (9.0, "Successfully installed torch-2.13.0 safetensors-0.7.0 numpy-2.4.1"),
    (12.0, "INFO holdfast-worker: 8 processes on this node, rendezvous at node 0"),
)
"""Lines that each node prints before its program starts, with seconds after its arrival."""


@dataclass(frozen=True, slots=True)
class DemoLog:
    """The current state of one log of one attempt."""

    attempt: int
    node: int
    rank: int | None
    text: bytes


def pages(
    attempt: int, placement: Placement, reports: Sequence[Report], now: datetime
) -> Iterator[DemoLog]:
    """Build the logs of a placement until now: one per node, and one of rank 0."""
    for node in range(placement.nodes):
        yield DemoLog(
            attempt, node, None, _text(_setup(node, placement, min(now, placement.lost_at or now)))
        )
    if reports:
        lines = (line for report in reports for line in _printed(report, placement))
        yield DemoLog(attempt, 0, 0, _text(lines))


def _text(lines: Iterator[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _setup(node: int, placement: Placement, until: datetime) -> Iterator[str]:
    words = {
        "node": node,
        "nodes": placement.nodes,
        "instance": placement.instance_type or "a node",
        "zone": placement.zone,
    }
    for after_s, line in _UNPACKED:
        at = placement.ready_at + timedelta(seconds=after_s + 0.4 * node)
        if at <= until:
            yield f"{_clock(at)} {line.format(**words)}"


def _printed(report: Report, placement: Placement) -> Iterator[str]:
    at, body = _clock(datetime.fromisoformat(report.at)), report.body
    match report.kind:
        case ReportKind.RESTORE_STARTED:
            yield f"{at} INFO holdfast_worker: looking for a checkpoint"
        case ReportKind.TRAINING_STARTED:
            found = body["restored_from"]
            yield f"{at} INFO holdfast_worker: {'resumed from ' + str(found) if found else 'starting at step 0'}, world size {body['world_size']}"
        case ReportKind.PROGRESS:
            values = body["values"]
            assert isinstance(values, dict)
            yield f"{at} step {body['step']:>7} " + " ".join(
                f"{name} {value}" for name, value in values.items()
            )
        case ReportKind.CHECKPOINT_COMMITTED:
            size = body["size_bytes"]
            assert isinstance(size, int)
            yield f"{at} INFO holdfast_worker: checkpoint {body['checkpoint']} is durable ({size / 2**30:.1f} GiB, training stopped for {body['stall_ms']} ms)"
        case ReportKind.PREEMPTION_NOTICED:
            yield f"{at} WARNING holdfast_worker: termination notice: this node stops in {body['left_s']} s; saving a checkpoint and exiting"
        case ReportKind.WORKER_LEFT:
            yield from _exit_lines(at, report, placement)
        case _:
            yield f"{at} INFO holdfast_worker: {report.kind.replace('_', ' ')}"


def _exit_lines(at: str, report: Report, placement: Placement) -> Iterator[str]:
    body = report.body
    if body["detail"]:
        yield "Traceback (most recent call last):"
        yield '  File "train.py", line 118, in <module>'
        yield "    main()"
        yield '  File "train.py", line 74, in main'
        yield "    loss = model(**batch).loss"
        yield str(body["detail"])
    yield f"{at} INFO holdfast_worker: exited after step {body['step']} ({body['reason']}), exit code {body['exit_code']}, in {placement.zone}"


def _clock(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"

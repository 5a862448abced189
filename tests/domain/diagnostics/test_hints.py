"""Hints: every documented symptom is recognized, with its remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.diagnostics.hints import Hint, LogExcerpt, failed_attempt, find_hints
from holdfast.domain.diagnostics.known_failures import ADVICE, FailurePattern
from holdfast.domain.diagnostics.timeline import timeline
from holdfast.domain.events import (
    Cause,
    Event,
    GpuUnhealthy,
    LeftReason,
    Outcome,
    RunDescribed,
)
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.jobs.reports import Point
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.gpu_health import GpuFault
from holdfast_worker.protocol.reports import RuntimeMetricName
from pydantic import JsonValue
from support.events import at, finished, launched, left, lost, ready, saved, submitted, training

DOCS = Path(__file__).parents[3] / "docs"
OOM = "[rank{}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.15 GiB"

LINES = [
    ("hpc07 proj=missing pkgs=missing", FailurePattern.MISSING_MODULE),
    ("ModuleNotFoundError: No module named 'datasets'", FailurePattern.MISSING_MODULE),
    (
        "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.1.1 as it may crash.",
        FailurePattern.NUMPY_2,
    ),
    (
        "ValueError: Unable to avoid copy while creating an array as requested.",
        FailurePattern.NUMPY_2,
    ),
    (
        "[E socket.cpp:957] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
        FailurePattern.PORT_IN_USE,
    ),
    (
        "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 2/4 clients joined.",
        FailurePattern.NO_RENDEZVOUS,
    ),
    (
        "[W socket.cpp:697] [c10d] The client socket has failed to connect to [hpc07]:29500 (errno: 113 - No route to host).",
        FailurePattern.NO_RENDEZVOUS,
    ),
    ("socket.gaierror: [Errno -2] Name or service not known", FailurePattern.NO_RENDEZVOUS),
    (
        "holdfast: node 2 cannot reach node 0 at 10.0.0.1:29500: timed out",
        FailurePattern.NO_RENDEZVOUS,
    ),
    (
        "UserWarning: This DataLoader will create 16 worker processes in total. Our suggested max number of worker in current system is 4",
        FailurePattern.TOO_MANY_THREADS,
    ),
    (
        "libgomp: Thread creation failed: Resource temporarily unavailable",
        FailurePattern.TOO_MANY_THREADS,
    ),
    ("PermissionError: [Errno 13] Permission denied: './tiny_out'", FailurePattern.NOT_WRITABLE),
    ("OSError: [Errno 28] No space left on device", FailurePattern.NOT_WRITABLE),
    (
        "[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE)",
        FailurePattern.COLLECTIVE_TIMEOUT,
    ),
    (
        "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 1800000ms for recv operation to complete",
        FailurePattern.COLLECTIVE_TIMEOUT,
    ),
    (
        "node1:812:812 [1] NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1a000",
        FailurePattern.DUPLICATE_GPU,
    ),
    ("RuntimeError: CUDA error: invalid device ordinal", FailurePattern.NO_SUCH_GPU),
    (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        FailurePattern.WRONG_DEVICE,
    ),
    (
        "RuntimeError: Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same",
        FailurePattern.WRONG_DEVICE,
    ),
    (
        "node1:77:77 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
        FailurePattern.WRONG_INTERFACE,
    ),
    (
        "node1:77:90 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 172.17.0.1<41355> failed : Connection refused",
        FailurePattern.WRONG_INTERFACE,
    ),
    ("step 412 loss nan", FailurePattern.NOT_FINITE),
    ("{'loss': nan, 'step': 412}", FailurePattern.NOT_FINITE),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", FailurePattern.GPU_BROKEN),
    (
        "RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed.",
        FailurePattern.HOST_MEMORY,
    ),
    (OOM.format(3), FailurePattern.GPU_MEMORY),
]


def crashed(message: str = "it fell", code: int = 1) -> list[Event]:
    """The events of a job whose second attempt failed with this message."""
    result = left(21, attempt=2, step=7, reason=LeftReason.FAILED, exit_code=code)
    return [
        submitted(),
        launched(),
        ready(10, attempt=1),
        training(11, attempt=1, step=0),
        lost(12, attempt=1, cause=Cause.PREEMPTED),
        ready(20, attempt=2),
        replace(training(20, attempt=2, step=0), world_size=4),
        replace(result, detail=message),
        lost(22, attempt=2, cause=Cause.USER_ERROR),
    ]


def points(attempt: int = 2, count: int = 40, **curves: object) -> list[Point]:
    """Points in which each value follows from the number of the point."""
    return [
        Point(
            attempt=attempt,
            n=n,
            at=at(100) + timedelta(seconds=n),
            step=n * 10,
            values={name: rule(n) for name, rule in curves.items()},  # type: ignore[operator]
        )
        for n in range(1, count + 1)
    ]


def patterns(found: Sequence[Hint]) -> list[FailurePattern]:
    return [hint.pattern for hint in found]


@pytest.mark.parametrize(("line", "failure"), LINES)
def test_log_line_matches_its_failure_pattern(line: str, failure: FailurePattern) -> None:
    printed = [LogExcerpt(2, 1, None, f"step 1\n{line}\nbye\n")]

    [hint] = find_hints(crashed(), [], printed)

    assert hint.pattern is failure
    assert hint.symptom == ADVICE[failure].symptom or failure is FailurePattern.GPU_MEMORY
    assert [(one.attempt, one.node, one.text) for one in hint.evidence] == [(2, 1, line)]


@pytest.mark.parametrize(
    "line",
    [
        "step 412 loss 0.31",
        "W0101 Setting OMP_NUM_THREADS environment variable for each process to be 1 in default",
        "node1:77:77 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
        "holdfast: the checkpoint store supports conditional writes",
        "connected to 10.0.0.1:29500",
        "nanotron: loss function is cross entropy",
    ],
)
def test_ordinary_output_gives_no_hints(line: str) -> None:
    assert find_hints(crashed(), [], [LogExcerpt(2, 0, 0, line)]) == []


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (Exit.APART, FailurePattern.DESYNC),
        (Exit.STALLED, FailurePattern.HANG),
        (137, FailurePattern.HOST_MEMORY),
    ],
)
def test_exit_code_hint_comes_first(code: int, failure: FailurePattern) -> None:
    found = find_hints(crashed("so it was", code), [], [LogExcerpt(2, 0, 0, OOM.format(0))])

    assert found[0].pattern is failure
    assert found[0].evidence[0].text == f"exit code {code}: so it was"


def test_exit_report_is_used_when_there_are_no_logs() -> None:
    assert patterns(find_hints(crashed(OOM.format(1)), [])) == [FailurePattern.GPU_MEMORY]


def test_recovered_failure_gives_no_hint() -> None:
    recorded = [*crashed(OOM.format(1)), ready(30, attempt=3), training(31, attempt=3, step=7)]
    again = [
        *recorded,
        replace(left(32, attempt=3, step=8, reason=LeftReason.FAILED, exit_code=1), detail="other"),
        lost(33, attempt=3, cause=Cause.USER_ERROR),
    ]

    assert failed_attempt(recorded) == 2
    assert failed_attempt(again) == 3
    assert find_hints(again, []) == []


def test_out_of_memory_on_one_rank_points_at_batches() -> None:
    one = find_hints(crashed(), [], [LogExcerpt(2, 0, None, OOM.format(3))])
    all_ = find_hints(
        crashed(), [], [LogExcerpt(2, 0, rank, OOM.format(rank)) for rank in range(4)]
    )

    assert one[0].symptom == ("The GPU of rank 3 ran out of memory; the other 3 ranks did not.")
    assert "pad or bucket" in one[0].remedy
    assert all_[0].symptom == ADVICE[FailurePattern.GPU_MEMORY].symptom
    assert [e.rank for e in all_[0].evidence] == [0, 1, 2, 3]


def test_job_without_checkpoints_gets_a_hint() -> None:
    recorded = [submitted(), launched(), ready(10, attempt=1), training(11, attempt=1, step=0)]
    through = finished(20, outcome=Outcome.SUCCEEDED)

    assert patterns(find_hints([*recorded, through], [])) == [FailurePattern.NOT_SAVED]
    assert find_hints([*recorded, saved(15, attempt=1, step=5), through], []) == []


@pytest.mark.parametrize(("threads", "is_too_many"), [("8", True), ("2", False), ("all", False)])
def test_threads_are_counted_against_cores(threads: str, is_too_many: bool) -> None:
    result = RunDescribed(
        at=at(11),
        attempt=1,
        manifest={
            "cpus": 16,
            "world_size": 16,
            "nodes": 2,
            "environment": {"OMP_NUM_THREADS": threads},
        },
    )

    found = find_hints([submitted(), launched(), ready(10, attempt=1), result], [])

    assert patterns(found) == [FailurePattern.TOO_MANY_THREADS] * is_too_many


@pytest.mark.parametrize(
    ("transport", "is_slow"), [("P2P + Socket", True), ("NVLink + IB", False), (None, False)]
)
def test_sockets_between_nodes_give_a_hint(transport: str | None, is_slow: bool) -> None:
    result = RunDescribed(at=at(11), attempt=1, manifest={"nccl_transport": transport})

    found = find_hints([submitted(), launched(), ready(10, attempt=1), result], [])

    assert patterns(found) == [FailurePattern.SOCKETS] * is_slow


@pytest.mark.parametrize(
    ("vital", "bad", "good", "failure"),
    [
        (RuntimeMetricName.COMMUNICATION, 0.25, 0.19, FailurePattern.SLOW_NETWORK),
        (RuntimeMetricName.LOADING, 0.4, 0.1, FailurePattern.SLOW_LOADING),
        (RuntimeMetricName.GPU_UTILIZATION, 0.55, 0.96, FailurePattern.IDLE_GPU),
    ],
)
def test_extreme_runtime_metric_gives_a_hint(
    vital: RuntimeMetricName, bad: float, good: float, failure: FailurePattern
) -> None:
    [hint] = find_hints([submitted()], points(**{vital: lambda _: bad}))

    assert hint.pattern is failure
    assert f"{bad:.0%}" in hint.evidence[0].text
    assert find_hints([submitted()], points(**{vital: lambda _: good})) == []
    assert find_hints([submitted()], points(count=6, **{vital: lambda _: bad})) == []


@pytest.mark.parametrize(
    ("loader", "evidence"),
    [
        ({"num_workers": 0, "pin_memory": False}, ["the data loader has num_workers=0 and pin_memory=False"]),
        ({"num_workers": 4, "pin_memory": False}, ["the data loader has pin_memory=False"]),
        ({"num_workers": 4, "pin_memory": True}, []),
        ({}, []),
    ],
)  # fmt: skip
def test_slow_data_loader_hint_names_its_settings(
    loader: dict[str, JsonValue], evidence: list[str]
) -> None:
    result = RunDescribed(at=at(11), attempt=2, manifest={"loader": loader})

    [hint] = find_hints([submitted(), result], points(**{RuntimeMetricName.LOADING: lambda _: 0.5}))

    assert [one.text for one in hint.evidence[1:]] == evidence


def unhealthy(attempt: int, *faults: GpuFault) -> GpuUnhealthy:
    """An event about the fourth GPU of the second node."""
    return GpuUnhealthy(
        at=at(20 * attempt), attempt=attempt, node=1, host="hpc07", gpu=3, faults=faults
    )


def test_hint_of_a_failure_names_the_broken_gpu_first() -> None:
    facts: list[Event] = [
        *(submitted(), launched(), ready(10), training(12)),
        unhealthy(1, GpuFault.NVLINK),
        unhealthy(1, GpuFault.NVLINK, GpuFault.OFF_BUS),
        left(22, step=5, reason=LeftReason.FAILED, exit_code=Exit.STALLED),
        lost(23, cause=Cause.USER_ERROR),
    ]
    hints = find_hints(facts, [])
    assert patterns(hints) == [FailurePattern.GPU_BROKEN, FailurePattern.HANG]
    assert [(one.node, one.text) for one in hints[0].evidence] == [
        (1, "GPU 3 of hpc07 (node 1) has errors of its NVLink; has fallen off the bus")
    ]


def test_broken_gpu_of_an_earlier_attempt_gives_no_hint() -> None:
    facts = [submitted(), launched(), ready(10), unhealthy(1, GpuFault.HEAT), lost(30)]
    assert patterns(find_hints(facts, [])) == [FailurePattern.GPU_BROKEN]
    assert find_hints([*facts, ready(40, attempt=2)], []) == []


def test_start_of_a_run_gives_no_hint() -> None:
    assert (
        find_hints(
            [submitted()], points(**{RuntimeMetricName.LOADING: lambda n: 0.9 if n < 10 else 0.02})
        )
        == []
    )


@pytest.mark.parametrize("vital", [RuntimeMetricName.HOST_MEMORY, RuntimeMetricName.GPU_MEMORY])
def test_linear_memory_growth_is_a_leak(vital: RuntimeMetricName) -> None:
    grows = points(**{vital: lambda n: 2**30 + n * 50e6 + (n % 3) * 1e6})
    full = points(**{vital: lambda n: min(2**30, n * 200e6)})
    wobbles = points(**{vital: lambda n: 2**30 + (n % 2) * 400e6})

    assert patterns(find_hints([submitted()], grows)) == [FailurePattern.LEAK]
    assert find_hints([submitted()], full) == []
    assert find_hints([submitted()], wobbles) == []


def test_non_finite_loss_hint_names_its_first_step() -> None:
    gone = points(**{"train/loss": lambda n: 0.5 if n < 30 else None})
    back = points(loss=lambda n: None if n == 30 else 0.5)

    [hint] = find_hints([submitted()], gone)

    assert hint.pattern is FailurePattern.NOT_FINITE
    assert hint.evidence[0].text == "train/loss has not been finite since step 300"
    assert find_hints([submitted()], back) == []


def test_exploding_gradients_are_detected_by_their_norm() -> None:
    found = find_hints([submitted()], points(grad_norm=lambda n: 1.0 if n < 38 else 10.0**n))

    assert patterns(found) == [FailurePattern.EXPLODING]
    assert find_hints([submitted()], points(grad_norm=lambda n: 1.0 + n % 5)) == []


def test_older_attempts_are_excluded_from_trends() -> None:
    old = points(attempt=1, **{RuntimeMetricName.LOADING: lambda _: 0.9})

    assert find_hints([submitted()], [*old, *points(attempt=2, loss=lambda _: 1.0)]) == []


def test_every_hint_has_advice_and_an_existing_page() -> None:
    pages = {advice.page for advice in ADVICE.values()} - {""}

    assert set(ADVICE) == set(FailurePattern)
    assert all((DOCS / page).is_file() for page in pages)


@pytest.mark.parametrize(
    ("symptom", "pattern", "remedy"),
    [
        (
            "hpc07 proj=missing pkgs=ok",
            FailurePattern.MISSING_MODULE,
            "set workdir: to the project",
        ),
        ("Unable to avoid copy while creating an array", FailurePattern.NUMPY_2, "numpy==1.26.4"),
        ("Address already in use", FailurePattern.PORT_IN_USE, "another port above 1024"),
        (
            "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 2/4 clients joined.",
            FailurePattern.NO_RENDEZVOUS,
            "firewall",
        ),
        ("libgomp: Thread creation failed", FailurePattern.TOO_MANY_THREADS, "OMP_NUM_THREADS"),
        (
            "PermissionError: [Errno 13] Permission denied: './tiny_out'",
            FailurePattern.NOT_WRITABLE,
            "writ",
        ),
    ],
)
def test_each_row_of_the_troubleshooting_table_has_its_remedy(
    symptom: str, pattern: FailurePattern, remedy: str
) -> None:
    [hint] = find_hints(crashed(), [], [LogExcerpt(2, 1, None, f"step 1\n{symptom}\n")])

    assert hint.pattern is pattern
    assert remedy in hint.remedy


def test_five_causes_of_failure_are_distinguished() -> None:
    """A broken GPU, a lost node, exhausted memory, a hanging collective, and a preemption."""
    lines = {
        FailurePattern.GPU_BROKEN: "CUDA error: uncorrectable ECC error encountered",
        FailurePattern.GPU_MEMORY: OOM.format(0),
        FailurePattern.COLLECTIVE_TIMEOUT: "Watchdog caught collective operation timeout: WorkNCCL",
    }
    found = {
        pattern: patterns(find_hints(crashed(), [], [LogExcerpt(2, 0, None, line)]))
        for pattern, line in lines.items()
    }
    began = [submitted(), launched(), ready(10, attempt=1), training(11, attempt=1, step=0)]
    losses = {
        cause: timeline(job, events, compute_bill(events, {}, at(99)))
        for cause in (Cause.NODE_FAILED, Cause.PREEMPTED)
        for events in [[*began, lost(20, attempt=1, cause=cause)]]
        for job in [fold("job-1", events)]
    }
    texts = {
        cause: " ".join(sentence.text for sentence in found_hints)
        for cause, found_hints in losses.items()
    }

    assert found == {pattern: [pattern] for pattern in lines}
    assert texts[Cause.NODE_FAILED] != texts[Cause.PREEMPTED]
    assert "preempted" in texts[Cause.PREEMPTED].lower()

"""Comparison of the step logs of two runs, and reduction of a job file to a local trial."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.errors import BadRequest
from holdfast.prove.job_file import preemption_steps, shortened_job
from holdfast.prove.step_logs import StepLogs, compare_steps

FILE = """
name: big
num_nodes: 2
run: holdfast-worker run train.py
envs: {LEVEL: "7", HOLDFAST_SEED: "3"}
resources: {infra: aws, accelerators: "A100:8", use_spot: true}
file_mounts: {/data: s3://bucket/data}
holdfast:
  checkpoint: {store: s3://bucket/prefix, every: 15m, keep: 5}
  limits: {max_cost_usd: 600}
  tags: {team: nlp}
  notify: [slack://x]
"""


def line(step: int, rank: int = 0, batch: str = "aa", **logged: float | None) -> str:
    found = {"rank": rank, "step": step, "batch": batch, "logged": logged}
    return f"holdfast: witness: {json.dumps(found)}"


def parsed_logs(*lines: str) -> StepLogs:
    logs = StepLogs()
    logs.parse(lines)
    return logs


UNINTERRUPTED = parsed_logs(line(0), line(1, loss=2.0), line(2, loss=1.5), line(0, rank=1), line(1, rank=1), line(2, rank=1))  # fmt: skip


def test_run_with_identical_repeated_steps_is_equal() -> None:
    """After a resume, the step before has no log line yet, which is no difference."""
    resumed = parsed_logs(
        line(0), line(1, loss=2.0), line(0, rank=1), "step 1/3  loss 2.0", line(1, rank=1),
        line(1), line(2, loss=1.5), line(1, rank=1), line(2, rank=1), line(2)[:40],
    )  # fmt: skip

    comparison = compare_steps(UNINTERRUPTED, resumed)

    assert (comparison.batches, comparison.other_batches) == (6, 0)
    assert (comparison.values, comparison.other_values, comparison.first_difference) == (2, 0, "")


@pytest.mark.parametrize(
    ("more", "others", "message"),
    [
        ([line(1, batch="bb")], (1, 0), "rank 0 received a different batch at step 1"),
        ([line(3)], (1, 0), "rank 0 received a different batch at step 3"),
        ([line(2, loss=1.6)], (0, 1), "loss of rank 0 differs after step 2"),
        ([line(2, loss=None)], (0, 1), "loss of rank 0 differs after step 2"),
    ],
)
def test_first_difference_of_two_runs_is_found(
    more: list[str], others: tuple[int, int], message: str
) -> None:
    parted = parsed_logs(line(0), line(1, loss=2.0), line(2, loss=1.5), *more, line(0, 1), line(1, 1), line(2, 1))  # fmt: skip

    comparison = compare_steps(UNINTERRUPTED, parted)

    assert (comparison.other_batches, comparison.other_values) == others
    assert comparison.first_difference == message


def test_missing_rank_counts_as_different_batches() -> None:
    assert compare_steps(UNINTERRUPTED, parsed_logs(line(0), line(1), line(2))).other_batches == 3
    assert compare_steps(parsed_logs(), parsed_logs()).batches == 0


@pytest.mark.parametrize(
    "logged_line", ["{}", "[1]", '{"step": 1, "rank": 0, "batch": "a"}', "{", "null"]
)
def test_malformed_step_log_lines_are_skipped(logged_line: str) -> None:
    assert parsed_logs(f"holdfast: witness: {logged_line}").batches == {}


def test_shortened_job_has_the_nodes_of_all_groups() -> None:
    groups = "groups: [{name: head, num_nodes: 1}, {name: workers, num_nodes: 2}]"
    text = f"run: x\nholdfast: {{checkpoint: {{store: file:///tmp/p}}, {groups}}}"

    task = shortened_job(text, name="proof", steps=60, step_ms=100)

    assert task["num_nodes"] == 3
    assert "groups" not in task["holdfast"]


def test_shortened_job_runs_locally_without_notifications() -> None:
    task = shortened_job(FILE, name="proof", steps=60, step_ms=100)

    parsed = parse_job_file(yaml.safe_dump(task))
    spec = parsed.spec
    assert (spec.engine, spec.num_nodes, spec.name) == ("local", 2, "proof")
    assert spec.envs == {
        "LEVEL": "7",
        "HOLDFAST_SEED": "3",
        "HOLDFAST_MAX_STEPS": "60",
        "HOLDFAST_WITNESS": "100",
        "HOLDFAST_DETERMINISTIC": "1",
        "OMP_NUM_THREADS": "1",
    }
    assert spec.holdfast.checkpoint
    assert (spec.holdfast.checkpoint.every, spec.holdfast.checkpoint.keep.last) == ("10 steps", 5)
    assert spec.holdfast.limits.max_cost_usd is None
    assert parsed.notify == ()
    assert spec.more == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: [", "not YAML"),
        ("- a list", "one mapping"),
        ("run: x", "names no checkpoint store"),
        ("run: x\nholdfast: {checkpoint: {every: 15m}}", "names no checkpoint store"),
        ("run: x\nholdfast: 5", "names no checkpoint store"),
    ],
)
def test_unprovable_job_file_is_rejected_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        shortened_job(text, name="proof", steps=60, step_ms=100)


def test_preemption_steps_are_evenly_spaced() -> None:
    assert preemption_steps(60, 2) == [20, 40]
    assert preemption_steps(24, 1) == [12]
    with pytest.raises(BadRequest, match="--steps 20: too few for 10 kills; use 33 or more"):
        preemption_steps(20, 10)


def test_malformed_envs_are_replaced_in_the_shortened_job() -> None:
    odd: dict[str, Any] = {"run": "x", "envs": 5, "holdfast": {"checkpoint": {"store": "file:///s"}}}  # fmt: skip

    assert shortened_job(yaml.safe_dump(odd), name="p", steps=6, step_ms=0)["envs"].keys() >= {"OMP_NUM_THREADS"}  # fmt: skip

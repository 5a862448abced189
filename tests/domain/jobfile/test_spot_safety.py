"""Jobs that would lose their work on spot nodes are refused."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobfile.spot_safety import (
    DEFAULT_LIFETIME_S,
    MIN_LOSSES,
    PRIORS_S,
    HistoricalLifetimes,
    accelerator_count,
    node_kind,
    safety_notes,
    spot_flaws,
)

AWS = {"infra": "aws", "accelerators": "A100:8"}
NONE = HistoricalLifetimes()


def spec(resources: dict[str, Any], every: str | None = "auto") -> JobSpec:
    """A job that saves at this interval; None: never."""
    block = {"checkpoint": {"store": "s3://bucket/prefix", "every": every}} if every else {}
    return parse_job_file(
        yaml.safe_dump({"run": "train", "resources": resources, "holdfast": block})
    ).spec


def refused(
    resources: dict[str, Any], every: str | None = "auto", past: HistoricalLifetimes = NONE
) -> list[str]:
    return [flaw.pointer for flaw in spot_flaws(spec(resources, every), past)]


@pytest.mark.parametrize(
    "resources",
    [
        AWS,
        {**AWS, "use_spot": True},
        {"accelerators": "A100:8"},
        {"ordered": [{"infra": "gcp", "use_spot": False}, {"infra": "aws"}]},
        {"infra": "kubernetes", "use_spot": True},
    ],
)
def test_spot_nodes_without_a_store_are_refused(resources: dict[str, Any]) -> None:
    assert refused(resources, None) == ["#/holdfast/checkpoint"]
    assert refused(resources) == []


@pytest.mark.parametrize(
    "resources",
    [
        {"infra": "local"},
        {**AWS, "use_spot": False},
        {"infra": "kubernetes"},
        {"infra": "lambda", "accelerators": "A100"},
        {"any_of": [{"infra": "lambda"}, {"infra": "aws", "use_spot": False}]},
    ],
)
def test_jobs_without_spot_nodes_need_no_checkpoints(resources: dict[str, Any]) -> None:
    assert refused(resources, None) == []


def test_fixed_interval_must_be_shorter_than_node_lifetime() -> None:
    many, few = PRIORS_S["aws", True], PRIORS_S["aws", False]

    assert refused(AWS, f"{many}s") == []
    assert refused(AWS, f"{many + 1}s") == ["#/holdfast/checkpoint/every"]
    assert refused({**AWS, "accelerators": "A100:1"}, f"{many + 1}s") == []
    assert refused({**AWS, "accelerators": {"A100": 1}}, f"{few + 1}s") == ["#/holdfast/checkpoint/every"]  # fmt: skip
    assert refused({"infra": "azure"}, f"{DEFAULT_LIFETIME_S + 1}s") == [
        "#/holdfast/checkpoint/every"
    ]


def test_refusal_states_node_lifetime_and_remedy() -> None:
    [flaw] = spot_flaws(spec(AWS, "2h"), NONE)

    assert flaw.message == (
        "is 2h, but such spot nodes are expected to last 55 min, according to traces of aws: most of them would be preempted "
        "before the first checkpoint; write auto, or a shorter time, or accept it with --force"
    )


def test_local_history_counts_once_large_enough() -> None:
    stable = HistoricalLifetimes(node_s=MIN_LOSSES * 36_000, losses=MIN_LOSSES)
    rough = HistoricalLifetimes(node_s=MIN_LOSSES * 600, losses=MIN_LOSSES)
    little = HistoricalLifetimes(node_s=600, losses=MIN_LOSSES - 1)

    assert refused(AWS, "2h", stable) == []
    assert refused(AWS, "15m", rough) == ["#/holdfast/checkpoint/every"]
    assert refused(AWS, "15m", little) == []


def test_step_intervals_are_not_checked_but_noted() -> None:
    steps = spec(AWS, "500 steps")

    assert spot_flaws(steps, NONE) == ()
    [note] = safety_notes(steps, NONE)
    assert note.startswith("holdfast.checkpoint.every: the duration of 500 steps is unknown")
    assert list(safety_notes(spec(AWS, "15m"), NONE)) == []


@pytest.mark.parametrize(
    ("accelerators", "count"),
    [
        (None, 0),
        ("A100", 2),
        ("A100:8", 16),
        ({"A100": None}, 2),
        (["H100:4", "A100:8"], 8),
        ("MyGPU:2.0", 4),
        ("A100:0.5", 2),
        ({"A100": 0.5}, 2),
        ("80GB+", 2),
        ("48GB:2", 4),
        ({"48GB": 2}, 4),
    ],
)
def test_accelerators_are_counted_in_every_spelling(accelerators: Any, count: int) -> None:
    file = {"run": "x", "num_nodes": 2, "resources": {"accelerators": accelerators}}
    job = JobSpec.model_validate({"name": "x", **file})

    assert accelerator_count(job) == count


@pytest.mark.parametrize(
    ("resources", "kind"),
    [
        (AWS, "aws/a100:8"),
        ({"accelerators": ["H100:4", "A100:8"]}, "any/h100:4"),
        ({"infra": "gcp/us-central1"}, "gcp/none:1"),
        ({"any_of": [{"infra": "aws"}], "accelerators": {"T4": 2}}, "aws/t4:2"),
    ],
)
def test_nodes_are_of_one_kind_by_cloud_and_accelerators(
    resources: dict[str, Any], kind: str
) -> None:
    assert node_kind(resources) == kind

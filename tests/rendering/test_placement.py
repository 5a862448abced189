"""The rendered task of one launch of a planned job, for each launcher."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from holdfast.domain.events.planning import CapacityType, LaunchPlacement
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.rendering import load, render, sbatch_options

SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND


def task(resources: dict[str, Any], capacity: CapacityType, *places: str) -> dict[str, Any]:
    fields = {
        "name": "tiny",
        "run": "holdfast-worker run train.py",
        "resources": resources,
        "holdfast": {"limits": {"max_hourly_cost_usd": 40}, "tags": {"team": "nlp"}},
    }
    spec = parse_job_file(yaml.safe_dump(fields)).spec
    return load(render(spec.with_placement(LaunchPlacement(capacity=capacity, places=places))).text)


CLOUDS = {
    "accelerators": "A100:8",
    "ordered": [
        {"infra": "aws/us-east-1", "max_hourly_cost": 30},
        {"infra": "gcp", "labels": {"second": "choice"}},
        {"infra": "aws/us-east-1", "use_spot": False, "max_hourly_cost": 30},
    ],
}
LABELS = {"holdfast-name": "tiny", "team": "nlp"}


@pytest.mark.parametrize(
    ("capacity", "strategy"), [(SPOT, "EAGER_NEXT_REGION"), (ON_DEMAND, "FAILOVER")]
)
def test_skypilot_gets_the_places_in_order(capacity: CapacityType, strategy: str) -> None:
    is_spot = capacity is SPOT

    assert task(CLOUDS, capacity, "gcp", "aws/us-east-1")["resources"] == {
        "use_spot": is_spot,
        "accelerators": "A100:8",
        "job_recovery": {
            "strategy": strategy,
            "max_restarts_on_errors": 2,
            "recover_on_exit_codes": [75],
        },
        "autostop": {"idle_minutes": 10, "down": True},
        "ordered": [
            {
                "infra": "gcp",
                "labels": {**LABELS, "second": "choice"},
                "use_spot": is_spot,
                "max_hourly_cost": 40.0,
            },
            {
                "infra": "aws/us-east-1",
                "max_hourly_cost": 30.0,
                "use_spot": is_spot,
                "labels": LABELS,
            },
        ],
    }


@pytest.mark.parametrize("capacity", CapacityType)
def test_skypilot_gets_one_place_without_a_list(capacity: CapacityType) -> None:
    found = task(CLOUDS, capacity, "aws/us-east-1")["resources"]

    assert {word: found[word] for word in ("infra", "use_spot", "max_hourly_cost", "labels")} == {
        "infra": "aws/us-east-1",
        "use_spot": capacity is SPOT,
        "max_hourly_cost": 30.0,
        "labels": LABELS,
    }
    assert "ordered" not in found


def test_slurm_gets_the_partitions_of_the_launch() -> None:
    entries = [
        {"infra": f"slurm/hpc/{name}", "use_spot": name != "normal"}
        for name in ("preempt", "lent", "normal")
    ]
    resources = {"infra": "slurm", "accelerators": "A100:4", "ordered": entries}

    spot = task(resources, SPOT, "slurm/hpc/lent", "slurm/hpc/preempt")
    on_demand = task(resources, ON_DEMAND, "slurm/hpc/normal")

    assert spot["resources"]["ordered"] == [entries[1], entries[0]]
    assert sbatch_options(spot) == [
        "--nodes=1",
        "--ntasks-per-node=1",
        "--partition=lent,preempt",
        "--gpus-per-node=4",
        "--open-mode=append",
        "--requeue",
        "--signal=B:USR1@120",
    ]
    assert "--partition=normal" in sbatch_options(on_demand)


@pytest.mark.parametrize("capacity", CapacityType)
def test_local_nodes_get_the_zones_of_their_market(capacity: CapacityType) -> None:
    found = task({"infra": "local"}, capacity, "local/local-b", "local/local-a")["resources"]

    is_spot = capacity is SPOT
    assert found == {
        "infra": "local",
        "use_spot": is_spot,
        "ordered": [
            {"infra": "local/local-b", "use_spot": is_spot},
            {"infra": "local/local-a", "use_spot": is_spot},
        ],
    }

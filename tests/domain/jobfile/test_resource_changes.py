"""A job file with other nodes."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast.domain.jobfile.resource_changes import ResourceChanges, describe, differences
from holdfast.domain.jobfile.spec import JobSpec


def spec_of(resources: dict[str, Any], **values: Any) -> JobSpec:
    return JobSpec(name="a", run="x", resources=resources, **values)


def test_new_accelerators_replace_hardware_of_all_alternatives() -> None:
    before = {
        "any_of": [
            {"infra": "aws", "instance_type": "p4d.24xlarge"},
            {"infra": "gcp", "accelerators": "A100:8"},
        ],
        "job_recovery": "FAILOVER",
    }

    after = ResourceChanges(gpus="H100:8").resources(before)

    assert after == {
        "any_of": [{"infra": "aws"}, {"infra": "gcp"}],
        "job_recovery": "FAILOVER",
        "accelerators": "H100:8",
    }


def test_new_place_replaces_all_places() -> None:
    before = {"accelerators": "A100:8", "ordered": [{"infra": "aws"}, {"infra": "gcp"}]}

    after = ResourceChanges(infra="slurm/gpu").resources(before)

    assert after == {"accelerators": "A100:8", "infra": "slurm/gpu"}


def test_capacity_holds_for_all_alternatives() -> None:
    before = {"any_of": [{"infra": "aws", "use_spot": True}, {"infra": "aws", "use_spot": False}]}

    after = ResourceChanges(is_spot=False).resources(before)

    assert after == {"any_of": [{"infra": "aws"}], "use_spot": False}


@pytest.mark.parametrize(
    ("resources", "pointer"),
    [
        ({"any_of": [{"infra": "aws", "accelerators": "A100"}]}, "#/gpus"),
        ({"infra": "aws", "instance_type": "p4d.24xlarge"}, "#/gpus"),
        ({"infra": "aws", "image_id": "ami-1"}, "#/infra"),
        ({"infra": "aws", "image_id": "docker:nvcr.io/pytorch"}, None),
        ({"infra": "gcp/us-central1", "instance_type": "a2"}, None),
    ],
)
def test_values_of_another_cloud_do_not_follow(
    resources: dict[str, Any], pointer: str | None
) -> None:
    flaws = list(ResourceChanges(infra="gcp").flaws(spec_of(resources), "job-1"))

    assert [flaw.pointer for flaw in flaws] == ([pointer] if pointer else [])


def test_node_groups_keep_their_nodes() -> None:
    groups = [{"name": "a", "num_nodes": 1}, {"name": "b", "num_nodes": 1}]
    spec = spec_of({"infra": "aws"}, num_nodes=2, holdfast={"groups": groups})

    [flaw] = ResourceChanges(nodes=4).flaws(spec, "job-1")

    assert flaw.pointer == "#/holdfast/groups"
    assert "have num_nodes and resources of their own, which a resume cannot change" in flaw.message
    assert "submit it with holdfast.checkpoint.from: job-1" in flaw.message
    assert not [*ResourceChanges().flaws(spec, "job-1")]


def test_differences_are_phrases() -> None:
    before = spec_of({"infra": "aws/us-east-1", "accelerators": {"A100": 8}}, num_nodes=2)
    after = spec_of({"infra": "slurm/gpu"}, num_nodes=4, min_nodes=2)

    assert differences(before, after) == (
        "nodes 2-4 instead of 2",
        "GPUs of each node none instead of A100:8",
        "place slurm/gpu instead of aws/us-east-1",
        "capacity own instead of spot",
    )
    assert differences(before, before) == ()
    assert describe(spec_of({"infra": "slurm", "use_spot": True}))["capacity"] == "spot"
    assert describe(spec_of({"infra": "local"}))["place"] == "local"


def test_changes_without_values_are_false() -> None:
    assert not ResourceChanges()
    assert ResourceChanges(is_spot=False)

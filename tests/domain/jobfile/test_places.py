"""Places of a job: their names, what is sold there, and which place an observed zone is."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from holdfast.domain.events.planning import CapacityType, LaunchPlacement
from holdfast.domain.jobfile.parser import Overrides, parse_job_file
from holdfast.domain.jobfile.places import (
    is_within,
    place_of,
    planned_place_flaws,
    with_zones_last,
)
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.errors import BadJobFile
from holdfast.rendering import read_and_render

SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
BOTH = {SPOT, ON_DEMAND}


def spec(**resources: Any) -> JobSpec:
    return parse_job_file(yaml.safe_dump({"run": "true", "resources": resources})).spec


def names(**resources: Any) -> list[str]:
    return [place.name for place in spec(**resources).places]


def capacities(**resources: Any) -> dict[str, set[CapacityType]]:
    return {place.name: set(place.capacities) for place in spec(**resources).places}


def launch(capacity: CapacityType, *places: str) -> LaunchPlacement:
    return LaunchPlacement(capacity=capacity, places=places)


# Names


@pytest.mark.parametrize(
    ("infra", "name", "region"),
    [
        ("AWS/us-east-1/us-east-1a", "aws/us-east-1/us-east-1a", "aws/us-east-1"),
        ("gcp/us-central1/", "gcp/us-central1", "gcp/us-central1"),
        ("gcp/*/*", "gcp", "gcp"),
        ("*/us-west-2", "*/us-west-2", "*/us-west-2"),
        ("k8s/Lab", "kubernetes/lab", "kubernetes/lab"),
        ("slurm/hpc/GPU", "slurm/hpc/gpu", "slurm/hpc"),
        ("slurm/hpc/gpu/low", "slurm/hpc/gpu/low", "slurm/hpc"),
        ("slurm/*/gpu", "slurm/*/gpu", "slurm/*"),
        (None, "any", "any"),
        ("*", "any", "any"),
    ],
)
def test_place_is_named_by_its_infra(infra: str | None, name: str, region: str) -> None:
    [place] = spec(infra=infra).places

    assert (place.name, place.infra, place.region) == (name, name, region)


@pytest.mark.parametrize("word", ["any_of", "ordered"])
def test_places_have_the_order_of_the_file(word: str) -> None:
    assert names(**{word: [{"infra": "gcp"}, {"infra": "aws/us-east-2"}, {}]}) == [
        "gcp",
        "aws/us-east-2",
        "any",
    ]


def test_other_nodes_in_the_same_place_get_a_number() -> None:
    entries = [{"accelerators": kind} for kind in ("A100:8", "H100:8", "A100:8", "L4:8")]

    assert names(infra="aws", ordered=entries) == ["aws", "aws#2", "aws#3"]


def test_common_options_count_for_names() -> None:
    entries = [{"infra": "aws"}, {"infra": "aws", "accelerators": "A100:8"}]

    assert names(accelerators="A100:8", ordered=entries) == ["aws"]


# Capacity types


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"infra": "aws"}, BOTH),
        ({"infra": "aws", "use_spot": True}, BOTH),
        ({"infra": "aws", "use_spot": False}, {ON_DEMAND}),
        ({"infra": "lambda", "use_spot": True}, {ON_DEMAND}),
        ({"infra": "kubernetes"}, {ON_DEMAND}),
        ({"infra": "kubernetes", "use_spot": True}, BOTH),
        ({"infra": "slurm/hpc/preempt", "use_spot": True}, {SPOT}),
        ({"infra": "slurm/hpc/normal"}, {ON_DEMAND}),
    ],
)
def test_capacity_types_of_a_place(options: dict[str, Any], expected: set[CapacityType]) -> None:
    [place] = spec(**options).places

    assert place.capacities == expected
    assert place.sells_spot is (SPOT in expected)


def test_fallback_to_on_demand_is_no_place_of_its_own() -> None:
    entries = [{"infra": "aws"}, {"infra": "gcp"}, {"infra": "aws", "use_spot": False}]

    assert capacities(ordered=entries) == {"aws": BOTH, "gcp": BOTH}


# Observed zones


@pytest.mark.parametrize(
    ("cloud", "zone", "name"),
    [
        ("aws", "aws/us-east-1/us-east-1a", "aws/us-east-1/us-east-1a"),
        ("AWS", "us-east-1/us-east-1A", "aws/us-east-1/us-east-1a"),
        ("", "aws/us-east-1/us-east-1b", "aws"),
        ("aws", "aws/us-east-11", "aws"),
        ("aws", "", "aws"),
        ("gcp", "gcp/us-central1/us-central1-a", "gcp/us-central1"),
        ("gcp", "gcp/us-central1", "gcp/us-central1"),
        ("azure", "azure/us-west-2", "*/us-west-2"),
        ("gcp", "gcp/europe-west4", None),
        ("", "unknown", None),
    ],
)
def test_observed_zone_belongs_to_the_most_specific_place(
    cloud: str, zone: str, name: str | None
) -> None:
    infras = ["aws", "aws/us-east-1/us-east-1a", "gcp/us-central1", "*/us-west-2"]
    places = spec(ordered=[{"infra": infra} for infra in infras]).places

    found = place_of(places, cloud, zone)

    assert (found and found.name) == name


def test_any_place_matches_all_zones() -> None:
    places = spec(any_of=[{}, {"infra": "aws"}]).places

    found = [place_of(places, "", zone) for zone in ("gcp/us-central1", "aws/us-east-1", "")]

    assert [place and place.name for place in found] == ["any", "aws", "any"]


def test_denied_region_belongs_to_its_only_zone() -> None:
    places = spec(ordered=[{"infra": f"aws/us-east-{zone}"} for zone in ("1/1a", "2/2a", "2/2b")])

    found = [place_of(places.places, "", f"aws/us-east-{number}") for number in (1, 2)]

    assert [place and place.name for place in found] == ["aws/us-east-1/1a", None]


@pytest.mark.parametrize(
    ("zone", "name"),
    [("hpc/gpu", "slurm/*/gpu"), ("hpc/gpu/low", "slurm/hpc/gpu/low"), ("hpc/cpu", None)],
)
def test_partitions_are_matched_with_their_quality(zone: str, name: str | None) -> None:
    entries = [{"infra": "slurm/*/gpu"}, {"infra": "slurm/hpc/gpu/low", "use_spot": True}]

    found = place_of(spec(infra="slurm", ordered=entries).places, "", f"slurm/{zone}")

    assert (found and found.name) == name


# Launches

CANDIDATES = {
    "accelerators": "A100:8",
    "ordered": [
        {"infra": "aws/us-east-1", "labels": {"first": "choice"}, "max_hourly_cost": 9.0},
        {"infra": "gcp", "job_recovery": "FAILOVER"},
        {"infra": "aws/us-east-1", "accelerators": "H100:8", "use_spot": False},
        {"infra": "lambda"},
    ],
}


def test_job_without_a_placement_is_launched_as_written() -> None:
    job = spec(**CANDIDATES)

    assert job.with_placement(None) is job


def test_launch_has_its_places_in_the_order_of_the_plan() -> None:
    job = spec(**CANDIDATES).with_placement(launch(SPOT, "gcp", "aws/us-east-1"))

    assert job.resources == {
        "accelerators": "A100:8",
        "use_spot": True,
        "job_recovery": "FAILOVER",
        "ordered": [
            {"infra": "gcp", "job_recovery": "FAILOVER", "use_spot": True},
            {
                "infra": "aws/us-east-1",
                "labels": {"first": "choice"},
                "max_hourly_cost": 9.0,
                "use_spot": True,
            },
        ],
    }


def test_launch_in_one_place_has_no_list() -> None:
    job = spec(**CANDIDATES).with_placement(launch(ON_DEMAND, "aws/us-east-1#2"))

    assert job.resources == {
        "accelerators": "H100:8",
        "infra": "aws/us-east-1",
        "use_spot": False,
        "job_recovery": "FAILOVER",
    }


def test_on_demand_launch_may_use_every_place() -> None:
    names = ("aws/us-east-1#2", "lambda", "gcp", "aws/us-east-1")

    job = spec(**CANDIDATES).with_placement(launch(ON_DEMAND, *names))

    assert [entry["use_spot"] for entry in job.resources["ordered"]] == [False] * 4
    assert [place.name for place in job.places] == ["aws/us-east-1", "lambda", "gcp", "aws/us-east-1#2"]  # fmt: skip


def test_slurm_launch_has_a_list_even_of_one_partition() -> None:
    job = spec(infra="slurm/hpc/gpu", cpus=4).with_placement(launch(ON_DEMAND, "slurm/hpc/gpu"))

    assert job.engine is Engine.SLURM
    assert job.resources["ordered"] == [{"infra": "slurm/hpc/gpu", "cpus": 4, "use_spot": False}]


def test_preemptible_partition_has_no_on_demand_nodes() -> None:
    job = spec(infra="slurm/hpc/preempt", use_spot=True)

    with pytest.raises(BadJobFile, match="has no on-demand nodes in slurm/hpc/preempt"):
        job.with_placement(launch(ON_DEMAND, "slurm/hpc/preempt"))


def test_local_launch_has_the_zones_of_the_market() -> None:
    job = spec(infra="local", cpus=2).with_placement(launch(SPOT, "local/local-b", "local/local-a"))

    assert job.resources == {
        "infra": "local",
        "cpus": 2,
        "use_spot": True,
        "ordered": [
            {"infra": "local/local-b", "use_spot": True},
            {"infra": "local/local-a", "use_spot": True},
        ],
    }


@pytest.mark.parametrize(
    ("capacity", "places", "message"),
    [
        (SPOT, ["azure"], "has no place 'azure' any more, which this launch asks for"),
        (SPOT, ["lambda"], "has no spot nodes in lambda, which this launch asks for"),
        (SPOT, ["aws/us-east-1#2"], "has no spot nodes in aws/us-east-1#2"),
        (SPOT, [], "has no place for a launch"),
    ],
)
def test_nothing_on_demand_is_in_a_spot_launch(
    capacity: CapacityType, places: list[str], message: str
) -> None:
    with pytest.raises(BadJobFile) as refusal:
        spec(**CANDIDATES).with_placement(launch(capacity, *places))

    [issue] = refusal.value.issues
    assert issue.pointer == "#/resources"
    assert issue.message.startswith(message)
    assert issue.message.endswith("; submit the job again")


# Mistakes


@pytest.mark.parametrize("word", ["any_of", "ordered"])
def test_zones_of_local_nodes_are_not_for_job_files(word: str) -> None:
    file = {"run": "true", "resources": {"infra": "local", word: [{"infra": "local/local-a"}]}}

    with pytest.raises(BadJobFile) as refusal:
        read_and_render(yaml.safe_dump(file), Overrides())

    [issue] = refusal.value.issues
    assert issue.pointer == f"#/resources/{word}/0/infra"
    assert issue.message == (
        "is local/local-a, and the zones of local nodes are those of the market; write infra: local under resources, "
        "and remove this entry"
    )


PREEMPTIBLE = {"infra": "slurm/hpc/preempt", "use_spot": True}


@pytest.mark.parametrize(
    ("name", "around", "within"),
    [
        ("aws/us-east-1/us-east-1a", "aws/us-east-1", True),
        ("aws/us-east-1", "aws/us-east-1#2", True),
        ("aws/us-east-1#2", "AWS", True),
        ("gcp", "any", True),
        ("aws/us-west-2/us-west-2a", "*/us-west-2", True),
        ("aws/us-east-1", "aws/us-east-1/us-east-1a", False),
        ("aws/us-east-10", "aws/us-east-1", False),
        ("any", "gcp", False),
    ],
)
def test_place_is_within_another_one(name: str, around: str, within: bool) -> None:
    assert is_within(name, around) is within


@pytest.mark.parametrize(
    ("resources", "place", "message"),
    [
        (
            {"ordered": [{"infra": "aws"}, PREEMPTIBLE]},
            "#/resources/ordered/1/infra",
            (
                "is slurm/hpc/preempt in a list for SkyPilot, which knows no spot nodes on Slurm; for a plan of partitions "
                "write infra: slurm under resources as well, or remove this entry"
            ),
        ),
        (
            {"infra": "aws", "use_spot": False},
            "#/resources",
            (
                "names no place with spot nodes, so there is nothing to plan; remove use_spot: false, or name a cloud with "
                "spot nodes, or remove holdfast.plan"
            ),
        ),
        (
            {"infra": "slurm/hpc/normal"},
            "#/resources",
            (
                "names no place with spot nodes, so there is nothing to plan; write use_spot: true in the entry of a "
                "partition whose jobs can be preempted, or remove holdfast.plan"
            ),
        ),
        (
            {"infra": "slurm", "any_of": [PREEMPTIBLE]},
            "#/resources",
            (
                "names only partitions whose jobs can be preempted, so no plan can keep a deadline; add another one, or "
                "write holdfast.plan.on_demand: false"
            ),
        ),
    ],
)
def test_places_that_no_plan_can_use(resources: dict[str, Any], place: str, message: str) -> None:
    is_slurm = spec(**resources).engine is Engine.SLURM

    [issue] = planned_place_flaws(resources, is_slurm=is_slurm, on_demand=True)

    assert (issue.pointer, issue.message) == (place, message)


@pytest.mark.parametrize(
    ("resources", "on_demand"),
    [
        ({}, True),
        ({"infra": "aws"}, False),
        ({"infra": "slurm", "any_of": [PREEMPTIBLE]}, False),
        ({"infra": "slurm", "any_of": [PREEMPTIBLE, {"infra": "slurm/hpc/normal"}]}, True),
    ],
)
def test_places_that_a_plan_can_use(resources: dict[str, Any], on_demand: bool) -> None:
    is_slurm = spec(**resources).engine is Engine.SLURM

    assert not list(planned_place_flaws(resources, is_slurm=is_slurm, on_demand=on_demand))


# Zones that are tried last

EAST, WEST = {"infra": "aws/us-east-1"}, {"infra": "aws/us-west-2", "use_spot": True}
EAST_A = "us-east-1/us-east-1a"


@pytest.mark.parametrize("word", ["any_of", "ordered"])
def test_entry_with_an_avoided_zone_is_tried_last(word: str) -> None:
    resources = {"accelerators": "H100:8", word: [EAST, {"infra": "gcp"}, WEST]}
    assert with_zones_last(resources, [("AWS", EAST_A)]) == {
        "accelerators": "H100:8",
        "ordered": [{"infra": "gcp"}, WEST, EAST],
    }


@pytest.mark.parametrize(
    ("resources", "zone"),
    [
        (EAST, EAST_A),
        ({"any_of": [EAST, WEST]}, "eu-west-1/eu-west-1a"),
        ({"any_of": [EAST, {"infra": f"aws/{EAST_A}"}]}, EAST_A),
        ({"any_of": [{"infra": "aws"}, {"infra": "gcp"}]}, EAST_A),
        ({"infra": "aws/us-east-1", "any_of": [{"accelerators": "A100"}, {"cpus": 2}]}, EAST_A),
    ],
)
def test_resources_without_another_place_are_unchanged(
    resources: dict[str, Any], zone: str
) -> None:
    assert with_zones_last(resources, [("aws", zone)]) == resources

"""Node groups of a job file: what they mean, and the sentence for each mistake."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from holdfast.domain.diagnostics.manifests import job_file
from holdfast.domain.jobfile.confinement import engines_of
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.domain.jobfile.spot_safety import HistoricalLifetimes, accelerator_count, spot_flaws
from holdfast.errors import BadJobFile
from holdfast.rendering import render

HEAD = {"name": "head", "num_nodes": 1, "resources": {"infra": "aws/us-east-1", "use_spot": False}}
WORKERS = {"name": "workers", "num_nodes": 2, "resources": {"infra": "aws/us-east-2"}}
A100 = {"accelerators": "A100:8"}


def parsed(groups: Any, **fields: Any) -> JobSpec:
    block = {"groups": groups, **fields.pop("holdfast", {})}
    return parse_job_file(yaml.safe_dump({"run": "train", **fields, "holdfast": block})).spec


def flaws(groups: Any, **fields: Any) -> dict[str, str]:
    with pytest.raises(BadJobFile) as refused:
        render(parsed(groups, **fields))
    return {issue.pointer: issue.message for issue in refused.value.issues}


def test_nodes_are_numbered_over_all_groups() -> None:
    spec = parsed([HEAD, WORKERS], resources=A100)

    assert (spec.num_nodes, spec.min_nodes, spec.engine) == (3, None, Engine.SKYPILOT)
    assert [(part.name, part.first_node, part.num_nodes) for part in spec.parts] == [
        ("head", 0, 1),
        ("workers", 1, 2),
    ]
    assert JobSpec.from_stored(spec.model_dump(mode="json")).parts == spec.parts
    again = parse_job_file(yaml.safe_dump(job_file(spec))).spec
    assert again.parts == spec.parts


def test_resources_of_a_group_are_merged_over_those_of_the_job() -> None:
    common = {**A100, "disk_size": 512, "labels": {"team": "nlp"}}
    own = {"accelerators": "T4:1", "labels": {"tier": "head"}}
    spec = parsed([{"name": "a", "num_nodes": 1, "resources": own}, WORKERS], resources=common)

    assert spec.parts[0].resources == {
        "accelerators": "T4:1",
        "disk_size": 512,
        "labels": {"team": "nlp", "tier": "head"},
    }


@pytest.mark.parametrize("own", [{"infra": "gcp"}, {"any_of": [{"infra": "gcp"}]}, {"ordered": [{"infra": "gcp"}]}])  # fmt: skip
def test_place_of_a_group_replaces_all_places_of_the_job(own: dict[str, Any]) -> None:
    common = {**A100, "infra": "aws", "any_of": [{"infra": "aws"}, {"infra": "azure"}]}
    spec = parsed([{"name": "a", "num_nodes": 1, "resources": own}, WORKERS], resources=common)

    [option] = spec.parts[0].options
    assert (option.cloud, option.options["accelerators"]) == ("gcp", "A100:8")


def test_group_without_a_place_has_those_of_the_job() -> None:
    common = {"any_of": [{"infra": "aws"}, {"infra": "gcp"}]}
    spec = parsed([{"name": "a", "num_nodes": 1, "resources": A100}, WORKERS], resources=common)

    assert [option.cloud for option in spec.parts[0].options] == ["aws", "gcp"]


def test_deprecated_keys_of_a_group_are_migrated() -> None:
    group = {"name": "a", "num_nodes": 1, "resources": {"cloud": "aws", "spot_recovery": "auto"}}
    text = yaml.safe_dump({"run": "x", "holdfast": {"groups": [group, WORKERS]}})

    found = parse_job_file(text)

    assert found.spec.parts[0].resources["infra"] == "aws"
    assert any(note.startswith("holdfast.groups[0].resources: spot_rec") for note in found.notes)


def test_range_of_an_elastic_job_has_the_sum_as_its_maximum() -> None:
    spec = parsed([HEAD, WORKERS], num_nodes={"min": 2, "max": 3})

    assert (spec.num_nodes, spec.min_nodes) == (3, 2)


@pytest.mark.parametrize(
    ("groups", "fields", "pointer", "message"),
    [
        ([HEAD], {}, "#/holdfast/groups", "has one group; write at least 2, or remove groups"),
        ([HEAD, {**WORKERS, "name": "head"}], {}, "#/holdfast/groups/1/name", "is 'head', which is the name of group 0 as well"),
        ([HEAD, {**WORKERS, "name": "Workers"}], {}, "#/holdfast/groups/1/name", "'Workers' is not a name of a group; write at most 20"),
        ([HEAD, {**WORKERS, "name": "w" * 21}], {}, "#/holdfast/groups/1/name", f"'{'w' * 21}' is not a name of a group"),
        ([HEAD, {"num_nodes": 2}], {}, "#/holdfast/groups/1/name", "is missing; write one, such as workers"),
        ([HEAD, {"name": "b"}], {}, "#/holdfast/groups/1/num_nodes", "is missing; write the number of nodes of the group"),
        ([HEAD, {**WORKERS, "num_nodes": 0}], {}, "#/holdfast/groups/1/num_nodes", "0 is not a number of nodes; write a whole number"),
        ([HEAD, {**WORKERS, "num_nodes": True}], {}, "#/holdfast/groups/1/num_nodes", "True is not a number of nodes"),
        ([HEAD, {**WORKERS, "nodes": 2}], {}, "#/holdfast/groups/1/nodes", "unknown key; did you mean 'num_nodes'?"),
        ([HEAD, {**WORKERS, "resources": {"acelerators": "T4"}}], {}, "#/holdfast/groups/1/resources/acelerators", "unknown key; did you mean 'accelerators'?"),
        ([HEAD, WORKERS], {"num_nodes": 4}, "#/num_nodes", "is 4, and the groups have 3 nodes together; write 3"),
        ([HEAD, WORKERS], {"num_nodes": {"min": 1, "max": 2}}, "#/num_nodes", "has a max of 2, and the groups have 3 nodes"),
        ([HEAD, {**WORKERS, "num_nodes": 1000}], {}, "#/holdfast/groups", "has 1001 nodes together; a job has at most 1000"),
        ([{**HEAD, "name": f"g{n}"} for n in range(27)], {}, "#/holdfast/groups", "has 27 groups; write at most 26"),
        ([HEAD, WORKERS], {"resources": {"infra": "local"}}, "#/holdfast/groups", "needs the SkyPilot launcher, and resources.infra selects the local launcher"),
        ([HEAD, WORKERS], {"resources": {"infra": "slurm"}}, "#/holdfast/groups", "needs the SkyPilot launcher, and resources.infra selects the Slurm launcher"),
        ([HEAD, {**WORKERS, "resources": {"infra": "local"}}], {}, "#/holdfast/groups/1/resources/infra", "is local, and groups run on clouds only; write a cloud"),
        ([HEAD, WORKERS], {"holdfast": {"recovery": "restart"}}, "#/holdfast/recovery", "is restart, with which all ranks end if a group is lost"),
        ([HEAD, {**WORKERS, "resources": {"infra": "awss"}}], {}, "#/holdfast/groups/1/resources/infra", "'awss' is an unknown infrastructure; did you mean 'aws'?"),
        ([HEAD, {**WORKERS, "resources": {}}], {"resources": {"infra": "awss"}}, "#/resources/infra", "'awss' is an unknown infrastructure"),
    ],
)  # fmt: skip
def test_mistake_is_named_with_its_place_and_remedy(
    groups: Any, fields: dict[str, Any], pointer: str, message: str
) -> None:
    found = flaws(groups, **fields)

    assert list(found) == [pointer]
    assert found[pointer].startswith(message)


def test_no_groups_are_the_same_as_none() -> None:
    assert parsed([]).parts[0].name == ""


def test_checks_of_resources_consider_all_groups() -> None:
    workers = {**WORKERS, "resources": {"infra": "slurm-x", "cloud": "slurm", **A100}}
    spec = parsed([HEAD, {**WORKERS, "resources": A100}])

    assert accelerator_count(spec) == 16
    assert [issue.pointer for issue in spot_flaws(spec, HistoricalLifetimes())] == [
        "#/holdfast/checkpoint"
    ]
    assert Engine.SLURM in engines_of(parsed([HEAD, {**workers, "resources": {"cloud": "slurm"}}]))
    calm = [HEAD, {**WORKERS, "resources": {"infra": "aws", "use_spot": False}}]
    assert not spot_flaws(parsed(calm), HistoricalLifetimes())

"""Rendering of a job for SkyPilot's managed jobs, and features that they reject."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.errors import BadJobFile
from holdfast.rendering import WHEEL_MOUNT, WHEEL_PLACEHOLDER, RenderedTask, render
from holdfast.rendering.skypilot import label_problem, labels_of, task_name
from hypothesis import given
from hypothesis import strategies as st

EAGER = {
    "strategy": "EAGER_NEXT_REGION",
    "max_restarts_on_errors": 2,
    "recover_on_exit_codes": [75],
}
BRAKE = {"idle_minutes": 10, "down": True}


def rendered(**fields: Any) -> RenderedTask:
    return render(parse_job_file(yaml.safe_dump({"run": "true", **fields})).spec)


def resources(**fields: Any) -> dict[str, Any]:
    return dict(rendered(resources=fields).task["resources"])


def notes(**fields: Any) -> list[str]:
    """The notes about resources."""
    return [note for note in rendered(resources=fields).notes if note.startswith("resources")]


def flaws(**fields: Any) -> dict[str, str]:
    with pytest.raises(BadJobFile) as refusal:
        rendered(**fields)
    return {flaw.pointer: flaw.message for flaw in refusal.value.issues}


def test_spot_job_is_rendered_completely() -> None:
    task = rendered(
        name="tiny gpt",
        num_nodes=2,
        resources={"infra": "aws", "accelerators": "A100:8"},
        setup="pip install -e .",
        file_mounts={"/data": {"source": "s3://bucket/data", "mode": "MOUNT_CACHED"}},
        holdfast={
            "checkpoint": {"store": "s3://bucket/ckpt"},
            "limits": {"max_hourly_cost_usd": 30, "max_failures": 5},
            "tags": {"team": "nlp"},
        },
    ).task

    assert task["name"] == "tiny-gpt"
    assert task["resources"] == {
        "infra": "aws",
        "accelerators": "A100:8",
        "use_spot": True,
        "job_recovery": {**EAGER, "max_restarts_on_errors": 4},
        "autostop": BRAKE,
        "max_hourly_cost": 15.0,
        "labels": {"holdfast-name": "tiny-gpt", "team": "nlp"},
    }
    assert task["file_mounts"] == {
        "/data": {"source": "s3://bucket/data", "mode": "MOUNT_CACHED"},
        WHEEL_MOUNT: WHEEL_PLACEHOLDER,
    }
    assert task["setup"] == ("bash ~/.holdfast-wheel/install.sh worker || exit 1\npip install -e .")
    assert task["envs"]["HOLDFAST_NAME"] == "tiny gpt"


@pytest.mark.parametrize(
    ("block", "variable"),
    [({}, None), ({"recovery": "in_process"}, None), ({"recovery": "restart"}, "restart")],
)
def test_recovery_mode_is_passed_to_the_worker(block: dict[str, str], variable: str | None) -> None:
    task = rendered(holdfast=block).task

    assert task["envs"].get("HOLDFAST_RECOVERY") == variable


def test_accelerators_are_not_added_by_default() -> None:
    task = rendered().task

    assert "accelerators" not in task["resources"]
    assert "workdir" not in task


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"run": "echo hello"}, "bare"),
        ({"run": "holdfast-worker run train.py"}, "worker"),
        ({"run": "python -m holdfast_worker run train.py"}, "worker"),
        ({"run": "bash go.sh", "setup": "pip list | grep holdfast_worker"}, "worker"),
        ({"run": "x", "holdfast": {"checkpoint": {"store": "s3://b"}}}, "worker"),
    ],
)
def test_worker_dependencies_are_installed_only_where_used(
    fields: dict[str, Any], kind: str
) -> None:
    first = rendered(**fields).task["setup"].splitlines()[0]

    assert first == f"bash ~/.holdfast-wheel/install.sh {kind} || exit 1"


# Recovery


@pytest.mark.parametrize(
    ("fields", "strategy"),
    [
        ({}, "EAGER_NEXT_REGION"),
        ({"use_spot": False}, "FAILOVER"),
        ({"infra": "kubernetes"}, "FAILOVER"),
        ({"job_recovery": "failover"}, "FAILOVER"),
        ({"job_recovery": {"strategy": None}}, "EAGER_NEXT_REGION"),
        ({"use_spot": False, "job_recovery": "EAGER_NEXT_REGION"}, "EAGER_NEXT_REGION"),
        ({"ordered": [{"infra": "aws"}, {"infra": "aws", "use_spot": False}]}, "EAGER_NEXT_REGION"),
    ],
)
def test_default_recovery_strategy_yields_to_the_file(
    fields: dict[str, Any], strategy: str
) -> None:
    assert resources(**fields)["job_recovery"]["strategy"] == strategy


@pytest.mark.parametrize("word", [{"spot_recovery": "auto"}, {"job_recovery": "eager_next_region"}])
def test_region_avoiding_recovery_gets_a_note_on_its_absence(
    word: dict[str, Any],
) -> None:
    assert [note for note in notes(**word) if "does not avoid the region" in note]
    assert not [note for note in notes() if "does not avoid the region" in note]


@pytest.mark.parametrize(
    ("codes", "rendered_codes", "noted"),
    [(33, [33, 75], True), ([75, 5, 5], [5, 75], True), (75, [75], False), ([], [75], False)],
)
def test_worker_exit_on_notice_always_recovers(
    codes: Any, rendered_codes: list[int], noted: bool
) -> None:
    word = {"job_recovery": {"recover_on_exit_codes": codes}}

    assert resources(**word)["job_recovery"]["recover_on_exit_codes"] == rendered_codes
    assert (
        bool([note for note in notes(**word) if "restarts the job without a limit" in note])
        is noted
    )


def test_settings_common_to_all_candidates_are_written_once() -> None:
    same = {"job_recovery": "FAILOVER", "autostop": False, "priority": 5}

    found = resources(any_of=[{"infra": "aws", **same}, {"infra": "gcp"}])

    assert found["job_recovery"] == {**EAGER, "strategy": "FAILOVER"}
    assert (found["autostop"], found["priority"]) == (False, 5)
    assert not [word for entry in found["any_of"] for word in same if word in entry]


@pytest.mark.parametrize(
    ("word", "values"),
    [("job_recovery", ["FAILOVER", "EAGER_NEXT_REGION"]), ("priority", [1, 2]), ("autostop", [5, 9])],
)  # fmt: skip
def test_candidates_with_differing_settings_are_refused(word: str, values: list[Any]) -> None:
    entries = [
        {"infra": infra, word: value} for infra, value in zip(["aws", "gcp"], values, strict=True)
    ]

    found = flaws(resources={"any_of": entries})

    assert found == {
        f"#/resources/{word}": "differs between candidates; write the same value for all of them"
    }


# Spot, autostop, price


def test_spot_falls_back_to_on_demand_if_the_file_lists_both() -> None:
    found = resources(ordered=[{"infra": "aws/us-east-1"}, {"infra": "aws", "use_spot": False}])

    assert [entry["use_spot"] for entry in found["ordered"]] == [True, False]


@pytest.mark.parametrize("infra", ["kubernetes", "k8s/ctx", "lambda", "ssh/pool"])
def test_infra_without_spot_requests_no_spot(infra: str) -> None:
    assert resources(infra=infra)["use_spot"] is False
    assert notes(infra=infra) == []


def test_spot_on_infra_without_spot_is_disabled_with_a_note() -> None:
    assert resources(infra="lambda", use_spot=True)["use_spot"] is False
    assert notes(infra="lambda", use_spot=True) == [
        "resources: lambda has no spot nodes; use_spot is set to false"
    ]
    assert resources(infra="kubernetes", use_spot=True)["use_spot"] is True
    (note,) = notes(infra="kubernetes", use_spot=True)
    assert note.startswith("resources: kubernetes has spot nodes only if ")


@pytest.mark.parametrize(
    ("fields", "noted"),
    [
        ({"infra": "gcp", "accelerators": "A100:4", "max_hourly_cost": 20}, True),
        ({"infra": "gcp/us-central1", "accelerators": "A100:4"}, False),
        ({"infra": "gcp", "cpus": 8, "max_hourly_cost": 20}, False),
        ({"infra": "aws", "accelerators": "A100:8", "max_hourly_cost": 20}, False),
    ],
)
def test_limit_that_skypilot_ignores_on_gcp_is_noted(fields: dict[str, Any], noted: bool) -> None:
    found = [note for note in notes(**fields) if "ignores max_hourly_cost" in note]

    assert len(found) == noted
    limited = rendered(resources=fields, holdfast={"limits": {"max_hourly_cost_usd": 20}}).notes
    on_gcp = "gcp" in fields["infra"] and "accelerators" in fields
    assert any("ignores max_hourly_cost" in note for note in limited) is on_gcp


@pytest.mark.parametrize(
    ("autostop", "rendered_autostop", "noted"),
    [(None, BRAKE, False), (True, True, False), (30, 30, True), (False, False, True), ({"down": True}, {"down": True}, True)],
)  # fmt: skip
def test_autostop_is_the_default_unless_the_file_overrides(
    autostop: Any, rendered_autostop: Any, noted: bool
) -> None:
    assert resources(autostop=autostop)["autostop"] == rendered_autostop
    assert bool(notes(autostop=autostop)) is noted


@pytest.mark.parametrize(
    ("limit", "nodes", "fields", "bound"),
    [
        (20, 1, {}, 20.0),
        (20, 3, {}, 6.666666),
        (20, 2, {"max_hourly_cost": 5}, 5.0),
        (20, 2, {"max_hourly_cost": 50}, 10.0),
        (20, 1, {"infra": "kubernetes"}, None),
        (None, 1, {"max_hourly_cost": 5}, 5.0),
        (None, 1, {}, None),
        (0.000001, 1000, {}, 0.000001),
    ],
)
def test_the_hourly_limit_of_a_job_bounds_the_price_of_a_node(
    limit: float | None, nodes: int, fields: dict[str, Any], bound: float | None
) -> None:
    limits = {} if limit is None else {"max_hourly_cost_usd": limit}

    task = rendered(num_nodes=nodes, resources=fields, holdfast={"limits": limits}).task

    assert task["resources"].get("max_hourly_cost") == bound


# Labels and names


def test_labels_of_one_candidate_do_not_leak_into_the_next() -> None:
    found = resources(
        labels={"team": "nlp"}, any_of=[{"infra": "aws", "labels": {"a": "1"}}, {"infra": "gcp"}]
    )

    assert "labels" not in found
    assert [entry["labels"] for entry in found["any_of"]] == [
        {"holdfast-name": "job", "team": "nlp", "a": "1"},
        {"holdfast-name": "job", "team": "nlp"},
    ]


def test_a_tag_that_changes_as_a_label_is_noted() -> None:
    labels, result = labels_of("Tiny GPT!", {"team": "nlp", "Cost Center": "R&D 7", "7": "x"})

    assert labels == {"holdfast-name": "tiny-gpt", "team": "nlp", "cost-center": "r-d-7"}
    assert result == (
        "holdfast.tags: Cost Center=R&D 7 is changed to the label cost-center=r-d-7, which clouds accept",
        "holdfast.tags: '7' contains no letter that clouds accept in a label",
    )


@given(st.text(), st.dictionaries(st.text(), st.text(), max_size=3))
def test_every_cloud_accepts_rendered_labels(name: str, tags: dict[str, str]) -> None:
    labels, _ = labels_of(name, tags)

    for key, value in labels.items():
        for cloud in ("aws", "gcp", "kubernetes"):
            assert label_problem(cloud, key, value) is None


@given(st.text(min_size=1))
def test_job_names_are_converted_for_skypilot(name: str) -> None:
    import re

    assert re.fullmatch(r"[a-zA-Z0-9]+(?:[._-]{1,2}[a-zA-Z0-9]+)*", task_name(name))


@pytest.mark.parametrize("name", ["tiny-gpt", "a.b_c--d", "7"])
def test_valid_skypilot_name_is_unchanged(name: str) -> None:
    assert task_name(name) == name


# Refusals and warnings


@pytest.mark.parametrize(
    ("fields", "pointer", "message"),
    [
        ({"service": {"port": 80}}, "#/service", "is a `sky serve` feature; submit a job that ends"),
        ({"pool": {"workers": 2}}, "#/pool", "is created by `sky jobs pool apply`, not by a job; remove it"),
        ({"execution": "parallel"}, "#/execution", "applies to several tasks, but a job file holds one; remove it"),
        ({"experimental": {"x": 1}}, "#/experimental", "is unknown to SkyPilot 0.14; move its contents under config"),
        ({"file_mounts": {WHEEL_MOUNT: "/tmp"}}, f"#/file_mounts/{WHEEL_MOUNT}", "is reserved for the worker; choose another path"),
        ({"resources": {"infra": "aws/us-east-1/use1-az1"}}, "#/resources/infra", "use1-az1 is the id of a zone, which SkyPilot does not know; write the zone's name, such as us-east-1a"),
        ({"resources": {"any_of": [{"infra": "aws/us-east-1/use1-bos1-az1"}]}}, "#/resources/any_of/0/infra", "use1-bos1-az1 is the id of a zone"),
        ({"resources": {"infra": "awss"}}, "#/resources/infra", "'awss' is an unknown infrastructure; did you mean 'aws'?"),
        ({"resources": {"infra": "moon"}}, "#/resources/infra", "'moon' is an unknown infrastructure; known are local, aws, "),
        ({"resources": {"any_of": [{"infra": "aws"}, {"infra": "local"}]}}, "#/resources/any_of/1/infra", "local cannot be one of several candidates; write infra: local directly under resources"),
        ({"resources": {"any_of": [{"infra": "aws"}], "ordered": [{"infra": "gcp"}]}}, "#/resources/ordered", "cannot be combined with any_of; write one of the two"),
        ({"resources": {"infra": "aws", "region": "us-east-1"}}, "#/resources/infra", "cannot be combined with cloud, region or zone; write only infra: cloud/region/zone"),
        ({"resources": {"infra": "aws", "accelerators": "A100:4"}}, "#/resources/accelerators", "AWS does not sell A100:4, but A100:8"),
        ({"resources": {"infra": "gcp", "labels": {"Team": "x"}}}, "#/resources/labels/Team", "'Team' is not a valid label key on gcp; use lower-case letters, digits and -"),
        ({"resources": {"infra": "kubernetes", "labels": {"team": "a b"}}}, "#/resources/labels/team", "'a b' is not a valid label value on kubernetes; use"),
        ({"envs": {"D": 'a"b'}, "file_mounts": {"/d": "s3://b/${D}"}}, "#/envs/D", "contains a quote, a backslash or a line break, and is used in a path"),
        ({"secrets": {"D": "x"}, "file_mounts": {"/d": {"name": "b$D"}}}, "#/secrets/D", "is used in a path of file_mounts, workdir or volumes, where SkyPilot would"),
        ({"envs": {"D": "a\nb"}, "workdir": "/home/$D"}, "#/envs/D", "contains a quote, a backslash or a line break, and is used in a path"),
    ],
)  # fmt: skip
def test_features_unsupported_by_managed_jobs_are_rejected(
    fields: dict[str, Any], pointer: str, message: str
) -> None:
    found = flaws(**fields)

    assert list(found) == [pointer]
    assert found[pointer].startswith(message)


@pytest.mark.parametrize(
    ("store", "mounts", "noted"),
    [
        ("file:///ckpt", {}, True),
        ("file:///ckpt/a", {"/ckpt": {"source": "s3://b", "mode": "MOUNT_CACHED"}}, False),
        ("file:///ckpts", {"/ckpt": "s3://b"}, True),
        ("s3://bucket", {}, False),
    ],
)
def test_node_local_store_gets_a_note(store: str, mounts: dict[str, Any], noted: bool) -> None:
    result = rendered(file_mounts=mounts, holdfast={"checkpoint": {"store": store}}).notes

    assert bool([note for note in result if "is lost with it" in note]) is noted


@pytest.mark.parametrize(
    ("variables", "noted"),
    [
        ({}, True),
        ({"envs": {"AZURE_STORAGE_ACCOUNT_NAME": "acme"}}, False),
        ({"secrets": {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=acme"}}, False),
        ({"envs": {"AZURE_STORAGE_SAS_TOKEN": "sig=x"}}, True),
    ],
)
def test_store_of_an_unknown_account_gets_a_note(variables: dict[str, Any], noted: bool) -> None:
    result = rendered(holdfast={"checkpoint": {"store": "az://b/p"}}, **variables).notes

    assert any("set AZURE_STORAGE_ACCOUNT_NAME in envs" in note for note in result) is noted

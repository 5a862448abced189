"""Job files of users without permissions on the service's machine."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast.domain.jobfile.confinement import MAX_LOCAL_NODES, confinement_flaws
from holdfast.domain.jobfile.spec import JobSpec


def pointers(profiles: tuple[str, ...] = (), **fields: Any) -> list[str]:
    """The fields of a job file that a confined job must not use."""
    spec = JobSpec.model_validate({"name": "job", "run": "python train.py", **fields})
    return [flaw.pointer for flaw in confinement_flaws(spec, profiles=profiles)]


def mount(source: Any) -> dict[str, Any]:
    return {"file_mounts": {"/data": source}}


def test_plain_job_has_no_flaws() -> None:
    assert pointers() == []
    assert pointers(workdir="/srv/data/nlp") == []


@pytest.mark.parametrize(
    "source",
    [
        "/srv/data/nlp",
        "s3://bucket/prefix",
        None,
        {"source": "/srv/data/nlp"},
        {"source": ["/srv/data/nlp", "gs://bucket"]},
    ],
)
def test_folders_and_buckets_may_be_mounted(source: Any) -> None:
    assert pointers(more=mount(source)) == []


@pytest.mark.parametrize(
    "source",
    [
        "/srv/data/$PROJECT",
        "/srv/${HOME}/.ssh",
        "$HOME/.ssh",
        "~/.ssh",
        "../secret",
        "file:///etc/shadow",
        "s3://",
        7,
        {"source": ["s3://bucket", "/srv/$X"]},
    ],
)
def test_other_sources_of_mounts_are_refused(source: Any) -> None:
    assert pointers(more=mount(source)) == ["#/file_mounts//data"]


def test_variable_in_the_workdir_is_refused() -> None:
    assert pointers(workdir="/srv/data/$PROJECT") == ["#/workdir"]


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"event_callback": "curl x"}, "#/event_callback"),
        ({"api_server_access": True}, "#/api_server_access"),
        ({"config": {"kubernetes": {"pod_config": {}}}}, "#/config/kubernetes"),
        ({"volumes": {"/mnt": {"host_path": "/"}}}, "#/volumes//mnt/host_path"),
    ],
)
def test_host_privileges_are_refused(more: dict[str, Any], pointer: str) -> None:
    assert pointers(more=more) == [pointer]


def test_config_of_own_nodes_is_allowed() -> None:
    assert pointers(more={"config": {"docker": {"run_options": []}}}) == []


def test_profile_is_refused_unless_the_settings_allow_it() -> None:
    envs = {"AWS_PROFILE": "team"}

    assert pointers(envs=envs) == ["#/envs/AWS_PROFILE"]
    assert pointers(("other",), envs=envs) == ["#/envs/AWS_PROFILE"]
    assert pointers(("team",), envs=envs) == []


def test_nodes_of_a_local_job_are_limited() -> None:
    local = {"infra": "local"}

    assert pointers(num_nodes=MAX_LOCAL_NODES, resources=local) == []
    assert pointers(num_nodes=MAX_LOCAL_NODES + 1, resources=local) == ["#/num_nodes"]

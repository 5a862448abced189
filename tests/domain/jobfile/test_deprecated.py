"""Deprecated keys are corrected and reported."""

from __future__ import annotations

import pytest
import yaml
from holdfast.domain.jobfile.parser import parse_job_file


@pytest.mark.parametrize(
    ("resources", "fresh", "note"),
    [
        ({"spot_recovery": "auto"}, {"job_recovery": "EAGER_NEXT_REGION"}, "spot_recovery is now job_recovery; it is set to EAGER_NEXT_REGION"),
        ({"spot_recovery": "failover"}, {"job_recovery": "FAILOVER"}, "spot_recovery is now job_recovery; it is set to FAILOVER"),
        ({"job_recovery": "auto"}, {"job_recovery": "EAGER_NEXT_REGION"}, "job_recovery 'auto' is not a strategy; it is set to EAGER_NEXT_REGION"),
        ({"spot_recovery": "auto", "job_recovery": "FAILOVER"}, {"job_recovery": "FAILOVER"}, "spot_recovery is now job_recovery; it is set to FAILOVER"),
        ({"cloud": "aws", "region": "us-east-1"}, {"infra": "aws/us-east-1"}, "cloud, region and zone are now infra; infra is set to aws/us-east-1"),
        ({"zone": "us-east-1b"}, {"infra": "*/*/us-east-1b"}, "cloud, region and zone are now infra; infra is set to */*/us-east-1b"),
        ({"job_recovery": {"strategy": "auto", "recover_on_exit_codes": 3}}, {"job_recovery": {"strategy": "EAGER_NEXT_REGION", "recover_on_exit_codes": 3}}, "job_recovery 'auto' is not a strategy; it is set to EAGER_NEXT_REGION"),
    ],
)  # fmt: skip
def test_deprecated_resource_keys_are_replaced_with_a_note(
    resources: dict[str, str], fresh: dict[str, str], note: str
) -> None:
    job = parse_job_file(yaml.safe_dump({"run": "x", "resources": resources}))

    assert job.spec.resources == fresh
    assert job.notes == (f"resources: {note}",)


def test_deprecated_keys_of_candidates_are_replaced_in_place() -> None:
    entries = [{"infra": "aws", "spot_recovery": "failover"}, {"cloud": "gcp"}]

    job = parse_job_file(yaml.safe_dump({"run": "x", "resources": {"any_of": entries}}))

    assert job.spec.resources == {
        "any_of": [{"infra": "aws", "job_recovery": "FAILOVER"}, {"infra": "gcp"}]
    }
    assert job.notes == (
        "resources.any_of[0]: spot_recovery is now job_recovery; it is set to FAILOVER",
        "resources.any_of[1]: cloud, region and zone are now infra; infra is set to gcp",
    )


def test_max_restarts_on_errors_becomes_max_failures() -> None:
    resources = {"job_recovery": {"max_restarts_on_errors": 4}}
    limits = {"limits": {"max_failures": 2}}

    alone = parse_job_file(yaml.safe_dump({"run": "x", "resources": resources}))
    beside = parse_job_file(
        yaml.safe_dump({"run": "x", "resources": resources, "holdfast": limits})
    )

    assert alone.spec.holdfast.limits.max_failures == 5
    assert alone.notes == (
        "resources: job_recovery.max_restarts_on_errors: 4 is read as holdfast.limits.max_failures: 5",
    )
    assert beside.spec.holdfast.limits.max_failures == 2
    assert len(beside.notes) == 1


def test_config_overrides_become_config() -> None:
    job = parse_job_file(
        "{run: x, experimental: {config_overrides: {kubernetes: {pod_config: {}}}}}"
    )

    assert job.spec.more == {"config": {"kubernetes": {"pod_config": {}}}}
    assert job.notes == ("experimental.config_overrides is now config; config is set to it",)


@pytest.mark.parametrize("strategy", ["FAILOVER", "failover", "EAGER_NEXT_REGION"])
def test_current_keys_are_unchanged(strategy: str) -> None:
    job = parse_job_file(
        yaml.safe_dump({"run": "x", "resources": {"job_recovery": strategy, "cpus": "4+"}})
    )

    assert job.spec.resources == {"job_recovery": strategy, "cpus": "4+"}
    assert job.notes == ()


@pytest.mark.parametrize("part", ["setup", "run"])
@pytest.mark.parametrize("written", ["$SKYPILOT_HEAD_IP", "${SKYPILOT_HEAD_IP}"])
def test_head_address_is_exported_before_its_use(part: str, written: str) -> None:
    job = parse_job_file(yaml.safe_dump({"run": "x", part: f"ping {written}"}))

    script = getattr(job.spec, part)
    assert script.splitlines() == [
        'export SKYPILOT_HEAD_IP="$(head -n1 <<< "$SKYPILOT_NODE_IPS")"',
        f"ping {written}",
    ]
    assert len(job.notes) == 1


def test_nonexistent_backend_is_corrected() -> None:
    job = parse_job_file("run: PYTORCH_DIST_BACKEND=glow python train.py")

    assert job.spec.run == "PYTORCH_DIST_BACKEND=gloo python train.py"
    assert job.notes == ("run: the backend is called gloo, not glow",)

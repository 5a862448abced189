"""The configuration of SkyPilot's server: required settings are corrected, others kept."""

from __future__ import annotations

import pytest
import yaml
from holdfast.errors import BadRequest
from holdfast.skypilot_server.configuration import (
    GATE,
    Policy,
    merged_configuration,
    required_lines,
)

URL = "http://127.0.0.1:8642/v1/skypilot/policy/secret"
REQUIRED = {"admin_policy": GATE, "jobs": {"controller": {"consolidation_mode": True}}}
CLASS = Policy(GATE, edition="1")


def test_empty_configuration_gets_the_required_settings() -> None:
    made = merged_configuration("", CLASS)

    assert yaml.safe_load(made.text) == REQUIRED
    assert yaml.safe_load(required_lines()) == REQUIRED
    assert made.notes == ()


def test_correct_file_is_kept_with_its_comments() -> None:
    text = f"# mine\nadmin_policy: {GATE}\njobs: {{controller: {{consolidation_mode: true}}}}\n"

    made = merged_configuration(text, CLASS)

    assert made.text == text
    assert made.notes == ()


def test_settings_of_the_user_are_kept() -> None:
    text = "aws: {vpc_names: [mine]}\njobs: {bucket: s3://mine, controller: {resources: {cpus: 8}}}"

    result = yaml.safe_load(merged_configuration(text, CLASS).text)

    assert result["aws"] == {"vpc_names": ["mine"]}
    assert result["jobs"]["bucket"] == "s3://mine"
    assert result["jobs"]["controller"] == {"resources": {"cpus": 8}, "consolidation_mode": True}


def test_corrected_settings_are_noted() -> None:
    text = "admin_policy: my.Policy\njobs: {controller: {consolidation_mode: false}}"

    made = merged_configuration(text, CLASS)

    assert yaml.safe_load(made.text) == REQUIRED
    policy, mode = made.notes
    assert "my.Policy" in policy
    assert "consolidation_mode was false" in mode


@pytest.mark.parametrize(
    ("before", "after"), [(f"{URL}-of-yesterday", CLASS), (URL, CLASS), (GATE, Policy(URL))]
)
def test_older_policy_is_replaced_silently_without_its_secret(before: str, after: Policy) -> None:
    made = merged_configuration(f"admin_policy: {before}", after)

    assert yaml.safe_load(made.text) == {**REQUIRED, "admin_policy": after.location}
    assert made.notes == ()


@pytest.mark.parametrize(
    ("text", "needs_restart"),
    [
        ("aws: {vpc_names: [other]}", False),
        ("jobs: {bucket: s3://other}", False),
        ("jobs: {controller: {resources: {cpus: 8}}}", True),
        ("rbac: {default_role: user}", True),
        ("db: postgresql://somewhere", True),
    ],
)
def test_startup_settings_are_distinguished_from_live_settings(
    text: str, needs_restart: bool
) -> None:
    before, after = merged_configuration("", CLASS), merged_configuration(text, CLASS)

    assert (before.at_start != after.at_start) is needs_restart


@pytest.mark.parametrize(
    "other", [Policy(URL), Policy(GATE, edition="2")], ids=["address", "other edition"]
)
def test_changed_policy_needs_a_restart(other: Policy) -> None:
    assert merged_configuration("", CLASS).at_start != merged_configuration("", other).at_start


@pytest.mark.parametrize(
    "text", ["- a\n- list", "just words", "a: [", "jobs: 5", "jobs: {controller: x}"]
)
def test_invalid_configuration_is_rejected(text: str) -> None:
    with pytest.raises(BadRequest, match=r"config\.yaml"):
        merged_configuration(text, CLASS)

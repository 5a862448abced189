"""The plan of a job file, and what contradicts it."""

from __future__ import annotations

import pytest
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.domain.jobfile.plan import Objective, PlanSpec
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.errors import BadJobFile

STORE = 'checkpoint: {store: "s3://bucket/prefix"}'
DEADLINE = "limits: {deadline: 52h}"


def spec_of(plan: str, *block: str, resources: str = "{infra: aws}") -> JobSpec:
    lines = "".join(f"  {line}\n" for line in (f"plan: {plan}", *block))
    text = f"run: python train.py\nresources: {resources}\nholdfast:\n{lines}"
    return parse_job_file(text).spec


def flaws(plan: str, *block: str, resources: str = "{infra: aws}") -> dict[str, str]:
    with pytest.raises(BadJobFile) as refused:
        spec_of(plan, *block, resources=resources)
    return {issue.pointer: issue.message for issue in refused.value.issues}


def test_plan_has_defaults() -> None:
    plan = spec_of("{work: 31h}", STORE, DEADLINE).holdfast.plan

    assert plan == PlanSpec(work="31h")
    assert plan is not None
    assert (plan.objective, plan.policy_name, plan.on_demand) == (
        Objective.CHEAPEST,
        "holdfast",
        True,
    )
    assert (plan.work_s, plan.margin_s) == (31 * 3600, 600)


def test_job_without_a_plan_has_none() -> None:
    assert parse_job_file("run: x").spec.holdfast.plan is None


@pytest.mark.parametrize("margin", ["0", "0s", "0m"])
def test_margin_may_be_zero(margin: str) -> None:
    plan = spec_of(f"{{work: 1h, margin: {margin}}}", STORE, DEADLINE).holdfast.plan

    assert plan is not None
    assert plan.margin_s == 0


def test_fastest_needs_no_deadline() -> None:
    plan = spec_of("{objective: fastest, work: 1h}", STORE).holdfast.plan

    assert plan is not None
    assert plan.policy_name == "fastest"


def test_work_may_be_that_of_the_parent() -> None:
    store = 'checkpoint: {store: "s3://bucket/prefix", from: job-7}'

    assert spec_of("{}", store, DEADLINE).holdfast.plan == PlanSpec()


@pytest.mark.parametrize(
    ("plan", "block", "pointer", "sentence"),
    [
        ("{work: 1h}", (DEADLINE,), "#/holdfast/plan", "needs holdfast.checkpoint.store"),
        ("{work: 1h}", (STORE,), "#/holdfast/plan/objective", "needs holdfast.limits.deadline"),
        ("{}", (STORE, DEADLINE), "#/holdfast/plan/work", "such as 31h"),
        ("{work: 31}", (STORE, DEADLINE), "#/holdfast/plan/work", "has no unit"),
        ("{work: 1h, policy: gredy}", (STORE, DEADLINE), "#/holdfast/plan/policy", "did you mean 'greedy'?"),
        ("{work: 1h, policy: 7}", (STORE, DEADLINE), "#/holdfast/plan/policy", "write one of holdfast"),
        ("{work: 1h, objective: best}", (STORE, DEADLINE), "#/holdfast/plan/objective", "write cheapest or fastest"),
        ("{work: 1h, margin: 10}", (STORE, DEADLINE), "#/holdfast/plan/margin", "such as 10m, or 0"),
        ("{work: 1h, ojective: fastest}", (STORE, DEADLINE), "#/holdfast/plan/ojective", "did you mean 'objective'?"),
        ("{work: 1h, objective: fastest, policy: greedy}", (STORE,), "#/holdfast/plan/policy", "remove one of the two"),
    ],
)  # fmt: skip
def test_mistake_is_named_with_its_field_and_remedy(
    plan: str, block: tuple[str, ...], pointer: str, sentence: str
) -> None:
    assert sentence in flaws(plan, *block)[pointer]


def test_plan_without_spot_nodes_is_refused() -> None:
    cloud = flaws("{work: 1h}", STORE, DEADLINE, resources="{infra: aws, use_spot: false}")
    local = flaws("{work: 1h}", STORE, DEADLINE, resources="{infra: local, use_spot: false}")

    assert "no place with spot nodes" in cloud["#/resources"]
    assert "nothing to plan" in local["#/resources/use_spot"]


def test_plan_with_groups_is_refused() -> None:
    groups = "groups: [{name: head, num_nodes: 1}, {name: tail, num_nodes: 1}]"

    found = flaws("{work: 1h}", STORE, DEADLINE, groups)

    assert "cannot be combined with groups" in found["#/holdfast/plan"]

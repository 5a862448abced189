"""Billing rules of providers beyond price times time, computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.billing.allocation import allocate_costs
from holdfast.domain.billing.bill import Bill, compute_bill
from holdfast.domain.billing.provider_rules import BILLING_TERMS, BillingRule
from holdfast.domain.events import Cause, Event, NodesReady
from holdfast.domain.events.values import NodeGroup
from support.events import at, finished, launched, lost, ready, submitted

HOUR_S = 3600


def machines(
    seconds: float, *, attempt: int = 1, cloud: str = "aws", nodes: int = 1, is_spot: bool = True
) -> NodesReady:
    """Nodes of a cloud that together cost one micro-dollar per millisecond."""
    return replace(
        ready(seconds, attempt=attempt),
        cloud=cloud,
        nodes=nodes,
        is_spot=is_spot,
        instance_type="p4d.24xlarge",
    )


def billed(*events: Event, with_rules: bool = True) -> Bill:
    return compute_bill([submitted(), launched(), *events], {}, at(9000), with_rules=with_rules)


def lines(account: Bill) -> list[tuple[int, BillingRule, int]]:
    return [(line.attempt, line.rule, line.micros) for line in account.adjustments]


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_a_machine_is_charged_for_a_minute_at_least(cloud: str) -> None:
    account = billed(machines(10, cloud=cloud), finished(35))

    assert lines(account) == [(1, BillingRule.MINIMUM, 35_000)]
    assert (account.micros.total, account.paid_micros) == (25_000, 60_000)
    assert account.adjustments[0].source.startswith("https://")
    assert sum(share.paid_micros for share in allocate_costs(account)) == 60_000


def test_full_minute_and_running_nodes_are_not_adjusted() -> None:
    assert lines(billed(machines(10), finished(70))) == []
    assert lines(billed(machines(8995))) == []


def test_clouds_without_a_rule_are_not_adjusted() -> None:
    assert lines(billed(machines(10, cloud="azure"), finished(11))) == []
    assert lines(billed(machines(10, cloud=""), finished(11))) == []
    assert lines(billed(replace(machines(10), simulated=True), finished(11))) == []
    assert "azure" not in BILLING_TERMS


def test_aws_spot_preempted_in_its_first_hour_is_free() -> None:
    account = billed(machines(0), lost(600), machines(700, attempt=2), finished(800))

    assert lines(account) == [(1, BillingRule.FIRST_HOUR, -600_000)]
    assert account.paid_micros == 100_000


def test_first_hour_rule_refunds_only_the_preempted_node() -> None:
    account = billed(machines(0, nodes=3), lost(600))

    assert lines(account) == [(1, BillingRule.FIRST_HOUR, -200_000)]


@pytest.mark.parametrize(
    "history",
    [
        [machines(0), lost(HOUR_S)],
        [machines(0), lost(600, cause=Cause.NODE_FAILED)],
        [machines(0), lost(600, cause=Cause.USER_ERROR)],
        [machines(0, is_spot=False), lost(600)],
        [machines(0, cloud="gcp"), lost(600)],
        [machines(0), finished(600)],
    ],
    ids=["an hour", "unproven", "own mistake", "on demand", "google", "done"],
)
def test_refund_requires_an_early_spot_preemption(history: list[Event]) -> None:
    assert lines(billed(*history)) == []


def test_preemption_in_the_first_minute_is_free() -> None:
    assert lines(billed(machines(0), lost(20))) == [(1, BillingRule.FIRST_HOUR, -20_000)]


def test_program_restart_does_not_start_a_new_billing_minimum() -> None:
    # 0-40 fails | 40-90 fails | 90-3610 preempted: the machine is more than an hour old. None
    # existed for a minute only.
    own = Cause.USER_ERROR
    history = [
        machines(0),
        lost(40, cause=own),
        machines(40, attempt=2),
        lost(90, attempt=2, cause=own),
    ]

    assert lines(billed(*history)) == []
    assert lines(billed(*history, machines(90, attempt=3), lost(3610, attempt=3))) == []
    assert lines(billed(*history, machines(90, attempt=3), lost(3590, attempt=3))) == [
        (3, BillingRule.FIRST_HOUR, -3_590_000)
    ]


def test_mixed_nodes_refund_the_cheapest_spot_node() -> None:
    groups = (
        NodeGroup(nodes=1, zone="a", is_spot=False, micros_per_hour=36, on_demand_micros_per_hour=36),
        NodeGroup(nodes=2, zone="b", is_spot=True, micros_per_hour=7_200_000, on_demand_micros_per_hour=9),
        NodeGroup(nodes=1, zone="c", is_spot=True, micros_per_hour=7_200_000, on_demand_micros_per_hour=9),
    )  # fmt: skip

    account = billed(replace(machines(0, nodes=4), groups=groups), lost(600))

    assert lines(account) == [(1, BillingRule.FIRST_HOUR, -600_000)]
    assert account.adjustments[0].zone == "b"


def test_the_rules_can_be_switched_off() -> None:
    account = billed(machines(0), lost(600), with_rules=False)

    assert (account.adjustments, account.paid_micros) == ((), 600_000)

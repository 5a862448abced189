"""When users are notified that a planned job may miss its deadline."""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.events import (
    CapacityType,
    MarketState,
    PlanForecast,
    Planned,
    PlanReason,
)
from holdfast.domain.jobs.plan_status import PlanStatus, plan_after, with_warning
from support.events import DAWN

FORECAST = PlanForecast(
    runs=128, cost_p10_usd=1.0, cost_p50_usd=1.0, cost_p90_usd=1.0, end_p10=DAWN, end_p50=DAWN, end_p90=DAWN, late=0.0,
    over_budget=0.0, preemptions=0.0, lost_work_s=0.0,
)  # fmt: skip
PLANNED = Planned(
    at=DAWN, capacity=CapacityType.SPOT, places=("aws",), reason=PlanReason.SPOT_STANDS, remaining_s=60.0, slack_s=60.0,
    net_at=DAWN, changeover_s=10.0, policy="holdfast", policy_version=1,
    market=MarketState(at=DAWN, places=(), tick_s=60.0, changeover_s=10.0),
)  # fmt: skip


def test_users_are_warned_once_of_a_doubtful_deadline() -> None:
    status: PlanStatus | None = None
    warned = []
    for late in (0.02, 0.12, 0.5, 0.08, None, 0.2, 0.04, 0.1):
        forecast = None if late is None else replace(FORECAST, late=late)
        planned = with_warning(status, replace(PLANNED, forecast=forecast))
        warned.append(planned.warns)
        status = plan_after(status, planned)

    assert warned == [False, True, False, False, False, False, False, True]

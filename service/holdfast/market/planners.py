"""Planners of jobs: the policy that a job file names, over the market of the moment.

One instance of each policy serves all jobs, because some keep tables that are expensive to compute.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from threading import Lock
from typing import Final

from holdfast.domain.events import MarketState, PlanForecast, Planned
from holdfast.domain.jobfile.plan import PlanSpec
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.job import Job
from holdfast.domain.planning.backtest import POLICIES
from holdfast.domain.planning.outlook import JobOutlook, alternatives, forecast
from holdfast.domain.planning.placement import PlacementPlanner, PlanInputs
from holdfast.domain.planning.policies import Fastest, SpotOnly
from holdfast.domain.planning.situation import PlacementPolicy
from holdfast.market.markets import Markets

FORECAST_RUNS: Final = 128
"""Sampled markets of the forecast of a plan.
A lower value makes its quantiles jump; a higher value delays the poll of a job whose plan changes."""

_POLICIES: Final[Mapping[str, Callable[[], PlacementPolicy]]] = {
    **{name: kind for name, kind in POLICIES.items() if kind},
    "fastest": Fastest,
    "spot": SpotOnly,
}


class Planners:
    """Planners of all jobs of a service."""

    def __init__(self, markets: Markets) -> None:
        self.markets = markets
        self._policies: dict[str, PlacementPolicy] = {}
        self._preview_policies: dict[str, PlacementPolicy] = {}
        self._previewing = Lock()

    def of(self, spec: JobSpec, now: datetime) -> PlacementPlanner | None:
        """The planner of a job, whose limits are those of `spec`; None if it has no plan."""
        if spec.holdfast.plan is None:
            return None
        return self.over(spec, self.markets.state(spec, now))

    async def prepare(self, spec: JobSpec, now: datetime) -> PlacementPlanner | None:
        """As `of`, in a thread."""
        return await asyncio.to_thread(self.of, spec, now)

    def over(self, spec: JobSpec, market: MarketState) -> PlacementPlanner:
        """The planner of a job with a plan over a market, as of a recorded plan."""
        plan = spec.holdfast.plan
        assert plan, "the job has a plan"
        policy = self.policy(_policy_name(plan))
        return PlacementPlanner(
            plan_spec=plan,
            limits=spec.holdfast.limits,
            market=market,
            policy=policy,
            forecast=partial(_forecast, policy),
        )

    def policy(self, name: str) -> PlacementPolicy:
        """The policy of a name."""
        return _kept(self._policies, name)

    def alternatives(
        self, plan: PlanSpec, job: JobOutlook, market: MarketState
    ) -> dict[str, PlanForecast]:
        """How a new job would end with its plan, on spot nodes alone, and on on-demand nodes alone.

        Requests wait for each other. Their policies are not those of the reconciler, whose tables another thread
        must not change while it reads them.
        """
        with self._previewing:
            policy = _kept(self._preview_policies, _policy_name(plan))
            return alternatives(job, market, policy, runs=FORECAST_RUNS)


def _policy_name(plan: PlanSpec) -> str:
    return plan.policy_name if plan.on_demand else "spot"


def _kept(policies: dict[str, PlacementPolicy], name: str) -> PlacementPolicy:
    if name not in policies:
        policies[name] = _POLICIES[name]()
    return policies[name]


def _forecast(policy: PlacementPolicy, inputs: PlanInputs, planned: Planned) -> PlanForecast:
    return forecast(
        inputs.outlook(planned),
        inputs.market,
        policy,
        runs=FORECAST_RUNS,
        seed=seed_of(inputs.job),
    )


def seed_of(job: Job) -> int:
    """The seed of a job's forecasts, so that they are repeatable."""
    return zlib.crc32(job.id.encode())
